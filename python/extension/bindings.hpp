// The parts of the extension module mpfa._core.
#pragma once

#include <string>

#include "extension/arrays.hpp"
#include "mpfa/cache.hpp"

namespace mpfa::python {

/// Calibrated means and scales as they come from Python; None where there is none.
struct Means {
  nb::object k_mean, q_mean, v_mean, k_scale, v_scale;
};
/// Everything of a cache but the size of its pool.
[[nodiscard]] CacheConfig make_config(const std::string& recipe, std::int64_t batch, std::int64_t page_size,
                                      std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                                      std::int64_t head_dim_v, const Means& means);

void bind_cache(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_kvcache(nb::module_& m);
void bind_formats(nb::module_& m);
void bind_pages(nb::module_& m);
void bind_page_view(nb::module_& m);
void bind_device(nb::module_& m);

}  // namespace mpfa::python
