// C structs to the C++ ones, and statuses back.
#include <algorithm>
#include <type_traits>

#include "capi/handles.hpp"

namespace mpfa::capi {

namespace {

const std::byte* as_bytes(const void* p) {
  return static_cast<const std::byte*>(p);
}

OperandPages to_pages(const mpfa_operand_pages& p) {
  OperandPages pages;
  pages.data = as_bytes(p.data);
  pages.data_page_stride = p.data_page_stride;
  pages.data_head_stride = p.data_head_stride;
  pages.data_row_stride = p.data_row_stride;
  pages.scales = as_bytes(p.scales);
  pages.scale_page_stride = p.scale_page_stride;
  pages.scale_head_stride = p.scale_head_stride;
  pages.scale_row_stride = p.scale_row_stride;
  pages.global = p.global;
  return pages;
}

SequenceView to_sequence(const mpfa_sequence_view& s) {
  SequenceView view;
  view.k_mean = s.k_mean;
  view.q_mean = s.q_mean;
  view.v_mean = s.v_mean;
  view.v_alpha = s.v_alpha;
  view.v_beta = s.v_beta;
  view.sink = s.sink;
  view.sink_k = s.sink_k;
  view.sink_v = s.sink_v;
  view.wide_begin = s.wide_begin;
  view.wide_k = s.wide_k;
  view.wide_v = s.wide_v;
  view.packed_end = s.packed_end;
  return view;
}

// The array of the C view is read on the device as it is.
static_assert(sizeof(mpfa_sequence_view) == sizeof(SequenceView));
static_assert(offsetof(mpfa_sequence_view, k_mean) == offsetof(SequenceView, k_mean));
static_assert(offsetof(mpfa_sequence_view, v_beta) == offsetof(SequenceView, v_beta));
static_assert(offsetof(mpfa_sequence_view, sink_v) == offsetof(SequenceView, sink_v));
static_assert(offsetof(mpfa_sequence_view, packed_end) == offsetof(SequenceView, packed_end));

}  // namespace

const SequenceView* device_sequences(const mpfa_sequence_view* sequences) {
  return reinterpret_cast<const SequenceView*>(sequences);
}

mpfa_status report(const Status& status, mpfa_error* error) {
  const auto code = static_cast<mpfa_status>(status.code());
  constexpr std::size_t kMessage = offsetof(mpfa_error, message);
  if (error == nullptr || error->struct_size <= kMessage) return code;
  error->status = code;
  const std::size_t room = std::min(error->struct_size - kMessage, sizeof(error->message)) - 1;
  const std::size_t n = std::min(room, status.message().size());
  std::memcpy(error->message, status.message().data(), n);
  error->message[n] = '\0';
  return code;
}

Result<Device> to_device(const char* call, mpfa_device device) {
  switch (device) {
    case MPFA_CPU: return Device::cpu;
    case MPFA_SM90: return Device::sm90;
    case MPFA_SM100: return Device::sm100;
    case MPFA_SM120: return Device::sm120;
  }
  return invalid(fmt::format("{}: device is {}; use MPFA_CPU, MPFA_SM90, MPFA_SM100 or MPFA_SM120", call, device));
}

Result<Executor> to_executor(const char* call, const mpfa_executor* e) {
  static_assert(std::is_same_v<int, std::int32_t>, "the C function pointer is passed on as it is");
  if (e == nullptr) return Executor{};
  MPFA_RETURN_IF_ERROR(check_struct(call, "executor", e));
  if (e->parallel_for == nullptr) {
    return invalid(fmt::format("{}: executor->parallel_for is NULL; set it, or pass no executor", call));
  }
  return Executor{e->parallel_for, e->context};
}

Status check_dtype(const char* call, const char* name, mpfa_dtype dtype) {
  if (dtype >= MPFA_F32 && dtype <= MPFA_I64) return {};
  return invalid(fmt::format("{}: dtype of {} is {}; use a value of mpfa_dtype", call, name, dtype));
}

Result<TensorView> to_view(const char* call, const char* name, const mpfa_tensor& t) {
  if (Status s = check_dtype(call, name, t.dtype); !s.ok()) return s;
  TensorView view;
  view.data = t.data;
  view.dtype = static_cast<DType>(t.dtype);
  for (int i = 0; i < 4; ++i) {
    view.shape[i] = t.shape[i];
    view.stride[i] = t.stride[i];
  }
  return view;
}

Result<std::pair<TensorView, std::optional<TensorView>>> to_views(const char* call, const mpfa_tensor* k,
                                                                  const mpfa_tensor* v) {
  if (Status s = not_null(call, "k", k); !s.ok()) return s;
  const auto k_view = to_view(call, "k", *k);
  if (!k_view.ok()) return k_view.status();
  if (v == nullptr) return std::pair(k_view.value(), std::optional<TensorView>());
  const auto v_view = to_view(call, "v", *v);
  if (!v_view.ok()) return v_view.status();
  return std::pair(k_view.value(), std::optional(v_view.value()));
}

Result<AttentionProblem> to_problem(const char* call, const mpfa_problem* p) {
  if (Status s = check_struct(call, "problem", p); !s.ok()) return s;
  if (Status s = not_null(call, "problem->recipe", p->recipe); !s.ok()) return s;
  if (Status s = check_dtype(call, "problem->q_dtype", p->q_dtype); !s.ok()) return s;
  if (Status s = check_dtype(call, "problem->out_dtype", p->out_dtype); !s.ok()) return s;
  if (p->mask < MPFA_MASK_NONE || p->mask > MPFA_MASK_ADDITIVE) {
    return invalid(fmt::format("{}: problem->mask is {}; use a value of mpfa_mask_kind", call, p->mask));
  }
  AttentionProblem problem;
  problem.recipe = p->recipe->recipe;
  problem.batch = p->batch;
  problem.max_q = p->max_q;
  problem.total_q = p->total_q;
  problem.max_kv = p->max_kv;
  problem.q_heads = p->q_heads;
  problem.kv_heads = p->kv_heads;
  problem.head_dim = p->head_dim;
  problem.head_dim_v = p->head_dim_v;
  problem.page_size = p->page_size;
  problem.q_dtype = static_cast<DType>(p->q_dtype);
  problem.out_dtype = static_cast<DType>(p->out_dtype);
  problem.softmax_scale = p->softmax_scale;
  problem.softcap = p->softcap;
  problem.window_left = p->window_left;
  problem.window_right = p->window_right;
  problem.causal = p->causal != 0;
  problem.sinks = p->has_sinks != 0;
  problem.alibi = p->has_alibi != 0;
  problem.mask = static_cast<MaskTensor>(p->mask);
  problem.threads = p->threads;
  problem.batch_invariant = p->batch_invariant != 0;
  return problem;
}

Result<CacheView> to_cache_view(const char* call, const mpfa_cache_view& v, std::int64_t batch,
                                std::vector<SequenceView>& sequences) {
  if (Status s = check_struct(call, "view", &v); !s.ok()) return s;
  if (Status s = not_null(call, "view->k_format", v.k_format); !s.ok()) return s;
  if (Status s = not_null(call, "view->v_format", v.v_format); !s.ok()) return s;
  auto k_format = parse_format(v.k_format);
  if (!k_format.ok()) return k_format.status();
  auto v_format = parse_format(v.v_format);
  if (!v_format.ok()) return v_format.status();
  CacheView view;
  view.k_format = k_format.value();
  view.v_format = v_format.value();
  view.num_pages = v.num_pages;
  view.page_size = v.page_size;
  view.kv_heads = v.kv_heads;
  view.head_dim = v.head_dim;
  view.head_dim_v = v.head_dim_v;
  view.k = to_pages(v.k);
  view.v = to_pages(v.v);
  view.rank_one = v.rank_one;
  view.rank_one_wide = v.rank_one_wide != 0;
  view.group = v.group;
  view.rank_one_page_stride = v.rank_one_page_stride;
  view.rank_one_head_stride = v.rank_one_head_stride;
  view.page_table = v.page_table;
  view.page_table_stride = v.page_table_stride;
  view.lengths = v.lengths;
  view.v_page_means = v.v_page_means;
  view.v_page_mean_page_stride = v.v_page_mean_page_stride;
  view.v_page_mean_head_stride = v.v_page_mean_head_stride;
  view.shared_kv = v.shared_kv != 0;
  if (v.sequences != nullptr && batch > 0) {
    for (std::int64_t i = 0; i < batch; ++i) sequences.push_back(to_sequence(v.sequences[i]));
    view.sequences = sequences.data();
  }
  return view;
}

}  // namespace mpfa::capi
