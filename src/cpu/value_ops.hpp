// Weighted sums of packed values for few query rows. A vector holds channels of one block, so that a weight, factor
// included, is one number per block, row and key.
#pragma once

#include <cstdint>

#include "cpu/word_ops.hpp"

namespace mpfa::cpu {

/// True when this machine has the vectors and the row of `channels` is whole vectors, each within a block.
[[nodiscard]] bool value_ops_take(std::int64_t channels, std::int64_t block);

/// Channels whose order a vector of these codes changes; 1 for none. value_index() says where a channel is.
[[nodiscard]] std::int64_t value_span(formats::WordCode code);
[[nodiscard]] constexpr std::int64_t value_index(std::int64_t c, std::int64_t span) {
  return c / span * span + (c % span) % ((span + 1) / 2) * 2 + (c % span) / ((span + 1) / 2);
}

/// Fills `bytes` for rows like `v`, whose codes and factors are not read. False when the machine or the format has no
/// use for them.
[[nodiscard]] bool value_bytes(const WordRows& v, ValueBytes& bytes);

/// to[r] = from[r] + sum_j p[r * kKeyTile + j] * row j for j in [0, keys), keys <= kKeyTile; rows of `from` and `to`
/// are `stride` floats apart. v.factors is [blocks, kKeyTile] here, `weights` memory for [blocks, rows, kKeyTile].
/// A key adds nothing to a row that gives it no weight, whatever its factors are. With v.bytes and 64 keys, weights
/// times factors may be rounded to 16 bits relative to the largest of a row and block. False when a sum is NaN or Inf.
[[nodiscard]] bool add_values(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, float* weights,
                              const float* from, float* to, std::int64_t stride);

}  // namespace mpfa::cpu
