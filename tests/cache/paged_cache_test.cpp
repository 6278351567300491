#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cache/convert.hpp"
#include "mpfa/cache.hpp"

namespace mpfa {
namespace {

using ::testing::HasSubstr;

std::vector<float> normal(std::int64_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> dist;
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = dist(rng);
  return x;
}

CacheConfig config(const char* recipe, std::int64_t pages = 8) {
  CacheConfig c;
  c.recipe = parse_recipe(recipe).value();
  c.batch = 2;
  c.num_pages = pages;
  c.page_size = 16;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = 32;
  return c;
}

struct Tokens {
  std::vector<float> k, v, q;
  std::int64_t n;
  explicit Tokens(std::int64_t count, unsigned seed = 1)
      : k(normal(2 * count * 2 * 32, seed)),
        v(normal(2 * count * 2 * 32, seed + 1)),
        q(normal(2 * count * 4 * 32, seed + 2)),
        n(count) {}
  [[nodiscard]] TensorView view(const std::vector<float>& x, std::int64_t heads, std::int64_t from,
                                std::int64_t count) const {
    TensorView t = contiguous(x.data(), DType::f32, {2, n, heads, 32});
    t.data = x.data() + from * t.stride[1];
    t.shape[1] = count;
    return t;
  }
  [[nodiscard]] Status append(PagedCache& cache, std::int64_t from, std::int64_t count) const {
    const TensorView qv = view(q, 4, from, count);
    return cache.append(view(k, 2, from, count), view(v, 2, from, count), &qv, nullptr, nullptr);
  }
};

TEST(PagedCache, BytesPerTokenAreTheFormatsOwn) {
  const auto bytes = [](const char* r) { return bytes_per_token(parse_recipe(r).value(), 32, 8, 128, 128, 64); };
  EXPECT_EQ(bytes("bf16"), 8 * 512);
  EXPECT_EQ(bytes("mxfp4"), 8 * 136);
  EXPECT_EQ(bytes("nvfp4"), 8 * 144);
  EXPECT_EQ(bytes("fp8"), 8 * 264);
  EXPECT_EQ(bytes("mpfa"), 8 * (72 + 132) + 32 * 2);
  EXPECT_EQ(bytes("turboquant_4bit"), 8 * (66 + 68));
}

TEST(PagedCache, PackedBytesDoNotDependOnHowTokensAreCut) {
  // Static centring: the mean of the first append would depend on the cut by design.
  const Tokens tokens(48);
  for (const char* recipe : {"mxfp4,centre=none", "nvfp4,centre=none", "k=nvfp4,v=nvfp4@keys,p=bf16", "fp8",
                             "k=mxfp4,v=mxfp4,sink=5,recent=7", "kv=nvfp4,v_mean=page"}) {
    PagedCache whole = PagedCache::create(config(recipe)).value();
    ASSERT_TRUE(tokens.append(whole, 0, 48).ok());
    for (const std::int64_t cut : {1, 15, 16, 17, 31}) {
      PagedCache parts = PagedCache::create(config(recipe)).value();
      ASSERT_TRUE(tokens.append(parts, 0, cut).ok());
      for (std::int64_t t = cut; t < 48; t += 3)
        ASSERT_TRUE(tokens.append(parts, t, std::min<std::int64_t>(3, 48 - t)).ok());
      const CacheView a = whole.view(), b = parts.view();
      ASSERT_EQ(a.sequences[0].packed_end, b.sequences[0].packed_end);
      const std::int64_t packed = a.sequences[0].packed_end;
      std::vector<float> x(32), y(32);
      for (std::int64_t t = 0; t < packed; ++t) {
        for (const bool is_k : {true, false}) {
          const auto read = [&](const CacheView& c, std::vector<float>& out) {
            const OperandPages& pages = is_k ? c.k : c.v;
            dequantise_tokens(is_k ? c.k_format : c.v_format, 32, t % 16, 1, pages.page(c.page_table[t / 16], 1), 1.0F,
                              out.data(), 32, 1);
          };
          read(a, x), read(b, y);
          ASSERT_EQ(x, y) << recipe << " cut " << cut << " token " << t;
        }
      }
    }
  }
}

TEST(PagedCache, FullPoolChangesNothing) {
  const Tokens tokens(64);
  PagedCache cache = PagedCache::create(config("nvfp4", 5)).value();
  ASSERT_TRUE(tokens.append(cache, 0, 20).ok());
  const std::vector<std::byte> before(cache.storage(), cache.storage() + cache.storage_bytes());
  const Status s = tokens.append(cache, 20, 30);
  EXPECT_EQ(s.code(), StatusCode::out_of_memory);
  EXPECT_THAT(s.message(), HasSubstr("4 more pages of 16 tokens are needed, 1 are free"));
  EXPECT_EQ(cache.lengths(), (std::vector<std::int64_t>{20, 20}));
  EXPECT_EQ(std::memcmp(before.data(), cache.storage(), before.size()), 0);
  ASSERT_TRUE(cache.grow(8).ok());
  EXPECT_TRUE(tokens.append(cache, 20, 30).ok());
  ASSERT_TRUE(cache.free_sequence(1).ok());
  EXPECT_EQ(cache.free_pages(), 4);
}

TEST(PagedCache, ErrorsSayWhatIsAllowed) {
  EXPECT_THAT(PagedCache::create(config("mpfa_static")).status().message(), HasSubstr("k_mean is missing"));
  EXPECT_THAT(PagedCache::create(config("k=fp8_e4m3_static,v=bf16")).status().message(),
              HasSubstr("k_global is missing"));
  CacheConfig odd = config("sage2");
  EXPECT_THAT(PagedCache::create(odd).status().message(), HasSubstr("64"));
  PagedCache cache = PagedCache::create(config("mpfa")).value();
  const Tokens tokens(4);
  const TensorView k = tokens.view(tokens.k, 2, 0, 4), v = tokens.view(tokens.v, 2, 0, 4);
  EXPECT_THAT(cache.append(k, v, nullptr, nullptr, nullptr).message(), HasSubstr("pass q"));
  TensorView wrong = k;
  wrong.shape[3] = 31;
  EXPECT_THAT(cache.append(wrong, v, nullptr, nullptr, nullptr).message(), HasSubstr("[2, 4, 2, 31]"));
  const TensorView q = tokens.view(tokens.q, 4, 0, 4);
  const std::int32_t twice[] = {1, 1};
  EXPECT_EQ(cache.append(k, v, &q, twice, nullptr).code(), StatusCode::out_of_range);
  EXPECT_THAT(cache.copy_page(0, 99).message(), HasSubstr("page ids are in 0..7"));
  TensorView endless = k, endless_v = v;
  endless.shape[1] = endless_v.shape[1] = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(cache.append(endless, endless_v, &q, nullptr, nullptr).message(), HasSubstr("it must be in [0, "));
}

TEST(PagedCache, PhaseSwitchKeepsSixteenBitsUntilSeal) {
  const Tokens tokens(40);
  PagedCache cache = PagedCache::create(config("mxattention")).value();
  ASSERT_TRUE(tokens.append(cache, 0, 20).ok());
  ASSERT_TRUE(tokens.append(cache, 20, 16).ok());
  EXPECT_EQ(cache.view().sequences[0].packed_end, 0);
  EXPECT_EQ(cache.view().sequences[0].wide_begin, 0);
  const std::int64_t wide = cache.memory_bytes();
  ASSERT_TRUE(cache.seal().ok());
  EXPECT_EQ(cache.view().sequences[0].packed_end, 36);
  EXPECT_EQ(cache.view().sequences[0].wide_begin, 36);
  EXPECT_LT(cache.memory_bytes(), wide);
  ASSERT_TRUE(tokens.append(cache, 36, 1).ok());
  EXPECT_EQ(cache.view().sequences[0].packed_end, 37);
}

TEST(PagedCache, SealedBytesAreThoseOfBf16TokensQuantisedAtOnce) {
  Tokens tokens(40);
  for (std::vector<float>* x : {&tokens.k, &tokens.v}) {
    for (float& v : *x) v = bf16_to_float(float_to_bf16(v));
  }
  for (const std::string recipe : {"kv=mxfp4", "k=nvfp4,v=fp8_e4m3", "kv=int8_tile16", "kv=nvfp4,v_mean=page"}) {
    PagedCache sealed = PagedCache::create(config((recipe + ",phase_switch=on").c_str())).value();
    PagedCache direct = PagedCache::create(config(recipe.c_str())).value();
    const auto bytes = static_cast<std::size_t>(direct.storage_bytes());
    for (PagedCache* cache : {&sealed, &direct}) {
      std::memset(cache->storage(), 0xFF, bytes);
      ASSERT_TRUE(tokens.append(*cache, 0, 25).ok());
      ASSERT_TRUE(tokens.append(*cache, 25, 10).ok());
      ASSERT_TRUE(cache->seal().ok());
      ASSERT_TRUE(tokens.append(*cache, 35, 5).ok());
    }
    EXPECT_EQ(std::memcmp(sealed.storage(), direct.storage(), bytes), 0) << recipe;
  }
}

TEST(PagedCache, NanTokenLeavesTheMeanOfOthersFinite) {
  Tokens tokens(8);
  tokens.k[3 * 2 * 32 + 4] = NAN;
  PagedCache cache = PagedCache::create(config("mxfp4")).value();
  ASSERT_TRUE(tokens.append(cache, 0, 8).ok());
  EXPECT_TRUE(std::isfinite(cache.view().sequences[0].k_mean[4]));
  EXPECT_EQ(cache.counters().nonfinite_blocks, 1);
}

}  // namespace
}  // namespace mpfa
