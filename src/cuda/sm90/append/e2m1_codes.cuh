// e2m1 codes, 8 to a word.
#pragma once

#include "cuda/sm90/append/codes.cuh"

namespace mpfa::sm90 {

template <>
struct FastCodes<formats::E2M1> {
  /// |q| to nearest, ties to even, on the grid continued past 6, as the lowest of the three grids' lines: steps of 0.5
  /// from code 0, of 1 from code 2, of 2 from code 4. Adding 2^23, and kMore (an even number) to the code, rounds.
  template <int kMore, class Divide>
  static __device__ __forceinline__ std::uint32_t code(float v, const Divide& divide) {
    const float abs = divide.sided(fabsf(v));
    return __vimin3_u32(lowest_line<kMore>(abs, 2.0F), middle_line<kMore>(abs),
                        formats::float_bits(__fmaf_rn(abs, 0.5F, kMagic<kMore> + 4.0F)));
  }
  /// Products with powers of two are exact, so that one rounding is left.
  template <int kMore>
  static __device__ __forceinline__ std::uint32_t code(float v, const PowerOfTwo& divide) {
    const float abs = fabsf(v), inverse = divide.inverse;
    return __vimin3_u32(lowest_line<kMore>(abs, 2.0F * inverse),
                        formats::float_bits(__fmaf_rn(abs, inverse, kMagic<kMore> + 2.0F)),
                        formats::float_bits(__fmaf_rn(abs, 0.5F * inverse, kMagic<kMore> + 4.0F)));
  }
  /// The same for quotients up to 4.5, for which two lines are enough.
  template <int kMore, class Divide>
  static __device__ __forceinline__ std::uint32_t code_to_four(float v, const Divide& divide) {
    const float abs = divide.sided(fabsf(v));
    return min(lowest_line<kMore>(abs, 2.0F), middle_line<kMore>(abs));
  }
  /// Codes of 8 elements, of the first and last four also as `half`, in its lower 16 bits.
  template <class Fn>
  static __device__ __forceinline__ std::uint32_t pack_halves(Fn&& code, std::uint32_t (&half)[2]) {
    // What 2^23 leaves in the sum is gone where the fourth code brings the rest of 2^32 along.
    constexpr int kRest = without_offsets<4>(0x4B000000U) >> 12;
    static_assert(kRest << 12 == static_cast<int>(without_offsets<4>(0x4B000000U)) && kRest % 2 == 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      half[h] = code.template operator()<0>(4 * h);
      half[h] += code.template operator()<0>(4 * h + 1) << 4;
      half[h] += code.template operator()<0>(4 * h + 2) << 8;
    }
    half[0] += code.template operator()<kRest>(3) << 12;
    half[1] += code.template operator()<0>(7) << 12;
    return half[0] + (half[1] << 16);
  }
  template <class Divide>
  static __device__ __forceinline__ void encode(const float (&x)[kChunk], const Divide& divide,
                                                std::uint32_t (&words)[2], bool counted, std::uint32_t& saturated) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      std::uint32_t half[2];
      words[w] = pack_halves([&]<int kMore>(int i) { return code<kMore>(x[8 * w + i], divide); }, half);
    }
    const std::uint32_t over[2] = {words[0] & 0x88888888U, words[1] & 0x88888888U};
    // Scales that are no powers of two are hardly ever so small.
    if (std::is_same_v<Divide, PowerOfTwo> || (over[0] | over[1]) != 0U) {
#pragma unroll
      for (int w = 0; w < 2; ++w) words[w] = (words[w] | (over[w] - (over[w] >> 3))) & 0x77777777U;
      if (counted) saturated += __popc(over[0] >> 3 | over[1]);
    }
    add_signs(x, words);
  }
  static __device__ __forceinline__ void add_signs(const float (&x)[kChunk], std::uint32_t (&words)[2]) {
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      std::uint32_t signs = 0;
#pragma unroll
      for (int i = 7; i >= 0; --i) signs = __funnelshift_l(formats::float_bits(x[8 * w + i]), signs, 4);
      words[w] |= signs & 0x88888888U;
    }
  }

 private:
  template <int kMore>
  static constexpr float kMagic = 0x1p23F + kMore;
  template <int kMore>
  static __device__ __forceinline__ std::uint32_t lowest_line(float abs, float slope) {
    return formats::float_bits(__fmaf_rn(abs, slope, kMagic<kMore>));
  }
  template <int kMore>
  static __device__ __forceinline__ std::uint32_t middle_line(float abs) {
    return formats::float_bits(__fadd_rn(abs, kMagic<kMore> + 2.0F));
  }
};

}  // namespace mpfa::sm90
