#include "cpu/few_rows.hpp"

#include <algorithm>

#include "cpu/expand.hpp"
#include "cpu/nibble_ops.hpp"
#include "formats/nibbles.hpp"

namespace mpfa::cpu {
namespace {

using formats::nibble_format;
using formats::NibbleFormat;

bool takes(const BlockFormat& f, std::int64_t head_dim) {
  const NibbleFormat n = nibble_format(f, head_dim);
  return n.table != nullptr && head_dim % 64 == 0 && n.block % 8 == 0 && nibble_ops_take(head_dim / 8, n.block / 8);
}

NibbleRows rows_of(const BlockFormat& f, std::int64_t head_dim, const ConstPageBytes& page, std::int64_t slot,
                   const float* factors) {
  const NibbleFormat n = nibble_format(f, head_dim);
  return {page.data + slot * page.data_row_stride,
          page.data_row_stride,
          head_dim / 8,
          factors,
          n.block / 8,
          n.table->data()};
}

}  // namespace

void choose_nibbles(const Task& task, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const bool few = task.count <= kFewRows;
  const bool affine_v = cache.sequences != nullptr && cache.sequences[task.sequence].v_alpha != nullptr;
  s.nibble_k = few && takes(cache.k_format, cache.head_dim);
  s.nibble_v = few && !affine_v && takes(cache.v_format, cache.head_dim_v);
  if (!s.nibble_k) return;
  const std::int64_t d = cache.head_dim;
  for (std::int64_t r = 0; r < task.count; ++r) {
    for (std::int64_t c = 0; c < d; ++c) s.q[r * d + nibble_index(c, d / 8)] = task.q_packed[r * d + c];
  }
}

void score_nibbles(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const ConstPageBytes page = cache.k.page(run.page, task.kv_head);
    // A factor that is NaN makes NaN scores of its own key only; selection by mask comes later.
    static_cast<void>(formats::read_factors(cache.k_format, cache.head_dim, run.slot, run.count, page,
                                            cache.k.global_scale(task.kv_head), s.factors));
    nibble_scores(rows_of(cache.k_format, cache.head_dim, page, run.slot, s.factors), run.count, task.count, s.q,
                  s.s + run.column, kKeyTile);
  });
}

bool accumulate_nibbles(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t dv = cache.head_dim_v;
  const std::int64_t blocks = dv / nibble_format(cache.v_format, dv).block;
  bool finite = true;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    finite = formats::read_factors(cache.v_format, dv, run.slot, run.count, cache.v.page(run.page, task.kv_head),
                                   cache.v.global_scale(task.kv_head), s.factors + run.column * blocks) &&
             finite;
  });
  if (!finite) return false;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const ConstPageBytes page = cache.v.page(run.page, task.kv_head);
    nibble_accumulate(rows_of(cache.v_format, dv, page, run.slot, s.factors + run.column * blocks), run.count,
                      task.count, s.s + run.column, kKeyTile, s.packed.o, padded(dv));
  });
  return true;
}

void restore_channels(const Task& task, Scratch& s) {
  const std::int64_t dv = task.tensors->cache.head_dim_v;
  for (std::int64_t r = 0; r < task.count; ++r) {
    float* o = s.packed.o + r * padded(dv);
    std::copy_n(o, dv, s.v);
    for (std::int64_t c = 0; c < dv; ++c) o[c] = s.v[nibble_index(c, dv / 8)];
  }
}

}  // namespace mpfa::cpu
