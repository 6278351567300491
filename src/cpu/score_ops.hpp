// Scores of few query rows: packed keys are transposed as words, so that a vector holds the same channel of 16 (or 8)
// keys and no score is summed across lanes.
#pragma once

#include <cstdint>

#include "cpu/word_ops.hpp"

namespace mpfa::cpu {

/// True when this machine has the vectors for rows of `words` words: a multiple of 4, and not very many.
[[nodiscard]] bool score_ops_take(std::int64_t words);

[[nodiscard]] constexpr std::int64_t packed_floats(std::int64_t rows, std::int64_t channels) {
  return 4 * rows * channels + 16;
}

/// Queries as score_keys() multiplies them, in memory of pack_queries().
struct PackedQueries {
  const float* floats = nullptr;
  const std::int32_t* integers = nullptr;  // instead, where the machine, the codes and the queries allow them
};

/// Lays queries [rows, channels] out for keys like `k`; its codes and factors are not read. Scores may be off by
/// `slack` beyond the error of a float sum. `memory` holds packed_floats().
[[nodiscard]] PackedQueries pack_queries(const WordRows& k, std::int64_t rows, const float* q, float slack,
                                         float* memory);

/// s[r * kKeyTile + j] = q[r] . row j for j in [0, keys), keys <= kKeyTile; k.factors is [blocks, kKeyTile] here.
void score_keys(const WordRows& k, std::int64_t keys, std::int64_t rows, const PackedQueries& q, float* s);

}  // namespace mpfa::cpu
