// Codes whose elements are whole numbers as integers, for dot products of these: see integer_scores.hpp and
// integer_values.hpp.
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

}  // namespace mpfa::cpu
