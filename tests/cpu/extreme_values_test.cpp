// Values at the ends of their types, and running maxima that rise from tile to tile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/filled.hpp"

namespace mpfa::test {
namespace {

TEST(ExtremeValues, LargeValuesOfEqualKeysStayFinite) {
  for (const std::string v :
       {"fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "nvfp4", "mxfp4", "mxfp8_e4m3", "int4_asym"}) {
    for (const auto& [keys, value] : {std::pair{64, 6e4F}, {4096 + 64, 4.0F}}) {
      for (const std::int64_t rows : {1, 20}) {
        // fp16 sums would overflow at 65504.
        Case c(Tensor({1, rows, 2, 16}), Tensor({1, keys, 1, 16}, 1.0F), Tensor({1, keys, 1, 16}, value),
               {fmt::format("q=f32,k=bf16,p=f32,v={}", v), 64, {}});
        c.problem.out_dtype = value < 65504.0F ? DType::f16 : DType::f32;
        c.run(attend_cpu);
        // nvfp4 holds at most 6 * 448 without a calibrated scale.
        const double want = v == "nvfp4" ? std::min(value, 2688.0F) : value;
        for (const double x : c.out) ASSERT_NEAR(x, want, 0.13 * want) << v << " " << keys;
      }
    }
  }
}

TEST(ExtremeValues, HugeScoresAgreeWithTheReference) {
  // q and K of size 200 at d = 128: logits far above 65504.
  for (const char* text :
       {"q=f32,k=bf16,v=bf16,p=f32", "q=bf16,k=fp8_e4m3,v=fp8_e4m3,p=bf16", "q=f32,k=int8,v=int8,p=f32"}) {
    for (const std::int64_t rows : {1, 5, 30}) {
      Tensor q = gaussian({1, rows, 2, 128}, 1), k = gaussian({1, 90, 1, 128}, 2);
      for (float& x : q.data) x *= 200.0F;
      for (float& x : k.data) x *= 200.0F;
      Case c(q, k, gaussian({1, 90, 1, 128}, 3), {text, 64, {}});
      c.problem.softmax_scale = 1.0F;
      c.run(reference_fn(reference::Precision::f64));
      const std::vector<double> want = c.out;
      c.run(attend_cpu);
      for (const double x : c.out) ASSERT_TRUE(std::isfinite(x));
      // float32 logits of 1e7 are good to about 1; a row with a clear maximum gives that key's value.
      EXPECT_LE(relative_l2(c.out, want), 0.02) << text << " " << rows;
    }
  }
}

TEST(ExtremeValues, MaximaThatRiseWithEveryTileKeepThePrecisionOfP) {
  for (const std::string p : {"f32", "bf16", "e4m3x256", "e4m3x448", "e4m3_loglin"}) {
    for (const float rise : {0.01F, 0.5F, 5.0F, 8.7F}) {  // nats from one tile of 64 keys to the next
      double worst = 0.0;
      double first = 0.0;
      for (const std::int64_t n : {64, 127, 128, 129, 255, 256, 257, 384, 385}) {
        for (const std::int64_t rows : {1, 20}) {
          Tensor k({1, n, 1, 16});
          for (std::int64_t j = 0; j < n; ++j) k.at(0, j, 0, 0) = rise * static_cast<float>(j) / 64.0F;
          Tensor q({1, rows, 1, 16});
          for (std::int64_t i = 0; i < rows; ++i) q.at(0, i, 0, 0) = 1.0F;
          Case c(q, k, gaussian({1, n, 1, 16}, 3), {fmt::format("q=f32,k=f32,v=f32,p={}", p), 64, {}});
          c.problem.softmax_scale = 1.0F;
          AttentionProblem exact = c.problem;
          exact.recipe = recipe(kExactRecipe);
          c.run(attend_cpu);
          const std::vector<double> got = c.out;
          c.problem = exact;
          c.run(reference_fn(reference::Precision::f64));
          const double error = relative_l2(got, c.out);
          worst = std::max(worst, error);
          if (n == 64) first = std::max(first, error);
        }
      }
      // The error at no boundary exceeds a small multiple of the one of a single tile.
      const double step = p == "f32" ? 1e-5 : p == "bf16" ? 2e-3 : 0.04;
      EXPECT_LE(worst, std::max(4.0 * first, step)) << p << " rise " << rise;
    }
  }
}

}  // namespace
}  // namespace mpfa::test
