#include "cpu/query_ops.hpp"

#include <algorithm>

#include "cpu/panel_ops.hpp"
#include "cpu/tile_ops.hpp"
#include "cpu/word_ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/query_ops.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kLaneMultiple>;
using Four = hn::CappedTag<float, 4>;

#include "cpu/exp2-inl.hpp"

/// One vector of row_to_bf16().
HWY_INLINE hn::Vec<D> ToBf16(hn::Vec<D> x) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::And(hn::Add(hn::Add(bits, hn::Set(du, 0x7FFFU)), odd), hn::Set(du, 0xFFFF0000U));
  const auto largest = hn::BitCast(d, hn::Set(du, 0x7F7F0000U));
  const auto finite = hn::IfThenElse(hn::Gt(hn::Abs(x), largest), hn::CopySign(largest, x), hn::BitCast(d, rounded));
  return hn::IfThenElse(hn::Or(hn::IsInf(x), hn::IsNaN(x)), x, finite);
}

void RowToBf16(float* x, std::int64_t n) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(ToBf16(hn::LoadU(d, x + i)), d, x + i);
  if (i == n) return;
  float rest[kLaneMultiple] = {};
  std::copy(x + i, x + n, rest);
  hn::StoreU(ToBf16(hn::LoadU(d, rest)), d, rest);
  std::copy_n(rest, n - i, x + i);
}

/// Largest magnitude of n floats in every lane, at most 2^127; n is a multiple of the lanes.
HWY_INLINE hn::Vec<D> LargestOf(const float* x, std::int64_t n) {
  const D d;
  auto largest = hn::Zero(d);
  for (std::int64_t i = 0; i < n; i += hn::Lanes(d)) largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  return hn::Min(hn::MaxOfLanes(d, largest), hn::Set(d, 0x1p127F));
}

/// x = RN(x / factor) * factor with kDrop mantissa bits dropped, steps no finer than those of `smallest`, at most
/// `most`; 0 where factor is.
template <int kDrop>
HWY_INLINE void RoundTrip(float* x, std::int64_t n, hn::Vec<D> factor, float smallest, float most) {
  const D d;
  const auto empty = hn::Eq(factor, hn::Zero(d));
  for (std::int64_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, x + i);
    const auto magnitude = hn::Min(hn::Div(hn::Abs(v), factor), hn::Set(d, most));
    const auto rounded = NearestIn<kDrop>(magnitude, hn::Max(Binade(magnitude), hn::Set(d, smallest)));
    hn::StoreU(hn::IfThenZeroElse(empty, hn::CopySign(hn::Mul(rounded, factor), v)), d, x + i);
  }
}

bool RowToNvfp4(float* x, std::int64_t n) {
  const D d;
  if (n % 16 != 0 || !panel_finite(x, n)) return false;
  for (std::int64_t c = 0; c < n; c += 16) {
    const auto wanted = hn::Min(hn::Div(LargestOf(x + c, 16), hn::Set(d, 6.0F)), hn::Set(d, 448.0F));
    const auto scale = NearestIn<20>(wanted, hn::Max(Binade(wanted), hn::Set(d, 0x1p-6F)));
    RoundTrip<22>(x + c, 16, scale, 1.0F, 6.0F);
  }
  return true;
}

/// One float scale that sends the largest element of the row to `most`; elements of at most `nothing` round to 0.
template <int kDrop>
HWY_INLINE bool RowToScaled(float* x, std::int64_t n, float smallest, float most, float nothing) {
  const D d;
  if (n % 16 != 0 || !panel_finite(x, n)) return false;
  const auto largest = LargestOf(x, n);
  const auto scale = hn::Max(hn::Div(largest, hn::Set(d, most)), hn::Set(d, 0x1p-126F));
  // A row whose largest element rounds to 0 has no scale.
  const auto vanishes = hn::Le(hn::Div(largest, scale), hn::Set(d, nothing));
  RoundTrip<kDrop>(x, n, hn::IfThenZeroElse(vanishes, scale), smallest, most);
  return true;
}

bool RowToFp8(float* x, std::int64_t n) {
  return RowToScaled<20>(x, n, 0x1p-6F, 448.0F, 0x1p-10F);
}

bool RowToInt8(float* x, std::int64_t n) {
  return RowToScaled<16>(x, n, 128.0F, 127.0F, 0.5F);  // steps of 2^-7 of the least binade are whole
}

double RowDot(const float* x, const float* y, std::int64_t n) {
#if HWY_HAVE_FLOAT64
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(dd));
  auto even = hn::Zero(dd), odd = hn::Zero(dd);
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto at = [&](const float* p) HWY_ATTR { return hn::PromoteTo(dd, hn::LoadU(df, p)); };
    even = hn::MulAdd(at(x + i), at(y + i), even);
    odd = hn::MulAdd(at(x + i + lanes), at(y + i + lanes), odd);
  }
  double sum = hn::GetLane(hn::SumOfLanes(dd, hn::Add(even, odd)));
#else
  double sum = 0.0;
  std::int64_t i = 0;
#endif
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

#if HWY_TARGET != HWY_SCALAR
/// Row i of a 4 x 4 block at from[i] becomes column i of the block whose rows are to[i].
HWY_INLINE void transpose_block(const float* const (&from)[4], float* const (&to)[4]) {
  const Four d;
  const hn::Repartition<double, Four> pairs;
  const auto a = hn::LoadU(d, from[0]), b = hn::LoadU(d, from[1]), e = hn::LoadU(d, from[2]), f = hn::LoadU(d, from[3]);
  const auto ab_low = hn::BitCast(pairs, hn::InterleaveLower(d, a, b));
  const auto ab_high = hn::BitCast(pairs, hn::InterleaveUpper(d, a, b));
  const auto ef_low = hn::BitCast(pairs, hn::InterleaveLower(d, e, f));
  const auto ef_high = hn::BitCast(pairs, hn::InterleaveUpper(d, e, f));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_low, ef_low)), d, to[0]);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_low, ef_low)), d, to[1]);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, ab_high, ef_high)), d, to[2]);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, ab_high, ef_high)), d, to[3]);
}
#else
HWY_INLINE void transpose_block(const float* const (&from)[4], float* const (&to)[4]) {
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) to[j][i] = from[i][j];
  }
}
#endif

void RowsToColumns(const float* rows, std::int64_t stride, std::int64_t count, std::int64_t n, std::int64_t per_word,
                   float* columns, std::int64_t width) {
  const std::int64_t words = n / per_word;
  const auto column = [&](std::int64_t c) { return columns + word_index(c, per_word, words) * width; };
  const std::int64_t blocks = n / 4 * 4, whole = count / 4 * 4;
  for (std::int64_t c = 0; c < n; ++c) {
    float* out = column(c);
    for (std::int64_t r = c < blocks ? whole : 0; r < count; ++r) out[r] = rows[r * stride + c];
    std::fill(out + count, out + width, 0.0F);
  }
  for (std::int64_t c = 0; c < blocks; c += 4) {
    float* const to[4] = {column(c), column(c + 1), column(c + 2), column(c + 3)};
    for (std::int64_t r = 0; r < whole; r += 4) {
      const float* from = rows + r * stride + c;
      transpose_block({from, from + stride, from + 2 * stride, from + 3 * stride},
                      {to[0] + r, to[1] + r, to[2] + r, to[3] + r});
    }
  }
}

void ColumnsToRows(const float* columns, std::int64_t width, std::int64_t count, std::int64_t n, std::int64_t per_word,
                   float* rows, std::int64_t stride) {
  const std::int64_t words = n / per_word;
  const auto column = [&](std::int64_t c) { return columns + word_index(c, per_word, words) * width; };
  const std::int64_t blocks = n / 4 * 4, whole = count / 4 * 4;
  for (std::int64_t c = 0; c < n; ++c) {
    const float* in = column(c);
    for (std::int64_t r = c < blocks ? whole : 0; r < count; ++r) rows[r * stride + c] = in[r];
  }
  for (std::int64_t c = 0; c < blocks; c += 4) {
    const float* const from[4] = {column(c), column(c + 1), column(c + 2), column(c + 3)};
    for (std::int64_t r = 0; r < whole; r += 4) {
      float* to = rows + r * stride + c;
      transpose_block({from[0] + r, from[1] + r, from[2] + r, from[3] + r},
                      {to, to + stride, to + 2 * stride, to + 3 * stride});
    }
  }
}

}  // namespace mpfa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::cpu {

HWY_EXPORT(RowToBf16);
HWY_EXPORT(RowToNvfp4);
HWY_EXPORT(RowToFp8);
HWY_EXPORT(RowToInt8);
HWY_EXPORT(RowDot);
HWY_EXPORT(RowsToColumns);
HWY_EXPORT(ColumnsToRows);

void row_to_bf16(float* x, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(RowToBf16)(x, n);
}
bool row_to_nvfp4(float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(RowToNvfp4)(x, n);
}
bool row_to_fp8_e4m3(float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(RowToFp8)(x, n);
}
bool row_to_int8(float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(RowToInt8)(x, n);
}
double row_dot(const float* x, const float* y, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(RowDot)(x, y, n);
}
void rows_to_columns(const float* rows, std::int64_t stride, std::int64_t count, std::int64_t n, std::int64_t per_word,
                     float* columns, std::int64_t width) {
  HWY_DYNAMIC_DISPATCH(RowsToColumns)(rows, stride, count, n, per_word, columns, width);
}
void columns_to_rows(const float* columns, std::int64_t width, std::int64_t count, std::int64_t n,
                     std::int64_t per_word, float* rows, std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(ColumnsToRows)(columns, width, count, n, per_word, rows, stride);
}

}  // namespace mpfa::cpu
#endif
