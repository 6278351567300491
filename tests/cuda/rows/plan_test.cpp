// Grid and workspace of a decode call by its capacity; needs no card.
#include "cuda/sm90/decode/plan.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace mpfa::sm90 {
namespace {

constexpr std::int32_t kBlocks = 132;

DecodeShape shape_of(std::int32_t batch, std::int32_t kv_heads, std::int32_t max_kv, std::int32_t max_q = 1) {
  DecodeShape s;
  s.head_dim = 128, s.operands = {Operand::mxfp4, Operand::mxfp4};
  s.batch = batch, s.kv_heads = kv_heads, s.group = 8, s.max_q = max_q, s.max_kv = max_kv;
  s.verify = true;
  return s;
}

TEST(PlanDecode, FewOutputsHaveNoMorePiecesThanTheirKeysAreWorth) {
  EXPECT_EQ(plan_decode(shape_of(1, 1, 16384), kBlocks).blocks, 27);
  EXPECT_EQ(plan_decode(shape_of(1, 2, 16384), kBlocks).blocks, 54);
  EXPECT_EQ(plan_decode(shape_of(1, 1, 131072), kBlocks).blocks, 76);
  EXPECT_EQ(plan_decode(shape_of(1, 1, 16384, 2), kBlocks).blocks, 22);  // 16 rows
}

TEST(PlanDecode, OtherCallsHaveEveryMultiprocessor) {
  for (const auto& [batch, kv_heads] : {std::pair{1, 8}, {8, 8}, {32, 8}, {64, 1}}) {
    EXPECT_EQ(plan_decode(shape_of(batch, kv_heads, 16384), kBlocks).blocks, kBlocks) << batch << " " << kv_heads;
  }
  DecodeShape verify = shape_of(1, 3, 16384, 16);
  verify.operands = {Operand::nvfp4, Operand::nvfp4};
  EXPECT_EQ(plan_decode(verify, kBlocks).blocks, kBlocks);  // kernels for many rows count by lengths
  EXPECT_EQ(plan_decode(shape_of(32, 8, 16384), kBlocks).teams, 2);
}

TEST(PlanDecode, UncentredScalesOfGroupsAreNotRounded) {
  DecodeShape s = shape_of(32, 8, 16384, 8);  // 64 rows
  s.operands = {Operand::int4, Operand::int4};
  EXPECT_TRUE(plan_decode(s, kBlocks).expand);
  s.uncentred_groups = true;
  const DecodeLaunch l = plan_decode(s, kBlocks);
  EXPECT_FALSE(l.expand);
  EXPECT_TRUE(l.verify);
  EXPECT_EQ(l.row_tiles, 4);
  EXPECT_EQ(l.row_blocks, 2);
}

/// Without a verify kernel, calls with a mask tensor are for the decode kernel.
TEST(PlanDecode, Bf16Of256ChannelsIsForTheKernelForManyRows) {
  DecodeShape s = shape_of(1, 2, 16384);
  s.head_dim = 256, s.operands = {Operand::bf16, Operand::bf16};
  const DecodeLaunch one = plan_decode(s, kBlocks);
  EXPECT_TRUE(one.expand);
  EXPECT_EQ(one.row_tiles, 8);
  EXPECT_EQ(one.merge_log, 2);
  EXPECT_EQ(one.blocks, 112);
  s.batch = 32;
  EXPECT_EQ(plan_decode(s, kBlocks).merge_log, 1);
  EXPECT_EQ(plan_decode(s, kBlocks).blocks, 128);
  s.fixed_split_keys = 512;
  EXPECT_TRUE(plan_decode(s, kBlocks).expand);
  EXPECT_EQ(plan_decode(s, kBlocks).merge_log, 0);
  s.masked = true;
  EXPECT_FALSE(plan_decode(s, kBlocks).expand);
  EXPECT_FALSE(plan_decode(s, kBlocks).verify);
}

TEST(PlanDecode, FewOutputsOfMoreThan8RowsAreClusters) {
  DecodeShape s = shape_of(1, 1, 16384, 4);
  s.operands = {Operand::nvfp4, Operand::nvfp4};
  const DecodeLaunch two = plan_decode(s, kBlocks);
  EXPECT_EQ(two.row_blocks, 2);
  EXPECT_EQ(two.merge_log, 2);
  EXPECT_EQ(two.blocks, 112);
  s.max_q = 8;  // four row blocks, which read the same keys at the same time
  EXPECT_EQ(plan_decode(s, kBlocks).row_blocks, 4);
  EXPECT_EQ(plan_decode(s, kBlocks).merge_log, 0);
  s.max_q = 2, s.batch = 8, s.kv_heads = 8;
  EXPECT_EQ(plan_decode(s, kBlocks).merge_log, 1);
  s.batch = 32;
  EXPECT_EQ(plan_decode(s, kBlocks).merge_log, 0);
  s.batch = 1, s.head_dim = 256;
  EXPECT_EQ(plan_decode(s, kBlocks).merge_log, 1);
  s.operands = {Operand::int4, Operand::int4};
  EXPECT_EQ(plan_decode(s, kBlocks).merge_log, 0);
  DecodeShape fp4 = shape_of(1, 1, 16384, 2);  // 16 rows, for the decode kernel
  EXPECT_TRUE(plan_decode(fp4, kBlocks).groups);
  EXPECT_EQ(plan_decode(fp4, kBlocks).merge_log, 0);
}

TEST(PlanDecode, ShortCallsAreOneBlockAnOutputOrClusters) {
  const auto log = [](const DecodeShape& s) { return plan_decode(s, kBlocks).cluster_log; };
  EXPECT_EQ(log(shape_of(1, 8, 256)), 0);
  EXPECT_EQ(log(shape_of(1, 8, 257)), 3);
  EXPECT_EQ(log(shape_of(1, 8, 8192)), 3);
  EXPECT_EQ(log(shape_of(1, 8, 8193)), -1);
  EXPECT_EQ(log(shape_of(1, 4, 32768)), 4);
  EXPECT_EQ(log(shape_of(1, 4, 32769)), -1);
  EXPECT_EQ(log(shape_of(2, 8, 4096)), 2);
  EXPECT_EQ(log(shape_of(8, 8, 512)), 0);
  EXPECT_EQ(log(shape_of(8, 8, 513)), 1);
  DecodeShape wide = shape_of(1, 8, 512);
  wide.head_dim = 256;
  EXPECT_EQ(log(wide), 3);
  wide.operands = {Operand::nvfp4, Operand::nvfp4}, wide.group = 4;  // no room for what clusters send
  EXPECT_EQ(log(wide), 0);
  wide.group = 8;
  EXPECT_TRUE(plan_decode(wide, kBlocks).verify);
}

TEST(PlanDecode, OutputsOfFewTilesHaveATeamEach) {
  for (const std::int32_t keys : {128, 2048}) {
    EXPECT_EQ(plan_decode(shape_of(24, 8, keys), kBlocks).teams, 2);
    EXPECT_EQ(plan_decode(shape_of(40, 8, keys), kBlocks).teams, 4);
    EXPECT_TRUE(plan_decode(shape_of(24, 8, keys), kBlocks).few);
  }
  EXPECT_FALSE(plan_decode(shape_of(24, 8, 2049), kBlocks).few);
}

/// A window has the grid and the workspace of a call with as many keys.
TEST(PlanDecode, WindowsCountTheirKeys) {
  for (const std::int32_t batch : {1, 2, 8, 24, 32, 64}) {
    for (const std::int32_t keys : {128, 1024, 4096}) {
      for (const std::int32_t max_q : {1, 2, 4, 16}) {
        const DecodeLaunch of_keys = plan_decode(shape_of(batch, 8, keys, max_q), kBlocks);
        DecodeShape s = shape_of(batch, 8, 131072, max_q);
        const std::size_t without = plan_decode(s, kBlocks).workspace_bytes;
        s.window_left = keys - max_q;  // the first row's keys and those of the others
        const DecodeLaunch l = plan_decode(s, kBlocks);
        EXPECT_EQ(l.tiles, of_keys.tiles);
        EXPECT_EQ(l.blocks, of_keys.blocks);
        EXPECT_EQ(l.teams, of_keys.teams);
        EXPECT_EQ(l.row_tiles, of_keys.row_tiles);
        EXPECT_EQ(l.expand, of_keys.expand);
        EXPECT_EQ(l.cluster_log, of_keys.cluster_log);
        EXPECT_EQ(l.workspace_bytes, of_keys.workspace_bytes);
        EXPECT_LE(l.workspace_bytes, without);
      }
    }
  }
}

TEST(PlanDecode, AWindowOfMoreThanTheCapacityIsNone) {
  DecodeShape s = shape_of(1, 8, 1000);
  s.window_left = 1 << 30;
  EXPECT_EQ(plan_decode(s, kBlocks).tiles, plan_decode(shape_of(1, 8, 1000), kBlocks).tiles);
}

TEST(PlanDecode, EveryBlockAndOutputHasAResultOfItsOwn) {
  for (const std::int32_t batch : {1, 3, 40}) {
    for (const std::int32_t max_kv : {1, 300, 5000, 200000}) {
      for (const std::int32_t max_q : {1, 2, 5, 16}) {
        const DecodeLaunch l = plan_decode(shape_of(batch, 2, max_kv, max_q), kBlocks);
        EXPECT_GE(l.blocks, 1);
        EXPECT_LE(l.blocks, kBlocks);
        EXPECT_EQ(l.slots, l.blocks * l.teams + batch * 2 * l.row_blocks);
        EXPECT_GE(l.row_blocks * l.row_tiles * 8, 8 * max_q);
        const std::size_t rows = static_cast<std::size_t>(l.slots) * l.row_tiles * 8;
        EXPECT_GE(l.workspace_bytes - l.outs, rows * 128 * sizeof(float));
        EXPECT_GE(l.outs - l.states, rows * 4 * 2 * sizeof(float));
      }
    }
  }
}

TEST(PlanDecode, FixedSplitsDoNotDependOnTheBatch) {
  for (const std::int32_t batch : {1, 7, 40}) {
    DecodeShape s = shape_of(batch, 2, 5000);
    s.fixed_split_keys = 512;
    const DecodeLaunch l = plan_decode(s, kBlocks);
    EXPECT_EQ(l.fixed_split, 512 / kTileKeys);
    EXPECT_EQ(l.teams, 1);
  }
}

TEST(PlainKeys, AreOfWholeTilesOrHalvesOfThem) {
  EXPECT_EQ(plain_keys(64), 32);
  EXPECT_EQ(plain_keys(48), 16);
  EXPECT_EQ(plain_keys(24), 0);
  EXPECT_EQ(plain_keys(1), 0);
}

}  // namespace
}  // namespace mpfa::sm90
