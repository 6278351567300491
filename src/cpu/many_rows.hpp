// Prefill: with many query rows the scores of a tile are formed transposed, [keys][rows], so that rows lie along the
// lanes of a vector: K needs no transposition, and maximum, exp2 and masks are element-wise.
#pragma once

#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// Fewest rows for which this path is taken.
inline constexpr std::int64_t kManyRows = 16;

/// Transposes the task's queries into scratch.q_columns.
void start_columns(const Task& task, Scratch& scratch);
/// add_tile() for keys [first + c.begin, first + c.end), which some row sees.
void add_columns(const Task& task, std::int64_t first, KeyRange c, const Visible* seen, Source source,
                 Scratch& scratch);

/// Floats of scratch.q_columns.
[[nodiscard]] std::int64_t column_floats(const AttentionProblem& problem);

}  // namespace mpfa::cpu
