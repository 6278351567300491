// How many blocks of an output are a cluster in the kernels for more than 8 rows, see cluster.cuh.
#pragma once

#include <cstdint>

#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {

/// Whether the verify kernel has clusters: beside 256 channels and scales of groups there are no registers for them.
constexpr bool has_verify_clusters(std::int64_t head_dim, OperandPair operands) {
  return head_dim < 256 || verify_scale(operands.key) != ScaleKind::group;
}

inline constexpr int kMostMergeLog = 2;          // of a cluster's blocks that merge
inline constexpr std::int32_t kMostMerges = 32;  // clusters of an output

/// Blocks that an output has where 2^log of them are a cluster; log 0: they are none.
struct MergeSplit {
  std::int32_t log, splits;
};
/// Clusters of four leave some multiprocessors idle: an H200 has 30 of them at once. Those of two leave none.
constexpr MergeSplit split_to_merge(std::int32_t outputs, std::int32_t blocks, std::int32_t multiprocessors) {
  const auto splits = [&](std::int32_t most, int log) {
    const std::int32_t clusters = (most / outputs) >> log;
    return (clusters < kMostMerges ? clusters : kMostMerges) << log;
  };
  const std::int32_t most = multiprocessors * 7 / 8;
  const std::int32_t all = blocks / outputs, two = splits(blocks, 1), four = splits(blocks < most ? blocks : most, 2);
  if (four > 0 && four * 8 >= two * 7) return {2, four};
  if (two > 0 && two * 8 >= all * 7) return {1, two};
  return {0, all};
}

}  // namespace mpfa::sm90
