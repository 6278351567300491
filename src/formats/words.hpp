// Token rows seen as 32-bit words of codes, for kernels that expand them in registers: what a word holds, and the block
// factors apart. value = element(code) * factor + minimum.
#pragma once

#include <array>
#include <cstdint>

#include "mpfa/formats.hpp"

namespace mpfa::formats {

enum class WordCode : std::uint8_t { none, table16, int8, e4m3, e5m2, bf16, f16, f32 };

struct WordFormat {
  WordCode code = WordCode::none;                // none: rows of this format are not tokens (axis keys)
  std::int64_t per_word = 0;                     // codes in a word: 8, 4, 2 or 1
  const std::array<float, 16>* table = nullptr;  // element values of table16
  std::int64_t block = 0;                        // channels per factor
  bool has_minimum = false;                      // one minimum per token
};
[[nodiscard]] WordFormat word_format(const BlockFormat& f, std::int64_t head_dim);

/// Factors [count, head_dim / block] of slots [slot, slot + count), and their minima [count] for formats that have one.
void read_factors(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                  ConstPageBytes page, float global, float* factors, float* minima);

}  // namespace mpfa::formats
