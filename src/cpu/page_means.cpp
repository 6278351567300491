#include "cpu/page_means.hpp"

#include "cache/convert.hpp"
#include "cpu/expand.hpp"
#include "cpu/few_rows.hpp"
#include "cpu/panel_ops.hpp"

namespace mpfa::cpu {

void add_page_means(const Task& task, std::int64_t first, KeyRange c, Scratch& s, float* o) {
  const CacheView& cache = task.tensors->cache;
  if (cache.v_page_means == nullptr) return;
  const std::int64_t dv = cache.head_dim_v;
  float* const mean = s.factors;  // free between two products
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const std::uint16_t* bits =
        cache.v_page_means + run.page * cache.v_page_mean_page_stride + task.kv_head * cache.v_page_mean_head_stride;
    for (std::int64_t i = 0; i < dv; ++i) mean[output_place(s, i)] = bf16_to_float(bits[i]);
    for (std::int64_t r = 0; r < task.count; ++r) {
      const float* row = s.s + r * kKeyTile;
      float weight = 0.0F;
      for (std::int64_t j = run.column; j < run.column + run.count; ++j) weight += row[j];
      if (weight == 0.0F) continue;
      float* out = o + r * padded(dv);
      for (std::int64_t i = 0; i < dv; ++i) out[i] += weight * mean[i];
    }
  });
}

void add_panel_means(const Task& task, std::int64_t width, std::int64_t first, KeyRange c, const float* p, Scratch& s,
                     float* o) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t d = cache.head_dim_v;
  const std::int64_t per_word = s.words_v ? formats::word_format(cache.v_format, d).per_word : 1;
  float* const mean = s.factors;  // free between two tiles
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const std::uint16_t* bits =
        cache.v_page_means + run.page * cache.v_page_mean_page_stride + task.kv_head * cache.v_page_mean_head_stride;
    for (std::int64_t n = 0; n < per_word; ++n) {
      for (std::int64_t i = 0; i < d / per_word; ++i)
        mean[n * (d / per_word) + i] = bf16_to_float(bits[i * per_word + n]);
    }
    float weights[kPanel] = {};
    for (std::int64_t j = run.column; j < run.column + run.count; ++j) {
      for (std::int64_t r = 0; r < width; ++r) weights[r] += p[j * width + r];
    }
    panel_product_selected(d, 1, width, mean, 1, 0, weights, kPanelOfOnes.data(), o);
  });
}

}  // namespace mpfa::cpu
