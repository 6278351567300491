// Scores of prefill by dot products of integers, where the elements of K are whole numbers: a sum over a block is exact
// in 32 bits, and becomes a float once. Queries that the recipe rounds to as few values are signed bytes, and K
// unsigned ones; others are 16 bits relative to the largest of a block, as both are then. Rows lie along the lanes, as
// in panel_ops.hpp.
#pragma once

#include <cstdint>

#include "cpu/integer_codes.hpp"

namespace mpfa::cpu {

/// The shape of a panel's products: blocks of `block` channels share a factor.
struct IntegerShape {
  std::int64_t channels, block, width;
  Integers type;
  [[nodiscard]] std::int64_t blocks() const { return channels / block; }
  [[nodiscard]] std::int64_t bytes() const { return type == Integers::unsigned_bytes ? 1 : 2; }
  /// 32-bit words of a packed panel: scales and what sums start with [blocks, width], integers [.., width].
  [[nodiscard]] std::int64_t size() const { return (2 * blocks() + channels * bytes() / 4) * width; }
};

/// Packs rows [count, channels] as multiples of 1 / levels of the largest of their block. Bits of the result: rows with
/// a value that is not finite or out of proportion, whose scores will be 0.
[[nodiscard]] std::uint32_t pack_integer_panel(const IntegerForm& keys, const IntegerShape& shape, int levels,
                                               std::int64_t count, const float* q, std::int32_t* packed);

/// x [keys, width] = products of integers k [keys, channels], whose factors are [keys, blocks], with a panel.
void integer_scores(const IntegerShape& shape, std::int64_t keys, const void* k, const float* factors,
                    const std::int32_t* packed, float* x);

}  // namespace mpfa::cpu
