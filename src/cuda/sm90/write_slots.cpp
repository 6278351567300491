#include "cuda/sm90/write_slots.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "attention/names.hpp"
#include "cache/rope.hpp"
#include "cuda/sm90/device.hpp"
#include "cuda/sm90/row_format.hpp"

namespace mpfa::sm90 {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

template <class... Args>
Status invalid(fmt::format_string<Args...> text, Args&&... args) {
  return refused(StatusCode::invalid_argument, "write_slots", text, std::forward<Args>(args)...);
}

bool is_input(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16;
}
std::int64_t size_of(DType t) {
  return static_cast<std::int64_t>(dtype_bytes(t));
}

Status check_kinds(const PagesKind& k, const PagesKind& v) {
  if (k.num_pages == v.num_pages && k.page_size == v.page_size && k.kv_heads == v.kv_heads) return {};
  return invalid("K has {} pages of {} tokens and {} heads, V {} of {} and {}; they must be equal", k.num_pages,
                 k.page_size, k.kv_heads, v.num_pages, v.page_size, v.kv_heads);
}

Status fill_operand(const char* name, const TensorView& x, DType dtype, std::int64_t n, const float* mean,
                    const MutablePages& pages, AppendOperand& o) {
  const PagesKind& kind = pages.kind;
  const std::int64_t d = kind.head_dim, heads = kind.kv_heads;
  const Result<RowFormat> row = row_format("write_slots", name, kind, mean, pages.bytes.global);
  if (!row.ok()) return row.status();
  o.row = row.value();
  if (x.shape != std::array<std::int64_t, 4>{1, n, heads, d} || x.dtype != dtype) {
    return invalid("{} is {} [{}, {}, {}, {}]; {} [1, {}, {}, {}] is needed", name, dtype_name(x.dtype), x.shape[0],
                   x.shape[1], x.shape[2], x.shape[3], dtype_name(dtype), n, heads, d);
  }
  if (x.stride[3] != 1) return invalid("{} has stride {} along the head dim; it must be 1", name, x.stride[3]);
  const OperandPages& b = pages.bytes;
  const std::int64_t scale = scale_size(kind.format);
  if (x.data == nullptr || pages.data == nullptr || (scale > 0 && pages.scales == nullptr)) {
    return invalid("{}, its pages or their scales are null", name);
  }
  const std::int64_t line = element_bits(kind.format.element) == 4 ? 8 : 16;  // bytes of codes that a thread writes
  if (!aligned(x.data, {x.stride[1] * size_of(dtype), x.stride[2] * size_of(dtype)}, 16) ||
      !aligned(pages.data, {b.data_page_stride, b.data_head_stride, b.data_row_stride}, line)) {
    return invalid("rows of {} must be aligned to 16 bytes, rows of its pages to {}", name, line);
  }
  if (scale > 1 && !aligned(pages.scales, {b.scale_page_stride, b.scale_head_stride, b.scale_row_stride}, scale)) {
    return invalid("scales of {} must be aligned to {} bytes", name, scale);
  }
  for (const std::int64_t stride : {b.data_page_stride, b.data_row_stride, b.scale_page_stride, b.scale_row_stride}) {
    if (stride >= 0 && stride <= kMaxInt) continue;
    return invalid("pages of {} have a stride of {} bytes; page and row strides must be in [0, {}]", name, stride,
                   kMaxInt);
  }
  o.x = x.data, o.x_row = x.stride[1], o.x_head = x.stride[2];
  o.data = reinterpret_cast<std::uint8_t*>(pages.data), o.scales = reinterpret_cast<std::uint8_t*>(pages.scales);
  o.data_head = b.data_head_stride, o.scale_head = b.scale_head_stride;
  o.data_page = static_cast<std::int32_t>(b.data_page_stride),
  o.data_row = static_cast<std::int32_t>(b.data_row_stride);
  o.scale_page = static_cast<std::int32_t>(b.scale_page_stride);
  o.scale_row = static_cast<std::int32_t>(b.scale_row_stride);
  if (n > kMaxInt / (heads * d)) return invalid("{} tokens are too many for one call; split it", n);
  return {};
}

Status fill_queries(const Rope& rope, std::int64_t n, std::int64_t d, AppendRope& r) {
  const TensorView& q = rope.q;
  const MutableTensorView& out = rope.q_out;
  MPFA_RETURN_IF_ERROR(check_queries("write_slots", rope, 1, n, q.shape[2], d));
  if (!is_input(q.dtype) || !is_input(out.dtype)) {
    return invalid("rope.q is {} and rope.q_out {}; f32, bf16 or f16 is needed", dtype_name(q.dtype),
                   dtype_name(out.dtype));
  }
  if (q.shape[2] < 1 || q.shape[1] > kMaxInt / (q.shape[2] * d)) {
    return invalid("rope.q has {} rows of {} heads; split the call", q.shape[1], q.shape[2]);
  }
  r.q = q.data, r.q_out = out.data, r.q_dtype = q.dtype, r.q_out_dtype = out.dtype;
  r.q_row = q.stride[1], r.q_head = q.stride[2], r.q_step = q.stride[3];
  r.q_out_row = out.stride[1], r.q_out_head = out.stride[2], r.q_out_step = out.stride[3];
  r.q_rows = static_cast<std::int32_t>(q.shape[1]), r.q_heads = static_cast<std::int32_t>(q.shape[2]);
  r.q_positions = rope.q_positions;
  const std::int64_t size = size_of(q.dtype), out_size = size_of(out.dtype);
  r.q_wide = r.table_vectors && r.begin % 8 == 0 && r.half % 8 == 0 && q.stride[3] == 1 && out.stride[3] == 1 &&
             aligned(q.data, {q.stride[1] * size, q.stride[2] * size}, 16) &&
             aligned(out.data, {out.stride[1] * out_size, out.stride[2] * out_size}, 16);
  return {};
}

Status fill_rope(const Rope& rope, std::int64_t n, std::int64_t d, AppendRope& r) {
  MPFA_RETURN_IF_ERROR(check_rope("write_slots", rope, d));
  if (rope.positions == nullptr) {
    return invalid("rope.positions is null; slots belong to no sequence, so give every token its position");
  }
  const TensorView &cos = rope.cos, &sin = rope.sin;
  r.cos = cos.data, r.sin = sin.data, r.dtype = cos.dtype, r.sin_dtype = sin.dtype;
  r.cos_row = cos.stride[0], r.cos_step = cos.stride[1], r.sin_row = sin.stride[0], r.sin_step = sin.stride[1];
  r.rows = cos.shape[0], r.begin = static_cast<std::int32_t>(rope.begin),
  r.half = static_cast<std::int32_t>(cos.shape[1]);
  r.style = rope.style, r.positions = rope.positions;
  r.table_vectors = cos.stride[1] == 1 && sin.stride[1] == 1 &&
                    aligned(cos.data, {cos.stride[0] * size_of(cos.dtype)}, 16) &&
                    aligned(sin.data, {sin.stride[0] * size_of(sin.dtype)}, 16);
  r.k_wide = r.table_vectors && r.begin % kChunk == 0 && r.half % kChunk == 0;
  return rope.q.data == nullptr ? Status() : fill_queries(rope, n, d, r);
}

}  // namespace

Status write_slots(const SlotWrite& w) {
  const PagesKind& kind = w.k_pages.kind;
  const bool latent = w.v.data == nullptr && w.v_pages.data == nullptr;
  if (!latent) MPFA_RETURN_IF_ERROR(check_kinds(kind, w.v_pages.kind));
  const std::int64_t n = w.k.shape[1];
  const DType dtype = w.k.dtype;
  if (!is_input(dtype)) return invalid("k is {}; it must be f32, bf16 or f16", dtype_name(dtype));
  if (n < 0 || n > kMaxInt / 2) return invalid("k has {} tokens; 0 to {} are possible", n, kMaxInt / 2);
  if (kind.num_pages * kind.page_size > kMaxInt) {  // both below 2^31
    return invalid("{} pages of {} tokens are more than {} slots; use several pools", kind.num_pages, kind.page_size,
                   kMaxInt);
  }
  const MutablePages &kp = w.k_pages, &vp = w.v_pages;
  MPFA_RETURN_IF_ERROR(check_device_memory("write_slots", {{"k", w.k.data},
                                                           {"v", w.v.data},
                                                           {"slot_mapping", w.slot_mapping},
                                                           {"k_mean", w.k_mean},
                                                           {"v_mean", w.v_mean},
                                                           {"counters", w.counters},
                                                           {"k_pages.data", kp.data},
                                                           {"k_pages.scales", kp.scales},
                                                           {"k_pages.global", kp.bytes.global},
                                                           {"v_pages.data", vp.data},
                                                           {"v_pages.scales", vp.scales},
                                                           {"v_pages.global", vp.bytes.global}}));
  if (const Rope* const r = w.rope; r != nullptr) {
    MPFA_RETURN_IF_ERROR(check_device_memory("write_slots", {{"rope.cos", r->cos.data},
                                                             {"rope.sin", r->sin.data},
                                                             {"rope.positions", r->positions},
                                                             {"rope.q", r->q.data},
                                                             {"rope.q_out", r->q_out.data},
                                                             {"rope.q_positions", r->q_positions}}));
  }
  MPFA_RETURN_IF_ERROR(check_stream("write_slots", w.stream));
  AppendParams p{};
  p.operands = latent ? 1 : 2;
  MPFA_RETURN_IF_ERROR(fill_operand("k", w.k, dtype, n, w.k_mean, w.k_pages, p.operand[0]));
  if (!latent) MPFA_RETURN_IF_ERROR(fill_operand("v", w.v, dtype, n, w.v_mean, w.v_pages, p.operand[1]));
  if (w.rope != nullptr) MPFA_RETURN_IF_ERROR(fill_rope(*w.rope, n, kind.head_dim, p.rope));
  if (const Result<int> device = current_device(); !device.ok()) return device.status();
  const bool queries = p.rope.q != nullptr && p.rope.q_rows > 0;
  if (n == 0 && !queries) return {};
  if (n > 0 && w.slot_mapping == nullptr) return invalid("slot_mapping is null; {} slots are needed", n);
  p.slots = w.slot_mapping;
  p.end_slot = static_cast<std::int32_t>(kind.num_pages * kind.page_size);
  p.page_div = make_divisor(static_cast<std::uint32_t>(kind.page_size));
  p.n = static_cast<std::int32_t>(n), p.heads = static_cast<std::int32_t>(kind.kv_heads);
  p.page_size = static_cast<std::int32_t>(kind.page_size);
  p.counters = w.counters;
  const AppendInput input = dtype == DType::f32    ? AppendInput::f32
                            : dtype == DType::bf16 ? AppendInput::bf16
                                                   : AppendInput::f16;
  return launch_status("write_slots", launch_append(input, w.rope != nullptr, p, static_cast<cudaStream_t>(w.stream)));
}

}  // namespace mpfa::sm90
