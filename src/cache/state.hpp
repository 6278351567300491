// PagedCache::State and the check functions of append.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "cache/pool.hpp"
#include "cache/sequence.hpp"
#include "formats/row_quantise.hpp"
#include "mpfa/cache.hpp"

namespace mpfa {

/// ok when a cache, or pages of the caller, can be what `config` says.
[[nodiscard]] Status check_config(const CacheConfig& config);

/// ok when slots can be written one by one: `recipe` keeps no 16-bit tokens and measures no means.
[[nodiscard]] Status check_page_recipe(const char* call, const Recipe& recipe);

/// ok when v is given exactly where V is kept apart from K.
[[nodiscard]] Status check_values(const char* call, const CacheConfig& config, bool given);

/// Tokens about to be written to a sequence, and the state it gets when they are its first.
struct Fresh {
  Sequence* sequence = nullptr;
  NewTokens tokens;
  std::optional<SequenceState> first;
};

/// A part of an append that one thread writes: tokens [begin, end) of `fresh`, or of the sequence when it is packed.
struct WriteTask {
  Sequence* sequence = nullptr;
  const NewTokens* tokens = nullptr;
  std::int64_t begin = 0, end = 0;
  QuantiseCounters counters;
};

/// Where a token goes: a slot of a page, and rows [kv_heads, head dim] in bf16 where the recipe keeps those.
struct Place {
  std::int32_t page = 0;
  std::int64_t slot = 0;
  std::uint16_t *wide_k = nullptr, *wide_v = nullptr;  // set: codes are made later, from these
  std::uint16_t *sink_k = nullptr, *sink_v = nullptr;
};

/// A page that a sequence is about to write into and others read: `index` in the sequence's pages.
struct SharedWrite {
  Sequence* sequence = nullptr;
  std::int64_t index = 0;
};

/// Formats that pack token by token; others need whole blocks of tokens.
[[nodiscard]] inline bool packs_rows(const BlockFormat& f) {
  return f.axis == PackAxis::head_dim && f.block_keys == 1;
}

/// Tokens of a sequence on their way to other indices or positions, and what the sequence has afterwards.
struct Move {
  Sequence* sequence = nullptr;
  const RopeRow* turn = nullptr;  // null: keys stay as they are
  std::int64_t packed_end = 0, wide_begin = 0;
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

  formats::RowQuantiser k_rows, v_rows;
  SequenceState fixed;  // calibrated means
  std::vector<WriteTask> tasks;
  std::vector<float> units;  // [threads, commit unit, head dim]: what pack_units widens at a time

  void refresh();
  /// Room for a page table that is `pages` pages longer, so that refresh() after an append allocates nothing.
  void reserve_table(std::int64_t pages);
  [[nodiscard]] std::int64_t recent() const {
    return config.recipe.recent == Recipe::recent_page ? config.page_size : config.recipe.recent;
  }
  /// Tokens that become packed together.
  [[nodiscard]] std::int64_t unit() const { return commit_unit(config.recipe, config.page_size); }
  /// bf16 values of a token's V beside those of its K: none with shared_kv.
  [[nodiscard]] std::int64_t wide_v_row() const { return config.shared_kv ? 0 : config.kv_heads * config.head_dim_v; }
  [[nodiscard]] bool empty() const;  // no sequence holds a token
  [[nodiscard]] Status check_sequence(const char* call, std::int64_t sequence) const;
  [[nodiscard]] Status check_empty(const char* call, std::int64_t sequence) const;
  [[nodiscard]] Status check_page(const char* call, std::int64_t page) const;
  /// ok without `generations`, or when every page is as it was when its id was stored.
  [[nodiscard]] Status check_generations(const char* call, std::span<const std::int32_t> pages,
                                         std::optional<std::span<const std::int64_t>> generations) const;

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
  /// Centres, takes the rank-one terms, rotates, and writes codes or bf16 rows of token t.
  void write_token(const NewTokens& tokens, std::int64_t t, const SequenceState& means, const Place& place,
                   QuantiseCounters& met);
  void write_rank_one(const Place& place, std::int64_t head, const SequenceState& means, const float* key);
  /// A task of an append that writes new tokens, or that quantises bf16 tokens into pages.
  void write_range(WriteTask& task);
  void pack_range(WriteTask& task, int worker);
  /// Blocks of several tokens, or along the keys, of one operand.
  void pack_units(const WriteTask& task, bool keys, float* unit, QuantiseCounters& met);
  /// v_mean=page: the mean of head `head` of the `n` rows of V from `first` on, bf16, into the page and, as float32,
  /// `mean`.
  void take_page_mean(std::int32_t page, std::int64_t head, std::int64_t n, const TensorView& first, float* mean);
  /// Floats of `units` for one thread.
  [[nodiscard]] std::int64_t unit_floats() const {
    return std::max(config.recipe.k.block_keys * config.head_dim, config.recipe.v.block_keys * config.head_dim_v);
  }
  /// Room for the tasks and buffers of run_writes, for `tokens` tokens of `parts` sequences.
  void reserve_tasks(std::int64_t parts, std::int64_t tokens);
  /// Adds tasks for tokens [begin, end), none across a page of `first + begin`.
  void add_tasks(Sequence& s, const NewTokens* tokens, std::int64_t begin, std::int64_t end, std::int64_t first);
  /// Runs the tasks, adds their counters and forgets them.
  void run_writes(bool packs);
  /// Quantises the bf16 copies of `s` up to `end` when the next run_writes(true) runs.
  void add_packs(Sequence& s, std::int64_t end);
  /// Forgets the bf16 copies of tokens before `keep`.
  void drop_wide(Sequence& s, std::int64_t keep) const;
  /// Moves tokens [first, length) to [target, ..), target <= first, and turns their keys.
  [[nodiscard]] Status move_tokens(const char* call, Move m, std::int64_t first, std::int64_t target);
  void move_token(const Move& m, std::int64_t from, std::int64_t to, std::int64_t head, QuantiseCounters& met);
  void copy_rank_one(const Place& source, const Place& target, std::int64_t head);
  /// Where the rows of rope->q of an append stand; -1 for rows that are not real. Empty without such queries.
  [[nodiscard]] Status query_positions(const Rope* rope, const TensorView& k, const std::int32_t* ids,
                                       const std::int64_t* counts, std::vector<std::int64_t>& positions) const;
  /// The part of an append that allocates: means, room in the vectors. Nothing visible changes.
  [[nodiscard]] Fresh prepare(Sequence& s, NewTokens tokens, const TensorView* q) const;
  /// The part that writes; allocates nothing.
  void commit(std::span<Fresh> fresh);
};

}  // namespace mpfa
