// Online softmax of one row over key tiles: the state of a set of keys, and how states, sink and mean come together.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attention/logit.hpp"
#include "attention/probabilities.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::reference {

template <class Real>
inline constexpr Real kMasked = -std::numeric_limits<Real>::infinity();

/// How one set of keys makes its P.
struct Rounding {
  PMode mode = PMode::f32;
  float scale = 1.0F;
  Denominator denominator = Denominator::exact;
};

/// Softmax state over the keys seen so far: acc / sum is the output, max (log2 domain) and sum give the LSE.
template <class Real>
struct RowState {
  Real max = kMasked<Real>;
  Real sum = 0;
  std::vector<Real> acc;

  explicit RowState(std::int64_t d) : acc(static_cast<std::size_t>(d), Real{0}) {}
  [[nodiscard]] bool empty() const { return max == kMasked<Real> && sum == 0; }
  [[nodiscard]] Real lse() const { return max * static_cast<Real>(kLn2) + std::log(sum); }
};

/// P of the tile for P*V. f32 keeps the precision of Real: that is what the identities are proven in.
template <class Real>
void tile_probabilities(const Rounding& r, const Real* x, Real max, std::int64_t n, Real* exact, Real* rounded) {
  for (std::int64_t j = 0; j < n; ++j) exact[j] = x[j] == kMasked<Real> ? Real{0} : std::exp2(x[j] - max);
  if (r.mode == PMode::f32) {
    std::copy_n(exact, n, rounded);
    return;
  }
  std::array<float, kKeyTile> log2_p{};
  std::array<float, kKeyTile> p{};
  for (std::int64_t j = 0; j < n; ++j) {
    log2_p[j] = x[j] == kMasked<Real> ? kMasked<float> : static_cast<float>(x[j] - max);
  }
  round_probabilities(r.mode, r.scale, log2_p.data(), p.data(), n);
  std::copy_n(p.begin(), n, rounded);
}

/// Adds keys [tile, tile + n): logits x [n] in the log2 domain (-inf = masked), values in rows `tile`.. of v [keys, d].
template <class Real>
void add_tile(const Rounding& r, const Real* x, std::int64_t n, const std::vector<Real>& v, std::int64_t tile,
              RowState<Real>& state) {
  const auto d = static_cast<std::int64_t>(state.acc.size());
  Real max = state.max;
  bool seen = false;
  for (std::int64_t j = 0; j < n; ++j) {
    seen = seen || x[j] != kMasked<Real>;
    max = std::max(max, x[j]);
  }
  if (!seen) return;
  std::array<Real, kKeyTile> exact{};
  std::array<Real, kKeyTile> rounded{};
  tile_probabilities(r, x, max, n, exact.data(), rounded.data());

  const Real keep = state.max == kMasked<Real> ? Real{0} : std::exp2(state.max - max);
  state.max = max;
  state.sum *= keep;
  for (Real& a : state.acc) a *= keep;
  for (std::int64_t j = 0; j < n; ++j) {
    if (x[j] == kMasked<Real>) continue;  // its value may be anything, even NaN
    state.sum += r.denominator == Denominator::exact ? exact[j] : rounded[j];
    for (std::int64_t c = 0; c < d; ++c) state.acc[c] += rounded[j] * v[(tile + j) * d + c];
  }
}

/// Output and natural-log LSE of a row; -inf and zeros when it has no key.
template <class Real>
struct Row {
  std::vector<Real> out;
  double lse = -std::numeric_limits<double>::infinity();
  [[nodiscard]] bool empty() const { return lse == -std::numeric_limits<double>::infinity(); }
};

template <class Real>
Row<Real> finish(const RowState<Real>& s) {
  Row<Real> row{s.acc};
  if (s.empty()) return row;
  for (Real& o : row.out) o /= s.sum;
  row.lse = static_cast<double>(s.lse());
  return row;
}

/// The two states of a row, weighted exp(L - max); an empty one changes no bit of the other.
template <class Real>
Row<Real> merge(const Row<Real>& a, const Row<Real>& b) {
  if (b.empty()) return a;
  if (a.empty()) return b;
  const double top = std::max(a.lse, b.lse);
  const Real wa = static_cast<Real>(std::exp(a.lse - top));
  const Real wb = static_cast<Real>(std::exp(b.lse - top));
  Row<Real> row = a;
  for (std::size_t c = 0; c < row.out.size(); ++c) row.out[c] = (wa * a.out[c] + wb * b.out[c]) / (wa + wb);
  row.lse = top + std::log(static_cast<double>(wa + wb));
  return row;
}

/// One more logit in the denominator: everything shrinks by its share, also a mean that was added to the output.
template <class Real>
void add_sink(double sink, Row<Real>& row) {
  if (row.empty()) {
    row.lse = sink;
    return;
  }
  const double top = std::max(row.lse, sink);
  const double total = top + std::log(std::exp(row.lse - top) + std::exp(sink - top));
  const auto share = static_cast<Real>(std::exp(row.lse - total));
  for (Real& o : row.out) o *= share;
  row.lse = total;
}

}  // namespace mpfa::reference
