// Products with 4-bit rows that are expanded in registers: no tile of floats is written. For few query rows (decode).
//
// A row of d codes is d / 8 words of 32 bits; nibble n of word i is channel 8 i + n. One shift and one table lookup
// turn all words into the floats of one n, so vectors on the other side keep that order: [8][d / 8] ("nibble order").
#pragma once

#include <cstddef>
#include <cstdint>

namespace mpfa::cpu {

/// Floats past the last factor that may be read.
inline constexpr std::int64_t kFactorPadding = 16;

/// Rows of codes with their factors.
struct NibbleRows {
  const std::byte* codes = nullptr;
  std::int64_t row_stride = 0;     // bytes
  std::int64_t words = 0;          // d / 8
  const float* factors = nullptr;  // [keys, words / block_words]
  std::int64_t block_words = 0;    // words that share a factor
  const float* table = nullptr;    // [16] element values
};

/// True when this machine and these sizes have a path (words a multiple of 8, blocks of at least 2 words).
[[nodiscard]] bool nibble_ops_take(std::int64_t words, std::int64_t block_words);

/// Index of channel c in nibble order.
[[nodiscard]] constexpr std::int64_t nibble_index(std::int64_t c, std::int64_t words) {
  return c % 8 * words + c / 8;
}

/// s[r * s_stride + j] = q[r] . row j, for j in [0, keys). q [rows, 8 * words] in nibble order.
void nibble_scores(const NibbleRows& k, std::int64_t keys, std::int64_t rows, const float* q, float* s,
                   std::int64_t s_stride);

/// o[r] += sum_j p[r * p_stride + j] * row j. o [rows, o_stride] in nibble order.
void nibble_accumulate(const NibbleRows& v, std::int64_t keys, std::int64_t rows, const float* p, std::int64_t p_stride,
                       float* o, std::int64_t o_stride);

}  // namespace mpfa::cpu
