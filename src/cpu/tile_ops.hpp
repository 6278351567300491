// The vector operations of a tile, compiled for every instruction set the compiler offers and chosen at run time.
#pragma once

#include <cstdint>

namespace mpfa::cpu {

/// Columns of every matrix operand are padded to a multiple of this many floats.
inline constexpr std::int64_t kLaneMultiple = 16;

/// c[rows][n] = (accumulate ? c : 0) + a[rows][k] * b[k][n]. n is a multiple of kLaneMultiple; ld* in floats.
void gemm(std::int64_t rows, std::int64_t k, std::int64_t n, const float* a, std::int64_t lda, const float* b,
          std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate);

/// Maximum of x[0..n); -inf for n = 0. NaN elements are ignored.
[[nodiscard]] float row_max(const float* x, std::int64_t n);

/// p[i] = exp2(x[i] - m) for i in [0, n), 0 where x[i] is -inf; returns the sum. Relative error below 3e-7.
float row_exp2(const float* x, float m, std::int64_t n, float* p);

/// p[i] = RN_bf16(p[i]); NaN stays NaN. n is a multiple of kLaneMultiple, as in the next one.
void row_round_bf16(float* p, std::int64_t n);

/// p[i] = RN_e4m3(p[i] * scale) / scale for p in [0, 1] and scale <= 448: nothing saturates.
void row_round_e4m3(float* p, float scale, std::int64_t n);

/// x[i] = x[i] * s
void row_scale(float* x, float s, std::int64_t n);

/// Name of the instruction set in use, e.g. "AVX3" (AVX-512).
[[nodiscard]] const char* instruction_set();

}  // namespace mpfa::cpu
