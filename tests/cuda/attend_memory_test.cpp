// What the kernel may and may not read: memory past a length, order of pages, batch mates, pointers of the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>

#include "tests/cuda/support/device_call.hpp"

namespace mpfa::test {
namespace {

/// Overwrites every byte of the pool that no token of the cache has written.
void fill_unused(Case& c, std::byte value) {
  const CacheView v = c.cache.view();
  std::vector<bool> used(static_cast<std::size_t>(c.cache.storage_bytes()));
  const auto mark = [&](const std::byte* base, std::int64_t bytes) {
    std::fill_n(used.begin() + (base - c.cache.storage()), bytes, true);
  };
  for (const OperandPages* o : {&v.k, &v.v}) {
    const BlockFormat& f = o == &v.k ? c.problem.recipe.k : c.problem.recipe.v;
    const std::int64_t d = o == &v.k ? c.problem.head_dim : c.problem.head_dim_v;
    const std::int64_t scale_bytes = (d + f.block_channels - 1) / f.block_channels;
    for (std::int64_t b = 0; b < c.problem.batch; ++b) {
      for (std::int64_t token = 0; token < v.lengths[b]; ++token) {
        const std::int64_t page = v.page_table[b * v.page_table_stride + token / c.problem.page_size];
        for (std::int64_t h = 0; h < c.problem.kv_heads; ++h) {
          const std::int64_t slot = token % c.problem.page_size;
          mark(o->data + o->data_offset(page, h) + slot * o->data_row_stride, d / 2);
          mark(o->scales + o->scale_offset(page, h) + slot * o->scale_row_stride, scale_bytes);
        }
      }
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) c.cache.storage()[i] = value;
  }
}

class Memories : public testing::TestWithParam<const char*> {
 protected:
  static std::string format() { return GetParam(); }
};

/// 65 sequences of 1 to 65 keys: every length up to two tiles and one. 4 and 16 rows of a KV head.
TEST_P(Memories, PastALengthMayHoldAnything) {
  constexpr std::int64_t kBatch = 65;
  const Tensor k = gaussian({kBatch, kBatch, 2, 128}, 2);
  for (const auto& [page, heads] : {std::pair<std::int64_t, std::int64_t>{16, 4}, {64, 4}, {16, 16}, {64, 16}}) {
    const Tensor q = gaussian({kBatch, 2, heads, 128}, 1);
    std::vector<std::int64_t> lengths(kBatch);
    std::iota(lengths.begin(), lengths.end(), 1);
    Case c(q, k, gaussian(k.shape, 3), {format(), page, lengths});
    c.problem.causal = true;
    fill_unused(c, std::byte{0});
    DeviceCall zeros(c);
    ASSERT_TRUE(zeros.run().ok());
    for (const int value : {0xFF, 0x7F, 0x80}) {
      fill_unused(c, static_cast<std::byte>(value));
      const CacheView& v = c.cache.view();
      std::vector<std::int32_t> table(v.page_table, v.page_table + kBatch * v.page_table_stride);
      for (std::int64_t b = 0; b < kBatch; ++b) {
        for (std::int64_t i = (lengths[b] + page - 1) / page; i < v.page_table_stride; ++i) {
          table[b * v.page_table_stride + i] = 0x7F7F7F7F;
        }
      }
      c.tensors.cache.page_table = table.data();
      DeviceCall poisoned(c);
      ASSERT_TRUE(poisoned.run().ok());
      EXPECT_EQ(result_bits(poisoned), result_bits(zeros))
          << "page " << page << ", " << heads << " heads, value " << value;
    }
  }
}

TEST_P(Memories, PagesLieInAnyOrder) {
  const Tensor q = gaussian({2, 3, 8, 128}, 4), k = gaussian({2, 300, 2, 128}, 5);
  Case c(q, k, gaussian(k.shape, 6), {format(), 16, {300, 123}});
  DeviceCall straight(c);
  ASSERT_TRUE(straight.run().ok());
  const CacheView& v = c.cache.view();
  const std::int64_t pages = v.num_pages, bytes = v.k.data_page_stride;
  ASSERT_EQ(v.v.scale_page_stride, bytes);
  ASSERT_LE(pages * bytes, c.cache.storage_bytes());
  std::vector<std::int32_t> place(static_cast<std::size_t>(pages));
  std::iota(place.begin(), place.end(), 0);
  std::shuffle(place.begin(), place.end(), std::mt19937(7));
  const std::vector<std::byte> old(c.cache.storage(), c.cache.storage() + pages * bytes);
  for (std::int64_t i = 0; i < pages; ++i)
    std::copy_n(old.begin() + i * bytes, bytes, c.cache.storage() + place[i] * bytes);
  std::vector<std::int32_t> table(v.page_table, v.page_table + 2 * v.page_table_stride);
  for (std::int32_t& id : table) id = id < 0 ? id : place[id];
  c.tensors.cache.page_table = table.data();
  DeviceCall shuffled(c);
  ASSERT_TRUE(shuffled.run().ok());
  EXPECT_EQ(result_bits(shuffled), result_bits(straight));
}

TEST_P(Memories, BatchMatesChangeNoBit) {
  const std::vector<std::int64_t> lengths{5000, 1, 0, 33, 777, 2049};
  constexpr std::int64_t kBatch = 6;
  const Tensor q = gaussian({kBatch, 3, 8, 128}, 8), k = gaussian({kBatch, 5000, 2, 128}, 9);
  const Tensor v = gaussian(k.shape, 10);
  Case all(q, k, v, {format(), 64, lengths});
  all.problem.causal = all.problem.batch_invariant = true;
  DeviceCall batch(all);
  ASSERT_TRUE(batch.run().ok());
  const std::vector<double> out = batch.out();
  const std::size_t rows = 3 * 8 * 128;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const auto part = [&](const Tensor& x) {
      Tensor y({1, x.shape[1], x.shape[2], x.shape[3]});
      std::copy_n(x.data.begin() + b * static_cast<std::ptrdiff_t>(y.data.size()), y.data.size(), y.data.begin());
      return y;
    };
    Case one(part(q), part(k), part(v), {format(), 64, {lengths[b]}});
    one.problem.causal = one.problem.batch_invariant = true;
    one.problem.max_kv = std::max<std::int64_t>(lengths[b], 1);
    DeviceCall alone(one);
    const Status s = alone.run();
    ASSERT_TRUE(s.ok()) << s.message();
    const std::vector<double> expected = alone.out();
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), out.begin() + b * rows)) << "sequence " << b;
  }
}

/// One after another, and with anything in the workspace; sequences of different and of equal length.
TEST_P(Memories, RepeatedCallsAreEqual) {
  for (const std::vector<std::int64_t>& lengths : {std::vector<std::int64_t>{3000, 1000, 77}, {3000}}) {
    const auto batch = static_cast<std::int64_t>(lengths.size());
    const Tensor k = gaussian({batch, 3000, 2, 128}, 11);
    Case c(gaussian({batch, 2, 8, 128}, 12), k, gaussian(k.shape, 13), {format(), 64, lengths});
    DeviceCall call(c);
    ASSERT_TRUE(call.run().ok());
    const std::vector<std::uint64_t> first = result_bits(call);
    for (int i = 0; i < 50; ++i) {
      if (i % 3 == 1) call.fill_workspace(i * 5);
      ASSERT_TRUE(call.enqueue(nullptr).ok());
      require(cudaDeviceSynchronize());
      ASSERT_EQ(result_bits(call), first) << "call " << i << ", batch " << batch;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Memories, testing::Values("mxfp4", "nvfp4"),
                         [](const auto& p) { return std::string(p.param); });

TEST(Pointers, OfTheHostAreRefused) {
  Case c(gaussian({1, 1, 4, 128}, 1), gaussian({1, 64, 2, 128}, 2), gaussian({1, 64, 2, 128}, 3), {"mxfp4", 64, {}});
  DeviceCall call(c);
  call.tensors().cache.lengths = c.tensors.cache.lengths;
  EXPECT_NE(call.run().message().find("cache.lengths is not memory of the current device"), std::string::npos);
}

}  // namespace
}  // namespace mpfa::test
