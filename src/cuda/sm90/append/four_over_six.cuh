// nvfp4_4over6: codes under both scales, and which of them has the smaller squared error.
#pragma once

#include "cuda/sm90/append/scales.cuh"

namespace mpfa::sm90 {

/// Values of a scale's codes as bytes.
struct PointTable {
  std::uint32_t low, high;

  /// Of a significand, as the lower bits of 2^23 + significand, up to 24: codes up to 6 mean less than 256, and 7 where
  /// it is at most 15.
  __device__ explicit PointTable(float magic) : low(times(magic, 0x03020100U)), high(times(magic, 0x0C080604U)) {}
  static __device__ std::uint32_t times(float magic, std::uint32_t halves) {
    return (formats::float_bits(magic) - formats::float_bits(0x1p23F)) * halves;
  }
  /// Of the four codes, none above 7, in the lower 16 bits.
  __device__ __forceinline__ std::uint32_t operator()(std::uint32_t codes) const {
    std::uint32_t bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(codes));
    return bytes;
  }
};

/// Both scales are tried as the rule says it, but with sums of integers: codes mean whole numbers of half of a last bit
/// of the scales, and elements are rounded to 1/256 of that. That decides all but about one of a thousand blocks of
/// random numbers; those that are nearer take the sums of the rule.
template <bool kWhole>
struct FourOverSixScale : E4m3Scale<kWhole> {
  using Base = E4m3Scale<kWhole>;
  using Base::Base, Base::decode, Base::factor_of, Base::global;

  /// Squared error under codes that are known, as the rule sums it.
  static __device__ float error_of(const float (&x)[kChunk], std::uint32_t codes0, std::uint32_t codes1, float factor,
                                   float unit) {
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const std::uint32_t code = (i < 8 ? codes0 : codes1) >> (4 * (i % 8)) & 7U;
      const float halves = static_cast<float>(__byte_perm(0x03020100U, 0x0C080604U, code) & 0xFFU);
      const float error = __fmul_rn(__fsub_rn(fabsf(x[i]), __fmul_rn(halves, 0.5F * factor)), unit);
      sum = __fadd_rn(sum, __fmul_rn(error, error));
    }
    return sum;
  }
  static __device__ __noinline__ bool four_is_better(InMemory<float, kChunk> x, float unit, float2 at,
                                                     std::uint32_t six0, std::uint32_t six1, std::uint32_t four0,
                                                     std::uint32_t four1) {
    return error_of(x.v, four0, four1, at.y, unit) < error_of(x.v, six0, six1, at.x, unit);
  }

  /// The rule as it is written, for any factor.
  static __device__ __noinline__ float exact_error(const float (&x)[kChunk], float factor, float unit) {
    const Quotient divide(factor);
    const bool slow = !Quotient::takes(factor);
    float sum = 0.0F;
#pragma unroll 1
    for (int i = 0; i < kChunk; ++i) {
      const float abs = fabsf(x[i]), quotient = fminf(slow ? __fdiv_rn(abs, factor) : divide(abs), 16.0F);
      const float power = formats::bits_float(formats::float_bits(quotient) & 0x7F800000U);
      const float magic = fmaxf(__fmul_rn(power, 0x1p22F), 0x1p22F);
      const float point = fminf(__fsub_rn(__fadd_rn(quotient, magic), magic), 6.0F);
      const float error = __fmul_rn(__fsub_rn(abs, factor > 0.0F ? __fmul_rn(point, factor) : 0.0F), unit);
      sum = __fadd_rn(sum, __fmul_rn(error, error));
    }
    return sum;
  }
  static __device__ float unit_of(float amax) {
    return formats::power_of_two(-min(max(formats::floor_log2(amax), -126), 126));
  }

  using Codes = FastCodes<formats::E2M1>;
  /// The better codes of a block to `q`. `scales`: codes of the scales, that of six in the lower byte.
  __device__ __forceinline__ void choose(const float (&x)[kChunk], float amax, float2 at, float2 decoded,
                                         std::uint32_t scales, Quick<Magnitudes>& q) const {
    const typename Base::Divide by_six(at.x), by_four(at.y);
    // 1 / the last of 4 bits of the scale that puts amax at six.
    const float last = formats::bits_float(0x80800000U - (formats::float_bits(decoded.x) & 0x7F800000U));
    const PointTable points6(__fmaf_rn(decoded.x, last, 0x1p23F)), points4(__fmaf_rn(decoded.y, last, 0x1p23F));
    // amax is below 12 * 15.75 points.
    const float fine = (kWhole ? last : last * global.inverse) * 512.0F;
    std::uint32_t words6[2], words4[2], square6 = 0, square4 = 0, product6 = 0, product4 = 0, apart = 0;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      std::uint32_t half6[2], half4[2];
      words6[w] = Codes::pack_halves([&]<int kMore>(int i) { return Codes::code<kMore>(x[8 * w + i], by_six); }, half6);
      words4[w] = Codes::pack_halves(
          [&]<int kMore>(int i) { return Codes::code_to_four<kMore>(x[8 * w + i], by_four); }, half4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::uint32_t p6 = points6(half6[h]), p4 = points4(half4[h]);
        std::uint32_t pair[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float* const v = x + 8 * w + 4 * h + 2 * j;
          pair[j] = __byte_perm(formats::float_bits(__fmaf_rn(fabsf(v[0]), fine, 0x1p23F)),
                                formats::float_bits(__fmaf_rn(fabsf(v[1]), fine, 0x1p23F)), 0x5410);
        }
        square6 = __dp4a(p6, p6, square6), square4 = __dp4a(p4, p4, square4);
        product6 = __dp2a_hi(pair[1], p6, __dp2a_lo(pair[0], p6, product6));
        product4 = __dp2a_hi(pair[1], p4, __dp2a_lo(pair[0], p4, product4));
        asm("vabsdiff4.u32.u32.u32.add %0, %1, %2, %0;" : "+r"(apart) : "r"(p4), "r"(p6));
      }
    }
    // Half of what the error of four is more than that of six. Rounding of elements can be half of `apart` of it, that
    // of the rule's sums less than 8; heads with a scale round factors and elements once more.
    const auto more = static_cast<std::int32_t>(((square4 - square6) << 7) + product6 - product4);
    const std::uint32_t unsure = (kWhole ? 0U : apart >> 4) + (apart >> 1) + 9U;
    bool better = more < 0;
    if (static_cast<std::uint32_t>(more) + unsure <= 2U * unsure) {
      better = four_is_better(in_memory(x), unit_of(amax), at, words6[0], words6[1], words4[0], words4[1]);
    }
    q.bits = better ? scales >> 8 : scales & 0xFFU;
#pragma unroll
    for (int w = 0; w < 2; ++w) q.divide.words[w] = better ? words4[w] : words6[w];
  }
  /// From the code 4 on and below the limit, where quotients are at most 6.75 under six and 4.5 under four.
  static __device__ __forceinline__ bool takes(std::uint32_t scales) {
    return (scales & 0xFFU) >= 4U && scales < 0x7E00U;
  }
  __device__ __forceinline__ Quick<Magnitudes> quick(std::uint32_t largest, const float (&x)[kChunk]) const {
    const float amax = formats::bits_float(largest);
    const float2 parts = make_float2(this->template part_for<6>(amax), this->template part_for<4>(amax));
    std::uint32_t scales = __nv_cvt_float2_to_fp8x2(parts, __NV_SATFINITE, __NV_E4M3);
    ptx::keep_in_register(scales);
    const float2 decoded =
        __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(scales), __NV_E4M3)));
    Quick<Magnitudes> q;
    q.taken = takes(scales);
    if constexpr (kWhole) {
      if (q.taken) choose(x, amax, decoded, decoded, scales, q);
    } else {
      const float2 at = make_float2(__fmul_rn(decoded.x, global.factor), __fmul_rn(decoded.y, global.factor));
      q.taken = q.taken && !this->slow && within(largest, 0x1p-40F, 0x1p40F) && Quotient::takes(at.x) &&
                Quotient::takes(at.y);
      if (q.taken) choose(x, amax, at, decoded, scales, q);
    }
    return q;
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&x)[kChunk]) const {
    const std::uint32_t six = this->template careful_code_for<6>(amax), four = this->template careful_code_for<4>(amax);
    const float at_six = factor_of(six), at_four = factor_of(four), unit = unit_of(amax);
    return exact_error(x, at_four, unit) < exact_error(x, at_six, unit) ? Careful{four, at_four} : Careful{six, at_six};
  }
};

}  // namespace mpfa::sm90
