// v_mean=page: the means that the pages keep come back with the weight of their keys.
#pragma once

#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// o += (sum of P over the keys of a page) * mean of the page, for the keys `c` of a tile, which are all read from
/// pages. P lies in scratch.s [rows, kKeyTile], rounded as P V takes it; o [rows, padded(head_dim_v)] has channels at
/// output_place(). Does nothing for caches without such means.
void add_page_means(const Task& task, std::int64_t first, KeyRange c, Scratch& s, float* o);

/// The same of a panel: p is [kKeyTile, width], o [head_dim_v, width]. A page without weight adds nothing, NaN or not.
void add_panel_means(const Task& task, std::int64_t width, std::int64_t first, KeyRange c, const float* p, Scratch& s,
                     float* o);

}  // namespace mpfa::cpu
