#include "cpu/tile_ops.hpp"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kLaneMultiple>;

#include "cpu/exp2-inl.hpp"

/// kRows x (kCols vectors) of c, all k: the accumulators stay in registers.
template <int kRows, int kCols>
HWY_INLINE void block(std::int64_t k, const float* HWY_RESTRICT a, std::int64_t lda, const float* HWY_RESTRICT b,
                      std::int64_t ldb, float* HWY_RESTRICT c, std::int64_t ldc, bool accumulate) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<D> acc[kRows][kCols];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kCols; ++v) {
      acc[r][v] = accumulate ? hn::LoadU(d, c + r * ldc + v * lanes) : hn::Zero(d);
    }
  }
  for (std::int64_t i = 0; i < k; ++i) {
    hn::Vec<D> row[kCols];
    for (int v = 0; v < kCols; ++v) row[v] = hn::LoadU(d, b + i * ldb + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, a[r * lda + i]);
      for (int v = 0; v < kCols; ++v) acc[r][v] = hn::MulAdd(x, row[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kCols; ++v) hn::StoreU(acc[r][v], d, c + r * ldc + v * lanes);
  }
}

template <int kCols>
HWY_INLINE void columns(std::int64_t rows, std::int64_t k, const float* a, std::int64_t lda, const float* b,
                        std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  std::int64_t r = 0;
  for (; r + 6 <= rows; r += 6) block<6, kCols>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
  if (rows - r >= 4) {
    block<4, kCols>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
    r += 4;
  }
  if (rows - r >= 2) {
    block<2, kCols>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
    r += 2;
  }
  if (r < rows) block<1, kCols>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
}

void Gemm(std::int64_t rows, std::int64_t k, std::int64_t n, const float* a, std::int64_t lda, const float* b,
          std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  constexpr int kWide = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // 32 vector registers hold a 6 x 4 block, 16 a 6 x 2 block
  std::int64_t j = 0;
  for (; j + kWide * lanes <= n; j += kWide * lanes)
    columns<kWide>(rows, k, a, lda, b + j, ldb, c + j, ldc, accumulate);
  for (; j < n; j += lanes) columns<1>(rows, k, a, lda, b + j, ldb, c + j, ldc, accumulate);
}

float RowMax(const float* x, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto floor = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto best = floor;
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    best = hn::Max(best, hn::IfThenElse(hn::IsNaN(v), floor, v));
  }
  float m = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; i < n; ++i) m = x[i] > m ? x[i] : m;
  return m;
}

float RowExp2(const float* x, float m, std::int64_t n, float* p) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto shift = hn::Set(d, m);
  auto sum = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto e = Exp2(d, hn::Sub(hn::LoadU(d, x + i), shift));
    sum = hn::Add(sum, e);
    hn::StoreU(e, d, p + i);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (i < n) {
    float rest[kLaneMultiple];
    for (std::int64_t j = 0; j < lanes; ++j) {
      rest[j] = i + j < n ? x[i + j] : -std::numeric_limits<float>::infinity();
    }
    const auto e = Exp2(d, hn::Sub(hn::LoadU(d, rest), shift));
    hn::StoreU(e, d, rest);
    total += hn::GetLane(hn::SumOfLanes(d, e));
    for (std::int64_t j = 0; i + j < n; ++j) p[i + j] = rest[j];
  }
  return total;
}

void RowRoundBf16(float* p, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < n; i += lanes) hn::StoreU(DropMantissa<16>(hn::LoadU(d, p + i)), d, p + i);
}

void RowRoundE4m3(float* p, float scale, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, scale);
  const auto inverse = hn::Set(d, 1.0F / scale);
  for (std::int64_t i = 0; i < n; i += lanes) hn::StoreU(RoundE4m3(hn::LoadU(d, p + i), factor, inverse), d, p + i);
}

void RowScale(float* x, float s, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, s);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), factor), d, x + i);
  for (; i < n; ++i) x[i] *= s;
}

const char* InstructionSet() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Gemm);
HWY_EXPORT(RowMax);
HWY_EXPORT(RowExp2);
HWY_EXPORT(RowRoundBf16);
HWY_EXPORT(RowRoundE4m3);
HWY_EXPORT(RowScale);
HWY_EXPORT(InstructionSet);

void gemm(std::int64_t rows, std::int64_t k, std::int64_t n, const float* a, std::int64_t lda, const float* b,
          std::int64_t ldb, float* c, std::int64_t ldc, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(Gemm)(rows, k, n, a, lda, b, ldb, c, ldc, accumulate);
}
float row_max(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(RowMax)(x, n);
}
float row_exp2(const float* x, float m, std::int64_t n, float* p) {
  return HWY_DYNAMIC_DISPATCH(RowExp2)(x, m, n, p);
}
void row_round_bf16(float* p, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(RowRoundBf16)(p, n);
}
void row_round_e4m3(float* p, float scale, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(RowRoundE4m3)(p, scale, n);
}
void row_scale(float* x, float s, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(RowScale)(x, s, n);
}
const char* instruction_set() {
  return HWY_DYNAMIC_DISPATCH(InstructionSet)();
}

}  // namespace mpfa::cpu
#endif
