#include "cpu/expand.hpp"

#include <algorithm>

#include "cache/convert.hpp"

namespace mpfa::cpu {

void expand_k(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    dequantise_tokens(cache.k_format, cache.head_dim, run.slot, run.count, cache.k.page(run.page, task.kv_head),
                      cache.k.global_scale(task.kv_head), s.k + run.column, 1, kKeyStride);
  });
}

void expand_v(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t dv = cache.head_dim_v;
  const std::int64_t stride = padded(dv);
  for_page_runs(task, first, c, [&](const PageRun& run) {
    dequantise_tokens(cache.v_format, dv, run.slot, run.count, cache.v.page(run.page, task.kv_head),
                      cache.v.global_scale(task.kv_head), s.v + run.column * stride, stride, 1);
  });
  const SequenceView* seq = cache.sequences == nullptr ? nullptr : cache.sequences + task.sequence;
  const float* alpha = seq == nullptr || seq->v_alpha == nullptr ? nullptr : seq->v_alpha + task.kv_head * dv;
  const float* beta = seq == nullptr || seq->v_beta == nullptr ? nullptr : seq->v_beta + task.kv_head * dv;
  for (std::int64_t j = c.begin; j < c.end; ++j) {
    float* row = s.v + j * stride;
    for (std::int64_t i = 0; alpha != nullptr && i < dv; ++i) row[i] *= alpha[i];
    for (std::int64_t i = 0; beta != nullptr && i < dv; ++i) row[i] += beta[i];
    std::fill(row + dv, row + stride, 0.0F);
  }
}

void expand_k_rows(const Task& task, std::int64_t first, KeyRange c, std::int64_t stride, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    dequantise_tokens(cache.k_format, cache.head_dim, run.slot, run.count, cache.k.page(run.page, task.kv_head),
                      cache.k.global_scale(task.kv_head), s.k + run.column * stride, stride, 1);
  });
}

namespace {

/// K goes to k[key * key_stride + channel * channel_stride].
void expand_wide_to(const Task& task, std::int64_t first, KeyRange c, std::int64_t key_stride,
                    std::int64_t channel_stride, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const SequenceView& seq = cache.sequences[task.sequence];
  const std::int64_t d = cache.head_dim;
  const std::int64_t dv = cache.head_dim_v;
  const std::int64_t stride = padded(dv);
  for (std::int64_t j = c.begin; j < c.end; ++j) {
    const std::int64_t key = first + j;
    const bool in_sink = key < seq.sink;
    float* v_row = s.v + j * stride;
    float* k_row = s.k + j * key_stride;
    std::fill(v_row + dv, v_row + stride, 0.0F);
    if (!in_sink && key < seq.wide_begin) {
      for (std::int64_t i = 0; i < d; ++i) k_row[i * channel_stride] = 0.0F;
      std::fill_n(v_row, dv, 0.0F);
      continue;
    }
    const std::int64_t at = (in_sink ? key : key - seq.wide_begin) * cache.kv_heads + task.kv_head;
    const std::uint16_t* k = (in_sink ? seq.sink_k : seq.wide_k) + at * d;
    const std::uint16_t* v = cache.shared_kv ? k : (in_sink ? seq.sink_v : seq.wide_v) + at * dv;
    for (std::int64_t i = 0; i < d; ++i) k_row[i * channel_stride] = bf16_to_float(k[i]);
    for (std::int64_t i = 0; i < dv; ++i) v_row[i] = bf16_to_float(v[i]);
  }
}

}  // namespace

void expand_wide(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  expand_wide_to(task, first, c, 1, kKeyStride, s);
}

void expand_wide_rows(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  expand_wide_to(task, first, c, task.tensors->cache.head_dim, 1, s);
}

}  // namespace mpfa::cpu
