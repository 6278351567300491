// Prefill: with many query rows the scores of a tile are formed transposed, [keys][rows], so that rows lie along the
// lanes of a vector: K needs no transposition, and maximum, exp2, masks and rounding are element-wise. The rows of a
// task are cut into panels of panel_ops.hpp, which share the expanded tile.
#pragma once

#include "cpu/few_rows.hpp"
#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// Fewest rows of a (sequence, KV head) for which this path is taken.
inline constexpr std::int64_t kManyRows = kFewRows + 1;

/// Transposes the task's queries into scratch.q_columns and clears the state.
void start_columns(const Task& task, Scratch& scratch);
/// Adds the keys of tile [first, first + kKeyTile) that are read from `source`.
void add_columns(const Task& task, std::int64_t first, Source source, Scratch& scratch);
/// scratch.packed.o and scratch.wide.o from panels to rows of channels.
void finish_columns(const Task& task, Scratch& scratch);

/// Floats of scratch.q_columns.
[[nodiscard]] std::int64_t column_floats(const AttentionProblem& problem);

}  // namespace mpfa::cpu
