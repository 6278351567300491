#include "cuda/sm90/write_slots.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "attention/names.hpp"
#include "cuda/sm90/append/fp4/launch.h"
#include "cuda/sm90/device.hpp"

namespace mpfa::sm90 {
namespace {

constexpr std::int64_t kMaxInt = std::numeric_limits<std::int32_t>::max();

template <class... Args>
Status invalid(fmt::format_string<Args...> text, Args&&... args) {
  return {StatusCode::invalid_argument, "write_slots: " + fmt::format(text, std::forward<Args>(args)...)};
}

Status check_kinds(const PagesKind& k, const PagesKind& v) {
  if (k.layout != PagesLayout::linear || v.layout != PagesLayout::linear) {
    return {StatusCode::unsupported,
            fmt::format("write_slots: pages of K are {} and of V {}; the GPU writes linear ones",
                        pages_layout_name(k.layout), pages_layout_name(v.layout))};
  }
  if (!is_fp4(k.format) || !is_fp4(v.format) || k.format.scale != v.format.scale) {
    return {
        StatusCode::unsupported,
        fmt::format("write_slots: K is {} and V is {}; on the GPU both must be mxfp4 or both nvfp4 (any scale rule), "
                    "others are written by PagedCache",
                    format_name(k.format), format_name(v.format))};
  }
  if (k.num_pages != v.num_pages || k.page_size != v.page_size || k.kv_heads != v.kv_heads) {
    return invalid("K has {} pages of {} tokens and {} heads, V {} of {} and {}; they must be equal", k.num_pages,
                   k.page_size, k.kv_heads, v.num_pages, v.page_size, v.kv_heads);
  }
  return {};
}

bool aligned(const void* p, std::int64_t steps, std::int64_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(p) | static_cast<std::uintptr_t>(steps)) %
             static_cast<std::uintptr_t>(bytes) ==
         0;
}

Status fill_operand(const char* name, const TensorView& x, DType dtype, std::int64_t n, const float* mean,
                    const MutablePages& pages, AppendOperand& o) {
  const PagesKind& kind = pages.kind;
  const std::int64_t d = kind.head_dim, heads = kind.kv_heads;
  if (x.shape != std::array<std::int64_t, 4>{1, n, heads, d} || x.dtype != dtype) {
    return invalid("{} is {} [{}, {}, {}, {}]; {} [1, {}, {}, {}] is needed", name, dtype_name(x.dtype), x.shape[0],
                   x.shape[1], x.shape[2], x.shape[3], dtype_name(dtype), n, heads, d);
  }
  if (d % 32 != 0) return invalid("{} has head dim {}; the GPU takes multiples of 32", name, d);
  if (x.stride[3] != 1) return invalid("{} has stride {} along the head dim; it must be 1", name, x.stride[3]);
  const auto size = static_cast<std::int64_t>(dtype_bytes(x.dtype));
  const BlockFormat& f = kind.format;
  const std::int64_t line = f.block_channels / 2;  // bytes of codes that a thread writes
  const OperandPages& b = pages.bytes;
  if (x.data == nullptr || pages.data == nullptr || pages.scales == nullptr) {
    return invalid("{}, its pages or their scales are null", name);
  }
  if (!aligned(x.data, (x.stride[1] | x.stride[2]) * size, 16) || !aligned(mean, 0, 16) ||
      !aligned(pages.data, b.data_page_stride | b.data_head_stride | b.data_row_stride, line)) {
    return invalid("rows of {} and its mean must be aligned to 16 bytes, rows of its pages to {}", name, line);
  }
  o.x = x.data, o.mean = mean;
  o.x_row = x.stride[1], o.x_head = x.stride[2];
  o.data = reinterpret_cast<std::uint8_t*>(pages.data), o.scales = reinterpret_cast<std::uint8_t*>(pages.scales);
  o.global = b.global;
  o.data_page = b.data_page_stride, o.data_head = b.data_head_stride, o.data_row = b.data_row_stride;
  o.scale_page = b.scale_page_stride, o.scale_head = b.scale_head_stride, o.scale_row = b.scale_row_stride;
  o.blocks = static_cast<std::int32_t>(d / f.block_channels);
  o.rule = f.rule;
  if (n * heads * o.blocks > kMaxInt) return invalid("{} tokens are too many for one call; split it", n);
  return {};
}

}  // namespace

Status write_slots(const SlotWrite& w) {
  const PagesKind& kind = w.k_pages.kind;
  MPFA_RETURN_IF_ERROR(check_kinds(kind, w.v_pages.kind));
  if (const Result<int> device = current_device(); !device.ok()) return device.status();
  const std::int64_t n = w.k.shape[1];
  const DType dtype = w.k.dtype;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    return invalid("k is {}; it must be f32, bf16 or f16", dtype_name(dtype));
  }
  if (n < 0 || n > kMaxInt) return invalid("k has {} tokens; 0 to {} are possible", n, kMaxInt);
  if (n == 0) return {};
  if (w.slot_mapping == nullptr) return invalid("slot_mapping is null; {} slots are needed", n);
  AppendParams p{};
  MPFA_RETURN_IF_ERROR(fill_operand("k", w.k, dtype, n, w.k_mean, w.k_pages, p.operand[0]));
  MPFA_RETURN_IF_ERROR(fill_operand("v", w.v, dtype, n, w.v_mean, w.v_pages, p.operand[1]));
  p.slots = w.slot_mapping;
  p.end_slot = kind.num_pages * kind.page_size;  // both below 2^31
  p.page_div = make_divisor(static_cast<std::uint32_t>(kind.page_size));
  p.n = static_cast<std::int32_t>(n), p.heads = static_cast<std::int32_t>(kind.kv_heads);
  p.page_size = static_cast<std::int32_t>(kind.page_size);
  p.counters = w.counters;
  const AppendInput input = dtype == DType::f32    ? AppendInput::f32
                            : dtype == DType::bf16 ? AppendInput::bf16
                                                   : AppendInput::f16;
  const cudaError_t e = launch_append(input, kind.format.scale, p, static_cast<cudaStream_t>(w.stream));
  if (e == cudaSuccess) return {};
  return {StatusCode::internal, fmt::format("write_slots: CUDA refused the launch: {}", cudaGetErrorString(e))};
}

}  // namespace mpfa::sm90
