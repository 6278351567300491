// Scores of few query rows: packed keys are transposed as words, so that a vector holds the same channel of 16 (or 8)
// keys and no score is summed across lanes.
#pragma once

#include <cstdint>

#include "cpu/word_ops.hpp"

namespace mpfa::cpu {

/// True when this machine has the vectors for rows of `words` words: a multiple of 4, and not very many.
[[nodiscard]] bool score_ops_take(std::int64_t words);

/// Lays queries [rows, channels] out for score_keys().
void pack_queries(std::int64_t rows, std::int64_t channels, const float* q, float* packed);

/// s[r * kKeyTile + j] = q[r] . row j for j in [0, keys), keys <= kKeyTile; k.factors is [blocks, kKeyTile] here.
void score_keys(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* packed, float* s);

}  // namespace mpfa::cpu
