// v_mean=page: what a page keeps of its V, and when.
#include <gmock/gmock.h>

#include <cmath>

#include "cache/convert.hpp"
#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

const std::uint16_t* means_of(const CacheView& v, std::int64_t index, std::int64_t head) {
  return v.v_page_means + v.page_table[index] * v.v_page_mean_page_stride + head * v.v_page_mean_head_stride;
}

TEST(PageMeans, AreThoseOfFullPagesAndOfNoOthers) {
  PagedCache cache = poisoned_cache(cache_config("kv=f32,v_mean=page"));
  const Ids ids = ids_from(0, 2 * kPage + 5);
  for (std::int64_t t = 0; t < 2 * kPage + 5; t += 3) {  // in pieces: a page is finished by any of them
    ASSERT_TRUE(append(cache, 0, ids_from(static_cast<int>(t), std::min<std::int64_t>(3, 2 * kPage + 5 - t))).ok());
  }
  const CacheView v = cache.view();
  ASSERT_EQ(v.sequences[0].packed_end, 2 * kPage);
  Tensor given = values(ids);
  for (std::int64_t p = 0; p < 2; ++p) {
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      for (std::int64_t c = 0; c < kDim; ++c) {
        double sum = 0.0;
        for (std::int64_t t = p * kPage; t < (p + 1) * kPage; ++t) {
          sum += bf16_to_float(float_to_bf16(given.at(0, t, h, c)));
        }
        const std::uint16_t mean = means_of(v, p, h)[c];
        ASSERT_EQ(mean, float_to_bf16(static_cast<float>(sum / kPage)));
        float stored = 0.0F;
        std::vector<float> row(kDim);
        dequantise_tokens(v.v_format, kDim, 7, 1, v.v.page(v.page_table[p], h), 1.0F, row.data(), kDim, 1);
        stored = row[c];
        const float token = bf16_to_float(float_to_bf16(given.at(0, p * kPage + 7, h, c)));
        ASSERT_EQ(stored, token - bf16_to_float(mean));
      }
    }
  }
  for (std::int64_t h = 0; h < kKvHeads; ++h)
    EXPECT_EQ(means_of(v, 2, h)[0], 0xFFFF) << "written before the page is full";
}

TEST(PageMeans, AreCountedAndCopiedWithTheirPage) {
  EXPECT_EQ(bytes_per_token(recipe("kv=mxfp4,v_mean=page"), 32, 8, 128, 128, 64), 8 * (136 + 4));
  PagedCache cache = poisoned_cache(cache_config("kv=mxfp4,v_mean=page"));
  ASSERT_TRUE(append(cache, 0, ids_from(0, kPage)).ok());
  const std::vector<double> before = decode(cache.config(), view_of(cache, 0));
  ASSERT_TRUE(cache.copy_page(cache.view().page_table[0], 9).ok());
  ASSERT_TRUE(cache.set_pages(0, {9}).ok());
  EXPECT_EQ(decode(cache.config(), view_of(cache, 0)), before);
}

TEST(PageMeans, NanTokensSpoilTheirOwnBlocksOnly) {
  PagedCache cache = poisoned_cache(cache_config("kv=mxfp4,v_mean=page"));
  Tensor k = keys(ids_from(0, kPage)), v = values(ids_from(0, kPage));
  v.at(0, 3, 1, 4) = NAN;
  for (std::int64_t t = 0; t < kPage; ++t) v.at(0, t, 0, 6) = INFINITY;
  const std::int32_t sequence = 0;
  ASSERT_TRUE(cache.append(k.view(), v.view(), nullptr, &sequence, nullptr).ok());
  const CacheView view = cache.view();
  EXPECT_TRUE(std::isfinite(bf16_to_float(means_of(view, 0, 1)[4])));
  EXPECT_EQ(means_of(view, 0, 0)[6], 0);
  EXPECT_EQ(cache.counters().nonfinite_blocks, kPage + 1);
}

TEST(PageMeans, SealTakesThemToo) {
  for (const std::int64_t n : {kPage - 1, 2 * kPage + 3}) {
    PagedCache cache = poisoned_cache(cache_config("kv=nvfp4,v_mean=page,phase_switch=on"));
    ASSERT_TRUE(append(cache, 0, ids_from(0, n)).ok());
    ASSERT_TRUE(cache.seal().ok());
    EXPECT_EQ(cache.view().sequences[0].packed_end, n / kPage * kPage);
    PagedCache direct = poisoned_cache(cache_config("kv=nvfp4,v_mean=page"));
    ASSERT_TRUE(append(direct, 0, ids_from(0, n)).ok());
    EXPECT_EQ(decode(cache.config(), view_of(cache, 0)), decode(direct.config(), view_of(direct, 0)));
  }
}

TEST(PageMeans, SlotsHaveNone) {
  PagedCache cache = poisoned_cache(cache_config("kv=mxfp4,v_mean=page"));
  EXPECT_THAT(cache.write_slots(keys({1}).view(), values({1}).view(), std::vector<std::int64_t>{0}).message(),
              HasSubstr("v_mean=page"));
}

}  // namespace
}  // namespace mpfa::test
