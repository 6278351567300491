#include "cpu/few_rows.hpp"

#include <algorithm>
#include <cstdint>

#include "cpu/expand.hpp"
#include "cpu/finite.hpp"
#include "cpu/many_rows.hpp"
#include "cpu/word_ops.hpp"

namespace mpfa::cpu {
namespace {

using formats::word_format;
using formats::WordCode;
using formats::WordFormat;

bool takes(const BlockFormat& f, std::int64_t head_dim) {
  const WordFormat w = word_format(f, head_dim);
  if (w.code == WordCode::none || head_dim % w.per_word != 0 || w.block % w.per_word != 0) return false;
  return word_ops_take(head_dim / w.per_word);
}

WordRows rows_of(const WordFormat& w, std::int64_t head_dim, const ConstPageBytes& page, std::int64_t slot,
                 const float* factors) {
  return {w.code,
          page.data + slot * page.data_row_stride,
          page.data_row_stride,
          head_dim / w.per_word,
          factors,
          w.block / w.per_word,
          w.table == nullptr ? nullptr : w.table->data()};
}

}  // namespace

void choose_words(const Task& task, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  // Between few and many rows neither path fits: a tile of floats in the order of the channels serves them.
  const bool fits = task.count <= kFewRows || task.count >= kManyRows;
  const bool affine_v = cache.sequences != nullptr && cache.sequences[task.sequence].v_alpha != nullptr;
  s.words_k = fits && takes(cache.k_format, cache.head_dim);
  s.words_v = fits && !affine_v && takes(cache.v_format, cache.head_dim_v);
}

void start_words(const Task& task, Scratch& s) {
  if (!s.words_k) return;
  const std::int64_t d = task.tensors->cache.head_dim;
  const std::int64_t per_word = word_format(task.tensors->cache.k_format, d).per_word;
  for (std::int64_t r = 0; r < task.count; ++r) {
    float sum = 0.0F;
    for (std::int64_t c = 0; c < d; ++c) {
      s.q[r * d + word_index(c, per_word, d / per_word)] = task.q_packed[r * d + c];
      sum += task.q_packed[r * d + c];
    }
    s.q_sum[r] = sum;
  }
}

void expand_words(const Task& task, std::int64_t first, KeyRange c, bool is_k, float* out, std::int64_t stride,
                  Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const BlockFormat& format = is_k ? cache.k_format : cache.v_format;
  const OperandPages& pages = is_k ? cache.k : cache.v;
  const std::int64_t d = is_k ? cache.head_dim : cache.head_dim_v;
  const WordFormat w = word_format(format, d);
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const ConstPageBytes page = pages.page(run.page, task.kv_head);
    formats::read_factors(format, d, run.slot, run.count, page, pages.global_scale(task.kv_head), s.factors, s.minima);
    word_expand(rows_of(w, d, page, run.slot, s.factors), run.count, w.has_minimum ? s.minima : nullptr,
                out + run.column * stride, stride);
  });
}

void score_words(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const WordFormat w = word_format(cache.k_format, cache.head_dim);
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const ConstPageBytes page = cache.k.page(run.page, task.kv_head);
    // A factor that is NaN makes NaN scores of its own key only; selection by mask comes later.
    formats::read_factors(cache.k_format, cache.head_dim, run.slot, run.count, page, cache.k.global_scale(task.kv_head),
                          s.factors, s.minima);
    word_scores(rows_of(w, cache.head_dim, page, run.slot, s.factors), run.count, task.count, s.q, s.s + run.column,
                kKeyTile);
    for (std::int64_t r = 0; w.has_minimum && r < task.count; ++r) {
      for (std::int64_t j = 0; j < run.count; ++j) s.s[r * kKeyTile + run.column + j] += s.minima[j] * s.q_sum[r];
    }
  });
}

bool accumulate_words(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t dv = cache.head_dim_v;
  const WordFormat w = word_format(cache.v_format, dv);
  const std::int64_t floats = task.count * padded(dv);
  float* const before = s.v;  // the tile of V is free until this one turns out to be needed
  std::copy_n(s.packed.o, floats, before);
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const ConstPageBytes page = cache.v.page(run.page, task.kv_head);
    formats::read_factors(cache.v_format, dv, run.slot, run.count, page, cache.v.global_scale(task.kv_head), s.factors,
                          s.minima + run.column);
    word_accumulate(rows_of(w, dv, page, run.slot, s.factors), run.count, task.count, s.s + run.column, kKeyTile,
                    s.packed.o, padded(dv));
  });
  for (std::int64_t r = 0; w.has_minimum && r < task.count; ++r) {
    float sum = 0.0F;
    for (std::int64_t j = c.begin; j < c.end; ++j) sum += s.s[r * kKeyTile + j] * s.minima[j];
    for (std::int64_t i = 0; i < dv; ++i) s.packed.o[r * padded(dv) + i] += sum;
  }
  // A NaN or Inf in V shows in o even where its weight is 0, so the codes need no look of their own.
  if (all_finite(s.packed.o, floats)) return true;
  std::copy_n(before, floats, s.packed.o);
  return false;
}

void restore_channels(const Task& task, Scratch& s) {
  const std::int64_t dv = task.tensors->cache.head_dim_v;
  const std::int64_t per_word = word_format(task.tensors->cache.v_format, dv).per_word;
  const std::int64_t words = dv / per_word;
  for (std::int64_t r = 0; r < task.count; ++r) {
    float* o = s.packed.o + r * padded(dv);
    std::copy_n(o, dv, s.v);
    for (std::int64_t n = 0; n < per_word; ++n) {
      for (std::int64_t i = 0; i < words; ++i) o[per_word * i + n] = s.v[n * words + i];
    }
  }
}

}  // namespace mpfa::cpu
