#include "extension/runner.hpp"

#include <algorithm>
#include <bit>

namespace mpfa::python {

namespace {

constexpr std::size_t kAlignment = 64;

}  // namespace

Array import_mask(nb::handle x, Place place) {
  Array mask = import_array(x, "mask", false, place);
  if (mask.ndim == 2) {  // [rows, keys], the same for every sequence and head
    mask.shape = {1, 1, mask.shape[0], mask.shape[1]};
    mask.stride = {0, 0, mask.stride[0], mask.stride[1]};
    mask.ndim = 4;
  }
  if (mask.ndim != 4 || !(mask.boolean || mask.dtype == DType::f32)) {
    fail(
        "mask is {} of shape {}; bool (False = masked) or float32 (added to the logits) of shape [rows, keys] or "
        "[batch or 1, q_heads or 1, rows, keys] is needed",
        mask.boolean ? "bool" : dtype_text(mask.dtype), shape_text(mask));
  }
  return mask;
}

void check_lse(const Array& lse, const Array& q, bool ragged, std::int64_t q_heads) {
  const bool fits = lse.dtype == DType::f32 && lse.ndim == (ragged ? 2 : 3) &&
                    (ragged ? lse.shape[0] == q_heads && lse.shape[1] == q.shape[1]
                            : lse.shape[0] == q.shape[0] && lse.shape[1] == q_heads && lse.shape[2] == q.shape[1]);
  if (!fits)
    fail("lse is {} of shape {}; float32 [batch, q_heads, rows] (ragged: [q_heads, rows]) is needed",
         dtype_text(lse.dtype), shape_text(lse));
  std::int64_t expected = 1;
  for (int i = lse.ndim - 1; i >= 0; --i) {
    if (lse.shape[i] > 1 && lse.stride[i] != expected) fail("lse is not contiguous; pass a contiguous array");
    expected *= lse.shape[i];
  }
}

CallOptions::CallOptions(const nb::tuple& o)
    : softmax_scale(nb::cast<float>(o[0])),
      softcap(nb::cast<float>(o[1])),
      causal(nb::cast<bool>(o[2])),
      window_left(nb::cast<std::int64_t>(o[3])),
      window_right(nb::cast<std::int64_t>(o[4])),
      sinks(o[5]),
      mask(o[6]),
      alibi_slopes(o[7]),
      cu_seqlens_q(o[8]),
      threads(nb::cast<int>(o[9])) {}

void import_call(nb::handle q, nb::handle out, nb::handle lse, const CallOptions& options, std::int64_t q_heads,
                 Call& call) {
  call.cu_seqlens_q = import_integers(options.cu_seqlens_q, "cu_seqlens_q");
  const bool ragged = call.cu_seqlens_q.has_value();
  call.q = import_rows(q, "q", ragged);
  call.out = import_rows(out, "out", ragged, true);
  if (!is_float16_or_32(call.q.dtype)) {
    fail("q is {}; float32, bfloat16 or float16 is needed", dtype_text(call.q.dtype));
  }
  PlanKey& key = call.key;
  AttentionTensors& tensors = call.tensors;
  tensors.q = call.q.view();
  tensors.out = call.out.mutable_view();
  key.batch = call.q.shape[0];
  key.max_q = call.q.shape[1];
  if (ragged) {
    const std::vector<std::int64_t>& cu = *call.cu_seqlens_q;
    if (cu.size() < 2) fail("cu_seqlens_q has {} entries; batch + 1 (at least 2) are needed", cu.size());
    tensors.cu_seqlens_q = cu.data();
    key.batch = static_cast<std::int64_t>(cu.size()) - 1;
    key.max_q = 0;
    key.total_q = call.q.shape[1];
    for (std::int64_t b = 0; b < key.batch; ++b) {
      if (cu[b + 1] < 0 || cu[b + 1] > call.q.shape[1]) {
        fail("cu_seqlens_q[{}] is {}; offsets into the {} rows of q are needed", b + 1, cu[b + 1], call.q.shape[1]);
      }
      key.max_q = std::max(key.max_q, cu[b + 1] - cu[b]);
    }
  }
  if (!lse.is_none()) {
    call.lse = import_array(lse, "lse", true);
    check_lse(*call.lse, call.q, ragged, q_heads);
    tensors.lse = static_cast<float*>(call.lse->data);
  }
  if (!options.sinks.is_none()) {
    call.sinks = import_floats(options.sinks, "sinks", {q_heads});
    tensors.sinks = call.sinks.data();
    key.sinks = true;
  }
  if (!options.alibi_slopes.is_none()) {
    call.alibi_slopes = import_floats(options.alibi_slopes, "alibi_slopes", {q_heads});
    tensors.alibi_slopes = call.alibi_slopes.data();
    key.alibi = true;
  }
  if (!options.mask.is_none()) {
    call.mask = import_mask(options.mask);
    tensors.mask = call.mask->view();
    key.mask = call.mask->boolean ? MaskTensor::boolean : MaskTensor::additive;
  }
  key.q_dtype = call.q.dtype;
  key.out_dtype = call.out.dtype;
  key.softmax_scale = options.softmax_scale;
  key.softcap = options.softcap;
  key.causal = options.causal;
  key.window_left = options.window_left;
  key.window_right = options.window_right;
  key.threads = options.threads;
}

Status Runner::plan_for(const PlanKey& key) {
  if (plan_ && key == key_) return {};
  AttentionProblem p = problem_;
  p.batch = key.batch;
  p.max_q = key.max_q;
  p.total_q = key.total_q;
  p.max_kv = key.max_kv;
  p.q_dtype = key.q_dtype;
  p.out_dtype = key.out_dtype;
  p.softmax_scale = key.softmax_scale;
  p.causal = key.causal;
  p.window_left = key.window_left;
  p.window_right = key.window_right;
  p.softcap = key.softcap;
  p.sinks = key.sinks;
  p.alibi = key.alibi;
  p.mask = key.mask;
  p.threads = key.threads;
  auto made = plan(p, Device::cpu);
  if (!made.ok()) return made.status();
  plan_ = std::move(made).value();
  key_ = key;
  return {};
}

Status Runner::prepare(const PlanKey& key, const AttentionTensors& tensors) {
  MPFA_RETURN_IF_ERROR(plan_for(key));
  return check_tensors(plan_->problem, tensors);
}

Status Runner::run(const PlanKey& key, const AttentionTensors& tensors) {
  MPFA_RETURN_IF_ERROR(plan_for(key));
  if (plan_->workspace_bytes > workspace_bytes_) {
    const std::size_t bytes = (plan_->workspace_bytes + kAlignment - 1) / kAlignment * kAlignment;
    workspace_bytes_ = 0;
    workspace_.reset();
    workspace_.reset(std::aligned_alloc(kAlignment, bytes));
    if (!workspace_) {
      return {StatusCode::out_of_memory,
              fmt::format("attend: a workspace of {} bytes does not fit in memory; use fewer rows per call", bytes)};
    }
    workspace_bytes_ = bytes;
  }
  return attend(*plan_, tensors, {workspace_.get(), workspace_bytes_});
}

std::int64_t round_up_capacity(std::int64_t n) {
  constexpr std::int64_t kLeast = 1024;
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(n, kLeast))));
}

}  // namespace mpfa::python
