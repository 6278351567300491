// Keys rotated and latent keys written to pages of the caller: the bytes of PagedCache::write_slots and of plain code.
#include <gmock/gmock.h>

#include "tests/cache/caller_pools.hpp"
#include "tests/cache/rope_tables.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kTokens = 45, kRows = 90, kDimV = 48;

struct Turn {
  RopeStyle style;
  std::int64_t half, begin;
  DType tables;
};
const Turn kTurns[] = {{RopeStyle::half, kDim / 2, 0, DType::f32},
                       {RopeStyle::interleaved, kDim / 2, 0, DType::bf16},
                       {RopeStyle::half, 5, 20, DType::bf16},
                       {RopeStyle::interleaved, 6, 3, DType::f32}};

/// x [1, n, heads, kDim] with row t at at[t], or as it is at a slot of -1.
Tensor turned(Tensor x, const RopeTables& tables, const Turn& turn, const std::vector<std::int64_t>& at,
              const std::vector<std::int64_t>& slots) {
  for (std::int64_t t = 0; t < x.shape[1]; ++t) {
    for (std::int64_t h = 0; slots[t] >= 0 && h < x.shape[2]; ++h) {
      tables.turn(&x.at(0, t, h, 0), turn.style, turn.begin, at[t]);
    }
  }
  return x;
}

/// Tokens of one call: out of order over two pages, every seventh skipped, at positions that are no indices.
struct Tokens {
  Tokens() {
    for (std::int64_t t = 0; t < kTokens; ++t) {
      slots.push_back(t % 7 == 3 ? -1 : (t < 20 ? 3 : 1) * kPage + (t * 5) % kPage);
      positions.push_back(t % 7 == 3 ? kRows + 5 : (t * 31) % kRows);  // nobody reads that of a skipped token
    }
    for (float& x : k.data) bits.push_back(float_to_bf16(x)), x = bf16_to_float(bits.back());
  }
  std::vector<std::int64_t> slots, positions;
  std::vector<std::uint16_t> bits;
  Tensor k = gaussian({1, kTokens, kKvHeads, kDim}, 31), v = gaussian({1, kTokens, kKvHeads, kDimV}, 32),
         q = gaussian({1, kTokens, kQHeads, kDim}, 33);
  [[nodiscard]] TensorView bf16_keys() const {
    return contiguous(static_cast<const void*>(bits.data()), DType::bf16, k.shape);
  }
};

CacheConfig config_of(const char* text) {
  CacheConfig c = cache_config(text, 4);
  c.head_dim_v = kDimV;
  if (c.recipe.v_mean == VMean::fixed) c.v_mean = gaussian({1, 1, kKvHeads, kDimV}, 23).data;
  return c;
}

TEST(QuantiseToPages, RotatesAsWriteSlotsDoes) {
  const Tokens x;
  for (const char* text : {"mxfp4,centre=static,v_mean=static,rotate=qk", "kv=nvfp4,centre=none", "fp8", "bf16",
                           "k=int8_g32,v=int4_g32,p=f32"}) {
    for (const Turn& turn : kTurns) {
      const CacheConfig c = config_of(text);
      const RopeTables tables(kRows, turn.half, turn.tables);
      PagedCache cache = poisoned_cache(c);
      Pools pools(c), apart(c);
      Tensor q_cache(x.q.shape), q_pages(x.q.shape);
      Rope rope = tables.rope(turn.style, turn.begin);
      rope.positions = x.positions.data();
      rope.q = x.q.view();
      const auto write_to = [&](Tensor& out) {
        return contiguous(static_cast<void*>(out.data.data()), DType::f32, out.shape);
      };
      rope.q_out = write_to(q_cache);
      ASSERT_TRUE(cache.write_slots(x.bf16_keys(), x.v.view(), x.slots, &rope).ok());
      rope.q_out = write_to(q_pages);
      const Status done = quantise_to_pages(c, pools.k.pages, pools.v.pages, x.bf16_keys(), x.v.view(), x.slots,
                                            &pools.counters, &rope);
      ASSERT_TRUE(done.ok()) << text << done.message();
      expect_same_tokens(cache, pools, x.slots, text);
      EXPECT_EQ(pools.counters.saturated_elements, cache.counters().saturated_elements);
      // Keys that plain code turned in float32 and nobody rounded since; queries of skipped tokens are left alone.
      const Tensor k = turned(x.k, tables, turn, x.positions, x.slots);
      ASSERT_TRUE(quantise_to_pages(c, apart.k.pages, apart.v.pages, k.view(), x.v.view(), x.slots, nullptr).ok());
      EXPECT_EQ(pools.k.bytes, apart.k.bytes) << text;
      EXPECT_EQ(pools.v.bytes, apart.v.bytes) << text;
      EXPECT_EQ(q_pages.data, q_cache.data) << text;
      Tensor q = turned(x.q, tables, turn, x.positions, x.slots);
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(q.data.size()); ++i) {
        if (x.slots[i / (kQHeads * kDim)] < 0) q.data[i] = 0.0F;
      }
      EXPECT_EQ(q_pages.data, q.data) << text;
    }
  }
}

TEST(QuantiseToPages, QueriesMayStandElsewhere) {
  const Tokens x;
  const CacheConfig c = config_of("fp8");
  Pools pools(c);
  const RopeTables tables(kRows, kDim / 2);
  const Tensor q = gaussian({1, 2, kQHeads, kDim}, 34);
  Tensor out(q.shape);
  const std::vector<std::int64_t> at{7, 80};
  Rope rope = tables.rope(RopeStyle::half);
  rope.positions = x.positions.data();
  rope.q = q.view();
  rope.q_out = contiguous(static_cast<void*>(out.data.data()), DType::f32, q.shape);
  rope.q_positions = at.data();
  const std::vector<std::int32_t> slots(x.slots.begin(), x.slots.end());
  ASSERT_TRUE(quantise_to_pages(c, pools.k.pages, pools.v.pages, x.k.view(), x.v.view(), slots, nullptr, &rope).ok());
  EXPECT_EQ(out.data, turned(q, tables, kTurns[0], at, {0, 1}).data);
}

TEST(QuantiseToPages, RefusesRotationsWithNothingWritten) {
  const Tokens x;
  const CacheConfig c = config_of("fp8");
  Pools pools(c);
  const std::vector<std::byte> before = pools.k.bytes;
  const RopeTables tables(kRows, 8);
  Rope rope = tables.rope(RopeStyle::half);
  const auto refused = [&] {
    return quantise_to_pages(c, pools.k.pages, pools.v.pages, x.k.view(), x.v.view(), x.slots, nullptr, &rope)
        .message();
  };
  EXPECT_THAT(refused(), HasSubstr("quantise_to_pages: rope.positions is null"));
  std::vector<std::int64_t> positions = x.positions;
  positions[9] = kRows;
  rope.positions = positions.data();
  EXPECT_THAT(refused(),
              HasSubstr("quantise_to_pages: token 9 of row 0 is at position 90; rope.cos and rope.sin have"));
  rope.positions = x.positions.data();
  rope.begin = 17;
  EXPECT_THAT(refused(), HasSubstr("at most the head dim 32"));
  rope.begin = 0;
  Tensor wrong({1, kTokens, kQHeads + 1, kDim});
  rope.q = wrong.view();
  EXPECT_THAT(refused(), HasSubstr("quantise_to_pages: rope.q has shape [1, 45, 5, 32]; [1, 45, 4, 32]"));
  EXPECT_EQ(pools.k.bytes, before);
}

TEST(QuantiseToPages, WritesKeysAloneWhereValuesArePartOfThem) {
  const Tokens x;
  for (const char* text : {"kv=mxfp4,centre=static", "kv=nvfp4,centre=none", "bf16", "kv=fp8_e4m3,p=f32"}) {
    CacheConfig c = cache_config(text, 4);
    c.head_dim_v = 16;
    c.shared_kv = true;
    const RopeTables tables(kRows, 4);
    Rope rope = tables.rope(RopeStyle::interleaved, 20);
    rope.positions = x.positions.data();
    for (const Rope* turn : {static_cast<const Rope*>(nullptr), &std::as_const(rope)}) {
      PagedCache cache = poisoned_cache(c);
      Pools pools(c);
      const std::vector<std::byte> before = pools.v.bytes;
      ASSERT_TRUE(cache.write_slots(x.k.view(), x.slots, turn).ok()) << text;
      const auto write = [&](const MutablePages& vp, const TensorView& v) {
        return quantise_to_pages(c, pools.k.pages, vp, x.k.view(), v, x.slots, &pools.counters, turn);
      };
      const Status done = write({}, {});
      ASSERT_TRUE(done.ok()) << text << done.message();
      expect_same_tokens(cache, pools, x.slots, text);
      EXPECT_THAT(write(pools.v.pages, {}).message(),
                  HasSubstr("the first 16 channels of K (shared_kv); pass k alone"));
      EXPECT_THAT(write({}, x.v.view()).message(), HasSubstr("pass k alone"));
      EXPECT_EQ(pools.v.bytes, before);
    }
    rope.begin = 12;
    Pools pools(c);
    EXPECT_THAT(quantise_to_pages(c, pools.k.pages, {}, x.k.view(), {}, x.slots, nullptr, &rope).message(),
                HasSubstr("take rope.begin 16 or more"));
  }
  const CacheConfig c = config_of("fp8");
  Pools pools(c);
  EXPECT_THAT(quantise_to_pages(c, pools.k.pages, {}, x.k.view(), {}, x.slots, nullptr).message(),
              HasSubstr("v is missing; pass v with head dim 48"));
  CacheConfig same = cache_config("fp8", 4);
  EXPECT_THAT(quantise_to_pages(same, pools.k.pages, pools.k.pages, x.k.view(), x.k.view(), x.slots, nullptr).message(),
              HasSubstr("share bytes; give each memory of its own, or where V is part of K write K alone"));
}

}  // namespace
}  // namespace mpfa::test
