// Scores of few query rows: packed keys are transposed as words, so that a vector holds the same channel of 16 (or 8)
// keys and no score is summed across lanes.
#pragma once

#include <cstdint>

#include "cpu/word_ops.hpp"

namespace mpfa::cpu {

/// True when this machine has the vectors and the rows fit: words in fours that lie in one block, or twos.
[[nodiscard]] bool score_ops_take(formats::WordCode code, std::int64_t words, std::int64_t block_words);

/// s[r * kKeyTile + j] = q[r] . row j for j in [0, keys), keys <= kKeyTile. q [rows, channels]; k.factors is
/// [blocks, kKeyTile] here.
void score_keys(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s);

}  // namespace mpfa::cpu
