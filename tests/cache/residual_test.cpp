// v_residual: V is read as alpha * code + beta, fitted on the first append when that has tokens enough.
#include <gmock/gmock.h>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

constexpr const char* kRecipe = "kv=int4_g32,p=f32,v_residual=on";

/// Codes of V of tokens [0, n) as numbers, [n, kDim].
std::vector<float> codes_of(const CacheView& v, std::int64_t n, std::int64_t head) {
  std::vector<float> rows(static_cast<std::size_t>(n * kDim));
  for (std::int64_t t = 0; t < n; ++t) {
    dequantise_tokens(v.v_format, kDim, t % kPage, 1, v.v.page(v.page_table[t / kPage], head), 1.0F,
                      rows.data() + t * kDim, kDim, 1);
  }
  return rows;
}

TEST(Residual, OfFewTokensIsLeftOut) {
  for (const std::int64_t n : {1, 2, 5, 63}) {
    PagedCache cache = poisoned_cache(cache_config(kRecipe));
    ASSERT_TRUE(append(cache, 0, ids_from(0, n)).ok());
    ASSERT_TRUE(append(cache, 0, ids_from(static_cast<int>(n), 100)).ok());
    const SequenceView s = view_of(cache, 0).sequences[0];
    for (std::int64_t i = 0; i < kKvHeads * kDim; ++i) {
      ASSERT_EQ(s.v_alpha[i], 1.0F) << n;
      ASSERT_EQ(s.v_beta[i], 0.0F) << n;
    }
  }
}

TEST(Residual, LeavesNoErrorThatGoesWithTheCode) {
  const std::int64_t n = 2 * kPage;
  const Ids ids = ids_from(0, n);
  PagedCache cache = poisoned_cache(cache_config(kRecipe));
  ASSERT_TRUE(append(cache, 0, ids).ok());
  const CacheView v = view_of(cache, 0);
  const SequenceView& s = v.sequences[0];
  Tensor given = values(ids);
  bool fitted = false;
  for (std::int64_t h = 0; h < kKvHeads; ++h) {
    const std::vector<float> codes = codes_of(v, n, h);
    for (std::int64_t c = 0; c < kDim; ++c) {
      const double alpha = s.v_alpha[h * kDim + c], beta = s.v_beta[h * kDim + c];
      fitted = fitted || alpha != 1.0;
      double sum = 0.0, product = 0.0, size = 0.0;  // of the errors, and of errors times codes
      for (std::int64_t t = 0; t < n; ++t) {
        const double code = codes[t * kDim + c];
        const double error = given.at(0, t, h, c) - (alpha * code + beta);
        sum += error, product += error * code, size += code * code;
      }
      ASSERT_NEAR(sum, 0.0, 1e-5 * size);
      ASSERT_NEAR(product, 0.0, 1e-5 * size);
    }
  }
  EXPECT_TRUE(fitted);
}

}  // namespace
}  // namespace mpfa::test
