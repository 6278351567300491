#include "cuda/sm90/write_slots.hpp"

#include <fmt/format.h>

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

Status check_writable(const Recipe& r) {
  if (!is_fp4(r.k) || !is_fp4(r.v) || r.k.scale != r.v.scale) {
    return {
        StatusCode::unsupported,
        fmt::format("write_slots: K is {} and V is {}; on the GPU both must be mxfp4 or both nvfp4 (any scale rule), "
                    "others are written by PagedCache",
                    format_name(r.k), format_name(r.v))};
  }
  if (keeps_wide_tokens(r) || r.rank_one != RankOne::off || r.rotate != Rotate::none || r.v_residual) {
    return {
        StatusCode::unsupported,
        fmt::format("write_slots: recipe {} has 16-bit tokens, rank-one terms, a rotation or an affine residual; use "
                    "sink=0,recent=0,phase_switch=off,rank_one=off,rotate=none,v_residual=off",
                    recipe_text(r))};
  }
  return {};
}

bool aligned(const void* p, std::int64_t steps, std::int64_t bytes) {
  return (reinterpret_cast<std::uintptr_t>(p) | static_cast<std::uintptr_t>(steps)) %
             static_cast<std::uintptr_t>(bytes) ==
         0;
}

Status fill_operand(const char* name, const SlotWrite& w, const TensorView& x, const BlockFormat& f, const float* mean,
                    const MutableOperandPages& pages, AppendOperand& o) {
  const std::int64_t d = x.shape[3], n = w.k.shape[1], heads = w.k.shape[2];
  if (x.shape[0] != 1 || x.shape[1] != n || x.shape[2] != heads || x.dtype != w.k.dtype) {
    return invalid("{} is {} [{}, {}, {}, {}]; k is {} [1, {}, {}, {}], and both need the same tokens, heads and dtype",
                   name, dtype_name(x.dtype), x.shape[0], x.shape[1], x.shape[2], d, dtype_name(w.k.dtype), n, heads,
                   w.k.shape[3]);
  }
  if (d < 32 || d % 32 != 0) return invalid("{} has head dim {}; the GPU takes multiples of 32", name, d);
  if (x.stride[3] != 1) return invalid("{} has stride {} along the head dim; it must be 1", name, x.stride[3]);
  const auto size = static_cast<std::int64_t>(dtype_bytes(x.dtype));
  const std::int64_t line = f.block_channels / 2;  // bytes of codes that a thread writes
  if (x.data == nullptr || pages.data == nullptr || pages.scales == nullptr) {
    return invalid("{}, its pages or their scales are null", name);
  }
  if (!aligned(x.data, (x.stride[1] | x.stride[2]) * size, 16) || !aligned(mean, 0, 16) ||
      !aligned(pages.data, pages.data_page_stride | pages.data_head_stride | pages.data_row_stride, line)) {
    return invalid("rows of {} and its mean must be aligned to 16 bytes, rows of its pages to {}", name, line);
  }
  if (pages.data_row_stride < d / 2 || pages.scale_row_stride < d / f.block_channels) {
    return invalid("pages of {} have rows of {} and {} bytes; {} and {} are needed", name, pages.data_row_stride,
                   pages.scale_row_stride, d / 2, d / f.block_channels);
  }
  o.x = x.data, o.mean = mean;
  o.x_row = x.stride[1], o.x_head = x.stride[2];
  o.data = reinterpret_cast<std::uint8_t*>(pages.data), o.scales = reinterpret_cast<std::uint8_t*>(pages.scales);
  o.global = pages.global;
  o.data_page = pages.data_page_stride, o.data_head = pages.data_head_stride, o.data_row = pages.data_row_stride;
  o.scale_page = pages.scale_page_stride, o.scale_head = pages.scale_head_stride, o.scale_row = pages.scale_row_stride;
  o.blocks = static_cast<std::int32_t>(d / f.block_channels);
  o.rule = f.rule;
  if (n * heads * o.blocks > kMaxInt) return invalid("{} tokens are too many for one call; split it", n);
  return {};
}

}  // namespace

Status write_slots(const SlotWrite& w) {
  MPFA_RETURN_IF_ERROR(check_writable(w.recipe));
  if (const Result<int> device = current_device(); !device.ok()) return device.status();
  const std::int64_t n = w.k.shape[1];
  if (n < 0 || w.k.shape[2] < 1 || w.page_size < 1 || w.page_size > kMaxInt || w.num_pages < 0) {
    return invalid("k has {} tokens of {} heads, {} pages of {} tokens; sizes must be positive", n, w.k.shape[2],
                   w.num_pages, w.page_size);
  }
  if (n == 0) return {};
  if (w.slot_mapping == nullptr) return invalid("slot_mapping is null; {} slots are needed", n);
  AppendParams p{};
  MPFA_RETURN_IF_ERROR(fill_operand("k", w, w.k, w.recipe.k, w.k_mean, w.k_pages, p.operand[0]));
  MPFA_RETURN_IF_ERROR(fill_operand("v", w, w.v, w.recipe.v, w.v_mean, w.v_pages, p.operand[1]));
  p.slots = w.slot_mapping;
  if (__builtin_mul_overflow(w.num_pages, w.page_size, &p.end_slot)) return invalid("num_pages x page_size overflows");
  p.page_div = make_divisor(static_cast<std::uint32_t>(w.page_size));
  p.n = static_cast<std::int32_t>(n), p.heads = static_cast<std::int32_t>(w.k.shape[2]);
  p.page_size = static_cast<std::int32_t>(w.page_size);
  p.counters = w.counters;
  const DType dtype = w.k.dtype;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    return invalid("k is {}; it must be f32, bf16 or f16", dtype_name(dtype));
  }
  const AppendInput input = dtype == DType::f32    ? AppendInput::f32
                            : dtype == DType::bf16 ? AppendInput::bf16
                                                   : AppendInput::f16;
  const cudaError_t e = launch_append(input, w.recipe.k.scale, p, static_cast<cudaStream_t>(w.stream));
  if (e == cudaSuccess) return {};
  return {StatusCode::internal, fmt::format("write_slots: CUDA refused the launch: {}", cudaGetErrorString(e))};
}

}  // namespace mpfa::sm90
