// Visible and packed key ranges, and 64-bit addresses.
#include <gtest/gtest.h>

#include <cstdint>

#include "attention/sequences.hpp"
#include "mpfa/attention.hpp"

namespace mpfa {
namespace {

constexpr std::int64_t kHuge[] = {std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{1} << 33};

AttentionProblem problem(bool causal, std::int64_t left, std::int64_t right) {
  AttentionProblem p;
  p.causal = causal;
  p.window_left = left;
  p.window_right = right;
  return p;
}

void expect_range(const AttentionProblem& p, std::int64_t i, std::int64_t sq, std::int64_t sk, std::int64_t begin,
                  std::int64_t end) {
  const KeyRange r = visible_keys(p, i, sq, sk);
  EXPECT_EQ(r.begin, begin) << "row " << i;
  EXPECT_EQ(r.end, end) << "row " << i;
}

TEST(VisibleKeys, CausalIsBottomRightAligned) {
  const AttentionProblem p = problem(true, -1, -1);
  for (std::int64_t i = 0; i < 3; ++i) EXPECT_LE(visible_keys(p, i, 5, 2).end, 0);
  expect_range(p, 3, 5, 2, 0, 1);
  expect_range(p, 4, 5, 2, 0, 2);
  expect_range(p, 0, 1, 100, 0, 100);
  expect_range(p, 0, 7, 12, 0, 6);
}

TEST(VisibleKeys, WindowBoundsAreInclusive) {
  const AttentionProblem causal = problem(true, 3, -1);
  for (std::int64_t i = 0; i < 3; ++i) expect_range(causal, i, 3, 9, i + 3, i + 7);
  const AttentionProblem both = problem(false, 1, 2);
  expect_range(both, 0, 10, 10, 0, 3);
  expect_range(both, 5, 10, 10, 4, 8);
  expect_range(both, 9, 10, 10, 8, 10);
  expect_range(problem(false, 0, 0), 4, 10, 10, 4, 5);
}

TEST(VisibleKeys, NoOptionSeesEverythingAndNoKeysIsEmpty) {
  expect_range(problem(false, -1, -1), 0, 5, 2, 0, 2);
  expect_range(problem(true, 4, 4), 0, 1, 0, 0, 0);
}

TEST(VisibleKeys, PositionsAre64Bit) {
  for (const std::int64_t n : kHuge) expect_range(problem(true, 9, -1), 2, 3, n + 5, n - 5, n + 5);
}

TEST(PackedKeys, FollowTheRowAndNotTheLength) {
  AttentionProblem p;
  p.page_size = 128;
  p.recipe.k.block_keys = p.recipe.v.block_keys = 1;
  p.recipe.sink = 16;
  p.recipe.recent = Recipe::recent_page;
  SequenceView s;
  s.sink = 16;
  s.packed_end = 512;
  AttentionTensors t;
  t.cache.sequences = &s;
  EXPECT_EQ(packed_keys(p, t, 0, {0, 100}).end, 0);
  EXPECT_EQ(packed_keys(p, t, 0, {0, 300}).end, 172);
  EXPECT_EQ(packed_keys(p, t, 0, {0, 300}).begin, 16);
  p.recipe.v.block_keys = 32;
  EXPECT_EQ(packed_keys(p, t, 0, {0, 300}).end, 160);
  EXPECT_EQ(packed_keys(p, t, 0, {0, 9000}).end, 512);
  t.cache.sequences = nullptr;
  EXPECT_EQ(packed_keys(p, t, 0, {7, 300}).end, 300);
}

TEST(Offsets, RowsAre64Bit) {
  AttentionTensors t;
  for (const std::int64_t n : kHuge) {
    t.q.shape = {2, n, 4, 8};
    t.q.stride = {n * 32, 32, 8, 1};
    EXPECT_EQ(row_offset(t.q, t, 1, n - 1, 3), n * 64 - 8);
    EXPECT_EQ(lse_offset(t, 1, n - 1, 3), 8 * n - 1);
    EXPECT_EQ(query_rows(t, 1).first, n);
    const std::int64_t cu[3] = {0, n - 2, n};
    t.cu_seqlens_q = cu;
    EXPECT_EQ(row_offset(t.q, t, 1, 1, 2), (n - 1) * 32 + 16);
    EXPECT_EQ(lse_offset(t, 1, 1, 3), 4 * n - 1);
    EXPECT_EQ(query_rows(t, 1).count, 2);
    t.cu_seqlens_q = nullptr;
  }
}

TEST(Offsets, PagesAre64Bit) {
  OperandPages o;
  o.data_page_stride = 1'039'680;
  o.data_head_stride = std::int64_t{1} << 32;
  o.scales = reinterpret_cast<const std::byte*>(std::uintptr_t{64});
  o.scale_page_stride = std::int64_t{1} << 31;
  const auto at = [](const std::byte* p) { return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)); };
  o.data = reinterpret_cast<const std::byte*>(std::uintptr_t{4096});
  EXPECT_EQ(at(o.page(2066, 0).data) - 4096, 2'147'978'880);
  EXPECT_EQ(at(o.page(2066, 2).data) - 4096, 2'147'978'880 + (std::int64_t{1} << 33));
  EXPECT_EQ(at(o.page(3, 0).scales) - 64, 3 * (std::int64_t{1} << 31));
}

}  // namespace
}  // namespace mpfa
