// What prefill does by dot products of integers (integer_scores.hpp, integer_values.hpp) instead of floats: which
// operands, a function of recipe, formats and machine alone, and what queries and tiles become.
#pragma once

#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// Memory of a worker's IntegerTile, in floats; lay_out_integers() points into it.
[[nodiscard]] std::int64_t integer_tile_floats(const AttentionProblem& problem);
void lay_out_integers(const AttentionProblem& problem, float* memory, IntegerTile& tile);

/// Sets tile.k and tile.v for the task.
void choose_integers(const Task& task, IntegerTile& tile);

/// Packs queries [count, head_dim] as panel number `panel` of the task. Rows that cannot be integers become special.
void pack_panel(const AttentionProblem& problem, std::int64_t panel, std::int64_t count, std::int64_t width,
                const float* q, IntegerTile& tile);

/// Keys [first + c.begin, first + c.end) of K or V as integers and factors.
void gather_k(const Task& task, std::int64_t first, KeyRange c, IntegerTile& tile);
void gather_v(const Task& task, std::int64_t first, KeyRange c, IntegerTile& tile);

/// x [keys of c, width] = products of a panel, 0 for rows that are special.
void score_panel(const AttentionProblem& problem, std::int64_t panel, std::int64_t width, KeyRange c,
                 const IntegerTile& tile, float* x);

/// o [head_dim_v, width] = o * keep + P V over keys c, those in tile.broken left out. p is [kKeyTile, width].
void add_panel_values(std::int64_t width, KeyRange c, const float* p, const float* keep, const IntegerTile& tile,
                      float* o);

}  // namespace mpfa::cpu
