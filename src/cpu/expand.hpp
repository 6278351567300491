// From the cache to a tile: keys of one source expanded to floats, K transposed and V row by row.
#pragma once

#include "cpu/tile.hpp"

namespace mpfa::cpu {

/// A run of keys inside one page.
struct PageRun {
  std::int64_t page = 0, slot = 0, count = 0;
  std::int64_t column = 0;  // in the tile
};

/// Calls fn(PageRun) for the runs that hold keys [first + c.begin, first + c.end).
template <class Fn>
void for_page_runs(const Task& task, std::int64_t first, KeyRange c, Fn fn) {
  const CacheView& cache = task.tensors->cache;
  const std::int32_t* table = cache.page_table + task.sequence * cache.page_table_stride;
  for (std::int64_t j = c.begin; j < c.end;) {
    const std::int64_t key = first + j;
    const std::int64_t slot = key % cache.page_size;
    const std::int64_t count = std::min(c.end - j, cache.page_size - slot);
    fn(PageRun{table[key / cache.page_size], slot, count, j});
    j += count;
  }
}

/// Columns [c.begin, c.end) of scratch.k, or rows of scratch.v, from the pages.
void expand_k(const Task& task, std::int64_t first, KeyRange c, Scratch& scratch);
void expand_v(const Task& task, std::int64_t first, KeyRange c, Scratch& scratch);
/// Rows [c.begin, c.end) of scratch.k, `stride` floats apart.
void expand_k_rows(const Task& task, std::int64_t first, KeyRange c, std::int64_t stride, Scratch& scratch);
/// Both, from the bf16 copies; keys of the range that have none (they are read from the pages) become zero.
void expand_wide(const Task& task, std::int64_t first, KeyRange c, Scratch& scratch);
/// The same with K row by row, head_dim floats apart.
void expand_wide_rows(const Task& task, std::int64_t first, KeyRange c, Scratch& scratch);

}  // namespace mpfa::cpu
