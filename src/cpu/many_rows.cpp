#include "cpu/many_rows.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "attention/logit.hpp"
#include "attention/sequences.hpp"
#include "cpu/column_ops.hpp"
#include "cpu/expand.hpp"
#include "cpu/few_rows.hpp"
#include "cpu/integer_tile.hpp"
#include "cpu/page_means.hpp"
#include "cpu/panel_ops.hpp"
#include "cpu/query_ops.hpp"
#include "cpu/word_ops.hpp"

namespace mpfa::cpu {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Rank-one terms ride along as `group` more channels: K gets dS of every member, a query a 1 at its own.
std::int64_t channels(const AttentionProblem& p) {
  return p.head_dim + (p.recipe.rank_one == RankOne::off ? 0 : p.q_heads / p.kv_heads);
}

/// Rows [row0, row0 + count) of a task, in `width` lanes.
struct Panel {
  std::int64_t row0 = 0, count = 0, width = 0;
};

Panel panel_at(const Task& task, std::int64_t row0) {
  const std::int64_t count = std::min(kPanel, task.count - row0);
  return {row0, count, count <= kPanel / 2 ? kPanel / 2 : kPanel};
}

/// Panel-wise [channels][width]; those before row0 are all kPanel wide.
float* queries_of(const AttentionProblem& p, const Scratch& s, Source source, std::int64_t row0) {
  return s.q_columns + channels(p) * ((source == Source::pages ? 0 : kRowBlock) + row0);
}

/// What a panel sees of a tile: no key outside `hull`, and `all` of it where no mask is needed.
struct Sight {
  KeyRange hull{kKeyTile, 0};
  bool all = true;
};

Sight sight_of(const Task& task, const Panel& panel, std::int64_t first, Source source) {
  const auto whole = [&](std::int64_t r) {
    const KeyRange seen = visible(task.rows[r], first, source).part[0];
    return seen.begin == 0 && seen.end == kKeyTile;
  };
  // Later rows see later keys, so what the first and the last row see is seen by all.
  if (whole(panel.row0) && whole(panel.row0 + panel.count - 1)) return {{0, kKeyTile}, true};
  Sight sight;
  sight.all = false;
  for (std::int64_t r = 0; r < panel.count; ++r) {
    for (const KeyRange& part : visible(task.rows[panel.row0 + r], first, source).part) {
      if (part.begin >= part.end) continue;
      sight.hull.begin = std::min(sight.hull.begin, part.begin);
      sight.hull.end = std::max(sight.hull.end, part.end);
    }
  }
  return sight;
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
void finish_logits(const Task& task, const Panel& panel, std::int64_t first, Source source, float scale, float* x) {
  for (std::int64_t r = 0; r < panel.count; ++r) {
    const Row& row = task.rows[panel.row0 + r];
    for (const KeyRange& part : visible(row, first, source).part) {
      for (std::int64_t j = part.begin; j < part.end; ++j) {
        float& logit = x[j * panel.width + r];
        logit = finish_logit(*task.problem, *task.tensors, logit * scale, row.shift, task.sequence, row.head, row.token,
                             row.position, first + j) *
                static_cast<float>(kLog2E);
      }
    }
  }
}

/// -inf where a row does not see a key of `c`.
void mask_columns(const Task& task, const Panel& panel, std::int64_t first, Source source, KeyRange c, float* x) {
  for (std::int64_t r = 0; r < panel.count; ++r) {
    std::int64_t done = c.begin;
    for (const KeyRange& part : visible(task.rows[panel.row0 + r], first, source).part) {
      if (part.begin >= part.end) continue;
      for (; done < part.begin; ++done) x[done * panel.width + r] = kMasked;
      done = part.end;
    }
    for (; done < c.end; ++done) x[done * panel.width + r] = kMasked;
  }
}

bool has_blocks(PMode mode) {
  return mode != PMode::f32 && mode != PMode::bf16 && mode != PMode::e4m3 && mode != PMode::e4m3_loglin;
}

/// Products with K by dot products of integers; rank-one terms are floats, and so are rows that have no integers.
void score_by_integers(const AttentionProblem& p, const Panel& panel, KeyRange c, Scratch& s, float* x) {
  const std::int64_t depth = channels(p), members = depth - p.head_dim, keys = c.end - c.begin;
  const float* q = queries_of(p, s, Source::pages, panel.row0);
  const float* k = s.k + c.begin * depth;
  score_panel(p, panel.row0 / kPanel, panel.width, c, s.integers, x);
  if (members > 0) {
    panel_product(keys, members, panel.width, k + p.head_dim, depth, 1, q + p.head_dim * panel.width,
                  kPanelOfOnes.data(), x);
  }
  const std::uint32_t special = s.integers.special[panel.row0 / kPanel];
  if (special == 0) return;
  float* all = s.s + kKeyTile * kPanel;
  panel_product(keys, depth, panel.width, k, depth, 1, q, nullptr, all);
  for (std::int64_t i = 0; i < keys * panel.width; ++i) {
    if ((special >> i % panel.width & 1) != 0) x[i] = all[i];
  }
}

/// O += P V of the keys of c that add_panel_values() left out, for rows that give them weight.
void add_broken_keys(const AttentionProblem& p, const Panel& panel, KeyRange c, const float* x, const Scratch& s,
                     float* o) {
  const std::int64_t dv = padded(p.head_dim_v);
  for (std::uint64_t rest = s.integers.broken; rest != 0; rest &= rest - 1) {
    const std::int64_t j = std::countr_zero(rest);
    if (j < c.begin || j >= c.end) continue;
    panel_product_selected(p.head_dim_v, 1, panel.width, s.v + j * dv, 1, dv, x + j * panel.width, kPanelOfOnes.data(),
                           o);
  }
}

/// Scores, softmax and O += P V of one panel; K and V of keys `sight.hull` lie expanded in the scratch.
void add_panel(const Task& task, const Panel& panel, const Sight& sight, std::int64_t first, Source source,
               bool v_finite, Scratch& s) {
  const AttentionProblem& p = *task.problem;
  const bool pages = source == Source::pages;
  const std::int64_t depth = pages ? channels(p) : p.head_dim;
  const std::int64_t dv = padded(p.head_dim_v);
  const auto [begin, end] = sight.hull;
  OnlineState& state = pages ? s.packed : s.wide;
  float* m = state.m + panel.row0;
  float* keep = s.q_columns + sources(p) * channels(p) * kRowBlock;
  float* x = s.s;
  if (pages && s.integers.k.taken) {
    score_by_integers(p, panel, sight.hull, s, x + begin * panel.width);
  } else {
    panel_product(end - begin, depth, panel.width, s.k + begin * depth, depth, 1, queries_of(p, s, source, panel.row0),
                  nullptr, x + begin * panel.width);
  }

  const bool plain = p.recipe.logit_cap <= 0.0F && p.softcap <= 0.0F && !p.alibi && p.mask == MaskTensor::none;
  const float scale = plain ? softmax_scale(p) * static_cast<float>(kLog2E) : 1.0F;
  if (!plain) finish_logits(task, panel, first, source, softmax_scale(p), x);
  if (!sight.all) mask_columns(task, panel, first, source, sight.hull, x);

  const PMode mode = pages ? p.recipe.p : PMode::bf16;
  KeyRange rounded = sight.hull;
  if (has_blocks(mode)) {
    std::fill(x, x + begin * panel.width, kMasked);
    std::fill(x + end * panel.width, x + kKeyTile * panel.width, kMasked);
    rounded = {0, kKeyTile};
  }
  column_max(end - begin, panel.width, scale, x + begin * panel.width, m, keep);
  column_round(mode, p.recipe.p_scale, pages && p.recipe.denominator == Denominator::same_codes,
               rounded.end - rounded.begin, panel.width, scale, m, keep, x + rounded.begin * panel.width,
               state.l + panel.row0);
  float* o = state.o + panel.row0 * dv;
  if (pages && s.integers.v.taken) {
    add_panel_values(panel.width, sight.hull, x, keep, s.integers, o);
    add_broken_keys(p, panel, sight.hull, x, s, o);
  } else {
    // A tile with NaN or Inf in V gives a row only the keys that weigh something.
    const auto accumulate = v_finite ? panel_product : panel_product_selected;
    accumulate(p.head_dim_v, end - begin, panel.width, s.v + begin * dv, 1, dv, x + begin * panel.width, keep, o);
  }
  if (pages && task.tensors->cache.v_page_means != nullptr) {
    add_panel_means(task, panel.width, first, sight.hull, x, s, o);
  }
}

}  // namespace

std::int64_t column_floats(const AttentionProblem& problem) {
  return sources(problem) * channels(problem) * kRowBlock + kPanel;
}

void start_columns(const Task& task, Scratch& s) {
  const AttentionProblem& p = *task.problem;
  const std::int64_t per_word = s.words_k ? formats::word_format(task.tensors->cache.k_format, p.head_dim).per_word : 1;
  const std::int64_t members = channels(p) - p.head_dim;
  for (std::int64_t row0 = 0; row0 < task.count; row0 += kPanel) {
    const Panel panel = panel_at(task, row0);
    const float* rows = task.q_packed + row0 * p.head_dim;
    float* q = queries_of(p, s, Source::pages, row0);
    if (s.integers.k.taken) pack_panel(p, row0 / kPanel, panel.count, panel.width, rows, s.integers);
    if (!s.integers.k.taken || s.integers.special[row0 / kPanel] != 0) {
      rows_to_columns(rows, p.head_dim, panel.count, p.head_dim, per_word, q, panel.width);
    }
    float* ones = q + p.head_dim * panel.width;
    std::fill_n(ones, members * panel.width, 0.0F);
    for (std::int64_t r = 0; members > 0 && r < panel.count; ++r) {
      ones[task.rows[row0 + r].head % members * panel.width + r] = 1.0F;
    }
    if (task.q_wide != nullptr) {
      rows_to_columns(task.q_wide + row0 * p.head_dim, p.head_dim, panel.count, p.head_dim, 1,
                      queries_of(p, s, Source::bf16, row0), panel.width);
    }
  }
}

void add_columns(const Task& task, std::int64_t first, Source source, Scratch& s) {
  const AttentionProblem& p = *task.problem;
  Sight sights[kRowBlock / kPanel];
  KeyRange c{kKeyTile, 0};
  for (std::int64_t row0 = 0; row0 < task.count; row0 += kPanel) {
    Sight& sight = sights[row0 / kPanel] = sight_of(task, panel_at(task, row0), first, source);
    c.begin = std::min(c.begin, sight.hull.begin);
    c.end = std::max(c.end, sight.hull.end);
  }
  if (c.begin >= c.end) return;
  const std::int64_t dv = padded(p.head_dim_v);
  if (source == Source::pages) {
    const std::int64_t depth = channels(p);
    IntegerTile& b = s.integers;
    if (b.k.taken) gather_k(task, first, c, b);
    if (b.v.taken) gather_v(task, first, c, b);
    if (!b.k.taken || b.any_special) {
      s.words_k ? expand_words(task, first, c, true, s.k, depth, s) : expand_k_rows(task, first, c, depth, s);
    }
    if (!b.v.taken || b.broken != 0) {
      s.words_v ? expand_words(task, first, c, false, s.v, dv, s) : expand_v(task, first, c, s);
    }
    if (depth > p.head_dim) place_rank_one(task, first, c, depth, s);
  } else {
    expand_wide_rows(task, first, c, s);
  }
  const bool v_floats = source == Source::bf16 || !s.integers.v.taken;
  const bool v_finite = v_floats && panel_finite(s.v + c.begin * dv, (c.end - c.begin) * dv);
  for (std::int64_t row0 = 0; row0 < task.count; row0 += kPanel) {
    const Sight& sight = sights[row0 / kPanel];
    if (sight.hull.begin >= sight.hull.end) continue;
    add_panel(task, panel_at(task, row0), sight, first, source, v_finite, s);
  }
}

void finish_columns(const Task& task, Scratch& s) {
  const std::int64_t d = task.problem->head_dim_v;
  const std::int64_t dv = padded(d);
  const std::int64_t per_word = s.words_v ? formats::word_format(task.tensors->cache.v_format, d).per_word : 1;
  for (std::int64_t row0 = 0; row0 < task.count; row0 += kPanel) {
    const Panel panel = panel_at(task, row0);
    const auto to_rows = [&](std::int64_t in_word, float* o) {
      std::copy_n(o, d * panel.width, s.v);
      columns_to_rows(s.v, panel.width, panel.count, d, in_word, o, dv);
    };
    to_rows(per_word, s.packed.o + row0 * dv);
    if (task.q_wide != nullptr) to_rows(1, s.wide.o + row0 * dv);
  }
}

}  // namespace mpfa::cpu
