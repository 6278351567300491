#include "cpu/kernel.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/logit.hpp"
#include "attention/sequences.hpp"
#include "cache/hadamard.hpp"
#include "cpu/few_rows.hpp"
#include "cpu/many_rows.hpp"
#include "cpu/panel_ops.hpp"
#include "cpu/queries.hpp"
#include "cpu/store.hpp"
#include "cpu/tile.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa::cpu {
namespace {

constexpr std::int64_t kSplitRows = 128;  // most rows of a (sequence, KV head) whose keys are split
constexpr std::int64_t kMaxSplits = 32;
constexpr std::int64_t kTasksPerThread = 4;
constexpr float kNone = -std::numeric_limits<float>::infinity();

std::int64_t total_rows(const AttentionProblem& p) {
  return p.total_q > 0 ? p.total_q : p.batch * p.max_q;
}

/// Most rows whose keys a call splits, of one (sequence, KV head).
std::int64_t split_rows(const AttentionProblem& p) {
  return std::min(kSplitRows, p.max_q * (p.q_heads / p.kv_heads));
}

/// Floats of one split's partial result for a block of rows.
std::int64_t partial_floats(const AttentionProblem& p) {
  return split_rows(p) * padded(p.head_dim_v) + 2 * padded(split_rows(p));
}

/// How the keys of a sequence with few rows are split: a function of its own length alone, and never into more parts
/// than kMaxSplits, so that the workspace does not grow with the keys.
struct Splits {
  std::int64_t keys, count;
};
Splits split(std::int64_t split_keys, std::int64_t sk) {
  const std::int64_t units = std::max<std::int64_t>((sk + split_keys - 1) / split_keys, 1);
  const std::int64_t together = (units + kMaxSplits - 1) / kMaxSplits;
  return {together * split_keys, (units + together - 1) / together};
}

/// A unit of work: rows [row0, row0 + count) of (sequence, KV head) over split `split` of the keys.
struct Item {
  std::int64_t sequence, kv_head, row0, count, split, partial;
  Splits splits;
};

/// Rows of a task: as many as share an expanded tile well, fewer where threads would have nothing to do. What a row
/// becomes does not depend on it.
std::int64_t rows_per_task(const Plan& plan, const AttentionTensors& t) {
  const AttentionProblem& p = plan.problem;
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) rows += query_rows(t, b).count * p.q_heads;
  std::int64_t block = kRowBlock;
  while (block > kPanel && rows / block < kTasksPerThread * plan.threads) block /= 2;
  return block;
}

/// Sequences with few rows are split along the keys; others have blocks enough.
std::vector<Item> list_items(const Plan& plan, const AttentionTensors& t) {
  const AttentionProblem& p = plan.problem;
  const std::int64_t group = p.q_heads / p.kv_heads;
  const std::int64_t block = rows_per_task(plan, t);
  std::vector<Item> items;
  std::int64_t partial = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t rows = query_rows(t, b).count * group;
    const std::int64_t sk = t.cache.lengths[b];
    const Splits splits = rows <= kSplitRows ? split(plan.split_keys, sk) : Splits{sk, 1};
    for (std::int64_t g = 0; g < p.kv_heads; ++g) {
      const std::int64_t step = splits.count > 1 ? kSplitRows : block;
      for (std::int64_t row0 = 0; row0 < rows; row0 += step) {
        const std::int64_t count = std::min(step, rows - row0);
        for (std::int64_t s = 0; s < splits.count; ++s) {
          items.push_back({b, g, row0, count, s, splits.count > 1 ? partial++ : -1, splits});
        }
      }
    }
  }
  return items;
}

void describe_rows(const Plan& plan, const AttentionTensors& t, const Item& item, const Queries& queries,
                   const QueryBlock& block, Task& task) {
  const AttentionProblem& p = plan.problem;
  const auto [sq, first] = query_rows(t, item.sequence);
  const std::int64_t sk = t.cache.lengths[item.sequence];
  const std::int64_t group = p.q_heads / p.kv_heads;
  task.problem = &p;
  task.tensors = &t;
  task.sequence = item.sequence;
  task.kv_head = item.kv_head;
  task.count = item.count;
  task.columns = sq * group >= kManyRows;
  const float* shift = block.shift;
  if (prepares_rows(p)) {
    prepare_rows(p, t, item.sequence, item.kv_head, item.row0, item.count, block);
    task.q_packed = block.packed;
    task.q_wide = block.wide;
  } else {
    const std::int64_t base = queries.row(first, sq, item.kv_head) + item.row0;
    task.q_packed = queries.packed + base * p.head_dim;
    task.q_wide = queries.wide == nullptr ? nullptr : queries.wide + base * p.head_dim;
    shift = queries.shift + base;
  }
  for (std::int64_t r = 0; r < item.count; ++r) {
    Row& row = task.rows[r];
    row.token = (item.row0 + r) / group;
    row.position = row.token + sk - sq;
    row.head = item.kv_head * group + (item.row0 + r) % group;
    row.keys = visible_keys(p, row.token, sq, sk);
    row.packed = packed_keys(p, t, item.sequence, row.keys);
    row.shift = shift[r];
    if (item.splits.count > 1) {
      row.keys.begin = std::max(row.keys.begin, item.split * item.splits.keys);
      row.keys.end = std::min(row.keys.end, (item.split + 1) * item.splits.keys);
    }
  }
}

/// a += b for unnormalised states.
void merge_into(std::int64_t rows, std::int64_t dv, OnlineState& a, const OnlineState& b) {
  for (std::int64_t r = 0; r < rows; ++r) {
    if (b.m[r] == kNone && !std::isnan(b.l[r])) continue;
    const float top = std::max(a.m[r], b.m[r]);
    const float wa = a.m[r] == kNone ? 0.0F : std::exp2(a.m[r] - top);
    const float wb = std::exp2(b.m[r] - top);
    a.m[r] = top;
    a.l[r] = a.l[r] * wa + b.l[r] * wb;
    for (std::int64_t i = 0; i < dv; ++i) {
      float& o = a.o[r * dv + i];
      o = (wa == 0.0F ? 0.0F : o * wa) + b.o[r * dv + i] * wb;
    }
  }
}

void run_tiles(const Plan& plan, const Task& task, Scratch& scratch) {
  const AttentionProblem& p = plan.problem;
  const std::int64_t rows = task.columns ? padded(task.count) : task.count;
  reset(p, rows, scratch.packed);
  if (task.q_wide != nullptr) reset(p, rows, scratch.wide);
  KeyRange all{std::numeric_limits<std::int64_t>::max(), 0};
  for (std::int64_t r = 0; r < task.count; ++r) {
    const KeyRange& k = task.rows[r].keys;
    if (k.begin >= k.end) continue;
    all.begin = std::min(all.begin, k.begin);
    all.end = std::max(all.end, k.end);
  }
  if (all.begin >= all.end) return;
  choose_words(task, scratch);
  task.columns ? start_columns(task, scratch) : start_tiles(task, scratch);
  const auto add = task.columns ? add_columns : add_tile;
  const std::int64_t first = all.begin / kKeyTile;
  const std::int64_t last = (all.end - 1) / kKeyTile;
  for (std::int64_t i = first; i <= last; ++i) {
    const bool reverse = p.recipe.order == KeyOrder::reverse;
    const std::int64_t tile = (reverse ? first + last - i : i) * kKeyTile;
    scratch.next_tile = tile + (reverse ? -kKeyTile : kKeyTile);
    scratch.next_keys = {all.begin, i == last ? 0 : all.end};
    add(task, tile, Source::pages, scratch);
    if (task.q_wide != nullptr && task.tensors->cache.sequences != nullptr) add(task, tile, Source::bf16, scratch);
  }
  if (task.columns) {
    finish_columns(task, scratch);
  } else if (scratch.words_v) {
    restore_channels(task, scratch);
  }
  if (task.q_wide != nullptr) merge_into(task.count, padded(p.head_dim_v), scratch.packed, scratch.wide);
}

OnlineState partial_state(const AttentionProblem& p, float* partials, std::int64_t index) {
  OnlineState s;
  s.o = partials + index * partial_floats(p);
  s.m = s.o + split_rows(p) * padded(p.head_dim_v);
  s.l = s.m + padded(split_rows(p));
  return s;
}

}  // namespace

Support supports(const AttentionProblem& /*problem*/) {
  return {"cpu_tiled", {}};
}

std::size_t workspace_bytes(const AttentionProblem& problem, int threads, std::int64_t split_keys) {
  const std::int64_t splits = std::min(kMaxSplits, (problem.max_kv + split_keys - 1) / split_keys);
  std::int64_t floats = padded(query_floats(problem, total_rows(problem)));
  floats += static_cast<std::int64_t>(threads) * padded(scratch_floats(problem));
  if (splits > 1) floats += problem.batch * problem.kv_heads * splits * partial_floats(problem);
  return static_cast<std::size_t>(floats) * sizeof(float);
}

Status attend(const Plan& plan, const AttentionTensors& tensors, Workspace workspace, const Executor& executor) {
  const AttentionProblem& p = plan.problem;
  auto* memory = static_cast<float*>(workspace.data);
  const std::int64_t rows = total_rows(p);
  const Queries queries = lay_out_queries(p, rows, memory);
  memory += padded(query_floats(p, rows));
  float* scratch = memory;
  float* partials = memory + plan.threads * padded(scratch_floats(p));

  if (!prepares_rows(p)) {
    threads::run_tasks(executor, p.batch * p.kv_heads, plan.threads, [&](std::int64_t i, int) {
      prepare_queries(p, tensors, i / p.kv_heads, i % p.kv_heads, queries);
    });
  }
  const std::vector<Item> items = list_items(plan, tensors);
  const auto count = static_cast<std::int64_t>(items.size());
  std::vector<std::atomic<std::int64_t>> done(items.size());  // splits, at the first partial result of their rows
  threads::run_tasks(executor, count, plan.threads, [&](std::int64_t i, int worker) {
    const Item& item = items[i];
    Task task;
    Scratch s = lay_out_scratch(p, scratch + worker * padded(scratch_floats(p)));
    describe_rows(plan, tensors, item, queries, s.queries, task);
    run_tiles(plan, task, s);
    if (item.partial < 0) return store_rows(task, s.packed);
    const OnlineState part = partial_state(p, partials, item.partial);
    std::copy_n(s.packed.o, item.count * padded(p.head_dim_v), part.o);
    std::copy_n(s.packed.m, item.count, part.m);
    std::copy_n(s.packed.l, item.count, part.l);
    // The split that is done last merges all of them, in the order of the keys.
    const std::int64_t first = item.partial - item.split;
    if (done[first].fetch_add(1) + 1 < item.splits.count) return;
    OnlineState sum = partial_state(p, partials, first);
    for (std::int64_t n = 1; n < item.splits.count; ++n) {
      merge_into(item.count, padded(p.head_dim_v), sum, partial_state(p, partials, first + n));
    }
    store_rows(task, sum);
  });
  return {};
}

}  // namespace mpfa::cpu
