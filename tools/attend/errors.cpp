#include "attend/errors.hpp"

#include <cmath>

namespace mpfa::cli {
namespace {

struct Sums {
  double difference = 0.0, exact = 0.0, given = 0.0, product = 0.0, max_abs = 0.0;

  void add(double x, double y) {
    difference += (x - y) * (x - y);
    exact += y * y;
    given += x * x;
    product += x * y;
    // std::max would lose a NaN.
    if (!(std::abs(x - y) <= max_abs)) max_abs = std::abs(x - y);
  }

  void add(const Sums& o) {
    difference += o.difference;
    exact += o.exact;
    given += o.given;
    product += o.product;
    if (!(o.max_abs <= max_abs)) max_abs = o.max_abs;
  }

  [[nodiscard]] Error error() const {
    const double norms = std::sqrt(exact) * std::sqrt(given);
    return {difference == 0.0 ? 0.0 : std::sqrt(difference / exact), max_abs,
            difference == 0.0 ? 1.0 : product / norms};
  }
};

}  // namespace

Errors measure(std::int64_t rows, std::int64_t heads, std::int64_t d, const std::vector<float>& out,
               const std::vector<double>& exact_out, const std::vector<float>& lse,
               const std::vector<double>& exact_lse) {
  Errors errors;
  Sums all;
  for (std::int64_t h = 0; h < heads; ++h) {
    Sums head;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t at = r * heads + h;
      for (std::int64_t c = 0; c < d; ++c) head.add(out[at * d + c], exact_out[at * d + c]);
      if (lse[at] == exact_lse[at]) continue;
      const double difference = std::abs(lse[at] - exact_lse[at]);
      if (!(difference <= errors.lse_max_abs)) errors.lse_max_abs = difference;
    }
    errors.per_head.push_back(head.error());
    all.add(head);
  }
  errors.all = all.error();
  return errors;
}

}  // namespace mpfa::cli
