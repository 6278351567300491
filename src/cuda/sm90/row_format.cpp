#include "cuda/sm90/row_format.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "attention/names.hpp"

namespace mpfa::sm90 {
namespace {

std::optional<AppendFormat> kernel_format(const BlockFormat& f) {
  using E = Element;
  using S = ScaleType;
  if (f.axis != PackAxis::head_dim || f.block_keys != 1) return std::nullopt;
  const auto is = [&f](E e, S s) { return f.element == e && f.scale == s; };
  if (is(E::bf16, S::none)) return AppendFormat::bf16;
  if (is(E::f16, S::none)) return AppendFormat::f16;
  if (is(E::e4m3, S::f32)) return AppendFormat::e4m3;
  if (is(E::e4m3, S::none)) return AppendFormat::e4m3_static;
  if (is(E::int8, S::f32)) return AppendFormat::int8;
  if (is(E::int8, S::f16)) return AppendFormat::int8_group;
  if (is(E::int4, S::f32)) return AppendFormat::int4;
  if (is(E::int4, S::f16)) return AppendFormat::int4_group;
  if (is(E::e2m1, S::e8m0)) return AppendFormat::e2m1_e8m0;
  if (is(E::e2m1, S::f32)) return AppendFormat::e2m1_f32;
  if (is(E::e3m0, S::f32)) return AppendFormat::e3m0_f32;
  if (!is(E::e2m1, S::e4m3)) return std::nullopt;
  return f.rule == ScaleRule::four_over_six ? AppendFormat::e2m1_e4m3_four_over_six : AppendFormat::e2m1_e4m3;
}

}  // namespace

std::int64_t scale_size(const BlockFormat& f) {
  switch (f.scale) {
    case ScaleType::none: return 0;
    case ScaleType::e8m0:
    case ScaleType::e4m3: return 1;
    case ScaleType::f16: return 2;
    default: return 4;
  }
}

bool aligned(const void* p, std::initializer_list<std::int64_t> steps, std::int64_t bytes) {
  auto all = reinterpret_cast<std::uintptr_t>(p);
  for (const std::int64_t step : steps) all |= static_cast<std::uintptr_t>(step);
  return all % static_cast<std::uintptr_t>(bytes) == 0;
}

Result<RowFormat> row_format(const char* call, const char* name, const PagesKind& kind, const float* mean,
                             const float* global) {
  const BlockFormat& f = kind.format;
  const std::int64_t d = kind.head_dim;
  if (kind.layout != PagesLayout::linear) {
    return refused(StatusCode::unsupported, call, "pages of {} are {}; the GPU writes linear ones", name,
                   pages_layout_name(kind.layout));
  }
  const std::optional<AppendFormat> found = kernel_format(f);
  if (!found) {
    return refused(
        StatusCode::unsupported, call,
        "{} is {}; the GPU writes bf16, fp16, fp8_e4m3, fp8_e4m3_static, int8, int4, int8_g*, int4_g*, mxfp4, "
        "nvfp4 and e3m0 along the head dim (others share a scale between tokens or are rare); use one of "
        "them or PagedCache on the host",
        name, format_name(f));
  }
  if (d % kChunk != 0) {
    return refused(StatusCode::unsupported, call, "{} has head dim {}; the GPU takes multiples of {}; pad to {}", name,
                   d, kChunk, (d + kChunk - 1) / kChunk * kChunk);
  }
  const bool whole = f.scale == ScaleType::none || f.block_channels == 0;
  if (whole && d > kWarpChannels) {
    return refused(StatusCode::unsupported, call,
                   "{} is {} with head dim {}; where a row has one scale or none the GPU takes up to {} channels; use "
                   "a format with blocks, like mxfp4, nvfp4 or int8_g64",
                   name, format_name(f), d, kWarpChannels);
  }
  if (f.rule == ScaleRule::fixed && global == nullptr) {
    return refused(StatusCode::invalid_argument, call,
                   "{} is {}, which stores no scale; its pages need global [{}], calibrated by you", name,
                   format_name(f), kind.kv_heads);
  }
  if (!aligned(mean, {}, 16)) {
    return refused(StatusCode::invalid_argument, call, "the mean of {} must be aligned to 16 bytes", name);
  }
  RowFormat row{};
  row.format = *found;
  row.rule = f.rule;
  row.d = static_cast<std::int32_t>(d);
  row.parts = static_cast<std::int32_t>((d + kWarpChannels - 1) / kWarpChannels);
  const auto chunks = static_cast<std::uint32_t>(std::min<std::int64_t>(d, kWarpChannels) / kChunk);
  const auto block = static_cast<std::uint32_t>(whole ? kChunk : f.block_channels) / kChunk;
  row.lanes = static_cast<std::int32_t>(std::max(std::bit_ceil(chunks), block));
  row.lanes_shift = std::countr_zero(static_cast<std::uint32_t>(row.lanes));
  row.group = whole ? row.lanes : static_cast<std::int32_t>(block);
  row.group_shift = std::countr_zero(static_cast<std::uint32_t>(row.group));
  row.mean = mean;
  row.global = global;
  return row;
}

}  // namespace mpfa::sm90
