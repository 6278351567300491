// How many query rows of a KV head a block of the GPU kernels takes, and which of them; needs no card.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <utility>

#include "cuda/sm90/expand/shapes.h"
#include "cuda/sm90/verify/clusters.h"
#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {
namespace {

constexpr OperandPair kFp4{Operand::nvfp4, Operand::nvfp4}, kFp8{Operand::e4m3, Operand::e4m3};
constexpr OperandPair kMixed{Operand::nvfp4, Operand::e4m3}, kBf16{Operand::bf16, Operand::bf16};
constexpr std::int32_t kBlocks = 132;

TEST(RowTiles, AreTheFewestThatHoldTheRows) {
  for (const auto& [rows, fp4, fp8] : {std::array<int, 3>{9, 2, 4}, {16, 2, 4}, {17, 4, 4}, {32, 4, 4}, {33, 8, 8}}) {
    EXPECT_EQ(verify_row_tiles(128, rows, kFp4), fp4) << rows;
    EXPECT_EQ(verify_row_tiles(128, rows, kFp8), fp8) << rows;
  }
}

TEST(RowTiles, Of256ChannelsAreHalfAsManyAtMost) {
  for (const OperandPair operands : {kFp4, kFp8}) {
    EXPECT_EQ(verify_row_tiles(256, 16, operands), 2);
    EXPECT_EQ(verify_row_tiles(256, 17, operands), 4);
    EXPECT_EQ(verify_row_tiles(256, 64, operands), 4);
    EXPECT_EQ(verify_row_tiles(64, 64, operands), 8);
  }
}

TEST(VerifyTeams, AreThreeOf32RowsFromFourThirdsOutputsABlockToTwoWholeOnes) {
  const auto teams = [](Operand value, std::int64_t outputs) { return verify_teams(128, 4, value, outputs, kBlocks); };
  for (const Operand value : {Operand::mxfp4, Operand::nvfp4}) {
    EXPECT_EQ(teams(value, 132), 1);
    EXPECT_EQ(teams(value, 175), 1);
    EXPECT_EQ(teams(value, 176), 3);
    EXPECT_EQ(teams(value, 248), 3);
    EXPECT_EQ(teams(value, 256), 1);  // two whole outputs a block, which nearly all blocks have
    EXPECT_EQ(teams(value, 265), 3);
  }
  EXPECT_EQ(teams(Operand::int4, 256), 1);
  EXPECT_EQ(teams(Operand::e4m3, 256), 1);
  EXPECT_EQ(teams(Operand::e4m3, 265), 3);
  EXPECT_EQ(verify_teams(128, 2, Operand::mxfp4, 256, kBlocks), 2);  // 16 rows
}

TEST(VerifyKernel, TakesMasksAndRoundedPWith128Channels) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    EXPECT_TRUE(has_verify_kernel(head_dim, kMixed)) << head_dim;
    EXPECT_TRUE(has_verify_kernel(head_dim, kFp8)) << head_dim;
    EXPECT_EQ(has_masked_verify_kernel(head_dim, kFp4), head_dim == 128);
    EXPECT_EQ(has_rounded_verify_kernel(head_dim, kFp8), head_dim == 128);
  }
  EXPECT_FALSE(has_verify_kernel(96, kFp4));
  EXPECT_FALSE(has_verify_kernel(256, kBf16));
  EXPECT_TRUE(has_verify_kernel(256, {Operand::int4, Operand::int4}));
}

TEST(VerifyKernel, Of64ChannelsTakesFewRowsOfManyOutputs) {
  const auto faster = [](std::int64_t head_dim, std::int64_t rows, std::int64_t outputs) {
    return is_verify_faster(head_dim, rows, kFp8, outputs, 16384, kBlocks);
  };
  EXPECT_TRUE(faster(128, 9, 8));
  EXPECT_FALSE(faster(64, 16, 64));
  EXPECT_TRUE(faster(64, 16, 256));
  EXPECT_TRUE(faster(64, 17, 8));
  EXPECT_FALSE(faster(64, 8, 256));
  EXPECT_FALSE(faster(128, 8, 8));
}

TEST(VerifyKernel, Of256ChannelsTakesUpTo8RowsWhereItIsFaster) {
  const auto faster = [](OperandPair operands, std::int64_t rows, std::int64_t outputs, std::int64_t keys = 16384) {
    return is_verify_faster(256, rows, operands, outputs, keys, kBlocks);
  };
  constexpr OperandPair kInt8{Operand::int8, Operand::int8}, kInt4{Operand::int4, Operand::int4};
  constexpr OperandPair kMxfp4{Operand::mxfp4, Operand::mxfp4}, kMxfp4F32{Operand::fp4_f32, Operand::fp4_f32};
  for (const OperandPair operands : {kFp8, kMixed, kInt8}) {
    EXPECT_TRUE(faster(operands, 8, 2));
    EXPECT_TRUE(faster(operands, 6, 32));
    EXPECT_FALSE(faster(operands, 6, 4));
    EXPECT_EQ(faster(operands, 2, 64), operands == kInt8);
    EXPECT_FALSE(faster(operands, 2, 8));
  }
  EXPECT_TRUE(faster(kFp4, 8, 64));
  EXPECT_FALSE(faster(kFp4, 8, 128));
  EXPECT_FALSE(faster(kFp4, 4, 8));
  EXPECT_TRUE(faster(kInt4, 8, 16));
  EXPECT_FALSE(faster(kInt4, 8, 2));
  EXPECT_TRUE(faster(kMxfp4, 8, 2));
  EXPECT_FALSE(faster(kMxfp4, 8, 2, 1024));
  EXPECT_FALSE(faster(kMxfp4, 8, 16));
  EXPECT_FALSE(faster(kMxfp4F32, 8, 2));
}

TEST(RowTiles, OfFewOutputsWithFewKeysAreLess) {
  EXPECT_EQ(verify_row_tiles(128, 64, kFp4, 8, 4096, kBlocks), 2);
  EXPECT_EQ(verify_row_tiles(128, 64, kFp8, 8, 4096, kBlocks), 4);
  EXPECT_EQ(verify_row_tiles(128, 64, kFp4, 8, 131072, kBlocks), 8);  // four passes over the keys take longer
  EXPECT_EQ(verify_row_tiles(128, 64, kFp4, 256, 4096, kBlocks), 8);  // every block has outputs of its own
  EXPECT_EQ(verify_row_tiles(128, 16, kFp4, 8, 4096, kBlocks), 2);    // there are none with less
}

TEST(ExpandRowTiles, Are128RowsOfLongCallsAndOfFixedSplits) {
  EXPECT_EQ(expand_row_tiles(64, 256, 16384, kBlocks, false), 8);
  EXPECT_EQ(expand_row_tiles(128, 256, 16384, kBlocks, false), 16);
  EXPECT_EQ(expand_row_tiles(128, 64, 4096, kBlocks, false), 8);
  EXPECT_EQ(expand_row_tiles(128, 1, 64, kBlocks, true), 16);
  EXPECT_EQ(expand_row_tiles(64, 1, 64, kBlocks, true), 8);
}

TEST(ExpandKernel, TakesMoreThan32RowsAndBytesFrom128RowsOn) {
  EXPECT_TRUE(has_expand_kernel(128, kMixed));
  EXPECT_FALSE(has_expand_kernel(64, kFp4));
  EXPECT_TRUE(has_expand_kernel(128, {Operand::int4, Operand::int4}));
  EXPECT_FALSE(is_expand_faster(32, kFp4, 8));
  EXPECT_TRUE(is_expand_faster(33, kFp4, 8));
  EXPECT_TRUE(is_expand_faster(33, kMixed, 8));
  EXPECT_FALSE(is_expand_faster(64, kFp8, 8));
  EXPECT_TRUE(is_expand_faster(128, kFp8, 16));
}

TEST(ExpandKernel, Takes128RowsOf16BitsAndAnyNumberOf256Channels) {
  EXPECT_TRUE(has_expand_blocks(128, kBf16, 2));
  EXPECT_FALSE(has_expand_blocks(128, kBf16, 1));
  EXPECT_FALSE(is_expand_faster(64, kBf16, 8));
  EXPECT_TRUE(is_expand_faster(128, kBf16, 16));
  EXPECT_FALSE(expands_all_rows(128, kBf16));
  EXPECT_TRUE(has_expand_blocks(256, kBf16, 1));
  EXPECT_TRUE(expands_all_rows(256, kBf16));
  EXPECT_FALSE(expands_all_rows(256, kFp4));
}

TEST(SplitToMerge, LeavesFewBlocksIdle) {
  const auto merge = [](std::int32_t outputs, std::int32_t blocks = kBlocks) {
    const MergeSplit m = split_to_merge(outputs, blocks, kBlocks);
    return std::pair{m.log, m.splits};
  };
  EXPECT_EQ(merge(1), std::pair(2, 112));
  EXPECT_EQ(merge(2), std::pair(2, 56));
  EXPECT_EQ(merge(2, 8), std::pair(2, 4));  // few keys
  EXPECT_EQ(merge(16), std::pair(1, 8));    // by fours 64 blocks of 132 would be idle
  EXPECT_EQ(merge(64), std::pair(1, 2));
  EXPECT_EQ(merge(44), std::pair(0, 3));
  EXPECT_EQ(merge(100), std::pair(0, 1));
}

TEST(StrideUnit, DividesStepsOfPagesAndOf16Rows) {
  EXPECT_EQ(stride_unit(4096, 64), 1024);
  EXPECT_EQ(stride_unit(4096 + 16, 64), 16);
  EXPECT_EQ(stride_unit(std::int64_t{1} << 40, std::int64_t{1} << 20), 1 << 16);
}

}  // namespace
}  // namespace mpfa::sm90
