// The named formats: table, parser, description, limits and page geometry.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/dispatch.hpp"

namespace mpfa {
namespace {

struct Entry {
  std::string_view name;
  BlockFormat format;
};

using E = Element;
using S = ScaleType;
using R = ScaleRule;
constexpr PackAxis kHead = PackAxis::head_dim, kKeys = PackAxis::keys;

constexpr std::array kTable{
    Entry{"f32", {E::f32, S::none, R::none, kHead, 1, 1}},
    Entry{"bf16", {E::bf16, S::none, R::none, kHead, 1, 1}},
    Entry{"fp16", {E::f16, S::none, R::none, kHead, 1, 1}},
    Entry{"fp8_e4m3", {E::e4m3, S::f32, R::amax, kHead, 0, 1}},
    Entry{"fp8_e5m2", {E::e5m2, S::f32, R::amax, kHead, 0, 1}},
    Entry{"fp8_e4m3_static", {E::e4m3, S::none, R::fixed, kHead, 1, 1}},
    Entry{"fp8_e5m2_static", {E::e5m2, S::none, R::fixed, kHead, 1, 1}},
    Entry{"mxfp8_e4m3", {E::e4m3, S::e8m0, R::floor, kHead, 32, 1}},
    Entry{"mxfp8_e4m3_ceil", {E::e4m3, S::e8m0, R::ceil, kHead, 32, 1}},
    Entry{"mxfp8_e5m2", {E::e5m2, S::e8m0, R::floor, kHead, 32, 1}},
    Entry{"mxfp8_e5m2_ceil", {E::e5m2, S::e8m0, R::ceil, kHead, 32, 1}},
    Entry{"nvfp4", {E::e2m1, S::e4m3, R::amax, kHead, 16, 1}},
    Entry{"nvfp4_4over6", {E::e2m1, S::e4m3, R::four_over_six, kHead, 16, 1}},
    Entry{"mxfp4", {E::e2m1, S::e8m0, R::least_error, kHead, 32, 1}},
    Entry{"mxfp4_ocp", {E::e2m1, S::e8m0, R::floor, kHead, 32, 1}},
    Entry{"mxfp4_ceil", {E::e2m1, S::e8m0, R::ceil, kHead, 32, 1}},
    Entry{"mxfp4_f32", {E::e2m1, S::f32, R::amax, kHead, 32, 1}},
    Entry{"mxfp4_f32_b16", {E::e2m1, S::f32, R::amax, kHead, 16, 1}},
    Entry{"mxfp4_f32_b64", {E::e2m1, S::f32, R::amax, kHead, 64, 1}},
    Entry{"e3m0_f32", {E::e3m0, S::f32, R::amax, kHead, 32, 1}},
    Entry{"e3m0_f32_b16", {E::e3m0, S::f32, R::amax, kHead, 16, 1}},
    Entry{"e3m0_f32_b64", {E::e3m0, S::f32, R::amax, kHead, 64, 1}},
    Entry{"int8", {E::int8, S::f32, R::amax, kHead, 0, 1}},
    Entry{"int8_g32", {E::int8, S::f16, R::amax, kHead, 32, 1}},
    Entry{"int8_g64", {E::int8, S::f16, R::amax, kHead, 64, 1}},
    Entry{"int8_g128", {E::int8, S::f16, R::amax, kHead, 128, 1}},
    Entry{"int8_tile16", {E::int8, S::f16, R::amax, kHead, 16, 16}},
    Entry{"int8_tile64", {E::int8, S::f32, R::amax, kHead, 0, 64}},
    Entry{"int4", {E::int4, S::f32, R::amax, kHead, 0, 1}},
    Entry{"int4_g32", {E::int4, S::f16, R::amax, kHead, 32, 1}},
    Entry{"int4_g64", {E::int4, S::f16, R::amax, kHead, 64, 1}},
    Entry{"int4_g128", {E::int4, S::f16, R::amax, kHead, 128, 1}},
    Entry{"int4_tile16", {E::int4, S::f16, R::amax, kHead, 16, 16}},
    Entry{"int4_tile64", {E::int4, S::f32, R::amax, kHead, 0, 64}},
    Entry{"int4_asym", {E::uint4, S::f16_zero, R::min_max, kHead, 0, 1}},
    Entry{"lloyd4", {E::lloyd4, S::f16, R::norm, kHead, 0, 1}},
    Entry{"nvfp4@keys", {E::e2m1, S::e4m3, R::amax, kKeys, 1, 16}},
    Entry{"nvfp4_4over6@keys", {E::e2m1, S::e4m3, R::four_over_six, kKeys, 1, 16}},
    Entry{"mxfp4@keys", {E::e2m1, S::e8m0, R::least_error, kKeys, 1, 32}},
    Entry{"mxfp4_ocp@keys", {E::e2m1, S::e8m0, R::floor, kKeys, 1, 32}},
    Entry{"fp8_e4m3@keys", {E::e4m3, S::f32, R::amax, kKeys, 1, 64}},
    Entry{"int8@keys", {E::int8, S::f32, R::amax, kKeys, 1, 64}},
};

const Entry* find_entry(const BlockFormat& f) {
  const auto it = std::find_if(kTable.begin(), kTable.end(), [&f](const Entry& e) { return e.format == f; });
  return it == kTable.end() ? nullptr : &*it;
}

std::string_view element_text(Element e) {
  switch (e) {
    case E::f32: return "float32";
    case E::bf16: return "bfloat16";
    case E::f16: return "float16";
    case E::e4m3: return "e4m3 float";
    case E::e5m2: return "e5m2 float";
    case E::e2m1: return "e2m1 float";
    case E::e3m0: return "e3m0 float";
    case E::int8: return "8-bit integer";
    case E::int4: return "4-bit integer";
    case E::uint4: return "unsigned 4-bit integer";
    case E::lloyd4: return "16 Lloyd-Max levels";
  }
  return "unknown element";
}

std::string_view scale_text(ScaleType s) {
  switch (s) {
    case S::none: return "no stored scale";
    case S::e8m0: return "e8m0 scale";
    case S::e4m3: return "e4m3 scale";
    case S::f16: return "float16 scale";
    case S::f32: return "float32 scale";
    case S::f16_zero: return "float16 scale and minimum";
  }
  return "unknown scale";
}

std::string rule_text(const BlockFormat& f) {
  const float limit = element_max(f.element);
  switch (f.rule) {
    case R::none: return "stored as is";
    case R::amax: return fmt::format("amax / {:g}", limit);
    case R::four_over_six: return "amax / 6, or amax / 4 where its squared error is smaller";
    case R::least_error: return "2^ceil(log2(amax / 7.25))";
    case R::floor: return fmt::format("2^(floor(log2 amax) - {})", formats::floor_log2(limit));
    case R::ceil: return fmt::format("2^ceil(log2(amax / {:g}))", limit);
    case R::min_max: return fmt::format("(max - min) / {:g}", limit);
    case R::norm: return "L2 norm of the token / sqrt(head_dim)";
    case R::fixed: return "the head's calibrated scale";
  }
  return "unknown rule";
}

std::string block_text(const BlockFormat& f) {
  const std::string keys = f.block_keys == 1 ? "token" : fmt::format("{} tokens", f.block_keys);
  if (f.axis == PackAxis::keys) return fmt::format("per channel and {}", keys);
  if (f.block_channels == 0) return fmt::format("per {} and head", keys);
  return fmt::format("per {} and {} channels", keys, f.block_channels);
}

std::int64_t scale_bytes(ScaleType s) {
  switch (s) {
    case S::none: return 0;
    case S::e8m0:
    case S::e4m3: return 1;
    case S::f16: return 2;
    case S::f32:
    case S::f16_zero: return 4;
  }
  return 0;
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

int element_bits(Element e) {
  switch (e) {
    case E::f32: return 32;
    case E::bf16:
    case E::f16: return 16;
    case E::e4m3:
    case E::e5m2:
    case E::int8: return 8;
    default: return 4;
  }
}

float element_max(Element e) {
  switch (e) {
    case E::f32: return formats::bits_float(formats::kFloatInf - 1U);
    case E::bf16: return formats::Bf16::decode(0x7F7FU);
    case E::f16: return 65504.0F;
    case E::e4m3: return 448.0F;
    case E::e5m2: return 57344.0F;
    case E::e2m1: return 6.0F;
    case E::e3m0: return 16.0F;
    case E::int8: return 127.0F;
    case E::int4: return 7.0F;
    case E::uint4: return 15.0F;
    case E::lloyd4: return formats::Lloyd4::decode(15U);
  }
  return 0.0F;
}

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    list.reserve(kTable.size());
    for (const Entry& e : kTable) list.emplace_back(e.name);
    return list;
  }();
  return names;
}

Result<BlockFormat> parse_format(std::string_view name) {
  for (const Entry& e : kTable) {
    if (e.name == name) return e.format;
  }
  return Status(StatusCode::invalid_argument,
                fmt::format("format '{}' is not known; use one of: {}", name, fmt::join(format_names(), ", ")));
}

std::string format_name(const BlockFormat& f) {
  const Entry* e = find_entry(f);
  return e == nullptr ? "custom" : std::string(e->name);
}

std::string format_description(const BlockFormat& f) {
  if (f.scale == S::none) return fmt::format("{}, {}: {}", element_text(f.element), scale_text(f.scale), rule_text(f));
  return fmt::format("{}, {} {}: {}", element_text(f.element), scale_text(f.scale), block_text(f), rule_text(f));
}

Status check_format(const BlockFormat& f, std::int64_t head_dim, std::int64_t page_size) {
  const Entry* e = find_entry(f);
  if (e == nullptr) {
    return {StatusCode::invalid_argument,
            fmt::format("format: {}, {} {} with rule '{}' is none of the named formats; use one of: {}",
                        element_text(f.element), scale_text(f.scale), block_text(f), rule_text(f),
                        fmt::join(format_names(), ", "))};
  }
  if (head_dim < 1 || head_dim > formats::kMaxHeadDim) {
    return {StatusCode::invalid_argument,
            fmt::format("format {}: head_dim {} is not supported (1 to {} channels are allowed); split the head",
                        e->name, head_dim, formats::kMaxHeadDim)};
  }
  if (page_size < 1 || page_size % f.block_keys != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("format {}: page_size {} is not supported (a positive multiple of {} tokens is needed, they "
                        "share a scale); use {}",
                        e->name, page_size, f.block_keys, std::max<std::int64_t>(64, f.block_keys))};
  }
  return {};
}

PageGeometry page_geometry(const BlockFormat& f, std::int64_t head_dim, std::int64_t page_size) {
  const std::int64_t bits = element_bits(f.element), scale = scale_bytes(f.scale);
  const std::int64_t groups = ceil_div(page_size, f.block_keys);
  PageGeometry g;
  if (f.axis == PackAxis::keys) {
    g = {head_dim, ceil_div(page_size * bits, 8), head_dim, groups * scale};
  } else {
    g = {page_size, ceil_div(head_dim * bits, 8), groups,
         ceil_div(head_dim, formats::channels_per_block(f, head_dim)) * scale};
  }
  if (scale == 0) g.scale_rows = 0;
  return g;
}

}  // namespace mpfa
