// Scores of prefill by dot products of integers, where the elements of K are whole numbers: a sum over a block is exact
// in 32 bits, and becomes a float once. Queries that the recipe rounds to as few values are signed bytes, and K
// unsigned ones; others are 16 bits relative to the largest of a block, as both are then. Rows lie along the lanes, as
// in panel_ops.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "formats/words.hpp"

namespace mpfa::cpu {

enum class Integers : std::uint8_t { unsigned_bytes, signed_words };

/// How codes become integers: element * multiplier, plus an offset where they are unsigned.
struct IntegerForm {
  formats::WordCode code = formats::WordCode::none;
  Integers type = Integers::unsigned_bytes;
  std::array<std::uint8_t, 16> table{};  // of 4-bit codes
  int offset = 0;
  float multiplier = 1.0F;
  float most = 0.0F;  // the largest magnitude
};

/// False when the elements are not whole (e4m3, as words, is to 2^-16 of the largest), when rows of `channels` channels
/// are not whole vectors, or when this machine has no such dot products.
[[nodiscard]] bool integer_form(const formats::WordFormat& format, std::int64_t channels, Integers type,
                                IntegerForm& form);

/// out [keys, channels]: rows of codes, `stride` bytes apart, as integers. Bits of the result: keys with a NaN.
std::uint64_t expand_integers(const IntegerForm& form, const std::byte* codes, std::int64_t stride, std::int64_t keys,
                              std::int64_t channels, void* out);

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
