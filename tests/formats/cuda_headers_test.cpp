// Our conversions against the host functions of the CUDA headers, where those are installed.
#include <gtest/gtest.h>

#include "formats/elements.hpp"

#ifdef MPFA_HAVE_CUDA_HEADERS
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#endif

namespace mpfa::formats {
namespace {

#ifndef MPFA_HAVE_CUDA_HEADERS
TEST(CudaHeaders, ConversionsAgree) {
  GTEST_SKIP() << "cuda_fp4.h was not found when this test was built";
}
#else

/// Calls fn on every bfloat16 and half value and on about a million other floats of all exponents.
template <class Fn>
void for_each_input(Fn&& fn) {
  for (std::uint32_t b = 0; b < 1U << 16; ++b) {
    fn(Bf16::decode(b));
    fn(F16::decode(b));
  }
  for (std::uint64_t bits = 1; bits < std::uint64_t{1} << 32; bits += 4099)
    fn(bits_float(static_cast<std::uint32_t>(bits)));
}

TEST(CudaHeaders, EightBitFloatsAgree) {
  for_each_input([](float v) {
    ASSERT_EQ(E4M3::encode(v).bits, __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3)) << v;
    ASSERT_EQ(E5M2::encode(v).bits, __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E5M2)) << v;
  });
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto storage = static_cast<__nv_fp8_storage_t>(code);
    const float e4m3 = __half2float(__nv_cvt_fp8_to_halfraw(storage, __NV_E4M3));
    const float e5m2 = __half2float(__nv_cvt_fp8_to_halfraw(storage, __NV_E5M2));
    if (e4m3 == e4m3) {
      EXPECT_EQ(float_bits(E4M3::decode(code)), float_bits(e4m3));
    }
    if (e5m2 == e5m2) {
      EXPECT_EQ(float_bits(E5M2::decode(code)), float_bits(e5m2));
    }
    EXPECT_EQ(E4M3::decode(code) == E4M3::decode(code), e4m3 == e4m3);
    EXPECT_EQ(E5M2::decode(code) == E5M2::decode(code), e5m2 == e5m2);
  }
}

TEST(CudaHeaders, FourBitFloatsAgree) {
  for_each_input(
      [](float v) { ASSERT_EQ(E2M1::encode(v).bits, __nv_cvt_float_to_fp4(v, __NV_E2M1, cudaRoundNearest)) << v; });
  for (std::uint32_t code = 0; code < 16; ++code) {
    const float v = __half2float(__nv_cvt_fp4_to_halfraw(static_cast<__nv_fp4_storage_t>(code), __NV_E2M1));
    EXPECT_EQ(float_bits(E2M1::decode(code)), float_bits(v));
  }
}

TEST(CudaHeaders, PowerOfTwoScalesAgree) {
  for_each_input([](float v) {
    if (!(v > 0.0F) || float_bits(v) >= kFloatInf) return;
    ASSERT_EQ(E8M0::encode_exponent(floor_log2(v)), __nv_cvt_float_to_e8m0(v, __NV_SATFINITE, cudaRoundZero)) << v;
    ASSERT_EQ(E8M0::encode_exponent(ceil_log2_ratio(v, 1.0F)),
              __nv_cvt_float_to_e8m0(v, __NV_SATFINITE, cudaRoundPosInf))
        << v;
  });
  for (std::uint32_t code = 0; code < 255; ++code) {
    const std::uint32_t bits = __nv_cvt_e8m0_to_bf16raw(static_cast<__nv_fp8_storage_t>(code)).x;
    EXPECT_EQ(E8M0::decode(code), Bf16::decode(bits)) << code;
  }
}

TEST(CudaHeaders, SixteenBitFloatsAgreeBelowTheirLimits) {
  for_each_input([](float v) {
    const std::uint32_t abs = float_bits(v) & kFloatAbs;
    if (abs > kFloatInf) return;  // NaN payloads are not compared
    if (!F16::encode(v).saturated) {
      ASSERT_EQ(F16::encode(v).bits, __half_raw(__float2half_rn(v)).x) << v;
    }
    if (!Bf16::encode(v).saturated) {
      ASSERT_EQ(Bf16::encode(v).bits, __nv_bfloat16_raw(__float2bfloat16_rn(v)).x) << v;
    }
  });
}
#endif

}  // namespace
}  // namespace mpfa::formats
