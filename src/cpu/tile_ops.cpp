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
  for (; r + 4 <= rows; r += 4) block<4, kCols>(k, a + r * lda, lda, b, ldb, c + r * ldc, ldc, accumulate);
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
  constexpr int kWide = HWY_TARGET <= HWY_AVX3 ? 4 : 2;  // 32 vector registers hold a 4 x 4 block
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

/// 2^x for x <= 0 (and small positive x): 2^n times a polynomial on [-1/2, 1/2].
template <class V>
HWY_INLINE V Exp2(D d, V x) {
  const hn::RebindToSigned<D> di;
  const auto low = hn::Set(d, -126.0F);
  const auto clamped = hn::Max(x, low);
  const auto whole = hn::Round(clamped);
  const auto f = hn::Sub(clamped, whole);
  auto p = hn::Set(d, 1.5353362e-4F);
  p = hn::MulAdd(p, f, hn::Set(d, 1.3398874e-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 9.6184370e-3F));
  p = hn::MulAdd(p, f, hn::Set(d, 5.5503324e-2F));
  p = hn::MulAdd(p, f, hn::Set(d, 2.4022648e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9314720e-1F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  const auto scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, whole), hn::Set(di, 127))));
  // A NaN score stays a NaN: it must not look like a masked key.
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenElseZero(hn::Ge(x, low), hn::Mul(p, scale)));
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

/// To nearest, ties to even, with kDrop mantissa bits dropped; for finite values and NaN.
template <int kDrop>
HWY_INLINE hn::Vec<D> DropMantissa(hn::Vec<D> x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<kDrop>(bits), hn::Set(du, 1U));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, (1U << (kDrop - 1)) - 1U)), odd);
  const auto result = hn::BitCast(d, hn::And(rounded, hn::Set(du, ~((1U << kDrop) - 1U))));
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

void RowRoundBf16(float* p, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < n; i += lanes) hn::StoreU(DropMantissa<16>(hn::LoadU(d, p + i)), d, p + i);
}

void RowRoundE4m3(float* p, float scale, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto magic = hn::Set(d, 0x1.8p14F);  // adding it leaves multiples of 2^-9, the subnormal step
  const auto inverse = hn::Set(d, 1.0F / scale);
  for (std::int64_t i = 0; i < n; i += lanes) {
    const auto v = hn::Mul(hn::LoadU(d, p + i), hn::Set(d, scale));
    const auto subnormal = hn::Sub(hn::Add(v, magic), magic);
    const auto rounded = hn::IfThenElse(hn::Lt(v, hn::Set(d, 0x1p-6F)), subnormal, DropMantissa<20>(v));
    hn::StoreU(hn::Mul(rounded, inverse), d, p + i);
  }
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
