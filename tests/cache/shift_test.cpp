// Context shift: tokens removed from the middle, and keys turned to other positions inside the cache.
#include <gmock/gmock.h>

#include <cmath>

#include "cache/hadamard.hpp"
#include "tests/cache/rope_tables.hpp"
#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kPositions = 400;

Status append_with(PagedCache& cache, std::int32_t sequence, const Ids& ids, const Rope& rope) {
  const Tensor q = queries(ids);
  const TensorView q_view = q.view();
  return cache.append(keys(ids).view(), values(ids).view(), &q_view, &sequence, nullptr, &rope);
}

/// Keys as a kernel has them, un-centred and rotated back to the channels of the caller: [tokens, heads, dim].
std::vector<float> stored_keys(const PagedCache& cache, std::int64_t sequence) {
  const CacheView v = view_of(cache, sequence);
  const SequenceView& s = v.sequences[0];
  std::vector<float> all;
  std::vector<float> row(kDim);
  for (std::int64_t t = 0; t < v.lengths[0]; ++t) {
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      const std::uint16_t* wide = t < s.sink          ? s.sink_k + (t * kKvHeads + h) * kDim
                                  : t >= s.packed_end ? s.wide_k + ((t - s.wide_begin) * kKvHeads + h) * kDim
                                                      : nullptr;
      if (wide != nullptr) {
        for (std::int64_t c = 0; c < kDim; ++c) row[c] = bf16_to_float(wide[c]);
      } else {
        dequantise_tokens(v.k_format, kDim, t % kPage, 1, v.k.page(v.page_table[t / kPage], h), 1.0F, row.data(), kDim,
                          1);
      }
      if (cache.config().recipe.rotate != Rotate::none) hadamard_rows(row.data(), 1, kDim, kDim);
      for (std::int64_t c = 0; c < kDim; ++c)
        all.push_back(row[c] + (s.k_mean == nullptr ? 0.0F : s.k_mean[h * kDim + c]));
    }
  }
  return all;
}

std::vector<float> true_keys(const Ids& ids, const RopeTables& tables, RopeStyle style, std::int64_t first = 0) {
  Tensor k = keys(ids);
  for (std::int64_t t = 0; t < k.shape[1]; ++t) {
    for (std::int64_t h = 0; h < kKvHeads; ++h) tables.turn(&k.at(0, t, h, 0), style, 0, first + t);
  }
  return k.data;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0.0, size = 0.0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(error / size);
}

TEST(Remove, WithoutRopeIsACacheThatNeverSawTheTokens) {
  for (const char* text : {"bf16", "fp8", "mxfp4,centre=none", "mpfa_static", "turboquant_4bit", "int8,recent=9",
                           "nvfp4,centre=none,sink=5,recent=page"}) {
    for (const auto& [begin, end] : {std::pair<std::int64_t, std::int64_t>{5, 6}, {8, 72}, {31, 65}, {40, 41}}) {
      PagedCache cache = poisoned_cache(cache_config(text));
      ASSERT_TRUE(append(cache, 1, ids_from(0, 130)).ok());
      ASSERT_TRUE(cache.fork(1, 2).ok());
      const Status s = cache.remove(1, begin, end);
      ASSERT_TRUE(s.ok()) << s.message();
      const Ids rest = joined(ids_from(0, begin), ids_from(static_cast<int>(end), 130 - end));
      expect_fresh(cache, 1, rest, false, text);
      expect_fresh(cache, 2, ids_from(0, 130), false, text);  // the fork keeps its own
      ASSERT_TRUE(append(cache, 1, ids_from(300, 40)).ok());
      expect_fresh(cache, 1, joined(rest, ids_from(300, 40)), false, text);
      ASSERT_TRUE(cache.free_sequence(2).ok());
      EXPECT_EQ(cache.free_pages(), 16 - (130 - (end - begin) + 40 + kPage - 1) / kPage);
    }
  }
}

TEST(Remove, WithRopeComesCloseToACacheAtTheNewPositions) {
  const std::int64_t begin = 20, end = 57, length = 150;
  for (const RopeStyle style : {RopeStyle::half, RopeStyle::interleaved}) {
    const RopeTables tables(kPositions, kDim / 2);
    const Rope rope = tables.rope(style);
    // The recipe, and the relative error of keys that were quantised once.
    for (const auto& [text, once] : {std::pair<const char*, double>{"k=f32,v=bf16,p=f32", 1e-6},
                                     {"bf16", .002},
                                     {"fp8", .03},
                                     {"int8", .008},
                                     {"mxfp4", .13},
                                     {"nvfp4", .1},
                                     {"mpfa_static", .13},
                                     {"mxfp4,rotate=qk,sink=16,recent=12", .13}}) {
      PagedCache cache = poisoned_cache(cache_config(text)), fresh = poisoned_cache(cache_config(text));
      ASSERT_TRUE(append_with(cache, 0, ids_from(0, length), rope).ok());
      const Status s = cache.remove(0, begin, end, &rope);
      ASSERT_TRUE(s.ok()) << s.message();
      const Ids rest = joined(ids_from(0, begin), ids_from(static_cast<int>(end), length - end));
      ASSERT_TRUE(append_with(fresh, 0, rest, rope).ok());
      const std::vector<float> want = true_keys(rest, tables, style);
      const double fresh_error = distance(stored_keys(fresh, 0), want);
      EXPECT_LT(fresh_error, once) << text;
      EXPECT_LT(distance(stored_keys(cache, 0), want), 1.5 * fresh_error + 1e-7) << text;
      // V and what follows are those of the fresh cache.
      const CacheView a = view_of(cache, 0), b = view_of(fresh, 0);
      EXPECT_EQ(a.sequences[0].packed_end, b.sequences[0].packed_end);
      for (std::int64_t t = 0; t < b.sequences[0].packed_end; ++t) {
        std::vector<float> x(kDim), y(kDim);
        dequantise_tokens(a.v_format, kDim, t % kPage, 1, a.v.page(a.page_table[t / kPage], 1), 1.0F, x.data(), kDim,
                          1);
        dequantise_tokens(b.v_format, kDim, t % kPage, 1, b.v.page(b.page_table[t / kPage], 1), 1.0F, y.data(), kDim,
                          1);
        ASSERT_EQ(x, y) << text << " token " << t;
      }
    }
  }
}

TEST(Shift, ErrorGrowsWithTheRootOfTheNumberOfShifts) {
  const RopeTables rounded(kPositions, kDim / 2, DType::bf16), exact(kPositions, kDim / 2);
  for (const char* text : {"bf16", "fp8", "int8", "mxfp4", "nvfp4", "mpfa_static", "mxfp4,rotate=qk"}) {
    PagedCache cache = poisoned_cache(cache_config(text));
    const Ids ids = ids_from(0, 100);
    ASSERT_TRUE(append_with(cache, 3, ids, exact.rope(RopeStyle::half)).ok());
    const double once = distance(stored_keys(cache, 3), true_keys(ids, exact, RopeStyle::half));
    for (int i = 0; i < 10; ++i)
      ASSERT_TRUE(cache.shift(3, 0, i % 2 == 0 ? 30 : -23, exact.rope(RopeStyle::half)).ok());
    const double ten = distance(stored_keys(cache, 3), true_keys(ids, exact, RopeStyle::half, 35));
    EXPECT_LT(ten, 1.25 * std::sqrt(11.0) * once) << text;
    // A table in bf16 turns by angles of its own rounding, and never changes the length of a key.
    ASSERT_TRUE(cache.shift(3, 0, 3, rounded.rope(RopeStyle::half)).ok());
    EXPECT_LT(distance(stored_keys(cache, 3), true_keys(ids, exact, RopeStyle::half, 38)),
              1.25 * std::sqrt(12.0) * once + .004);
  }
}

TEST(Shift, TurnsTheTailOnlyAndTakesRankOneTermsAnew) {
  const RopeTables tables(kPositions, kDim / 2);
  const Rope rope = tables.rope(RopeStyle::half);
  PagedCache cache = poisoned_cache(cache_config("mpfa_static"));
  ASSERT_TRUE(append_with(cache, 0, ids_from(0, 70), rope).ok());
  ASSERT_TRUE(cache.fork(0, 1).ok());
  const std::vector<float> before = stored_keys(cache, 0);
  ASSERT_TRUE(cache.shift(0, 40, 5, rope).ok());
  const std::vector<float> after = stored_keys(cache, 0);
  const std::int64_t same = 40 * kKvHeads * kDim;
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + same, after.begin()));
  EXPECT_EQ(stored_keys(cache, 1), before);
  EXPECT_EQ(view_of(cache, 0).page_table[0], view_of(cache, 1).page_table[0]);  // untouched pages stay shared
  EXPECT_NE(view_of(cache, 0).page_table[1], view_of(cache, 1).page_table[1]);
  const CacheView v = view_of(cache, 0);
  const CacheConfig& c = cache.config();
  for (std::int64_t t = 40; t < 70; ++t) {
    for (std::int64_t h = 0; h < kKvHeads; ++h) {
      double want = 0.0, size = 0.0;
      for (std::int64_t i = 0; i < kDim; ++i) {
        const double k = after[(t * kKvHeads + h) * kDim + i] - c.k_mean[h * kDim + i];
        want += k * c.q_mean[2 * h * kDim + i];
        size += std::fabs(k * c.q_mean[2 * h * kDim + i]);
      }
      EXPECT_NEAR(v.rank_one_at(v.page_table[t / kPage], h, t % kPage, 0), want, .1 * size);
    }
  }
}

TEST(ShiftErrors, SayWhyAndChangeNothing) {
  const RopeTables tables(40, kDim / 2);
  const Rope rope = tables.rope(RopeStyle::half);
  const auto filled = [&](const char* text, std::int64_t pages = 16) {
    PagedCache cache = poisoned_cache(cache_config(text, pages));
    EXPECT_TRUE(append(cache, 0, ids_from(0, 127)).ok() && append(cache, 0, ids_from(127, 1)).ok());
    return cache;
  };
  PagedCache keys_axis = filled("k=nvfp4,v=nvfp4@keys,p=bf16");
  EXPECT_THAT(keys_axis.remove(0, 1, 2).message(),
              HasSubstr("V is stored as nvfp4@keys, where 16 tokens share a scale"));
  EXPECT_TRUE(keys_axis.shift(0, 0, 3, rope).ok());  // V does not move
  PagedCache tiles = filled("int4_int8");
  EXPECT_EQ(tiles.shift(0, 0, 3, rope).code(), StatusCode::unsupported);

  PagedCache page_means = filled("nvfp4,v_mean=page");
  EXPECT_THAT(page_means.remove(0, 40, 41).message(), HasSubstr("v_mean=page keeps one mean"));
  EXPECT_TRUE(page_means.shift(0, 40, 3, rope).ok());

  PagedCache cache = filled("mxfp4,sink=4,recent=8", 5);
  const std::vector<std::byte> before(cache.storage(), cache.storage() + cache.storage_bytes());
  EXPECT_THAT(cache.remove(0, 3, 9).message(), HasSubstr("begin at 4"));
  EXPECT_THAT(cache.remove(0, 100, 129).message(), HasSubstr("tokens [100, 129) are not in 0..128"));
  EXPECT_THAT(cache.remove(0, 121, 125).message(), HasSubstr("exist as codes only"));
  EXPECT_THAT(cache.remove(0, 10, 60, &rope).message(), HasSubstr("turn by -50 positions"));
  EXPECT_EQ(cache.shift(0, 0, INT64_MIN, rope).code(), StatusCode::out_of_range);
  EXPECT_EQ(cache.shift(0, 129, 1, rope).code(), StatusCode::out_of_range);
  EXPECT_EQ(cache.shift(4, 0, 1, rope).code(), StatusCode::out_of_range);
  RopeTables broken = tables;
  std::fill_n(broken.cos.begin() + 3 * kDim / 2, kDim / 2, 0.0F);
  std::fill_n(broken.sin.begin() + 3 * kDim / 2, kDim / 2, 0.0F);
  EXPECT_THAT(cache.shift(0, 0, -3, broken.rope(RopeStyle::half)).message(), HasSubstr("no rotation"));
  ASSERT_TRUE(cache.fork(0, 1).ok());
  EXPECT_EQ(cache.shift(0, 0, 3, rope).code(), StatusCode::out_of_memory);
  EXPECT_EQ(cache.remove(0, 30, 40, &rope).code(), StatusCode::out_of_memory);
  EXPECT_EQ(cache.lengths()[0], 128);
  EXPECT_EQ(std::memcmp(before.data(), cache.storage(), before.size()), 0);
  ASSERT_TRUE(cache.remove(0, 100, 110, &rope).ok());  // one page to copy, one free
  EXPECT_EQ(cache.lengths()[0], 118);
}

}  // namespace
}  // namespace mpfa::test
