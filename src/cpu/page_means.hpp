// v_mean=page: the means that the pages keep come back with the weight of their keys.
#pragma once

#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// o += (sum of P over the keys of a page) * mean of the page, for the keys `c` of a tile, which are all read from
/// pages. P of (row r, key j) is at p[r * row_stride + j * key_stride], rounded as P V takes it. o [rows,
/// padded(head_dim_v)] is in word order when s.words_v is set. Does nothing for caches without such means.
void add_page_means(const Task& task, std::int64_t first, KeyRange c, const float* p, std::int64_t row_stride,
                    std::int64_t key_stride, Scratch& s, float* o);

}  // namespace mpfa::cpu
