#include "cpu/many_rows.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/logit.hpp"
#include "attention/sequences.hpp"
#include "cpu/column_ops.hpp"
#include "cpu/expand.hpp"
#include "cpu/few_rows.hpp"
#include "cpu/finite.hpp"
#include "cpu/page_means.hpp"
#include "cpu/round_p.hpp"
#include "cpu/word_ops.hpp"

namespace mpfa::cpu {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Rank-one terms ride along as `group` more channels: K gets dS of every member, a query a 1 at its own.
std::int64_t channels(const AttentionProblem& p) {
  return p.head_dim + (p.recipe.rank_one == RankOne::off ? 0 : p.q_heads / p.kv_heads);
}

float* queries_of(const AttentionProblem& p, const Scratch& s, Source source) {
  return s.q_columns + (source == Source::pages ? 0 : channels(p) * kRowBlock);
}

/// Channel c of the queries to row place(c) of out [d, ld], zero for rows past the task's.
template <class Place>
void transpose(const float* q, std::int64_t count, std::int64_t d, std::int64_t ld, Place place, float* out) {
  for (std::int64_t c = 0; c < d; ++c) {
    float* column = out + place(c) * ld;
    for (std::int64_t r = 0; r < count; ++r) column[r] = q[r * d + c];
    std::fill(column + count, column + ld, 0.0F);
  }
}

/// Rows of s.k get the terms of their key at channels [head_dim, head_dim + group).
void place_rank_one(const Task& task, std::int64_t first, KeyRange c, std::int64_t stride, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  for_page_runs(task, first, c, [&](const PageRun& run) {
    for (std::int64_t j = 0; j < run.count; ++j) {
      float* row = s.k + (run.column + j) * stride + cache.head_dim;
      for (std::int64_t m = 0; m < cache.group; ++m) {
        row[m] = cache.rank_one_at(run.page, task.kv_head, run.slot + j, m);
      }
    }
  });
}

/// Logits with softcap, ALiBi, a mask tensor or a cap: one by one, in log2 units.
void finish_logits(const Task& task, std::int64_t first, const Visible* seen, std::int64_t ld, float scale, float* x) {
  for (std::int64_t r = 0; r < task.count; ++r) {
    const Row& row = task.rows[r];
    for (const KeyRange& part : seen[r].part) {
      for (std::int64_t j = part.begin; j < part.end; ++j) {
        float& logit = x[j * ld + r];
        logit = finish_logit(*task.problem, *task.tensors, logit * scale, row.shift, task.sequence, row.head, row.token,
                             row.position, first + j) *
                static_cast<float>(kLog2E);
      }
    }
  }
}

/// -inf where a row does not see the key.
void mask_columns(const Task& task, KeyRange c, const Visible* seen, std::int64_t ld, float* x) {
  for (std::int64_t r = 0; r < task.count; ++r) {
    std::int64_t done = c.begin;
    for (const KeyRange& part : seen[r].part) {
      if (part.begin >= part.end) continue;
      for (; done < part.begin; ++done) x[done * ld + r] = kMasked;
      done = part.end;
    }
    for (; done < c.end; ++done) x[done * ld + r] = kMasked;
  }
}

/// P modes with blocks along the keys: row by row, through the code of the other path.
void round_rows(const Task& task, KeyRange c, std::int64_t ld, const float* keep, float* x, OnlineState& state) {
  const Recipe& recipe = task.problem->recipe;
  float row[kKeyTile];
  for (std::int64_t r = 0; r < task.count; ++r) {
    if (state.m[r] == kMasked) {
      for (std::int64_t j = c.begin; j < c.end; ++j) x[j * ld + r] = 0.0F;
      continue;
    }
    std::fill_n(row, kKeyTile, kMasked);
    for (std::int64_t j = c.begin; j < c.end; ++j) row[j] = x[j * ld + r];
    const float sum =
        round_row(recipe.p, recipe.p_scale, state.m[r], recipe.denominator == Denominator::same_codes, row);
    state.l[r] = state.l[r] * keep[r] + sum;
    for (std::int64_t j = c.begin; j < c.end; ++j) x[j * ld + r] = row[j];
  }
}

/// O += P V; a tile with NaN or Inf in V gives a row only the keys that weigh something.
void accumulate_columns(const Task& task, KeyRange c, std::int64_t ld, const float* p, const Scratch& s, float* o) {
  const std::int64_t dv = padded(task.tensors->cache.head_dim_v);
  const float* v = s.v + c.begin * dv;
  if (all_finite(v, (c.end - c.begin) * dv)) {
    gemm_strided(task.count, c.end - c.begin, dv, p + c.begin * ld, 1, ld, v, dv, o, dv, true);
    return;
  }
  for (std::int64_t r = 0; r < task.count; ++r) {
    for (std::int64_t j = c.begin; j < c.end; ++j) {
      const float weight = p[j * ld + r];
      if (weight == 0.0F) continue;
      for (std::int64_t i = 0; i < dv; ++i) o[r * dv + i] += weight * s.v[j * dv + i];
    }
  }
}

}  // namespace

std::int64_t column_floats(const AttentionProblem& problem) {
  return 2 * channels(problem) * kRowBlock + padded(kRowBlock);
}

void start_columns(const Task& task, Scratch& s) {
  const AttentionProblem& p = *task.problem;
  const std::int64_t ld = padded(task.count);
  float* packed = queries_of(p, s, Source::pages);
  const auto channel = [](std::int64_t c) { return c; };
  if (s.words_k) {
    const std::int64_t per_word = formats::word_format(task.tensors->cache.k_format, p.head_dim).per_word;
    const auto word = [&](std::int64_t c) { return word_index(c, per_word, p.head_dim / per_word); };
    transpose(task.q_packed, task.count, p.head_dim, ld, word, packed);
  } else {
    transpose(task.q_packed, task.count, p.head_dim, ld, channel, packed);
  }
  const std::int64_t members = channels(p) - p.head_dim;
  std::fill_n(packed + p.head_dim * ld, members * ld, 0.0F);
  for (std::int64_t r = 0; members > 0 && r < task.count; ++r) {
    packed[(p.head_dim + task.rows[r].head % members) * ld + r] = 1.0F;
  }
  if (task.q_wide != nullptr) {
    transpose(task.q_wide, task.count, p.head_dim, ld, channel, queries_of(p, s, Source::bf16));
  }
}

void add_columns(const Task& task, std::int64_t first, KeyRange c, const Visible* seen, Source source, Scratch& s) {
  const AttentionProblem& p = *task.problem;
  const Recipe& recipe = p.recipe;
  const bool pages = source == Source::pages;
  const std::int64_t ld = padded(task.count);
  const std::int64_t depth = pages ? channels(p) : p.head_dim;
  OnlineState& state = pages ? s.packed : s.wide;
  if (pages) {
    s.words_k ? expand_words(task, first, c, true, s.k, depth, s) : expand_k_rows(task, first, c, depth, s);
    s.words_v ? expand_words(task, first, c, false, s.v, padded(p.head_dim_v), s) : expand_v(task, first, c, s);
    if (depth > p.head_dim) place_rank_one(task, first, c, depth, s);
  } else {
    expand_wide_rows(task, first, c, s);
  }
  float* x = s.s;
  gemm(c.end - c.begin, depth, ld, s.k + c.begin * depth, depth, queries_of(p, s, source), ld, x + c.begin * ld, ld,
       false);

  const float log2_scale = softmax_scale(p) * static_cast<float>(kLog2E);
  const bool plain = recipe.logit_cap <= 0.0F && p.softcap <= 0.0F && !p.alibi && p.mask == MaskTensor::none;
  if (!plain) finish_logits(task, first, seen, ld, softmax_scale(p), x);
  mask_columns(task, c, seen, ld, x);

  const PMode mode = pages ? recipe.p : PMode::bf16;
  const bool same_codes = pages && recipe.denominator == Denominator::same_codes;
  float* keep = s.q_columns + 2 * channels(p) * kRowBlock;
  float* tile = x + c.begin * ld;
  const std::int64_t keys = c.end - c.begin;
  column_max(keys, ld, plain ? log2_scale : 1.0F, tile, state.m, keep);
  if (mode == PMode::f32 || mode == PMode::bf16 || mode == PMode::e4m3) {
    column_exp2(mode, recipe.p_scale, same_codes, keys, ld, state.m, keep, tile, state.l);
  } else {
    round_rows(task, c, ld, keep, x, state);
  }
  const std::int64_t dv = padded(p.head_dim_v);
  for (std::int64_t r = 0; r < task.count; ++r) {
    if (keep[r] != 1.0F) row_scale(state.o + r * dv, keep[r], dv);
  }
  if (pages) add_page_means(task, first, c, x, 1, ld, s, state.o);
  accumulate_columns(task, c, ld, x, s, state.o);
}

}  // namespace mpfa::cpu
