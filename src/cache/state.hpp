// PagedCache::State and the check functions of append.
#pragma once

#include <vector>

#include "cache/pool.hpp"
#include "cache/sequence.hpp"
#include "mpfa/cache.hpp"

namespace mpfa {

/// Tokens ready to be written to a sequence, and the state the sequence will have.
struct Fresh {
  Sequence* sequence = nullptr;
  NewTokens tokens;
  SequenceState state;
};

struct PagedCache::State {
  CacheConfig config;
  PageLayout layout;
  PagePool pool;
  std::vector<Sequence> sequences;
  QuantiseCounters counters;
  bool sealed = false;
  // Rebuilt by refresh() after every change: what view() points into.
  std::vector<std::int32_t> table;
  std::int64_t table_stride = 0;
  std::vector<std::int64_t> lengths;
  std::vector<SequenceView> views;

  std::vector<float> unit_k, unit_v;  // [kv_heads, commit unit, head dim]: what pack_wide widens at a time

  void refresh();
  /// Room for a page table that is `pages` pages longer, so that refresh() after an append allocates nothing.
  void reserve_table(std::int64_t pages);
  [[nodiscard]] std::int64_t recent() const {
    return config.recipe.recent == Recipe::recent_page ? config.page_size : config.recipe.recent;
  }
  [[nodiscard]] PageBytes k_page(std::int32_t page, std::int64_t head);
  [[nodiscard]] PageBytes v_page(std::int32_t page, std::int64_t head);
  /// Writes tokens [first, first + n) (rows head-major with `row0` the first row) into the pages.
  void pack(Sequence& s, std::int64_t first, std::int64_t n, const float* k, const float* v, std::int64_t head_rows,
            std::int64_t row0);
  /// Packs from the bf16 copies up to `end`.
  void pack_wide(Sequence& s, std::int64_t end);
  /// Forgets the bf16 copies of tokens before `keep`.
  void drop_wide(Sequence& s, std::int64_t keep) const;
  void store_rank_one(const Sequence& s, std::int64_t first, const NewTokens& tokens);
  /// The part of an append that allocates: means, transformed tokens, room in the vectors. Nothing visible changes.
  [[nodiscard]] Fresh prepare(Sequence& s, NewTokens tokens, const TensorView* q, std::int64_t row) const;
  /// The part that writes; allocates nothing.
  void commit(Fresh& fresh);
};

}  // namespace mpfa
