// 16 channels of a thread, whose neighbours hold the rest of the block, to codes and a scale.
#pragma once

#include "cuda/sm90/append/four_over_six.cuh"

namespace mpfa::sm90 {

/// Bits of the largest magnitude of the threads that share a scale, NaN on top: of kLanes threads, or of `lanes` where
/// that is 0.
template <int kLanes>
__device__ __forceinline__ std::uint32_t largest_bits(const float (&x)[kChunk], int lanes) {
  float most[2] = {x[0], x[1]};
#pragma unroll
  for (int i = 2; i < kChunk; ++i) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most[i % 2]) : "f"(fabsf(most[i % 2])), "f"(fabsf(x[i])));
  }
  std::uint32_t largest = max(formats::float_bits(most[0]), formats::float_bits(most[1]));
  const auto share = [&](int step) { largest = max(largest, __shfl_xor_sync(0xFFFFFFFFU, largest, step)); };
  if constexpr (kLanes > 0) {
#pragma unroll
    for (int step = 1; step < kLanes; step *= 2) share(step);
  } else {
    // A step of 0 changes nothing, and is cheaper than a branch.
#pragma unroll
    for (int step = 1; step < 8; step *= 2) share((lanes - 1) & step);
    if (lanes > 8) share(8), share((lanes - 1) & 16);
  }
  return largest;
}

template <class Codec>
struct Block {
  std::uint32_t words[kWords<Codec>];
  std::uint32_t scale;
};

/// What one thread needs of a format, a head and a place in the row.
template <class CodecType, class ScaleType>
struct Quantiser {
  using Codec = CodecType;
  using Scale = ScaleType;
  static constexpr int kScaleBytes = Scale::kBytes;

  Scale scale;
  int lanes;
  bool leads;  // counts for its block

  __device__ Quantiser(const RowFormat& row, int head, int lane)
      : scale(row, head),
        lanes(Scale::kChannels > 0 ? Scale::kChannels / kChunk : row.group),
        leads((lane & (lanes - 1)) == 0) {}

  /// All threads of the warp call it together. Counts where `counted`.
  __device__ __forceinline__ void operator()(const float (&x)[kChunk], bool counted, Block<Codec>& block,
                                             Counts& counts) const {
    const std::uint32_t largest = largest_bits<Scale::kChannels / kChunk>(x, lanes);
    const auto quick = scale.quick(largest, x);
    if (quick.taken) {
      if constexpr (kTriesTwo<Scale>) {
        scale.encode(x, quick, block.words, block.scale);
      } else {
        block.scale = quick.bits;
        FastCodes<Codec>::encode(x, quick.divide, block.words, counted, counts.saturated);
      }
    } else {
      const Outcome rare = carefully(scale, in_memory(x), largest);
      block = rare.block;
      if (counted) counts.saturated += rare.met.saturated;
      if (counted && leads) counts.nonfinite += rare.met.nonfinite, counts.flushed += rare.met.flushed;
    }
  }

 private:
  struct Outcome {
    Block<Codec> block = {};
    Counts met;
  };
  /// Any block. Not inlined: the code around it stays short.
  static __device__ __noinline__ Outcome carefully(Scale scale, InMemory<float, kChunk> x, std::uint32_t largest) {
    Outcome o;
    if (largest >= formats::kFloatInf) o.met.nonfinite = 1;
    if constexpr (kScaleBytes > 0) {
      o.block.scale = largest >= formats::kFloatInf ? Scale::kNan : zero_scale<Codec, Scale>();
      if (largest >= formats::kFloatInf || largest == 0U) return o;
    }
    const float amax = fminf(formats::bits_float(largest), 0x1p127F);
    const Careful s = scale.careful(amax, x.v);
    if constexpr (kScaleBytes > 0) {
      if (!(s.factor > 0.0F) || Codec::encode(__fdiv_rn(amax, s.factor)).bits == 0U) {
        o.met.flushed = 1;
        return o;
      }
    }
    o.block.scale = s.bits;
    encode_carefully<Codec>(x.v, s.factor, o.block.words, o.met.saturated);
    return o;
  }
};

/// Writes codes, 8 or 16 bytes at a time, and the scale of a block by one of its threads.
template <class Q>
__device__ __forceinline__ void store(const Block<typename Q::Codec>& block, bool leads, std::uint8_t* data,
                                      std::uint8_t* scale) {
  constexpr int kCount = kWords<typename Q::Codec>;
  if constexpr (kCount == 2) {
    *reinterpret_cast<uint2*>(data) = make_uint2(block.words[0], block.words[1]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      reinterpret_cast<uint4*>(data)[i] =
          make_uint4(block.words[4 * i], block.words[4 * i + 1], block.words[4 * i + 2], block.words[4 * i + 3]);
    }
  }
  if constexpr (Q::kScaleBytes > 0) {
    if (!leads) return;
    if constexpr (Q::kScaleBytes == 1) *scale = static_cast<std::uint8_t>(block.scale);
    if constexpr (Q::kScaleBytes == 2) *reinterpret_cast<std::uint16_t*>(scale) = block.scale;
    if constexpr (Q::kScaleBytes == 4) *reinterpret_cast<std::uint32_t*>(scale) = block.scale;
  }
}

/// Calls fn.operator()<Quantiser>().
template <class Fn>
__device__ __forceinline__ void visit(const RowFormat& row, Fn&& fn) {
  namespace f = formats;
  const bool whole = row.global == nullptr;
  switch (row.format) {
    case AppendFormat::bf16: return fn.template operator()<Quantiser<f::Bf16, NoScale<f::Bf16>>>();
    case AppendFormat::f16: return fn.template operator()<Quantiser<f::F16, NoScale<f::F16>>>();
    case AppendFormat::e4m3: return fn.template operator()<Quantiser<f::E4M3, F32Scale<448>>>();
    case AppendFormat::e4m3_static: return fn.template operator()<Quantiser<f::E4M3, HeadScale>>();
    case AppendFormat::int8: return fn.template operator()<Quantiser<f::Int8, F32Scale<127>>>();
    case AppendFormat::int8_group: return fn.template operator()<Quantiser<f::Int8, F16Scale<127>>>();
    case AppendFormat::int4: return fn.template operator()<Quantiser<f::Int4, F32Scale<7>>>();
    case AppendFormat::int4_group: return fn.template operator()<Quantiser<f::Int4, F16Scale<7>>>();
    case AppendFormat::e2m1_e8m0: return fn.template operator()<Quantiser<f::E2M1, E8m0Scale>>();
    case AppendFormat::e2m1_e4m3:
      if (whole) return fn.template operator()<Quantiser<f::E2M1, E4m3Scale<true>>>();
      return fn.template operator()<Quantiser<f::E2M1, E4m3Scale<false>>>();
    case AppendFormat::e2m1_e4m3_four_over_six:
      if (whole) return fn.template operator()<Quantiser<f::E2M1, FourOverSixScale<true>>>();
      return fn.template operator()<Quantiser<f::E2M1, FourOverSixScale<false>>>();
    case AppendFormat::e2m1_f32: return fn.template operator()<Quantiser<f::E2M1, F32Scale<6>>>();
    case AppendFormat::e3m0_f32: return fn.template operator()<Quantiser<f::E3M0, F32Scale<16>>>();
  }
}

}  // namespace mpfa::sm90
