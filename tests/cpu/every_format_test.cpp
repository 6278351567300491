// Classes of faults, each on every storage format as K and V: rows without keys, keys that only zero fill would hide,
// order of tokens, later tokens, verify against single steps, prompts in chunks.
#include "tests/cpu/every_format.hpp"

#include <cmath>
#include <limits>

namespace mpfa::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat, ::testing::ValuesIn(format_names()), format_test_name);

TEST_P(EveryFormat, RowsWithoutKeysAreZeroAndMinusInfinityWhateverTheirQueryHolds) {
  for (const std::int64_t rows : {1, 5, 24}) {
    for (const bool all_empty : {true, false}) {
      PagedCache cache = cache_of(2, 64);
      if (!all_empty) {
        const Tensor x = gaussian({1, 7, 2, kDim}, 1);
        const std::int32_t second = 1;
        ASSERT_TRUE(cache.append(x.view(), x.view(), nullptr, &second, nullptr).ok());
      }
      Tensor q = gaussian({2, rows, 4, kDim}, 3);
      std::fill_n(q.data.begin(), rows * 4 * kDim, std::nanf(""));  // sequence 0 has no keys
      const AttentionProblem p = problem(rows, 64);
      AttentionTensors t;
      t.q = q.view();
      t.cache = cache.view();
      const Answer a = answer(p, t);
      for (std::int64_t r = 0; r < 2 * rows; ++r) {
        const bool empty = all_empty || r < rows || r - rows + 7 - rows < 0;
        for (std::int64_t h = 0; h < 4; ++h) {
          ASSERT_EQ(a.lse[r * 4 + h] == kMinusInf, empty) << r;
          for (std::int64_t c = 0; c < kDim; ++c) {
            const double o = a.out[(r * 4 + h) * kDim + c];
            ASSERT_TRUE(empty ? o == 0.0 : std::isfinite(o)) << "row " << r << " of " << rows;
          }
        }
      }
    }
  }
}

TEST_P(EveryFormat, KeysPastTheLengthDoNotCountAsZeros) {
  // Every real logit is about -20: a slot read as zero would have e^20 times the weight of a real key.
  for (const std::int64_t n : {1, 15, 17, 63, 64, 65, 130}) {
    for (const std::int64_t rows : {1, 24}) {
      PagedCache cache = cache_of(1, n, 0);
      const Tensor k({1, n, 2, kDim}, -1.0F), v({1, n, 2, kDim}, 1.0F);
      ASSERT_TRUE(cache.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
      const Tensor q({1, rows, 4, kDim}, 20.0F / std::sqrt(static_cast<float>(kDim)));
      AttentionProblem p = problem(rows, n);
      p.batch = 1;
      p.causal = false;
      AttentionTensors t;
      t.q = q.view();
      t.cache = cache.view();
      // The newest append covers all rows, so recipes that keep 16-bit tokens take them too.
      const Answer a = answer(p, t);
      for (const double o : a.out) ASSERT_NEAR(o, 1.0, 0.1) << n;
      for (const double l : a.lse) ASSERT_NEAR(l, std::log(static_cast<double>(n)) - 20.0, 2.0) << n;
    }
  }
}

TEST_P(EveryFormat, WeightsComeInTokenOrder) {
  if (GetParam() == "lloyd4") return;  // 16 levels around 0 hold no one-hot token
  constexpr std::int64_t n = kDim;
  PagedCache cache = cache_of(1, n);
  Tensor k({1, n, 2, kDim}), v({1, n, 2, kDim});
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t c = 0; c < kDim; ++c) k.at(0, j, h, c) = j % 3 == 0 ? 1.0F : -1.0F;
      v.at(0, j, h, j) = 1.0F;
    }
  }
  ASSERT_TRUE(cache.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
  for (const std::int64_t rows : {1, 24}) {
    const Tensor q({1, rows, 4, kDim}, 0.05F);
    AttentionProblem p = problem(rows, n);
    p.batch = 1;
    p.causal = false;
    AttentionTensors t;
    t.q = q.view();
    t.cache = cache.view();
    const Answer a = answer(p, t);
    const double high = std::exp(0.4), low = std::exp(-0.4), sum = 22 * high + 42 * low;
    for (std::int64_t j = 0; j < n; ++j) {
      const double want = (j % 3 == 0 ? high : low) / sum;
      ASSERT_NEAR(a.out[(rows - 1) * 4 * kDim + j], want, 0.15 * want) << j;
    }
  }
}

TEST_P(EveryFormat, LaterTokensChangeNoEarlierRow) {
  constexpr std::int64_t n = 100, few = 4;
  const Tensor q = normal_from_table({1, n, 4, kDim}, 3);
  const Tensor k = normal_from_table({1, n, 2, kDim}, 1), v = normal_from_table({1, n, 2, kDim}, 2);
  const auto run = [&](const Tensor& keys, const Tensor& values, std::int64_t rows) {
    PagedCache cache = cache_of(1, n);
    EXPECT_TRUE(cache.append(keys.view(), values.view(), nullptr, nullptr, nullptr).ok());
    AttentionProblem p = problem(rows, n);
    p.batch = 1;
    AttentionTensors t;
    t.q = part(q, n - rows, rows);
    t.cache = cache.view();
    return answer(p, t);
  };
  // Rows of a prompt and of a verify step are computed in different ways.
  for (const std::int64_t rows : {n, few}) {
    const Answer before = run(k, v, rows);
    for (const std::int64_t last : {0, 15, 16, 40, 63, 64, 96, 97, 98}) {
      if (last < n - rows) continue;
      for (const float later : {1e4F, 1e30F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
        Tensor k2 = k, v2 = v;
        std::fill(k2.data.begin() + (last + 1) * 2 * kDim, k2.data.end(), -later);
        std::fill(v2.data.begin() + (last + 1) * 2 * kDim, v2.data.end(), later);
        const Answer after = run(k2, v2, rows);
        const std::ptrdiff_t same = (last + 1 - (n - rows)) * 4;
        const auto equal = [&](const std::vector<double>& a, const std::vector<double>& b, std::ptrdiff_t count) {
          return std::equal(a.begin(), a.begin() + count, b.begin());
        };
        ASSERT_TRUE(equal(before.lse, after.lse, same)) << rows << " rows, " << last << ", then " << later;
        ASSERT_TRUE(equal(before.out, after.out, same * kDim)) << rows << " rows, " << last << ", then " << later;
      }
    }
  }
}

TEST_P(EveryFormat, RowsOfAVerifyStepEqualSingleSteps) {
  constexpr std::int64_t past = 61, most = 8;
  const Tensor q = normal_from_table({1, most, 4, kDim}, 3);
  const Tensor k = normal_from_table({1, past + most, 2, kDim}, 1), v = normal_from_table({1, past + most, 2, kDim}, 2);
  std::vector<Answer> steps;
  PagedCache single = cache_of(1, past + most);
  ASSERT_TRUE(single.append(part(k, 0, past), part(v, 0, past), nullptr, nullptr, nullptr).ok());
  for (std::int64_t r = 0; r < most; ++r) {
    ASSERT_TRUE(single.append(part(k, past + r, 1), part(v, past + r, 1), nullptr, nullptr, nullptr).ok());
    AttentionProblem p = problem(1, past + most);
    p.batch = 1;
    AttentionTensors t;
    t.q = part(q, r, 1);
    t.cache = single.view();
    steps.push_back(answer(p, t));
  }
  for (std::int64_t rows = 1; rows <= most; ++rows) {
    PagedCache cache = cache_of(1, past + most);
    ASSERT_TRUE(cache.append(part(k, 0, past), part(v, 0, past), nullptr, nullptr, nullptr).ok());
    ASSERT_TRUE(cache.append(part(k, past, rows), part(v, past, rows), nullptr, nullptr, nullptr).ok());
    AttentionProblem p = problem(rows, past + most);
    p.batch = 1;
    AttentionTensors t;
    t.q = part(q, 0, rows);
    t.cache = cache.view();
    const Answer verify = answer(p, t);
    const double bound = keeps_wide_tokens(p.recipe) ? 2e-2 : 2e-5;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < 4 * kDim; ++i) {
        ASSERT_NEAR(verify.out[r * 4 * kDim + i], steps[r].out[i], bound) << rows << " rows, row " << r;
      }
      for (std::int64_t h = 0; h < 4; ++h) ASSERT_NEAR(verify.lse[r * 4 + h], steps[r].lse[h], bound);
    }
  }
}

TEST_P(EveryFormat, PromptInChunksEqualsOneCall) {
  constexpr std::int64_t n = 70;
  const Tensor q = normal_from_table({1, n, 4, kDim}, 3);
  const Tensor k = normal_from_table({1, n, 2, kDim}, 1), v = normal_from_table({1, n, 2, kDim}, 2);
  AttentionProblem p = problem(n, n);
  p.batch = 1;
  const double bound = keeps_wide_tokens(p.recipe) ? 2e-2 : 2e-5;
  std::vector<double> want;
  for (const std::vector<std::int64_t>& chunks : {std::vector<std::int64_t>{n}, {5, 1, 64}, {33, 20, 1, 16}}) {
    PagedCache cache = cache_of(1, n);
    std::vector<double> out;
    std::int64_t at = 0;
    for (const std::int64_t count : chunks) {
      ASSERT_TRUE(cache.append(part(k, at, count), part(v, at, count), nullptr, nullptr, nullptr).ok());
      AttentionTensors t;
      t.q = part(q, at, count);
      t.cache = cache.view();
      const Answer a = answer(p, t);
      out.insert(out.end(), a.out.begin(), a.out.end());
      at += count;
    }
    if (want.empty()) want = out;
    ASSERT_LE(max_difference(out, want), bound) << chunks.size() << " chunks";
  }
}

}  // namespace
}  // namespace mpfa::test
