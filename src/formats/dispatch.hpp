// Scale codecs, and the one place where a BlockFormat becomes a pair of types (element codec, scale codec).
#pragma once

#include <cstddef>
#include <cstring>

#include "formats/elements.hpp"
#include "mpfa/formats.hpp"

namespace mpfa::formats {

/// Longest head the formats take, in channels.
inline constexpr std::int64_t kMaxHeadDim = 4096;
/// fp32 scale of a zero block of 4-bit floats; any fp32 scale reads it as 0.
inline constexpr float kZeroSentinel = -1.0F;

/// value = element * factor + minimum (minimum only for affine elements).
struct BlockFactor {
  float factor = 1.0F;
  float minimum = 0.0F;
};

/// What a block's factor needs beside its stored bytes.
struct FactorContext {
  float global = 1.0F;
  float root_head_dim = 1.0F;  // sqrt(head_dim)
};

template <class T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}
template <class T>
void store(std::byte* p, T v) {
  std::memcpy(p, &v, sizeof(T));
}

inline float load_f16(const std::byte* p) {
  return F16::decode(load<std::uint16_t>(p));
}

struct NoScale {
  static constexpr std::int64_t kBytes = 0;
  static BlockFactor read(const std::byte*, const FactorContext&) { return {}; }
};
struct GlobalScale {
  static constexpr std::int64_t kBytes = 0;
  static BlockFactor read(const std::byte*, const FactorContext& c) { return {c.global, 0.0F}; }
};
struct E8m0Scale {
  static constexpr std::int64_t kBytes = 1;
  static BlockFactor read(const std::byte* p, const FactorContext&) {
    return {E8M0::decode(static_cast<std::uint32_t>(*p)), 0.0F};
  }
};
struct E4m3Scale {
  static constexpr std::int64_t kBytes = 1;
  static BlockFactor read(const std::byte* p, const FactorContext& c) {
    return {E4M3::decode(static_cast<std::uint32_t>(*p)) * c.global, 0.0F};
  }
};
struct F16Scale {
  static constexpr std::int64_t kBytes = 2;
  static BlockFactor read(const std::byte* p, const FactorContext&) { return {load_f16(p), 0.0F}; }
};
struct F32Scale {
  static constexpr std::int64_t kBytes = 4;
  static BlockFactor read(const std::byte* p, const FactorContext&) {
    const float s = load<float>(p);
    return {s == kZeroSentinel ? 0.0F : s, 0.0F};
  }
};
struct F16ZeroScale {
  static constexpr std::int64_t kBytes = 4;
  static BlockFactor read(const std::byte* p, const FactorContext&) { return {load_f16(p), load_f16(p + 2)}; }
};
struct NormScale {
  static constexpr std::int64_t kBytes = 2;
  static BlockFactor read(const std::byte* p, const FactorContext& c) { return {load_f16(p) / c.root_head_dim, 0.0F}; }
};

/// Calls fn.operator()<Codec, Scale>(). False when the pair is none of the library's formats.
template <class Fn>
bool visit_format(const BlockFormat& f, Fn&& fn) {
  const auto is = [&f](Element e, ScaleType s) { return f.element == e && f.scale == s; };
  if (is(Element::f32, ScaleType::none)) return fn.template operator()<F32, NoScale>(), true;
  if (is(Element::bf16, ScaleType::none)) return fn.template operator()<Bf16, NoScale>(), true;
  if (is(Element::f16, ScaleType::none)) return fn.template operator()<F16, NoScale>(), true;
  if (is(Element::e4m3, ScaleType::none)) return fn.template operator()<E4M3, GlobalScale>(), true;
  if (is(Element::e4m3, ScaleType::f32)) return fn.template operator()<E4M3, F32Scale>(), true;
  if (is(Element::e4m3, ScaleType::e8m0)) return fn.template operator()<E4M3, E8m0Scale>(), true;
  if (is(Element::e5m2, ScaleType::none)) return fn.template operator()<E5M2, GlobalScale>(), true;
  if (is(Element::e5m2, ScaleType::f32)) return fn.template operator()<E5M2, F32Scale>(), true;
  if (is(Element::e5m2, ScaleType::e8m0)) return fn.template operator()<E5M2, E8m0Scale>(), true;
  if (is(Element::e2m1, ScaleType::e4m3)) return fn.template operator()<E2M1, E4m3Scale>(), true;
  if (is(Element::e2m1, ScaleType::e8m0)) return fn.template operator()<E2M1, E8m0Scale>(), true;
  if (is(Element::e2m1, ScaleType::f32)) return fn.template operator()<E2M1, F32Scale>(), true;
  if (is(Element::e3m0, ScaleType::f32)) return fn.template operator()<E3M0, F32Scale>(), true;
  if (is(Element::int8, ScaleType::f32)) return fn.template operator()<Int8, F32Scale>(), true;
  if (is(Element::int8, ScaleType::f16)) return fn.template operator()<Int8, F16Scale>(), true;
  if (is(Element::int4, ScaleType::f32)) return fn.template operator()<Int4, F32Scale>(), true;
  if (is(Element::int4, ScaleType::f16)) return fn.template operator()<Int4, F16Scale>(), true;
  if (is(Element::uint4, ScaleType::f16_zero)) return fn.template operator()<Uint4, F16ZeroScale>(), true;
  if (is(Element::lloyd4, ScaleType::f16)) return fn.template operator()<Lloyd4, NormScale>(), true;
  return false;
}

/// Channels that share a scale, resolved for a head: formats without a stored scale take the whole row.
inline std::int64_t channels_per_block(const BlockFormat& f, std::int64_t head_dim) {
  if (f.axis == PackAxis::keys) return 1;
  return f.block_channels == 0 || f.scale == ScaleType::none ? head_dim : f.block_channels;
}

}  // namespace mpfa::formats
