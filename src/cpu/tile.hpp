// One key tile: expanded K (transposed) and V, scores, and the online-softmax step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/factor_ops.hpp"
#include "cpu/integer_scores.hpp"
#include "cpu/panel_ops.hpp"
#include "cpu/queries.hpp"
#include "cpu/score_ops.hpp"
#include "cpu/tile_ops.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::cpu {

inline constexpr std::int64_t kRowBlock = 512;  // most query rows of a task
/// Most rows for which expanding codes again per block of rows beats a tile of floats that all rows share.
inline constexpr std::int64_t kFewRows = 8;
// Row stride of the transposed K tile: not a power of two, so that its columns do not share cache sets.
inline constexpr std::int64_t kKeyStride = kKeyTile + kLaneMultiple;

[[nodiscard]] constexpr std::int64_t padded(std::int64_t n) {
  return (n + kLaneMultiple - 1) / kLaneMultiple * kLaneMultiple;
}

/// Running maximum (log2 units), denominator and unnormalised output of a block of rows.
struct OnlineState {
  float* m = nullptr;  // [rows]
  float* l = nullptr;  // [rows]
  float* o = nullptr;  // [rows, padded(head_dim_v)]
};

/// Up to two ranges of a tile: keys of one source that a row sees. Offsets from the tile's first key.
struct Visible {
  KeyRange part[2];
  [[nodiscard]] bool empty() const { return part[0].begin >= part[0].end && part[1].begin >= part[1].end; }
};

/// K or V of a tile as integers: see integer_tile.hpp.
struct IntegerOperand {
  bool taken = false;
  IntegerForm form;
  std::int64_t channels = 0, block = 0;
  bool folded = false;            // fold_blocks() makes one block of those of the format
  float limit = 0.0F;             // of fold_blocks()
  std::byte* integers = nullptr;  // of K [kKeyTile, channels], of V [kKeyPairs, channels, 2 keys]
  float* factors = nullptr;       // [kKeyTile, blocks]
  [[nodiscard]] std::int64_t blocks() const { return channels / block; }
};
struct IntegerTile {
  IntegerOperand k, v;
  int levels = 0;                             // of q: its elements are whole times the largest of a block over this
  std::int32_t* queries = nullptr;            // packed panels of the task
  std::uint32_t special[kRowBlock / kPanel];  // rows of a panel that have no integers
  bool any_special = false;
  std::uint64_t broken = 0;        // keys whose V is left to floats
  std::int16_t* v_rows = nullptr;  // [kKeyTile, channels], before keys are put in pairs
  std::uint32_t* weights = nullptr;
  float* units = nullptr;  // of weights [blocks, 2, kPanel]
};

/// Memory of one worker, in floats.
struct Scratch {
  float* k = nullptr;  // [head_dim, kKeyStride], or [kKeyTile, head_dim and rank-one terms] of many_rows.hpp
  float* v = nullptr;  // [kKeyTile, padded(head_dim_v)]
  float* s = nullptr;  // [kFewRows, kKeyTile] scores, then probabilities; [2, kKeyTile, kPanel] in many_rows.hpp
  OnlineState packed, wide;
  // Of few_rows.hpp: memory of packed_q, the next packed.o, weights of value_ops.hpp, factors and minima of a
  // tile's keys.
  float *q = nullptr, *spare_o = nullptr, *weights = nullptr, *factors = nullptr, *minima = nullptr;
  PackedQueries packed_q;
  bool words_k = false, words_v = false, bytes_v = false;
  ValueBytes value_bytes;  // with bytes_v
  formats::WordFormat format_k, format_v;
  WordRows rows_k, rows_v;  // of those formats, with words_k and words_v
  WholeFactors whole_k = nullptr, whole_v = nullptr;
  std::int64_t next_tile = 0;  // first key of the tile that follows
  KeyRange next_keys;          // its keys that some row sees; empty for none
  KeyRange seen_by_all;        // packed keys that every row sees
  Visible seen[kFewRows];      // of the tile
  bool plain = false;          // a logit is its product times `scale`, in log2 units; otherwise scale is 1
  float scale = 1.0F;
  QueryBlock queries;
  float* q_columns = nullptr;  // of many_rows.hpp: queries in panels, then a factor per row
  IntegerTile integers;        // of many_rows.hpp
};
/// Sources of keys that a task may have: the pages, and tokens kept in bf16.
[[nodiscard]] inline std::int64_t sources(const AttentionProblem& problem) {
  return keeps_wide_tokens(problem.recipe) ? 2 : 1;
}
[[nodiscard]] std::int64_t scratch_floats(const AttentionProblem& problem);
[[nodiscard]] Scratch lay_out_scratch(const AttentionProblem& problem, float* memory);

/// One query row of a task.
struct Row {
  std::int64_t token = 0;     // row index in the sequence
  std::int64_t position = 0;  // token + sk - sq
  std::int64_t head = 0;      // query head
  KeyRange keys;              // visible, clipped to the split
  KeyRange packed;            // read from the pages when inside
  float shift = 0.0F;         // natural-log units
};

/// The rows of a task. They are not cleared, which would cost as much as a tile of keys.
class Rows {
 public:
  [[nodiscard]] Row& operator[](std::int64_t i) { return reinterpret_cast<Row*>(memory_)[i]; }
  [[nodiscard]] const Row& operator[](std::int64_t i) const { return reinterpret_cast<const Row*>(memory_)[i]; }

 private:
  alignas(Row) std::byte memory_[kRowBlock * sizeof(Row)];
};

/// What a task works on: `count` rows of one (sequence, KV head).
struct Task {
  const AttentionProblem* problem = nullptr;
  const AttentionTensors* tensors = nullptr;
  std::int64_t sequence = 0, kv_head = 0;
  std::int64_t count = 0;
  bool columns = false;  // by many_rows.hpp; a matter of the sequence, so that a row does not depend on its task
  const float* q_packed = nullptr;  // [count, head_dim]
  const float* q_wide = nullptr;
  Rows rows;
};

void reset(const AttentionProblem& problem, std::int64_t rows, OnlineState& state);

/// Keys read from the pages, or those kept in bf16.
enum class Source : std::uint8_t { pages, bf16 };
/// What a row sees of tile [first, first + kKeyTile). Inline, because a tile asks for every row.
[[nodiscard]] inline Visible visible(const Row& row, std::int64_t first, Source source) {
  const auto clip = [first](std::int64_t begin, std::int64_t end) {
    return KeyRange{std::max<std::int64_t>(begin - first, 0), std::min(end - first, kKeyTile)};
  };
  const KeyRange &k = row.keys, &p = row.packed;
  if (source == Source::pages) return {{clip(std::max(k.begin, p.begin), std::min(k.end, p.end)), {0, 0}}};
  const std::int64_t behind = std::max(p.begin, p.end);
  return {{clip(k.begin, std::min(k.end, p.begin)), clip(std::max(k.begin, behind), k.end)}};
}
/// Prepares a task with few rows for add_tile().
void start_tiles(const Task& task, Scratch& scratch);
/// Adds the keys of the tile that are read from `source`.
void add_tile(const Task& task, std::int64_t first, Source source, Scratch& scratch);

}  // namespace mpfa::cpu
