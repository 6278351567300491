// Vector steps around the tiles: query rows on the way in, their transposition to panels and back.
#pragma once

#include <cstdint>

namespace mpfa::cpu {

/// x = float_to_bf16(x) as floats: to nearest even, saturating; Inf and NaN stay.
void row_to_bf16(float* x, std::int64_t n);

/// x becomes its round trip through the format nvfp4, fp8_e4m3 or int8. False, with nothing done, when x holds a NaN or
/// Inf or n is not a multiple of 16.
[[nodiscard]] bool row_to_nvfp4(float* x, std::int64_t n);
[[nodiscard]] bool row_to_fp8_e4m3(float* x, std::int64_t n);
[[nodiscard]] bool row_to_int8(float* x, std::int64_t n);

/// Sum of x[i] * y[i] in double.
[[nodiscard]] double row_dot(const float* x, const float* y, std::int64_t n);

/// columns[word_index(c, per_word, n / per_word) * width + r] = rows[r * stride + c], c in [0, n), r in [0, count);
/// lanes [count, width) become zero.
void rows_to_columns(const float* rows, std::int64_t stride, std::int64_t count, std::int64_t n, std::int64_t per_word,
                     float* columns, std::int64_t width);
/// The way back.
void columns_to_rows(const float* columns, std::int64_t width, std::int64_t count, std::int64_t n,
                     std::int64_t per_word, float* rows, std::int64_t stride);

}  // namespace mpfa::cpu
