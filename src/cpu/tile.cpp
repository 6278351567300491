#include "cpu/tile.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "attention/logit.hpp"
#include "attention/sequences.hpp"
#include "cache/convert.hpp"
#include "cpu/expand.hpp"
#include "cpu/few_rows.hpp"
#include "cpu/finite.hpp"
#include "cpu/integer_tile.hpp"
#include "cpu/many_rows.hpp"
#include "cpu/page_means.hpp"
#include "cpu/softmax_ops.hpp"
#include "cpu/value_ops.hpp"
#include "cpu/word_ops.hpp"

namespace mpfa::cpu {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kScoreRows = std::max(kFewRows, 2 * kPanel);  // scores of a panel, and of one by floats

/// x[j] += dS of the keys in `c`, for the row's query head.
void add_rank_one(const Task& task, const Row& row, std::int64_t first, KeyRange c, float* x) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t member = row.head - task.kv_head * cache.group;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    const std::int64_t at = run.page * cache.rank_one_page_stride + task.kv_head * cache.rank_one_head_stride +
                            run.slot * cache.group + member;
    float* out = x + run.column;
    if (cache.rank_one_wide) {
      const float* from = static_cast<const float*>(cache.rank_one) + at;
      for (std::int64_t j = 0; j < run.count; ++j) out[j] += from[j * cache.group];
    } else {
      const std::uint16_t* from = static_cast<const std::uint16_t*>(cache.rank_one) + at;
      for (std::int64_t j = 0; j < run.count; ++j) out[j] += bf16_to_float(from[j * cache.group]);
    }
  });
}

/// True when all that happens to a logit is a factor. (One that is not positive would turn -inf into something else.)
bool is_plain(const AttentionProblem& p) {
  return p.recipe.logit_cap <= 0.0F && p.softcap <= 0.0F && !p.alibi && p.mask == MaskTensor::none &&
         softmax_scale(p) > 0.0F;
}

/// Products to logits of one row, -inf where the row does not see the key: in log2 units, or still to be scaled when
/// plain.
void finish_scores(const Task& task, const Row& row, const Visible& seen, std::int64_t first, Source source, bool plain,
                   float* x) {
  const AttentionProblem& p = *task.problem;
  const AttentionTensors& t = *task.tensors;
  if (source == Source::pages && t.cache.rank_one != nullptr) add_rank_one(task, row, first, seen.part[0], x);
  std::int64_t done = 0;
  for (const KeyRange& part : seen.part) {
    if (part.begin >= part.end) continue;
    std::fill(x + done, x + part.begin, kMasked);
    done = part.end;
    for (std::int64_t j = part.begin; !plain && j < part.end; ++j) {
      const float logit = finish_logit(p, t, x[j] * softmax_scale(p), row.shift, task.sequence, row.head, row.token,
                                       row.position, first + j);
      x[j] = logit * static_cast<float>(kLog2E);
    }
  }
  std::fill(x + done, x + kKeyTile, kMasked);
}

/// s.s from logits to rounded probabilities; m, l and o are brought to the new maximum.
void softmax_tile(const Task& task, Source source, Scratch& s, OnlineState& state) {
  const AttentionProblem& p = *task.problem;
  const std::int64_t dv = padded(p.head_dim_v);
  SoftmaxStep step;
  step.mode = source == Source::bf16 ? PMode::bf16 : p.recipe.p;
  step.p_scale = p.recipe.p_scale;
  step.same_codes = source == Source::pages && p.recipe.denominator == Denominator::same_codes;
  step.scale = s.scale;
  float keep[kFewRows];
  softmax_rows(step, task.count, s.s, state.m, state.l, keep);
  for (std::int64_t r = 0; r < task.count; ++r) {
    if (keep[r] != 1.0F) row_scale(state.o + r * dv, keep[r], dv);
  }
}

/// What each row sees of a tile, to s.seen; returns the range of all of it.
KeyRange see(const Task& task, std::int64_t first, Source source, Scratch& s) {
  KeyRange c{kKeyTile, 0};
  for (std::int64_t r = 0; r < task.count; ++r) {
    s.seen[r] = visible(task.rows[r], first, source);
    for (const KeyRange& part : s.seen[r].part) {
      if (part.begin >= part.end) continue;
      c.begin = std::min(c.begin, part.begin);
      c.end = std::max(c.end, part.end);
    }
  }
  return c;
}

/// Keys of c with a NaN or Inf in V, as bits; V lies expanded in the scratch.
std::uint64_t broken_keys(const Task& task, KeyRange c, const Scratch& s) {
  const std::int64_t dv = padded(task.tensors->cache.head_dim_v);
  std::uint64_t broken = 0;
  for (std::int64_t j = c.begin; j < c.end; ++j) {
    if (!all_finite(s.v + j * dv, dv)) broken |= std::uint64_t{1} << j;
  }
  return broken;
}

/// Row r of o += the keys among `broken` that it gives weight to. `span` is that of value_index().
void add_broken(const Task& task, std::int64_t r, std::uint64_t broken, std::int64_t span, const Scratch& s, float* o) {
  const std::int64_t dv = task.tensors->cache.head_dim_v;
  const std::int64_t stride = padded(dv);
  for (std::int64_t j = 0; j < kKeyTile; ++j) {
    const float weight = s.s[r * kKeyTile + j];
    if ((broken >> j & 1) == 0 || weight == 0.0F) continue;
    for (std::int64_t i = 0; i < dv; ++i) o[r * stride + value_index(i, span)] += weight * s.v[j * stride + i];
  }
}

/// O += P V after sum_words() found a sum that is not finite: the other rows keep what it made of them, and those with
/// such a sum get it from the healthy keys first.
void accumulate_broken(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const std::int64_t dv = task.tensors->cache.head_dim_v, stride = padded(dv);
  bool stands[kFewRows];
  for (std::int64_t r = 0; r < task.count; ++r) {
    stands[r] = all_finite(s.spare_o + r * stride, dv);
    if (stands[r]) std::copy_n(s.spare_o + r * stride, dv, s.packed.o + r * stride);
  }
  expand_v(task, first, c, s);
  const std::uint64_t broken = broken_keys(task, c, s);
  static_cast<void>(sum_words(task, first, c, broken, s));
  expand_v(task, first, c, s);  // the sums needed its memory
  for (std::int64_t r = 0; r < task.count; ++r) {
    if (stands[r]) continue;
    std::copy_n(s.spare_o + r * stride, dv, s.packed.o + r * stride);
    add_broken(task, r, broken, value_span(s.format_v.code), s, s.packed.o);
  }
}

/// O += P V over columns c. A NaN or Inf in V counts only in rows that give its key weight, and moves no bit of others.
void accumulate(const Task& task, std::int64_t first, Source source, KeyRange c, Scratch& s, OnlineState& state) {
  if (source == Source::pages && s.words_v) {
    if (!sum_words(task, first, c, 0, s)) return accumulate_broken(task, first, c, s);
    return std::swap(s.packed.o, s.spare_o);
  }
  const std::int64_t dv = padded(task.tensors->cache.head_dim_v);
  if (source == Source::pages) expand_v(task, first, c, s);
  const std::uint64_t broken = broken_keys(task, c, s);
  for (std::int64_t r = 0; broken != 0 && r < task.count; ++r) add_broken(task, r, broken, 1, s, state.o);
  for (std::int64_t j = c.begin; broken != 0 && j < c.end; ++j) {
    if ((broken >> j & 1) != 0) std::fill_n(s.v + j * dv, dv, 0.0F);
  }
  gemm(task.count, c.end - c.begin, dv, s.s + c.begin, kKeyTile, s.v + c.begin * dv, dv, state.o, dv, true);
}

/// Weights of value_ops.hpp: blocks are at least 16 channels long, and at most kFewRows rows share a pass.
std::int64_t weight_floats(const AttentionProblem& problem) {
  return padded(problem.head_dim_v) / 16 * kFewRows * kKeyTile;
}

/// K of a tile: transposed, or row by row with the rank-one terms of a group behind the channels.
std::int64_t k_floats(const AttentionProblem& problem) {
  return std::max(problem.head_dim * kKeyStride, kKeyTile * (problem.head_dim + problem.q_heads / problem.kv_heads));
}

/// Factors of a tile's keys.
std::int64_t factor_floats(const AttentionProblem& problem) {
  return kKeyTile * std::max(problem.head_dim, problem.head_dim_v) / 2 + kFactorPadding;
}

/// Queries of a task.
std::int64_t block_floats(const AttentionProblem& problem) {
  return kRowBlock * (problem.head_dim * sources(problem) + 1);
}

/// An OnlineState of a task.
std::int64_t state_floats(const AttentionProblem& problem) {
  return kRowBlock * (padded(problem.head_dim_v) + 2);
}

}  // namespace

std::int64_t scratch_floats(const AttentionProblem& problem) {
  const std::int64_t dv = padded(problem.head_dim_v);
  return k_floats(problem) + kKeyTile * dv + kScoreRows * kKeyTile + sources(problem) * state_floats(problem) +
         kFewRows * dv + padded(packed_floats(kFewRows, problem.head_dim)) + weight_floats(problem) + kKeyTile +
         padded(factor_floats(problem)) + column_floats(problem) + block_floats(problem) + integer_tile_floats(problem);
}

Scratch lay_out_scratch(const AttentionProblem& problem, float* memory) {
  const std::int64_t dv = padded(problem.head_dim_v);
  Scratch s;
  s.k = memory;
  s.v = s.k + k_floats(problem);
  s.s = s.v + kKeyTile * dv;
  float* const states = s.s + kScoreRows * kKeyTile;
  const auto state_at = [&](float* at) { return OnlineState{at, at + kRowBlock, at + 2 * kRowBlock}; };
  s.packed = state_at(states);
  if (sources(problem) > 1) s.wide = state_at(states + state_floats(problem));
  s.spare_o = states + sources(problem) * state_floats(problem);
  s.q = s.spare_o + kFewRows * dv;
  s.weights = s.q + padded(packed_floats(kFewRows, problem.head_dim));
  s.minima = s.weights + weight_floats(problem);
  s.q_columns = s.minima + kKeyTile;
  s.queries.packed = s.q_columns + column_floats(problem);
  s.queries.wide = sources(problem) > 1 ? s.queries.packed + kRowBlock * problem.head_dim : nullptr;
  s.queries.shift = s.queries.packed + block_floats(problem) - kRowBlock;
  s.factors = s.q_columns + column_floats(problem) + block_floats(problem);
  lay_out_integers(problem, s.factors + padded(factor_floats(problem)), s.integers);
  return s;
}

void reset(const AttentionProblem& problem, std::int64_t rows, OnlineState& state) {
  std::fill_n(state.m, padded(rows), kMasked);
  std::fill_n(state.l, padded(rows), 0.0F);
  std::fill_n(state.o, rows * padded(problem.head_dim_v), 0.0F);
}

void start_tiles(const Task& task, Scratch& s) {
  const AttentionProblem& p = *task.problem;
  s.plain = is_plain(p);
  s.scale = s.plain ? softmax_scale(p) * static_cast<float>(kLog2E) : 1.0F;
  s.seen_by_all = {0, std::numeric_limits<std::int64_t>::max()};
  for (std::int64_t r = 0; r < task.count; ++r) {
    const KeyRange &k = task.rows[r].keys, &packed = task.rows[r].packed;
    s.seen_by_all.begin = std::max({s.seen_by_all.begin, k.begin, packed.begin});
    s.seen_by_all.end = std::min({s.seen_by_all.end, k.end, packed.end});
  }
  start_words(task, s);
}

void add_tile(const Task& task, std::int64_t first, Source source, Scratch& s) {
  OnlineState& state = source == Source::pages ? s.packed : s.wide;
  // Most tiles are seen by every row, and then most problems leave nothing to do between products and softmax.
  const bool whole = source == Source::pages && first >= s.seen_by_all.begin && first + kKeyTile <= s.seen_by_all.end &&
                     s.plain && task.tensors->cache.rank_one == nullptr;
  const KeyRange c = whole ? KeyRange{0, kKeyTile} : see(task, first, source, s);
  if (c.begin >= c.end) return;
  if (source == Source::pages && s.words_k) {
    score_words(task, first, c, s);
  } else {
    const std::int64_t d = task.tensors->cache.head_dim;
    source == Source::pages ? expand_k(task, first, c, s) : expand_wide(task, first, c, s);
    const float* q = source == Source::pages ? task.q_packed : task.q_wide;
    gemm(task.count, d, kKeyTile, q, d, s.k, kKeyStride, s.s, kKeyTile, false);
  }
  for (std::int64_t r = 0; !whole && r < task.count; ++r) {
    finish_scores(task, task.rows[r], s.seen[r], first, source, s.plain, s.s + r * kKeyTile);
  }
  softmax_tile(task, source, s, state);
  if (source == Source::pages) add_page_means(task, first, c, s, state.o);
  accumulate(task, first, source, c, s, state);
}

}  // namespace mpfa::cpu
