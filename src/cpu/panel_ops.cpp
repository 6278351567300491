#include "cpu/panel_ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/panel_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kPanel / 2>;

/// Where an operand lies: see panel_product().
struct Operands {
  std::int64_t k, width;
  const float* a;
  std::int64_t row_stride, k_stride;
  const float *b, *keep;
  float* c;
};

/// Rows [row, row + kRows) of c, kVectors of their vectors from `lane` on: the accumulators stay in registers.
template <bool kSelected, int kRows, int kVectors>
HWY_INLINE void block(const Operands& x, std::int64_t row, std::int64_t lane) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT a = x.a + row * x.row_stride;
  const float* HWY_RESTRICT b = x.b + lane;
  float* HWY_RESTRICT c = x.c + row * x.width + lane;
  hn::Vec<D> acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      acc[r][v] = x.keep == nullptr
                      ? hn::Zero(d)
                      : hn::Mul(hn::LoadU(d, c + r * x.width + v * lanes), hn::LoadU(d, x.keep + lane + v * lanes));
    }
  }
  for (std::int64_t i = 0; i < x.k; ++i) {
    hn::Vec<D> column[kVectors];
    for (int v = 0; v < kVectors; ++v) column[v] = hn::LoadU(d, b + i * x.width + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto element = hn::Set(d, a[r * x.row_stride + i * x.k_stride]);
      for (int v = 0; v < kVectors; ++v) {
        const auto sum = hn::MulAdd(element, column[v], acc[r][v]);
        acc[r][v] = kSelected ? hn::IfThenElse(hn::Eq(column[v], hn::Zero(d)), acc[r][v], sum) : sum;
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[r][v], d, c + r * x.width + v * lanes);
  }
}

template <bool kSelected, int kVectors>
HWY_INLINE void strip(std::int64_t n, const Operands& x, std::int64_t lane) {
  constexpr int kRows = HWY_TARGET <= HWY_AVX3 ? 8 : 6;  // 32 vector registers hold an 8 x 2 block, 16 a 6 x 2 block
  std::int64_t i = 0;
  for (; i + kRows <= n; i += kRows) block<kSelected, kRows, kVectors>(x, i, lane);
  if (n - i >= 4) {
    block<kSelected, 4, kVectors>(x, i, lane);
    i += 4;
  }
  if (n - i >= 2) {
    block<kSelected, 2, kVectors>(x, i, lane);
    i += 2;
  }
  if (i < n) block<kSelected, 1, kVectors>(x, i, lane);
}

template <bool kSelected>
HWY_INLINE void strips(std::int64_t n, const Operands& x) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t lane = 0;
  for (; lane + 2 * lanes <= x.width; lane += 2 * lanes) strip<kSelected, 2>(n, x, lane);
  for (; lane < x.width; lane += lanes) strip<kSelected, 1>(n, x, lane);
}

void Product(std::int64_t n, std::int64_t k, std::int64_t width, const float* a, std::int64_t row_stride,
             std::int64_t k_stride, const float* b, const float* keep, float* c) {
  strips<false>(n, {k, width, a, row_stride, k_stride, b, keep, c});
}

void ProductSelected(std::int64_t n, std::int64_t k, std::int64_t width, const float* a, std::int64_t row_stride,
                     std::int64_t k_stride, const float* b, const float* keep, float* c) {
  strips<true>(n, {k, width, a, row_stride, k_stride, b, keep, c});
}

bool Finite(const float* x, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto sum = hn::Zero(d);  // 0 * NaN and 0 * Inf are NaN, and stay one
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::MulAdd(hn::LoadU(d, x + i), hn::Zero(d), sum);
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i] * 0.0F;
  return total == 0.0F;
}

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(Product);
HWY_EXPORT(ProductSelected);
HWY_EXPORT(Finite);

void panel_product(std::int64_t n, std::int64_t k, std::int64_t width, const float* a, std::int64_t row_stride,
                   std::int64_t k_stride, const float* b, const float* keep, float* c) {
  HWY_DYNAMIC_DISPATCH(Product)(n, k, width, a, row_stride, k_stride, b, keep, c);
}
void panel_product_selected(std::int64_t n, std::int64_t k, std::int64_t width, const float* a, std::int64_t row_stride,
                            std::int64_t k_stride, const float* b, const float* keep, float* c) {
  HWY_DYNAMIC_DISPATCH(ProductSelected)(n, k, width, a, row_stride, k_stride, b, keep, c);
}
bool panel_finite(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(Finite)(x, n);
}

}  // namespace mpfa::cpu
#endif
