// Products with packed rows that are expanded in registers: no tile of floats is written. For few query rows (decode).
//
// A row is words of 32 bits, each with `per_word` codes: code n of word i is channel per_word * i + n. A shift and a
// lookup or conversion turn all words into the floats of one n, so vectors on the other side keep that order,
// [per_word][words] ("word order").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "formats/words.hpp"

namespace mpfa::cpu {

/// Floats past the last factor that may be read.
inline constexpr std::int64_t kFactorPadding = 16;

/// Elements of 4-bit codes as signed bytes, element * multiplier, the 16 of them repeated.
struct ValueBytes {
  std::array<std::uint8_t, 64> table{};
  float multiplier = 1.0F;
};

/// Rows of codes with their factors.
struct WordRows {
  formats::WordCode code = formats::WordCode::none;
  const std::byte* codes = nullptr;
  std::int64_t row_stride = 0;     // bytes
  std::int64_t words = 0;          // of a row
  const float* factors = nullptr;  // [keys, words / block_words]
  std::int64_t block_words = 0;    // words that share a factor
  const float* table = nullptr;    // [16] element values of table16
  const std::byte* next[2] = {};   // the next tile's rows of K and V, which add_values() fetches into the cache
  std::int64_t next_stride[2] = {};
  const ValueBytes* bytes = nullptr;  // given to add_values(), which then may round weights to 16 bits
};

/// True when this machine has vectors for rows of `words` words (a multiple of 8) and whole words share a factor.
[[nodiscard]] bool word_ops_take(std::int64_t words);

/// Index of channel c in word order.
[[nodiscard]] constexpr std::int64_t word_index(std::int64_t c, std::int64_t per_word, std::int64_t words) {
  return c % per_word * words + c / per_word;
}

/// s[r * s_stride + j] = q[r] . row j, for j in [0, keys). q [rows, per_word * words] in word order.
void word_scores(const WordRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
                 std::int64_t s_stride);

/// o[r] += sum_j p[r * p_stride + j] * row j. o [rows, o_stride] in word order.
void word_accumulate(const WordRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                     float* o, std::int64_t o_stride);

/// out[j * stride + ..] = row j as floats in word order, plus minima[j] where minima is not null.
void word_expand(const WordRows& x, std::int64_t keys, const float* minima, float* out, std::int64_t stride);

}  // namespace mpfa::cpu
