// What callers pass to a cache: strides of every kind, dtypes, calibrated scales; and numbers that a scale cannot hold.
#include <gmock/gmock.h>

#include <cmath>

#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using Blob = std::vector<std::byte>;

Blob saved(const PagedCache& cache) {
  Blob blob;
  EXPECT_TRUE(cache.save(blob, 0).ok());
  return blob;
}

class AppendInputs : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] CacheConfig config() const {
    CacheConfig c = cache_config("q=f32,k=" + GetParam() + ",v=" + GetParam() + ",p=f32", 4, 1);
    c.page_size = 64;
    if (c.recipe.k.rule == ScaleRule::fixed) c.k_global = c.v_global = {0.02F, 0.03F};
    return c;
  }
  Blob after(const TensorView& k, const TensorView& v) const {
    PagedCache cache = poisoned_cache(config());
    const Status s = cache.append(k, v, nullptr, nullptr, nullptr);
    EXPECT_TRUE(s.ok()) << s.message();
    return saved(cache);
  }
};

TEST_P(AppendInputs, AnyStridesGiveTheSameBytes) {
  constexpr std::int64_t n = 70;
  const Tensor k = gaussian({1, n, kKvHeads, kDim}, 1), v = gaussian({1, n, kKvHeads, kDim}, 2);
  const Blob want = after(k.view(), v.view());
  // Every second token, heads outermost, channels apart, all between them NaN; and rows that run backwards.
  const auto strided = [](const Tensor& x, std::array<std::int64_t, 4> stride, std::int64_t first, std::int64_t size,
                          std::vector<float>& buffer) {
    buffer.assign(static_cast<std::size_t>(size), NAN);
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < kKvHeads; ++h) {
        for (std::int64_t c = 0; c < kDim; ++c) {
          buffer[first + t * stride[1] + h * stride[2] + c * stride[3]] = x.data[(t * kKvHeads + h) * kDim + c];
        }
      }
    }
    TensorView view = x.view();
    view.data = buffer.data() + first;
    view.stride = stride;
    return view;
  };
  std::vector<float> a, b;
  const std::int64_t row = kKvHeads * kDim;
  const TensorView second_k = strided(k, {0, 2 * row, kDim, 1}, 0, 2 * n * row, a);
  EXPECT_EQ(after(second_k, v.view()), want);
  EXPECT_EQ(after(k.view(), strided(v, {0, 2 * row, kDim, 1}, 0, 2 * n * row, b)), want);
  EXPECT_EQ(after(second_k, strided(v, {0, kDim, n * kDim, 1}, 0, n * row, b)), want);
  EXPECT_EQ(after(strided(k, {0, 3 * row, 3 * kDim, 3}, 0, 3 * n * row, a), v.view()), want);
  EXPECT_EQ(after(strided(k, {0, -row, kDim, 1}, (n - 1) * row, n * row, a), v.view()), want);
}

TEST_P(AppendInputs, SixteenBitInputsAreWidenedAndNotReinterpreted) {
  constexpr std::int64_t n = 64;
  for (const auto& [dtype, format] : {std::pair{DType::bf16, "bf16"}, {DType::f16, "fp16"}}) {
    const Tensor wide = gaussian({1, n, kKvHeads, kDim}, 1);
    std::vector<std::byte> narrow(wide.data.size() * 2);
    Tensor rounded = wide;
    const BlockFormat f = parse_format(format).value();
    const auto count = static_cast<std::int64_t>(wide.data.size());
    quantise_tokens(f, count, 0, 1, wide.data.data(), count, 1.0F, {narrow.data(), 0, nullptr, 0}, nullptr);
    round_trip_tokens(f, kDim, n * kKvHeads, wide.data.data(), kDim, rounded.data.data(), kDim, nullptr);
    const TensorView x = contiguous(static_cast<const void*>(narrow.data()), dtype, wide.shape);
    EXPECT_EQ(after(x, x), after(rounded.view(), rounded.view())) << format;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, AppendInputs, ::testing::ValuesIn(format_names()), [](const auto& test) {
  std::string name = test.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST(CalibratedScales, ScaleTheValuesAndNothingElse) {
  // K and V times powers of two with those as scales: the same codes; the output is scaled with V.
  for (const char* text : {"q=f32,k=nvfp4,v=nvfp4,p=f32", "q=f32,k=fp8_e4m3_static,v=fp8_e5m2_static,p=f32"}) {
    CacheConfig plain = cache_config(text, 8, 1);
    plain.k_global = plain.v_global = {1.0F, 1.0F};
    CacheConfig scaled = plain;
    scaled.k_global = {4.0F, 0.5F};
    scaled.v_global = {8.0F, 0.25F};
    const Ids ids = ids_from(0, 90);
    Tensor k = keys(ids), v = values(ids);
    PagedCache a = poisoned_cache(plain), b = poisoned_cache(scaled);
    ASSERT_TRUE(a.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
    for (std::int64_t t = 0; t < 90; ++t) {
      for (std::int64_t h = 0; h < kKvHeads; ++h) {
        for (std::int64_t c = 0; c < kDim; ++c) {
          k.at(0, t, h, c) *= scaled.k_global[h];
          v.at(0, t, h, c) *= scaled.v_global[h];
        }
      }
    }
    ASSERT_TRUE(b.append(k.view(), v.view(), nullptr, nullptr, nullptr).ok());
    const auto run = [](const PagedCache& cache, bool undo) {
      AttentionProblem p;
      p.recipe = cache.config().recipe;
      p.max_kv = 90;
      p.q_heads = kQHeads;
      p.kv_heads = kKvHeads;
      p.head_dim = p.head_dim_v = kDim;
      p.page_size = kPage;
      Tensor q = queries({5});
      for (std::int64_t h = 0; undo && h < kQHeads; ++h) {
        for (std::int64_t c = 0; c < kDim; ++c) q.at(0, 0, h, c) /= cache.config().k_global[h / 2];
      }
      AttentionTensors t;
      t.q = q.view();
      t.cache = cache.view();
      std::vector<double> out, lse;
      EXPECT_TRUE(attend_cpu(p, t, out, lse).ok());
      return out;
    };
    const std::vector<double> want = run(a, false), got = run(b, true);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i] * scaled.v_global[i / kDim / 2], 1e-5 * scaled.v_global[0]) << text << " " << i;
    }
  }
}

TEST(CalibratedScales, GivenToAFormatWithoutOneChangeNothing) {
  for (const char* text : {"bf16", "mxfp4,centre=none", "int8"}) {
    CacheConfig c = cache_config(text, 4, 1);
    PagedCache plain = poisoned_cache(c);
    c.k_global = c.v_global = {0.5F, 0.5F};
    PagedCache given = poisoned_cache(c);
    for (PagedCache* cache : {&plain, &given}) ASSERT_TRUE(append(*cache, 0, ids_from(0, 40)).ok());
    EXPECT_EQ(decode(c, view_of(plain, 0)), decode(c, view_of(given, 0))) << text;
  }
}

TEST(Counters, SaturationOfAFixedScaleIsCountedAndAScalePerTokenHasNone) {
  Tensor k({1, 1, kKvHeads, kDim}, 900.0F);
  CacheConfig c = cache_config("k=fp8_e4m3_static,v=bf16", 2, 1);
  c.k_global = {1.0F, 1.0F};
  PagedCache fixed = poisoned_cache(c), scaled = poisoned_cache(cache_config("k=fp8_e4m3,v=bf16", 2, 1));
  for (PagedCache* cache : {&fixed, &scaled}) {
    ASSERT_TRUE(cache->append(k.view(), k.view(), nullptr, nullptr, nullptr).ok());
  }
  EXPECT_EQ(fixed.counters().saturated_elements, kKvHeads * kDim);
  EXPECT_EQ(scaled.counters().saturated_elements, 0);
}

}  // namespace
}  // namespace mpfa::test
