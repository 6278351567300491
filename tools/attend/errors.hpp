// How far a result is from the exact one.
#pragma once

#include <cstdint>
#include <vector>

namespace mpfa::cli {

struct Error {
  double relative_l2 = 0.0;  // |x - exact| / |exact|; 0 when both are 0
  double max_abs = 0.0;      // NaN when x has a NaN that the exact value has not
  double cosine = 1.0;
};

struct Errors {
  Error all;
  std::vector<Error> per_head;
  double lse_max_abs = 0.0;
};

/// out, exact_out [rows, heads, d]; lse, exact_lse [rows, heads], where equal infinities differ by 0.
[[nodiscard]] Errors measure(std::int64_t rows, std::int64_t heads, std::int64_t d, const std::vector<float>& out,
                             const std::vector<double>& exact_out, const std::vector<float>& lse,
                             const std::vector<double>& exact_lse);

}  // namespace mpfa::cli
