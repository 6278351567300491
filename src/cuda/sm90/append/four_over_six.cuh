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
  using Base::Base, Base::factor_of, Base::global;

  /// Squared errors under codes that are known, as the rule sums them; negative where that of four is smaller. Points
  /// are in halves of a scale, `unit` is a power of two.
  static __device__ __noinline__ std::int32_t compare(InMemory<float, kChunk> x, float unit, float2 at,
                                                      std::uint32_t six0, std::uint32_t six1, std::uint32_t four0,
                                                      std::uint32_t four1) {
    const PointTable halves(0x1p23F + 1.0F);
    const float half[2] = {0.5F * at.x * unit, 0.5F * at.y * unit};
    float sum[2] = {0.0F, 0.0F};
#pragma unroll
    for (int i = 0; i < kChunk / 4; ++i) {
      const std::uint32_t points[2] = {halves((i < 2 ? six0 : six1) >> (16 * (i % 2))),
                                       halves((i < 2 ? four0 : four1) >> (16 * (i % 2)))};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float abs = __fmul_rn(fabsf(x.v[4 * i + j]), unit);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float magic = formats::bits_float(__byte_perm(points[c], formats::float_bits(0x1p23F), 0x7650U | j));
          const float error = __fsub_rn(abs, __fmul_rn(__fsub_rn(magic, 0x1p23F), half[c]));
          sum[c] = __fadd_rn(sum[c], __fmul_rn(error, error));
        }
      }
    }
    return sum[1] < sum[0] ? -1 : 0;
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

  /// What the scales are and what their codes mean without the scale of the head, that of six first.
  struct Both {
    float2 at, decoded;
    float amax;
  };
  /// Takes blocks where the code of six is 4 or more and that of four below the limit, so that quotients are at most
  /// 6.75 and 4.5. The codes of the scales are `bits`, that of six in the lower byte.
  __device__ __forceinline__ Quick<Both> quick(std::uint32_t largest, const float (&/*x*/)[kChunk]) const {
    const float amax = formats::bits_float(largest);
    const float2 parts = make_float2(this->template part_for<6>(amax), this->template part_for<4>(amax));
    const std::uint32_t scales = __nv_cvt_float2_to_fp8x2(parts, __NV_SATFINITE, __NV_E4M3);
    const float2 decoded =
        __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(scales), __NV_E4M3)));
    if constexpr (kWhole) {
      return {scales, {decoded, decoded, amax}, within(largest, 6 * 0x1p-7F, 4 * 416.0F)};  // of the codes 4 and 0x7D
    } else {
      const float2 at = make_float2(__fmul_rn(decoded.x, global.factor), __fmul_rn(decoded.y, global.factor));
      return {scales,
              {at, decoded, amax},
              (scales & 0xFFU) >= 4U && scales < 0x7E00U && within(largest, 0x1p-40F, 0x1p40F) && !this->slow &&
                  Quotient::takes(at.x) && Quotient::takes(at.y)};
    }
  }

  using Codes = FastCodes<formats::E2M1>;
  /// The better codes and their scale.
  __device__ __forceinline__ void encode(const float (&x)[kChunk], const Quick<Both>& quick, std::uint32_t (&words)[2],
                                         std::uint32_t& bits) const {
    const float2 at = quick.divide.at, decoded = quick.divide.decoded;
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
    auto more = static_cast<std::int32_t>(((square4 - square6) << 7) + product6 - product4);
    const std::uint32_t unsure = (kWhole ? 0U : apart >> 4) + (apart >> 1) + 9U;
    if (static_cast<std::uint32_t>(abs(more)) <= unsure) {
      more = compare(in_memory(x), unit_of(quick.divide.amax), at, words6[0], words6[1], words4[0], words4[1]);
    }
    const bool better = more < 0;
    bits = better ? quick.bits >> 8 : quick.bits;
#pragma unroll
    for (int w = 0; w < 2; ++w) words[w] = better ? words4[w] : words6[w];
    Codes::add_signs(x, words);
  }
  __device__ __forceinline__ Careful careful(float amax, const float (&x)[kChunk]) const {
    const std::uint32_t six = this->template careful_code_for<6>(amax), four = this->template careful_code_for<4>(amax);
    const float at_six = factor_of(six), at_four = factor_of(four), unit = unit_of(amax);
    return exact_error(x, at_four, unit) < exact_error(x, at_six, unit) ? Careful{four, at_four} : Careful{six, at_six};
  }
};

template <class Scale>
inline constexpr bool kTriesTwo = false;
template <bool kWhole>
inline constexpr bool kTriesTwo<FourOverSixScale<kWhole>> = true;

}  // namespace mpfa::sm90
