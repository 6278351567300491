// Head dims that the kernel has no tiles for: the rest of a tile is zeros in shared memory, never in the cache.
#include <gtest/gtest.h>

#include <string>

#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

class HeadDims : public testing::TestWithParam<const char*> {};

TEST_P(HeadDims, AgreeWithTheReference) {
  for (const std::int64_t d : {32, 48, 80, 96, 112, 160, 192, 208, 224, 240}) {
    for (const std::int64_t page : {16, 64}) {
      for (const std::int64_t sq : {1, 5}) {
        Case c(gaussian({2, sq, 6, d}, 1), with_bias(gaussian({2, 150, 2, d}, 2), d - 1, 20.0F),
               gaussian({2, 150, 2, d}, 3), {GetParam(), page, {150, 67}});
        c.problem.causal = true;
        expect_matches(c);
        if (HasFailure()) FAIL() << "head dim " << d << ", page " << page << ", " << sq << " queries";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, HeadDims,
                         testing::Values("mxfp4", "nvfp4", "kv=fp8_e4m3,p=bf16", "mxfp4,v_mean=mean", "mpfa,p=bf16",
                                         "bf16", "int4", "kv=int4_g32,p=bf16", "kv=int4_g64,p=bf16", "int8",
                                         "kv=int8_g32,p=bf16", "kv=int8_g128,p=bf16", "kv=mxfp4_f32,p=bf16",
                                         "kv=mxfp4_f32_b64,p=bf16", "mxfp4,sink=3,recent=20", "int4,v_mean=page"),
                         [](const auto& p) {
                           std::string name;
                           for (const char ch : std::string(p.param)) name += std::isalnum(ch) != 0 ? ch : '_';
                           return name;
                         });

TEST(HeadDim, OthersAreRefused) {
  for (const auto& [format, d] : {std::pair{"mxfp4", 72}, {"nvfp4", 288}, {"int4", 24}}) {
    Case c(gaussian({1, 1, 2, d}, 1), gaussian({1, 20, 1, d}, 2), gaussian({1, 20, 1, d}, 3), {format, 16, {}});
    DeviceCall call(c);
    EXPECT_NE(call.run().message().find("the same multiple of 16 from 32 to 256"), std::string::npos) << format;
  }
}

}  // namespace
}  // namespace mpfa::test
