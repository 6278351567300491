// A second quantiser, written from the definitions: code values are enumerated and the nearest is searched in float64.
// It shares no code with the library, so that a rounding fault has to be made twice.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mpfa/formats.hpp"

namespace mpfa::test::oracle {

/// Values of the non-negative codes 0, 1, 2, ... of a float with the given exponent and mantissa bits, up to `largest`.
inline std::vector<double> float_grid(int mantissa_bits, int bias, double largest) {
  std::vector<double> grid;
  for (int code = 0;; ++code) {
    const int exponent = code >> mantissa_bits, mantissa = code & ((1 << mantissa_bits) - 1);
    const double v = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                   : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    if (v > largest) return grid;
    grid.push_back(v);
  }
}
inline std::vector<double> integer_grid(int largest) {
  std::vector<double> grid;
  for (int n = 0; n <= largest; ++n) grid.push_back(n);
  return grid;
}

/// Non-negative values of an element or scale, one more than it has: rounding to the last entry is saturation.
inline std::vector<double> grid_of(Element e) {
  switch (e) {
    case Element::e2m1: return float_grid(1, 1, 8);
    case Element::e3m0: return float_grid(0, 3, 32);
    case Element::e4m3: return float_grid(3, 7, 480);
    case Element::e5m2: return float_grid(2, 15, 65536);
    case Element::f16: return float_grid(10, 15, 65536);
    case Element::int8: return integer_grid(128);
    case Element::int4: return integer_grid(8);
    case Element::uint4: return integer_grid(16);
    default: return {};
  }
}

struct Rounded {
  double value;
  bool saturated;
};
/// Nearest entry, ties to the even index; the last entry stands for saturation to the one before.
inline Rounded nearest(const std::vector<double>& grid, double v) {
  const double abs = std::fabs(v);
  const auto above = std::lower_bound(grid.begin(), grid.end(), abs);
  std::size_t i = std::min<std::size_t>(static_cast<std::size_t>(above - grid.begin()), grid.size() - 1);
  if (i > 0) {
    const double down = abs - grid[i - 1], up = grid[i] - abs;
    if (down < up || (down == up && (i - 1) % 2 == 0)) --i;
  }
  const bool saturated = i == grid.size() - 1;
  return {std::copysign(grid[saturated ? i - 1 : i], v), saturated};
}

inline double half(double v) {
  return nearest(grid_of(Element::f16), std::clamp(v, -65504.0, 65504.0)).value;
}

inline std::vector<double> lloyd_levels() {
  std::vector<double> levels;
  for (const double l :
       {.1283950299, .3880482995, .6567591185, .9423404565, 1.2562311973, 1.6180463860, 2.0690172265, 2.7325895710}) {
    levels.push_back(static_cast<float>(l));
  }
  return levels;
}

struct Block {
  std::vector<float> values;
  QuantiseCounters counters;
};

/// Elements rounded under a factor (and minimum), read back as floats.
inline Block apply(const BlockFormat& f, const std::vector<float>& x, float factor, float minimum) {
  Block b;
  const std::vector<double> grid = grid_of(f.element), levels = lloyd_levels();
  for (const float v : x) {
    const float q = (v - minimum) / factor;
    if (std::isnan(q)) {
      b.values.push_back(q);
      continue;
    }
    if (f.element == Element::lloyd4) {
      double best = levels[0];
      for (const double l : levels) best = std::fabs(q) - best > l - std::fabs(q) ? l : best;
      b.values.push_back(static_cast<float>(q < 0 ? -best : best) * factor);
      continue;
    }
    Rounded r = nearest(grid, q);
    if (f.element == Element::uint4 && r.value <= 0) r = {0.0, r.value < 0};
    if (std::isinf(v)) r.saturated = false;
    b.counters.saturated_elements += r.saturated ? 1 : 0;
    const float scaled = static_cast<float>(r.value) * factor;
    b.values.push_back(f.element == Element::uint4 ? scaled + minimum : scaled);
  }
  return b;
}

inline double squared_error(const std::vector<float>& x, const std::vector<float>& y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += std::pow(static_cast<double>(x[i]) - y[i], 2);
  return sum;
}

/// Smallest e with limit * 2^e >= amax, and largest e with 2^e <= amax.
inline int smallest_exponent(double amax, double limit) {
  int e = -200;
  while (std::ldexp(limit, e) < amax) ++e;
  return e;
}
inline int largest_power(double amax) {
  int e = 200;
  while (std::ldexp(1.0, e) > amax) --e;
  return e;
}

/// Factor of a finite block that is not zero.
inline float factor_of(const BlockFormat& f, const std::vector<float>& x, float amax, float global, float target) {
  const float limit = element_max(f.element);
  const auto power = [](int e) { return static_cast<float>(std::ldexp(1.0, std::clamp(e, -127, 127))); };
  switch (f.rule) {
    case ScaleRule::least_error: return power(smallest_exponent(amax, 7.25));
    case ScaleRule::ceil: return power(smallest_exponent(amax, limit));
    case ScaleRule::floor: return power(largest_power(amax) - largest_power(limit));
    case ScaleRule::norm: {
      const std::vector<float> zeros(x.size(), 0.0F);
      return static_cast<float>(half(std::sqrt(squared_error(x, zeros)))) / std::sqrt(static_cast<float>(x.size()));
    }
    default: break;
  }
  if (f.scale == ScaleType::e4m3) {
    return static_cast<float>(nearest(grid_of(Element::e4m3), std::min(amax / target / global, 448.0F)).value) * global;
  }
  if (f.scale == ScaleType::f16) return static_cast<float>(half(amax / limit));
  return std::max(amax / limit, std::numeric_limits<float>::min());
}

/// x -> dequantise(quantise(x)) for the elements that share one scale. Formats with a stored scale or rule fixed.
inline Block quantise(const BlockFormat& f, const std::vector<float>& x, float global) {
  if (f.rule == ScaleRule::fixed) return apply(f, x, global, 0.0F);
  Block zero{std::vector<float>(x.size(), 0.0F), {}};
  float amax = 0, low = x[0], high = x[0];
  for (const float v : x) {
    if (!std::isfinite(v)) return {std::vector<float>(x.size(), std::nanf("")), {1, 0, 0}};
    amax = std::max(amax, std::fabs(v)), low = std::min(low, v), high = std::max(high, v);
  }
  if (amax == 0) return zero;
  amax = std::min(amax, 0x1p127F);
  if (f.rule == ScaleRule::min_max) {
    const auto scale = static_cast<float>(half((high - low) / 15.0F)), minimum = static_cast<float>(half(low));
    if (scale > 0) return apply(f, x, scale, minimum);
    return {std::vector<float>(x.size(), minimum), {0, 0, high > low ? 1 : 0}};
  }
  const float factor = factor_of(f, x, amax, global, 6.0F);
  Block b = factor > 0 ? apply(f, x, factor, 0.0F) : zero;
  if (f.rule == ScaleRule::norm && squared_error(x, zero.values) >= 65520.0 * 65520.0) {
    b.counters.saturated_elements = static_cast<std::int64_t>(x.size());
  }
  if (f.rule == ScaleRule::four_over_six) {
    const float smaller = factor_of(f, x, amax, global, 4.0F);
    const Block four = smaller > 0 ? apply(f, x, smaller, 0.0F) : zero;
    if (squared_error(x, four.values) < squared_error(x, b.values)) b = four;
  }
  if (std::all_of(b.values.begin(), b.values.end(), [](float v) { return v == 0; })) {
    b = zero;
    b.counters.flushed_blocks = 1;
  }
  return b;
}

}  // namespace mpfa::test::oracle
