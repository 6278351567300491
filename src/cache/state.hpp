// PagedCache::State and the check functions of append.
#pragma once

#include <span>
#include <vector>

#include "cache/pool.hpp"
#include "cache/sequence.hpp"
#include "mpfa/cache.hpp"

namespace mpfa {

/// ok when a cache, or pages of the caller, can be what `config` says.
[[nodiscard]] Status check_config(const CacheConfig& config);

/// ok when pages alone, without 16-bit tokens, measured means and rank-one terms, hold all that `recipe` stores.
[[nodiscard]] Status check_page_recipe(const char* call, const Recipe& recipe);

/// Tokens ready to be written to a sequence, and the state the sequence will have.
struct Fresh {
  Sequence* sequence = nullptr;
  NewTokens tokens;
  SequenceState state;
};

/// A page that a sequence is about to write into and others read: `index` in the sequence's pages.
struct SharedWrite {
  Sequence* sequence = nullptr;
  std::int64_t index = 0;
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
  /// bf16 values of a token's V beside those of its K: none with shared_kv.
  [[nodiscard]] std::int64_t wide_v_row() const { return config.shared_kv ? 0 : config.kv_heads * config.head_dim_v; }
  [[nodiscard]] bool empty() const;  // no sequence holds a token
  [[nodiscard]] Status check_sequence(const char* call, std::int64_t sequence) const;
  [[nodiscard]] Status check_empty(const char* call, std::int64_t sequence) const;
  /// v is given exactly when the cache keeps V apart from K.
  [[nodiscard]] Status check_values(const char* call, bool given) const;

  /// packed_end of the sequence once it has `end` tokens.
  [[nodiscard]] std::int64_t packed_after(const Sequence& s, std::int64_t end) const;
  /// Adds the shared pages that growing `s` to `end` tokens, `packed` of them in pages, writes into.
  void find_shared_writes(Sequence& s, std::int64_t packed, std::int64_t end, std::vector<SharedWrite>& writes) const;
  /// Pages that unshare will take: the last sequence that writes into a page needs no copy of it.
  [[nodiscard]] std::int64_t copies_needed(const std::vector<SharedWrite>& writes) const;
  void unshare(const std::vector<SharedWrite>& writes);

  /// ok when the first `tokens` tokens of `s` can be what a cache without the others would hold.
  [[nodiscard]] Status check_rewind(const char* call, const Sequence& s, std::int64_t tokens) const;
  /// Makes `s` that, its pages beyond the tokens excepted: those are the caller's to give back.
  void rewind(Sequence& s, std::int64_t tokens) const;

  /// Page `index` of the sequence as save writes it: page_bytes at `out`.
  void page_image(const Sequence& s, std::int64_t index, std::byte* out) const;
  /// Reads and checks a blob's body up to its pages. `phase`: it was saved after seal().
  [[nodiscard]] Status read_sequence(std::span<const std::byte> body, Sequence& s, bool& phase) const;

  [[nodiscard]] PageBytes k_page(std::int32_t page, std::int64_t head);
  [[nodiscard]] PageBytes v_page(std::int32_t page, std::int64_t head);
  /// Quantises rows [row, row + count) of head-major k and v into slots [slot, slot + count) of a page.
  void write_rows(std::int32_t page, std::int64_t slot, std::int64_t count, const float* k, const float* v,
                  std::int64_t head_rows, std::int64_t row);
  /// Writes tokens [first, first + n) (rows head-major with `row0` the first row) into the pages.
  void pack(Sequence& s, std::int64_t first, std::int64_t n, const float* k, const float* v, std::int64_t head_rows,
            std::int64_t row0);
  /// Packs from the bf16 copies up to `end`.
  void pack_wide(Sequence& s, std::int64_t end);
  /// v_mean=page: takes the mean of the page whose V is in unit_v out of it and stores it.
  void take_page_means(std::int32_t page);
  /// Forgets the bf16 copies of tokens before `keep`.
  void drop_wide(Sequence& s, std::int64_t keep) const;
  /// Writes the terms of token `t` of `tokens`, if the recipe has them.
  void write_rank_one(std::int32_t page, std::int64_t slot, const NewTokens& tokens, std::int64_t t);
  void store_rank_one(const Sequence& s, std::int64_t first, const NewTokens& tokens);
  /// The part of an append that allocates: means, transformed tokens, room in the vectors. Nothing visible changes.
  [[nodiscard]] Fresh prepare(Sequence& s, NewTokens tokens, const TensorView* q, std::int64_t row) const;
  /// The part that writes; allocates nothing.
  void commit(Fresh& fresh);
};

}  // namespace mpfa
