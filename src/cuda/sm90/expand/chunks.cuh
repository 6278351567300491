// Stored codes and scales of a thread that expands: 32 channels of keys r and r + 8 of its warp's 16.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/nan_values.cuh"
#include "cuda/sm90/expand/control.cuh"
#include "cuda/sm90/verify/products.cuh"

namespace mpfa::sm90 {

/// No scales, of the interface of KeyScales.
struct NoScales {
  static constexpr bool kScale = false;
  __device__ __forceinline__ std::uint32_t operator()(int /*key*/, int /*word*/) const { return 0; }
};

/// The scale of a token, if pages have any, at a shared address.
__device__ __forceinline__ float token_scale(const DecodePages& pages, std::uint32_t at) {
  std::uint32_t word = 0x3F800000U;
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.shared.u32 %0, [%1];}"
               : "+r"(word)
               : "r"(at), "r"(pages.scale_bytes)
               : "memory");
  return f32_scale(word);
}

/// f32 or f16 scales of two keys: of their tokens, or of a group of each.
template <Operand kOperand>
struct FloatScales {
  static constexpr ScaleKind kKind = verify_scale(kOperand);
  float scale[2];

  /// pages: of K or of V, whose scales are at the shared address; the second key's `step` further on.
  __device__ __forceinline__ void load(const DecodePages& pages, std::uint32_t at, std::uint32_t step) {
#pragma unroll
    for (std::uint32_t k = 0; k < 2; ++k) {
      if constexpr (kKind == ScaleKind::group) {
        scale[k] = GroupRow<kOperand>::load(pages, at + k * step);
      } else {
        scale[k] = token_scale(pages, at + k * step);
      }
    }
  }
  __device__ __forceinline__ void drop(int k) {
    scale[k] = 0.0F;
  }
  /// The largest finite one of a stored word.
  __device__ __forceinline__ static float largest_of(const DecodePages& pages, std::uint32_t word) {
    if (kOperand == Operand::int4 && pages.row_scale == 0) {
      const float2 both = __half22float2(__habs2(bits_half2(word)));
      return fmaxf(both.x < INFINITY ? both.x : 0.0F, both.y < INFINITY ? both.y : 0.0F);
    }
    const float one = fabsf(f32_scale(word));
    return one < INFINITY ? one : 0.0F;
  }
};

/// To a unit in the last place or two.
__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Scales of a group of K of two keys, as f16 pairs relative to the largest of the key, which multiplies the scores in
/// f32. So the largest, whose digits matter most, loses none; others lose those below 2^-11 of them.
template <Operand kOperand>
class KeyRatios : public FloatScales<kOperand> {
 public:
  /// Lanes that are 8 apart have groups of the same keys.
  __device__ __forceinline__ void convert() {
    constexpr float kDown = 0x1p-8F, kLeast = 0x1p-118F;  // so that the inverse is neither zero nor infinite
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float top = fmaxf(fabsf(this->scale[k]), kLeast);
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 8));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFU, top, 16));
      const float ratio = this->scale[k] * (kOperandInfo<kOperand>.unit * kDown) * inverse_fast(top * kDown);
      pair_[k] = half2_bits(__float2half2_rn(ratio)), largest_[k] = top;
    }
  }
  /// The largest of key k.
  __device__ __forceinline__ float largest(int k) const {
    return largest_[k];
  }

  static constexpr bool kScale = true;
  __device__ __forceinline__ std::uint32_t operator()(int key, int /*word*/) const {
    return pair_[key];
  }

 private:
  float largest_[2];
  std::uint32_t pair_[2];
};

/// Scales of two keys as f16 pairs relative to a power of two that a warp follows: the largest that was seen is in
/// [2^lift, 2^(lift + 1)), those below 2^(lift + 5) need no other. Codes of 4 bits are 2^-9 or less of what they mean.
template <Operand kOperand>
class FollowedScales : public FloatScales<kOperand> {
 public:
  using FloatScales<kOperand>::scale;
  /// Zero for one that is not finite; whether it was such.
  __device__ __forceinline__ bool drop_nan(int k) {
    const bool broken = !isfinite(scale[k]);
    if (broken) scale[k] = 0.0F;
    return broken;
  }
  /// True if one is too large for what `exponent` says.
  __device__ __forceinline__ bool convert(std::int32_t exponent) {
    const float lift = __uint_as_float(static_cast<std::uint32_t>(254 + kLift - exponent) << 23);
    const float a = scale[0] * lift, b = scale[1] * lift;
    pair_[0] = half2_bits(__float2half2_rn(a)), pair_[1] = half2_bits(__float2half2_rn(b));
    return !(fmaxf(fabsf(a), fabsf(b)) < kMost) && !(isnan(a) && isnan(b));
  }
  /// Raises the exponent to the largest of the warp's, if that does not fit.
  __device__ __forceinline__ void follow(std::int32_t& exponent) {
    const std::int32_t top = largest(scale[0], scale[1]);
    if (top > exponent + 4) exponent = top;
    convert(exponent);
  }
  /// The largest exponent of a warp's finite scales, at least the least that there is a lift for.
  __device__ __forceinline__ static std::int32_t largest(float a, float b) {
    const std::uint32_t bits[2] = {__float_as_uint(a) << 1, __float_as_uint(b) << 1};
    std::uint32_t top = kLift << 24;
#pragma unroll
    for (const std::uint32_t x : bits) top = max(top, x < 0xFF000000U ? x : 0U);
    return static_cast<std::int32_t>(__reduce_max_sync(0xFFFFFFFFU, top) >> 24);
  }
  /// What outputs of codes times scales have to be multiplied by.
  __device__ __forceinline__ static float unit(std::int32_t exponent) {
    return exp2f(static_cast<float>(exponent - 127 - kLift));
  }

  static constexpr bool kScale = true;
  __device__ __forceinline__ std::uint32_t operator()(int key, int /*word*/) const {
    return pair_[key];
  }

 private:
  static constexpr int kLift = kOperandInfo<kOperand>.bits == 4 ? 10 : 2;
  static constexpr float kMost = 1 << (kLift + 5);
  std::uint32_t pair_[2];
};

/// The codes of one key.
template <Operand kOperand>
struct Chunk {
  static constexpr int kBits = kOperandInfo<kOperand>.bits, kPieces = kBits / 4, kTogether = 2;
  std::uint32_t words[4 * kPieces];

  /// Pieces of 16 bytes at places that are exclusive or apart.
  __device__ __forceinline__ void load(std::uint32_t at) {
#pragma unroll
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      const uint4 w = ptx::load_shared_words(at ^ (i * 16));
      words[4 * i] = w.x, words[4 * i + 1] = w.y, words[4 * i + 2] = w.z, words[4 * i + 3] = w.w;
    }
  }
  /// Zero for codes that are NaN; a bit for each of them.
  __device__ __forceinline__ std::uint32_t drop_nan() {
    std::uint32_t bits = 0;
    if constexpr (kOperandInfo<kOperand>.has_nan) {
#pragma unroll
      for (int i = 0; i < 4 * kPieces; ++i) {
        const std::uint32_t broken = broken_codes<kOperand>(words[i]);
        words[i] &= ~broken;
        bits |= ((broken & 0x08040201U) * 0x01010101U >> 24) << 4 * i;
      }
    }
    return bits;
  }
  /// As f16 times the scales, to four places of 16 bytes of the key that are exclusive or apart.
  template <class Scales>
  __device__ __forceinline__ void expand(std::uint32_t to, const Scales& scales, int key) const {
#pragma unroll
    for (int m = 0; m < 4; m += kTogether) {
      std::uint32_t f[kTogether][4];
#pragma unroll
      for (int w = 0; w < kTogether; ++w) {
        expand_channels(m + w, f[w]);
#pragma unroll
        for (std::uint32_t& pair : f[w]) {
          if constexpr (Scales::kScale) pair = multiply_half2(pair, scales(key, m + w));
          ptx::keep_in_register(pair);
        }
      }
#pragma unroll
      for (int w = 0; w < kTogether; ++w) {
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"((to ^ ((m + w) * 16)) + key * 8 * 128),
                     "r"(f[w][0]), "r"(f[w][1]), "r"(f[w][2]), "r"(f[w][3])
                     : "memory");
      }
    }
  }

 private:
  /// Channels 8 m to 8 m + 7, of 4 bits in pairs (i, i + 4).
  __device__ __forceinline__ void expand_channels(int m, std::uint32_t (&f)[4]) const {
    if constexpr (kBits == 4) {
      expand_word<kOperand>(words[m], f);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t two[2];
        expand_bytes<kOperand, false>(words[2 * m + i], two);
        f[2 * i] = two[0], f[2 * i + 1] = two[1];
      }
    }
  }
};

}  // namespace mpfa::sm90
