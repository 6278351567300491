// The mean of a full page of V per channel (arXiv 2609.15810), as the page keeps it: bf16.
#include <cmath>
#include <cstring>

#include "cache/convert.hpp"
#include "cache/state.hpp"

namespace mpfa {

void PagedCache::State::take_page_means(std::int32_t page) {
  const std::int64_t n = config.page_size, d = config.head_dim_v;
  std::byte* const means = pool.page(page) + layout.v_means;
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    float* const rows = unit_v.data() + h * n * d;
    for (std::int64_t c = 0; c < d; ++c) {
      double sum = 0.0;
      std::int64_t count = 0;
      for (std::int64_t t = 0; t < n; ++t) {
        if (!std::isfinite(rows[t * d + c])) continue;
        sum += rows[t * d + c];
        ++count;
      }
      const auto mean = count > 0 ? static_cast<float>(sum / static_cast<double>(count)) : 0.0F;
      const std::uint16_t stored = float_to_bf16(mean);
      std::memcpy(means + (h * d + c) * 2, &stored, sizeof stored);
      // What is stored is what is subtracted, so rounding the mean loses nothing.
      for (std::int64_t t = 0; t < n; ++t) rows[t * d + c] -= bf16_to_float(stored);
    }
  }
}

}  // namespace mpfa
