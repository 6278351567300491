// The mean of a full page of V per channel (arXiv 2609.15810), as the page keeps it: bf16.
#include <array>

#include "cache/convert.hpp"
#include "cache/row_ops.hpp"
#include "cache/state.hpp"

namespace mpfa {

void PagedCache::State::take_page_mean(std::int32_t page, std::int64_t head, std::int64_t n, const TensorView& first,
                                       float* mean) {
  const std::int64_t d = config.head_dim_v;
  std::array<double, rows::kLongest> sum{};
  std::array<std::int64_t, rows::kLongest> skipped{};
  for (std::int64_t t = 0; t < n; ++t) {
    rows::Row row;
    rows::load(first, t * config.kv_heads * d, 1, d, row.x);
    rows::add_finite(row.x, d, sum.data(), skipped.data());
  }
  auto* const stored = reinterpret_cast<std::uint16_t*>(pool.page(page) + layout.v_means) + head * d;
  for (std::int64_t c = 0; c < d; ++c) {
    const std::int64_t count = n - skipped[c];
    stored[c] = float_to_bf16(count > 0 ? static_cast<float>(sum[c] / static_cast<double>(count)) : 0.0F);
    // What is stored is what is subtracted, so rounding the mean loses nothing.
    mean[c] = bf16_to_float(stored[c]);
  }
}

}  // namespace mpfa
