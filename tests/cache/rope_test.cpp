// Keys and queries rotated by append and write_slots: the bytes of rows that the caller rotated.
#include <gmock/gmock.h>

#include "tests/cache/rope_tables.hpp"
#include "tests/cache/sequences.hpp"

namespace mpfa::test {
namespace {

using ::testing::HasSubstr;

/// x [1, n, heads, kDim] with row i at positions[i].
Tensor turned(Tensor x, const RopeTables& tables, RopeStyle style, std::int64_t begin,
              const std::vector<std::int64_t>& positions) {
  for (std::int64_t t = 0; t < x.shape[1]; ++t) {
    for (std::int64_t h = 0; h < x.shape[2]; ++h) tables.turn(&x.at(0, t, h, 0), style, begin, positions[t]);
  }
  return x;
}

std::vector<std::int64_t> counting(std::int64_t first, std::int64_t n, std::int64_t step = 1) {
  std::vector<std::int64_t> p;
  for (std::int64_t i = 0; i < n; ++i) p.push_back(first + step * i);
  return p;
}

TEST(RopeAppend, HoldsWhatRotatedKeysGive) {
  struct Turn {
    RopeStyle style;
    std::int64_t half, begin;
    DType dtype;
  };
  for (const char* text : {"mpfa", "mxfp4", "bf16", "fp8,recent=8,sink=3", "bitdecoding_nvfp4"}) {
    for (const Turn turn : {Turn{RopeStyle::half, kDim / 2, 0, DType::f32},
                            {RopeStyle::interleaved, 6, 0, DType::bf16},
                            {RopeStyle::half, 5, 20, DType::bf16},
                            {RopeStyle::interleaved, kDim / 2, 0, DType::f32}}) {
      const RopeTables tables(200, turn.half, turn.dtype);
      PagedCache fused = poisoned_cache(cache_config(text)), apart = poisoned_cache(cache_config(text));
      const std::int32_t sequence = 2;
      std::int64_t length = 0;
      for (const std::int64_t n : {40, 1, 30}) {
        const Ids ids = ids_from(static_cast<int>(length), n);
        Rope rope = tables.rope(turn.style, turn.begin);
        // The second call says where its token is, the others are at their index.
        const auto positions = n == 1 ? counting(150, 1) : counting(length, n);
        if (n == 1) rope.positions = positions.data();
        const Tensor q = queries(ids), want_q = turned(q, tables, turn.style, turn.begin, positions);
        Tensor got_q(q.shape);
        rope.q = q.view();
        rope.q_out = contiguous(static_cast<void*>(got_q.data.data()), DType::f32, q.shape);
        const TensorView q_view = q.view(), want_view = want_q.view();
        const Tensor k = turned(keys(ids), tables, turn.style, turn.begin, positions);
        ASSERT_TRUE(fused.append(keys(ids).view(), values(ids).view(), &q_view, &sequence, nullptr, &rope).ok());
        ASSERT_TRUE(apart.append(k.view(), values(ids).view(), &want_view, &sequence, nullptr).ok());
        EXPECT_EQ(got_q.data, want_q.data) << text;
        length += n;
      }
      const CacheView a = view_of(fused, sequence), b = view_of(apart, sequence);
      EXPECT_EQ(content(a, a.sequences[0].wide_begin), content(b, b.sequences[0].wide_begin)) << text;
    }
  }
}

TEST(RopeAppend, QueriesMayStandElsewhereAndBeRotatedInPlace) {
  const RopeTables tables(64, 8);
  PagedCache cache = poisoned_cache(cache_config("fp8", 16, 2));
  Rope rope = tables.rope(RopeStyle::interleaved);
  Tensor q = gaussian({2, 3, kQHeads, kDim}, 5);
  std::vector<std::uint16_t> bits(q.data.size());
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = float_to_bf16(q.data[i]);
    q.data[i] = bf16_to_float(bits[i]);
  }
  const std::vector<std::int64_t> at{7, 7, 7, 0, 63, 1};
  rope.q = contiguous(static_cast<const void*>(bits.data()), DType::bf16, q.shape);
  rope.q_out = contiguous(static_cast<void*>(bits.data()), DType::bf16, q.shape);
  rope.q_positions = at.data();
  const Tensor kv({2, 1, kKvHeads, kDim}, 1.0F);
  ASSERT_TRUE(cache.append(kv.view(), kv.view(), nullptr, nullptr, nullptr, &rope).ok());
  for (std::int64_t i = 0; i < 6; ++i) {
    for (std::int64_t h = 0; h < kQHeads; ++h) {
      tables.turn(&q.data[static_cast<std::size_t>((i * kQHeads + h) * kDim)], rope.style, 0, at[i]);
    }
  }
  for (std::size_t i = 0; i < bits.size(); ++i) ASSERT_EQ(bits[i], float_to_bf16(q.data[i])) << i;
}

TEST(RopeAppend, TurnsWhatIsNotPartOfVInALatentCache) {
  const RopeTables tables(200, 4);
  CacheConfig c = cache_config("fp8");
  c.shared_kv = true;
  c.head_dim_v = 24;
  PagedCache fused = poisoned_cache(c), apart = poisoned_cache(c);
  const Ids ids = ids_from(0, 40);
  const std::int32_t sequence = 0;
  const Tensor k = turned(keys(ids), tables, RopeStyle::interleaved, 24, counting(0, 40));
  const Rope rope = tables.rope(RopeStyle::interleaved, 24), bad = tables.rope(RopeStyle::interleaved, 23);
  ASSERT_TRUE(fused.append(keys(ids).view(), nullptr, &sequence, nullptr, &rope).ok());
  ASSERT_TRUE(apart.append(k.view(), nullptr, &sequence, nullptr).ok());
  EXPECT_EQ(std::memcmp(fused.storage(), apart.storage(), static_cast<std::size_t>(apart.storage_bytes())), 0);
  EXPECT_THAT(fused.append(keys(ids).view(), nullptr, &sequence, nullptr, &bad).message(),
              HasSubstr("rope.begin 24 or"));
  ASSERT_TRUE(fused.remove(0, 3, 20, &rope).ok());
  EXPECT_EQ(fused.shift(0, 0, 1, bad).code(), StatusCode::invalid_argument);
}

TEST(RopeWriteSlots, HoldsWhatRotatedKeysGive) {
  const RopeTables tables(300, kDim / 2);
  Rope rope = tables.rope(RopeStyle::half);
  PagedCache fused = poisoned_cache(cache_config("mpfa_static", 4)),
             apart = poisoned_cache(cache_config("mpfa_static", 4));
  const Ids ids = ids_from(0, 5);
  const std::vector<std::int64_t> slots{3, -1, 70, 71, 5}, positions{9, -5, 200, 201, 0};
  const Tensor k = turned(keys(ids), tables, rope.style, 0, {9, 0, 200, 201, 0});
  const Tensor q = queries(ids);
  Tensor q_out(q.shape, 42.0F);
  EXPECT_THAT(fused.write_slots(keys(ids).view(), values(ids).view(), slots, &rope).message(),
              HasSubstr("rope.positions is null"));
  rope.positions = positions.data();
  rope.q = q.view();
  rope.q_out = contiguous(static_cast<void*>(q_out.data.data()), DType::f32, q.shape);
  ASSERT_TRUE(fused.write_slots(keys(ids).view(), values(ids).view(), slots, &rope).ok());
  ASSERT_TRUE(apart.write_slots(k.view(), values(ids).view(), slots).ok());
  EXPECT_EQ(std::memcmp(fused.storage(), apart.storage(), static_cast<std::size_t>(apart.storage_bytes())), 0);
  EXPECT_EQ(q_out.at(0, 1, 0, 0), 42.0F);  // a skipped token has no position
  const Tensor want = turned(q, tables, rope.style, 0, {9, 0, 200, 201, 0});
  EXPECT_EQ(q_out.data.back(), want.data.back());
}

TEST(RopeAppend, ErrorsSayWhatIsAllowedAndChangeNothing) {
  const RopeTables tables(10, 4);
  PagedCache cache = poisoned_cache(cache_config("fp8"));
  const std::vector<std::byte> before(cache.storage(), cache.storage() + cache.storage_bytes());
  const std::int32_t sequence = 0;
  const auto message = [&](const Rope& rope, std::int64_t n) {
    const Ids ids = ids_from(0, n);
    return cache.append(keys(ids).view(), values(ids).view(), nullptr, &sequence, nullptr, &rope).message();
  };
  const Rope good = tables.rope(RopeStyle::half);
  EXPECT_THAT(message(good, 11),
              HasSubstr("token 10 of row 0 is at position 10; rope.cos and rope.sin have rows 0..9"));
  const std::int64_t negative[] = {0, -1};
  Rope bad = good;
  bad.positions = negative;
  EXPECT_THAT(message(bad, 2), HasSubstr("at position -1"));
  bad = good;
  bad.begin = kDim - 7;
  EXPECT_THAT(message(bad, 1), HasSubstr("begin + 2 * half at most the head dim 32"));
  bad = good;
  bad.sin.shape[0] = 9;
  EXPECT_THAT(message(bad, 1), HasSubstr("they must be equal"));
  bad = good;
  bad.cos.dtype = DType::f64;
  EXPECT_THAT(message(bad, 1), HasSubstr("rope.cos must be float32, bfloat16 or float16"));
  bad = good;
  bad.sin.data = nullptr;
  EXPECT_THAT(message(bad, 1), HasSubstr("rope.sin is a null pointer"));
  bad = good;
  bad.style = static_cast<RopeStyle>(7);
  EXPECT_THAT(message(bad, 1), HasSubstr("rope.style is 7"));
  bad = good;
  const Tensor q = queries(ids_from(0, 2));
  bad.q = q.view();
  EXPECT_THAT(message(bad, 1), HasSubstr("rope.q has shape [1, 2, 4, 32]"));
  EXPECT_THAT(message(bad, 2), HasSubstr("rope.q_out has shape"));
  EXPECT_EQ(cache.lengths()[0], 0);
  EXPECT_EQ(std::memcmp(before.data(), cache.storage(), before.size()), 0);
}

}  // namespace
}  // namespace mpfa::test
