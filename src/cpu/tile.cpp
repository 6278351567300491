#include "cpu/tile.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "attention/logit.hpp"
#include "attention/probabilities.hpp"
#include "attention/sequences.hpp"
#include "cache/convert.hpp"
#include "cpu/round_p.hpp"

namespace mpfa::cpu {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Up to two ranges of a tile: keys of one source that a row sees. Offsets from the tile's first key.
struct Visible {
  KeyRange part[2];
  [[nodiscard]] bool empty() const { return part[0].begin >= part[0].end && part[1].begin >= part[1].end; }
};

KeyRange clip(std::int64_t begin, std::int64_t end, std::int64_t first) {
  return {std::max<std::int64_t>(begin - first, 0), std::min(end - first, kKeyTile)};
}

Visible visible(const Row& row, std::int64_t first, Source source) {
  const KeyRange& k = row.keys;
  const KeyRange& p = row.packed;
  if (source == Source::pages) return {{clip(std::max(k.begin, p.begin), std::min(k.end, p.end), first), {0, 0}}};
  const std::int64_t behind = std::max(p.begin, p.end);
  return {{clip(k.begin, std::min(k.end, p.begin), first), clip(std::max(k.begin, behind), k.end, first)}};
}

/// Expands slots of the pages that hold keys [first + c.begin, first + c.end).
void load_pages(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t dv = cache.head_dim_v;
  const std::int64_t stride_v = padded(dv);
  const std::int32_t* table = cache.page_table + task.sequence * cache.page_table_stride;
  const std::int64_t g = task.kv_head;
  for (std::int64_t j = c.begin; j < c.end;) {
    const std::int64_t key = first + j;
    const std::int64_t slot = key % cache.page_size;
    const std::int64_t count = std::min(c.end - j, cache.page_size - slot);
    const std::int64_t page = table[key / cache.page_size];
    dequantise_tokens(cache.k_format, cache.head_dim, slot, count, cache.k.page(page, g), cache.k.global_scale(g),
                      s.k + j, 1, kKeyStride);
    dequantise_tokens(cache.v_format, dv, slot, count, cache.v.page(page, g), cache.v.global_scale(g),
                      s.v + j * stride_v, stride_v, 1);
    j += count;
  }
  if (cache.sequences == nullptr || cache.sequences[task.sequence].v_alpha == nullptr) return;
  const float* alpha = cache.sequences[task.sequence].v_alpha + g * dv;
  const float* beta = cache.sequences[task.sequence].v_beta + g * dv;
  for (std::int64_t j = c.begin; j < c.end; ++j) {
    for (std::int64_t i = 0; i < dv; ++i) s.v[j * stride_v + i] = alpha[i] * s.v[j * stride_v + i] + beta[i];
  }
}

/// Expands the bf16 copies; keys of the range that have none (they are read from the pages) become zero.
void load_wide(const Task& task, std::int64_t first, KeyRange c, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const SequenceView& seq = cache.sequences[task.sequence];
  const std::int64_t d = cache.head_dim;
  const std::int64_t dv = cache.head_dim_v;
  const std::int64_t stride_v = padded(dv);
  for (std::int64_t j = c.begin; j < c.end; ++j) {
    const std::int64_t key = first + j;
    const bool in_sink = key < seq.sink;
    const std::int64_t at = ((in_sink ? key : key - seq.wide_begin) * cache.kv_heads + task.kv_head);
    if (!in_sink && key < seq.wide_begin) {
      for (std::int64_t i = 0; i < d; ++i) s.k[i * kKeyStride + j] = 0.0F;
      std::fill_n(s.v + j * stride_v, dv, 0.0F);
      continue;
    }
    const std::uint16_t* k = (in_sink ? seq.sink_k : seq.wide_k) + at * d;
    const std::uint16_t* v = (in_sink ? seq.sink_v : seq.wide_v) + at * dv;
    for (std::int64_t i = 0; i < d; ++i) s.k[i * kKeyStride + j] = bf16_to_float(k[i]);
    for (std::int64_t i = 0; i < dv; ++i) s.v[j * stride_v + i] = bf16_to_float(v[i]);
  }
}

bool all_finite(const float* v, std::int64_t n) {
  constexpr std::uint32_t kExponent = 0x7F800000U;
  std::uint32_t worst = 0;
  for (std::int64_t i = 0; i < n; ++i) worst = std::max(worst, std::bit_cast<std::uint32_t>(v[i]) & kExponent);
  return worst != kExponent;
}

/// Products to log2-domain logits of one row, -inf where the row does not see the key.
void finish_scores(const Task& task, const Row& row, std::int64_t first, Source source, const Visible& seen, float* x) {
  const AttentionProblem& p = *task.problem;
  const AttentionTensors& t = *task.tensors;
  const CacheView& cache = t.cache;
  const float scale = softmax_scale(p);
  if (source == Source::pages && cache.rank_one != nullptr) {
    const std::int32_t* table = cache.page_table + task.sequence * cache.page_table_stride;
    const std::int64_t member = row.head - task.kv_head * cache.group;
    for (std::int64_t j = seen.part[0].begin; j < seen.part[0].end; ++j) {
      const std::int64_t key = first + j;
      x[j] += cache.rank_one_at(table[key / cache.page_size], task.kv_head, key % cache.page_size, member);
    }
  }
  const bool plain = p.recipe.logit_cap <= 0.0F && p.softcap <= 0.0F && !p.alibi && p.mask == MaskTensor::none;
  if (plain) {
    row_scale(x, scale * static_cast<float>(kLog2E), kKeyTile);
  } else {
    for (const KeyRange& part : seen.part) {
      for (std::int64_t j = part.begin; j < part.end; ++j) {
        const float logit =
            finish_logit(p, t, x[j] * scale, row.shift, task.sequence, row.head, row.token, row.position, first + j);
        x[j] = logit * static_cast<float>(kLog2E);
      }
    }
  }
  std::int64_t done = 0;
  for (const KeyRange& part : seen.part) {
    if (part.begin >= part.end) continue;
    std::fill(x + done, x + part.begin, kMasked);
    done = part.end;
  }
  std::fill(x + done, x + kKeyTile, kMasked);
}

/// x becomes the rounded probabilities of the row; m, l and o are rescaled to the new maximum.
void softmax_step(const Recipe& recipe, Source source, float* x, float& m, float& l, float* o, std::int64_t dv) {
  const float top = std::max(m, row_max(x, kKeyTile));
  if (top == kMasked) {
    std::fill_n(x, kKeyTile, 0.0F);
    return;
  }
  const float keep = m == kMasked ? 0.0F : std::exp2(m - top);
  if (keep != 1.0F) row_scale(o, keep, dv);
  m = top;
  const PMode mode = source == Source::bf16 ? PMode::bf16 : recipe.p;
  const bool same_codes = source == Source::pages && recipe.denominator == Denominator::same_codes;
  l = l * keep + round_row(mode, recipe.p_scale, top, same_codes, x);
}

/// O += P V for a tile with NaN or Inf in V: a row takes only the keys it gives weight to.
void accumulate_selected(std::int64_t rows, KeyRange c, const float* p, const float* v, std::int64_t dv, float* o) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = c.begin; j < c.end; ++j) {
      const float weight = p[r * kKeyTile + j];
      if (weight == 0.0F) continue;
      for (std::int64_t i = 0; i < dv; ++i) o[r * dv + i] += weight * v[j * dv + i];
    }
  }
}

}  // namespace

std::int64_t scratch_floats(const AttentionProblem& problem) {
  const std::int64_t dv = padded(problem.head_dim_v);
  return problem.head_dim * kKeyStride + kKeyTile * dv + kRowBlock * kKeyTile + 2 * kRowBlock * (dv + 2);
}

Scratch lay_out_scratch(const AttentionProblem& problem, float* memory) {
  const std::int64_t dv = padded(problem.head_dim_v);
  Scratch s;
  s.k = memory;
  s.v = s.k + problem.head_dim * kKeyStride;
  s.s = s.v + kKeyTile * dv;
  s.packed.o = s.s + kRowBlock * kKeyTile;
  s.wide.o = s.packed.o + kRowBlock * dv;
  s.packed.m = s.wide.o + kRowBlock * dv;
  s.packed.l = s.packed.m + kRowBlock;
  s.wide.m = s.packed.l + kRowBlock;
  s.wide.l = s.wide.m + kRowBlock;
  return s;
}

void reset(const AttentionProblem& problem, std::int64_t rows, OnlineState& state) {
  std::fill_n(state.m, rows, kMasked);
  std::fill_n(state.l, rows, 0.0F);
  std::fill_n(state.o, rows * padded(problem.head_dim_v), 0.0F);
}

void add_tile(const Task& task, std::int64_t first, Source source, Scratch& s) {
  const CacheView& cache = task.tensors->cache;
  const std::int64_t dv = padded(cache.head_dim_v);
  OnlineState& state = source == Source::pages ? s.packed : s.wide;
  Visible seen[kRowBlock];
  KeyRange c{kKeyTile, 0};
  for (std::int64_t r = 0; r < task.count; ++r) {
    seen[r] = visible(task.rows[r], first, source);
    for (const KeyRange& part : seen[r].part) {
      if (part.begin >= part.end) continue;
      c.begin = std::min(c.begin, part.begin);
      c.end = std::max(c.end, part.end);
    }
  }
  if (c.begin >= c.end) return;
  source == Source::pages ? load_pages(task, first, c, s) : load_wide(task, first, c, s);
  for (std::int64_t j = c.begin; j < c.end && dv > cache.head_dim_v; ++j) {
    std::fill(s.v + j * dv + cache.head_dim_v, s.v + (j + 1) * dv, 0.0F);
  }
  const float* q = source == Source::pages ? task.q_packed : task.q_wide;
  gemm(task.count, cache.head_dim, kKeyTile, q, cache.head_dim, s.k, kKeyStride, s.s, kKeyTile, false);
  for (std::int64_t r = 0; r < task.count; ++r) {
    float* x = s.s + r * kKeyTile;
    if (seen[r].empty()) {
      std::fill_n(x, kKeyTile, 0.0F);
      continue;
    }
    finish_scores(task, task.rows[r], first, source, seen[r], x);
    softmax_step(task.problem->recipe, source, x, state.m[r], state.l[r], state.o + r * dv, dv);
  }
  const float* v = s.v + c.begin * dv;
  if (all_finite(v, (c.end - c.begin) * dv)) {
    gemm(task.count, c.end - c.begin, dv, s.s + c.begin, kKeyTile, v, dv, state.o, dv, true);
  } else {
    accumulate_selected(task.count, c, s.s, s.v, dv, state.o);
  }
}

}  // namespace mpfa::cpu
