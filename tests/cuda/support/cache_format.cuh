// The formats that the decode kernel reads, on the device: one block written and one element read, by the codecs of the
// library.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda/sm90/decode/operand.h"
#include "formats/elements.hpp"
#include "mpfa/formats.hpp"

namespace mpfa::test {

struct CacheFormat {
  const char* name;
  sm90::Operand operand;
  BlockFormat format;
};

inline const CacheFormat& cache_format(const char* name) {
  using E = Element;
  using S = ScaleType;
  using R = ScaleRule;
  using O = sm90::Operand;
  constexpr PackAxis kHead = PackAxis::head_dim;
  static const CacheFormat all[] = {
      {"mxfp4", O::mxfp4, {E::e2m1, S::e8m0, R::least_error, kHead, 32, 1}},
      {"nvfp4", O::nvfp4, {E::e2m1, S::e4m3, R::amax, kHead, 16, 1}},
      {"mxfp4_f32", O::fp4_f32, {E::e2m1, S::f32, R::amax, kHead, 32, 1}},
      {"mxfp4_f32_b64", O::fp4_f32, {E::e2m1, S::f32, R::amax, kHead, 64, 1}},
      {"int4", O::int4, {E::int4, S::f32, R::amax, kHead, 0, 1}},
      {"int4_g32", O::int4, {E::int4, S::f16, R::amax, kHead, 32, 1}},
      {"int4_g64", O::int4, {E::int4, S::f16, R::amax, kHead, 64, 1}},
      {"int4_g128", O::int4, {E::int4, S::f16, R::amax, kHead, 128, 1}},
      {"int8", O::int8, {E::int8, S::f32, R::amax, kHead, 0, 1}},
      {"int8_g32", O::int8, {E::int8, S::f16, R::amax, kHead, 32, 1}},
      {"int8_g64", O::int8, {E::int8, S::f16, R::amax, kHead, 64, 1}},
      {"int8_g128", O::int8, {E::int8, S::f16, R::amax, kHead, 128, 1}},
      {"fp8_e4m3", O::e4m3, {E::e4m3, S::f32, R::amax, kHead, 0, 1}},
      {"fp8_e4m3_static", O::e4m3, {E::e4m3, S::none, R::fixed, kHead, 1, 1}},
      {"bf16", O::bf16, {E::bf16, S::none, R::none, kHead, 1, 1}},
  };
  for (const CacheFormat& f : all) {
    if (std::strcmp(f.name, name) == 0) return f;
  }
  std::printf("FAILED: the tests have no format %s\n", name);
  std::exit(1);
}

/// K or V in a pool: offsets from the start of a page, rows of heads side by side.
struct PoolOperand {
  BlockFormat format;
  std::int64_t data, scales;
  std::int32_t bits, row_bytes, block, blocks, scale_size;  // block: channels that are written together

  PoolOperand() = default;
  PoolOperand(const BlockFormat& f, std::int32_t d) : format(f), data(0), scales(0) {
    bits = f.element == Element::bf16 ? 16 : f.element == Element::int8 || f.element == Element::e4m3 ? 8 : 4;
    row_bytes = d * bits / 8;
    block = f.scale == ScaleType::none || f.block_channels == 0 ? d : f.block_channels;
    blocks = (d + block - 1) / block;
    scale_size = f.scale == ScaleType::none ? 0 : f.scale == ScaleType::f32 ? 4 : f.scale == ScaleType::f16 ? 2 : 1;
  }
  [[nodiscard]] __host__ __device__ std::int32_t scale_bytes() const { return blocks * scale_size; }
};

/// The calibrated scale of a head, of formats without a stored one.
__host__ __device__ inline float head_scale(std::int32_t head) {
  return 0.0125F * static_cast<float>(head % 3 + 1);
}

__device__ inline std::uint32_t encode_element(Element e, float x) {
  switch (e) {
    case Element::e2m1: return formats::E2M1::encode(x).bits;
    case Element::int4: return formats::Int4::encode(x).bits;
    case Element::int8: return formats::Int8::encode(x).bits;
    case Element::e4m3: return formats::E4M3::encode(x).bits;
    default: return formats::Bf16::encode(x).bits;
  }
}
__device__ inline float decode_element(Element e, std::uint32_t code) {
  switch (e) {
    case Element::e2m1: return formats::E2M1::decode(code);
    case Element::int4: return formats::Int4::decode(code);
    case Element::int8: return formats::Int8::decode(code);
    case Element::e4m3: return formats::E4M3::decode(code);
    default: return formats::Bf16::decode(code);
  }
}
__device__ inline float largest_element(Element e) {
  switch (e) {
    case Element::e2m1: return 6.0F;
    case Element::int4: return 7.0F;
    case Element::int8: return 127.0F;
    default: return 448.0F;
  }
}

/// Chooses and stores the scale of a block whose largest magnitude is `amax`; returns the factor.
__device__ inline float write_scale(const BlockFormat& f, float amax, std::int32_t head, std::uint8_t* to) {
  const float limit = largest_element(f.element);
  switch (f.scale) {
    case ScaleType::e8m0: {
      const std::uint32_t code = formats::E8M0::encode_exponent(formats::ceil_log2_ratio(amax, 7.25F));
      *to = static_cast<std::uint8_t>(code);
      return formats::E8M0::decode(code);
    }
    case ScaleType::e4m3: {
      const std::uint32_t code = formats::E4M3::encode(amax / limit).bits;
      *to = static_cast<std::uint8_t>(code);
      return fmaxf(formats::E4M3::decode(code), 0x1p-9F);
    }
    case ScaleType::f16: {
      const std::uint32_t code = formats::F16::encode(amax / limit).bits;
      *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(code);
      return fmaxf(formats::F16::decode(code), 0x1p-24F);
    }
    case ScaleType::f32: {
      const float zero = f.element == Element::e2m1 ? -1.0F : 0.0F;
      *reinterpret_cast<float*>(to) = amax == 0.0F ? zero : amax / limit;
      return fmaxf(amax / limit, 0x1p-126F);
    }
    default: return f.rule == ScaleRule::fixed ? head_scale(head) : 1.0F;
  }
}

__device__ inline float read_scale(const BlockFormat& f, std::int32_t head, const std::uint8_t* from) {
  switch (f.scale) {
    case ScaleType::e8m0: return formats::E8M0::decode(*from);
    case ScaleType::e4m3: return formats::E4M3::decode(*from);
    case ScaleType::f16: return formats::F16::decode(*reinterpret_cast<const std::uint16_t*>(from));
    case ScaleType::f32: {
      const float s = *reinterpret_cast<const float*>(from);
      return s == -1.0F ? 0.0F : s;
    }
    default: return f.rule == ScaleRule::fixed ? head_scale(head) : 1.0F;
  }
}

__device__ inline void write_element(const PoolOperand& o, std::uint8_t* row, int channel, float x) {
  const std::uint32_t code = encode_element(o.format.element, x);
  if (o.bits == 16) {
    reinterpret_cast<std::uint16_t*>(row)[channel] = static_cast<std::uint16_t>(code);
  } else if (o.bits == 8) {
    row[channel] = static_cast<std::uint8_t>(code);
  } else {
    // One thread writes a whole block, in order.
    std::uint8_t& byte = row[channel / 2];
    byte = static_cast<std::uint8_t>(channel % 2 == 0 ? code : byte | code << 4);
  }
}

__device__ inline double read_element(const PoolOperand& o, const std::uint8_t* page, std::int64_t row,
                                      std::int32_t head, int channel) {
  const std::uint8_t* data = page + o.data + row * o.row_bytes;
  std::uint32_t code = 0;
  if (o.bits == 16) code = reinterpret_cast<const std::uint16_t*>(data)[channel];
  if (o.bits == 8) code = data[channel];
  if (o.bits == 4) code = channel % 2 == 0 ? data[channel / 2] & 15U : data[channel / 2] >> 4;
  const std::uint8_t* scale = page + o.scales + row * o.scale_bytes() + channel / o.block * o.scale_size;
  return static_cast<double>(decode_element(o.format.element, code)) *
         static_cast<double>(read_scale(o.format, head, scale));
}

}  // namespace mpfa::test
