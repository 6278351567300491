#include "cpu/few_rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "attention/logit.hpp"
#include "attention/sequences.hpp"
#include "cpu/expand.hpp"
#include "cpu/factor_ops.hpp"
#include "cpu/integer_tile.hpp"
#include "cpu/score_ops.hpp"
#include "cpu/value_ops.hpp"
#include "cpu/word_ops.hpp"

namespace mpfa::cpu {
namespace {

using formats::word_format;
using formats::WordCode;
using formats::WordFormat;

/// What a score in log2 units may lose: a fraction of what rounding P to bf16 does.
constexpr float kScoreSlack = 0x1p-11F;

/// Whole words, each within one block.
bool takes(const WordFormat& w, std::int64_t head_dim) {
  return w.code != WordCode::none && head_dim % w.per_word == 0 && w.block % w.per_word == 0;
}

/// Rows of a format, without their codes.
WordRows rows_of(const WordFormat& w, std::int64_t head_dim) {
  WordRows rows;
  rows.code = w.code;
  rows.words = head_dim / w.per_word;
  rows.block_words = w.block / w.per_word;
  rows.table = w.table == nullptr ? nullptr : w.table->data();
  return rows;
}

/// `rows` from slot `slot` of a page on.
WordRows rows_at(WordRows rows, const ConstPageBytes& page, std::int64_t slot, const float* factors) {
  rows.codes = page.data + slot * page.data_row_stride;
  rows.row_stride = page.data_row_stride;
  rows.factors = factors;
  return rows;
}

/// Has `rows` fetch the keys of the next tile that stand where the run stands in this one.
void fetch_next(const Task& task, const PageRun& run, const Scratch& s, WordRows& rows) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t key = s.next_tile + run.column;
  if (key < s.next_keys.begin || key >= s.next_keys.end) return;
  const std::int32_t* table = cache.page_table + task.sequence * cache.page_table_stride;
  const std::int64_t slot = key % cache.page_size, id = table[key / cache.page_size];
  for (const int i : {0, 1}) {
    const ConstPageBytes page = (i == 0 ? cache.k : cache.v).page(id, task.kv_head);
    rows.next[i] = page.data + slot * page.data_row_stride;
    rows.next_stride[i] = page.data_row_stride;
    if (page.scales == nullptr) continue;
    const std::byte* scales = page.scales + slot * page.scale_row_stride;
    for (std::int64_t at = 0; at < run.count * page.scale_row_stride; at += 64) __builtin_prefetch(scales + at);
  }
}

/// s.spare_o += what the minima of a run of keys add. False when that is not finite.
bool add_minima(const Task& task, const PageRun& run, Scratch& s) {
  const std::int64_t dv = task.tensors->cache.head_dim_v;
  bool finite = true;
  for (std::int64_t r = 0; r < task.count; ++r) {
    float sum = 0.0F;
    const float* p = s.s + r * kKeyTile + run.column;
    for (std::int64_t j = 0; j < run.count; ++j) sum += p[j] == 0.0F ? 0.0F : p[j] * s.minima[j];
    for (std::int64_t i = 0; i < dv; ++i) s.spare_o[r * padded(dv) + i] += sum;
    finite &= std::isfinite(sum);
  }
  return finite;
}

/// Rows of K or V of a run of keys, with their factors and minima in s.
WordRows run_rows(const Task& task, const PageRun& run, bool is_k, float* factors, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const OperandPages& pages = is_k ? cache.k : cache.v;
  const ConstPageBytes page = pages.page(run.page, task.kv_head);
  const WholeFactors whole = is_k ? s.whole_k : s.whole_v;
  if (whole != nullptr && run.count % 16 == 0) {
    whole(page.scales + run.slot * page.scale_row_stride, run.count, factors);
    return rows_at(is_k ? s.rows_k : s.rows_v, page, run.slot, factors);
  }
  read_factor_columns(is_k ? cache.k_format : cache.v_format, is_k ? cache.head_dim : cache.head_dim_v, run.slot,
                      run.count, page, pages.global_scale(task.kv_head), factors, s.minima, s.v);
  return rows_at(is_k ? s.rows_k : s.rows_v, page, run.slot, factors);
}

/// The same of keys [first + c.begin, first + c.end) as one run of kKeyTile rows of 4-bit codes; factors of rows past
/// the range are 0. For operations that take many keys at once.
WordRows gather_rows(const Task& task, std::int64_t first, KeyRange c, bool is_k, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  // K leaves s.k free. Of V, codes stand in s.v behind what run_rows() needs of it.
  auto* codes = reinterpret_cast<std::byte*>(is_k ? s.k : s.v + kKeyTile / 2 * padded(cache.head_dim_v));
  float* factors = is_k ? s.k + kKeyTile / 4 * cache.head_dim : s.weights;
  float minima[kKeyTile] = {};
  WordRows all = is_k ? s.rows_k : s.rows_v;
  const std::int64_t bytes = all.words * 4, blocks = all.words / all.block_words;
  std::fill_n(s.factors, blocks * kKeyTile, 0.0F);
  for_page_runs(task, first, c, [&](const PageRun& run) {
    WordRows rows = run_rows(task, run, is_k, factors, s);
    if (!is_k) fetch_next(task, run, s, rows);
    for (std::int64_t j = 0; j < run.count; ++j) {
      for (const int i : {0, 1}) __builtin_prefetch(rows.next[i] + j * rows.next_stride[i]);
      std::memcpy(codes + (run.column + j) * bytes, rows.codes + j * rows.row_stride, static_cast<std::size_t>(bytes));
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::copy_n(factors + b * kKeyTile, run.count, s.factors + b * kKeyTile + run.column);
    }
    std::copy_n(s.minima, run.count, minima + run.column);
  });
  std::copy_n(minima, kKeyTile, s.minima);
  all.codes = codes;
  all.row_stride = bytes;
  all.factors = s.factors;
  return all;
}

}  // namespace

void choose_words(const Task& task, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const bool affine_v = cache.sequences != nullptr && cache.sequences[task.sequence].v_alpha != nullptr;
  const WordFormat k = word_format(cache.k_format, cache.head_dim);
  const WordFormat v = word_format(cache.v_format, cache.head_dim_v);
  if (task.columns) {
    s.words_k = takes(k, cache.head_dim) && word_ops_take(cache.head_dim / k.per_word);
    s.words_v = takes(v, cache.head_dim_v) && word_ops_take(cache.head_dim_v / v.per_word);
  } else {
    s.words_k = takes(k, cache.head_dim) && score_ops_take(cache.head_dim / k.per_word);
    s.words_v = takes(v, cache.head_dim_v) && value_ops_take(cache.head_dim_v, v.block);
  }
  s.words_v &= !affine_v;
  if (task.columns) {
    choose_integers(task, s.integers);
    s.words_k &= !s.integers.k.taken,
        s.words_v &= !s.integers.v.taken;  // what is left to floats is in the order of channels
  }
  s.format_k = k, s.format_v = v;
  const auto whole = [&](const BlockFormat& f, std::int64_t d, const OperandPages& pages) {
    return whole_factors(f, d, pages.scale_row_stride, pages.global_scale(task.kv_head));
  };
  if (s.words_k) s.rows_k = rows_of(k, cache.head_dim), s.whole_k = whole(cache.k_format, cache.head_dim, cache.k);
  if (s.words_v) s.rows_v = rows_of(v, cache.head_dim_v), s.whole_v = whole(cache.v_format, cache.head_dim_v, cache.v);
  const bool rounds = task.problem->recipe.p != PMode::f32;  // to 16 bits or fewer
  s.bytes_v = s.words_v && !task.columns && rounds && value_bytes(s.rows_v, s.value_bytes);
  if (s.bytes_v) s.rows_v.bytes = &s.value_bytes;
}

void start_words(const Task& task, Scratch& s) {
  if (!s.words_k) return;
  const AttentionProblem& p = *task.problem;
  // Where P has coarser steps, a score that moves a little may move a probability by a whole one.
  const float slack = p.recipe.p == PMode::bf16 ? kScoreSlack / (softmax_scale(p) * static_cast<float>(kLog2E)) : 0.0F;
  s.packed_q = pack_queries(s.rows_k, task.count, task.q_packed, slack, s.q);
}

void expand_words(const Task& task, std::int64_t first, KeyRange c, bool is_k, float* out, std::int64_t stride,
                  Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const BlockFormat& format = is_k ? cache.k_format : cache.v_format;
  const OperandPages& pages = is_k ? cache.k : cache.v;
  const std::int64_t d = is_k ? cache.head_dim : cache.head_dim_v;
  const WordFormat& w = is_k ? s.format_k : s.format_v;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const ConstPageBytes page = pages.page(run.page, task.kv_head);
    formats::read_factors(format, d, run.slot, run.count, page, pages.global_scale(task.kv_head), s.factors, s.minima);
    word_expand(rows_at(is_k ? s.rows_k : s.rows_v, page, run.slot, s.factors), run.count,
                w.has_minimum ? s.minima : nullptr, out + run.column * stride, stride);
  });
}

void score_words(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const std::int64_t d = task.tensors->cache.head_dim;
  // A factor that is NaN makes NaN scores of its own key only; selection by mask comes later.
  const auto score = [&](const WordRows& rows, const PageRun& run) {
    score_keys(rows, run.count, task.count, s.packed_q, s.s + run.column);
    for (std::int64_t r = 0; s.format_k.has_minimum && r < task.count; ++r) {
      const float sum = std::accumulate(task.q_packed + r * d, task.q_packed + (r + 1) * d, 0.0F);
      for (std::int64_t j = 0; j < run.count; ++j) s.s[r * kKeyTile + run.column + j] += s.minima[j] * sum;
    }
  };
  constexpr std::int64_t kTogether = 32;  // keys that score_keys() takes at once
  if (s.format_k.code == WordCode::table16 && task.tensors->cache.page_size % kTogether != 0) {
    return score(gather_rows(task, first, c, true, s), {0, 0, c.end, 0});
  }
  for_page_runs(task, first, c, [&](const PageRun& run) { score(run_rows(task, run, true, s.factors, s), run); });
}

bool sum_words(const Task& task, std::int64_t first, KeyRange c, std::uint64_t left_out, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t stride = padded(cache.head_dim_v);
  const float* from = s.packed.o;
  bool finite = true;
  const auto add = [&](const WordRows& rows, const PageRun& run) {
    finite &= add_values(rows, run.count, task.count, s.s + run.column, s.weights, from, s.spare_o, stride);
    if (s.format_v.has_minimum) finite &= add_minima(task, run, s);
    from = s.spare_o;
  };
  if (left_out != 0) {
    std::copy_n(s.packed.o, task.count * stride, s.spare_o);
    from = s.spare_o;
    for_page_runs(task, first, c, [&](const PageRun& run) {
      for (std::int64_t j = 0; j < run.count; ++j) {
        const PageRun key{run.page, run.slot + j, 1, run.column + j};
        if ((left_out >> key.column & 1) == 0) add(run_rows(task, key, false, s.factors, s), key);
      }
    });
  } else if (s.bytes_v && (c.end - c.begin < kKeyTile || cache.page_size % kKeyTile != 0)) {
    add(gather_rows(task, first, c, false, s), {0, 0, kKeyTile, 0});
  } else {
    for_page_runs(task, first, c, [&](const PageRun& run) {
      WordRows rows = run_rows(task, run, false, s.factors, s);
      fetch_next(task, run, s, rows);
      add(rows, run);
    });
  }
  return finite;
}

std::int64_t output_place(const Scratch& s, std::int64_t channel) {
  return s.words_v ? value_index(channel, value_span(s.format_v.code)) : channel;
}

void restore_channels(const Task& task, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t dv = cache.head_dim_v;
  const std::int64_t span = value_span(s.format_v.code), half = span / 2;
  if (span == 1) return;
  for (std::int64_t r = 0; r < task.count; ++r) {
    float* o = s.packed.o + r * padded(dv);
    std::copy_n(o, dv, s.v);
    for (std::int64_t at = 0; at < dv; at += span) {
      for (std::int64_t i = 0; i < half; ++i) {
        o[at + i] = s.v[at + 2 * i];
        o[at + half + i] = s.v[at + 2 * i + 1];
      }
    }
  }
}

}  // namespace mpfa::cpu
