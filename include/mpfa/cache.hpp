// PagedCache: owns pages, page table, lengths and the per-sequence state; append writes, view() is what kernels read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "mpfa/cache_view.hpp"
#include "mpfa/executor.hpp"
#include "mpfa/pages.hpp"
#include "mpfa/recipe.hpp"
#include "mpfa/rope.hpp"
#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa {

struct CacheConfig {
  Recipe recipe;
  std::int64_t batch = 1;       // sequences
  std::int64_t num_pages = 0;   // pool shared by the sequences
  std::int64_t page_size = 64;  // tokens
  std::int64_t q_heads = 1, kv_heads = 1;
  std::int64_t head_dim = 0, head_dim_v = 0;
  // Latent attention (head dims 576 and 512, one KV head): V is the first head_dim_v channels of K and is stored once.
  bool shared_kv = false;
  // Calibrated means for centre=static / q_centre=static / v_mean=static, and scales for formats with rule fixed:
  std::vector<float> k_mean;    // [kv_heads, head_dim]
  std::vector<float> q_mean;    // [q_heads, head_dim]
  std::vector<float> v_mean;    // [kv_heads, head_dim_v]
  std::vector<float> k_global;  // [kv_heads]
  std::vector<float> v_global;  // [kv_heads]
  int threads = 0;              // most threads of an append; 0: as many as the process may use
  Executor executor;            // what runs them
};

/// Exact bytes per token over all KV heads: codes, scales, rank-one terms and means of pages, of K and V.
/// Tokens kept in bf16 (sink, recent) come on top; PagedCache::memory_bytes counts them.
[[nodiscard]] double bytes_per_token(const Recipe& recipe, std::int64_t q_heads, std::int64_t kv_heads,
                                     std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t page_size,
                                     bool shared_kv = false);

/// Quantises token i of k [1, n, kv_heads, head_dim] and v [1, n, kv_heads, head_dim_v] (f32, bf16, f16) into slot
/// slot_mapping[i] = page * page_size + slot of pages that the caller owns; -1 skips the token. The bytes are those
/// that PagedCache::write_slots writes for the same `config`, whose page count, page size, heads, head dims and global
/// scales are those of the pages (batch is not looked at). For linear pages and recipes that keep no bf16 tokens, take
/// no mean from a first append and have no rank-one term. With shared_kv K alone is written: v has no data and v_pages
/// is MutablePages(). With `rope`, k is rotated at rope->positions [n], and rope->q [1, sq, q_heads, head_dim] goes to
/// rope->q_out, as in PagedCache::write_slots. Fails, with nothing changed, on slots outside the pages or given twice.
/// Refuses pages of K and V that share bytes. counters may be null.
[[nodiscard]] Status quantise_to_pages(const CacheConfig& config, const MutablePages& k_pages,
                                       const MutablePages& v_pages, const TensorView& k, const TensorView& v,
                                       std::span<const std::int64_t> slot_mapping, QuantiseCounters* counters,
                                       const Rope* rope = nullptr);
[[nodiscard]] Status quantise_to_pages(const CacheConfig& config, const MutablePages& k_pages,
                                       const MutablePages& v_pages, const TensorView& k, const TensorView& v,
                                       std::span<const std::int32_t> slot_mapping, QuantiseCounters* counters,
                                       const Rope* rope = nullptr);

class PagedCache {
 public:
  /// Allocates the pool. Fails on formats that cannot hold the head dims, missing means, a pool too large.
  [[nodiscard]] static Result<PagedCache> create(CacheConfig config);
  PagedCache(PagedCache&&) noexcept;
  PagedCache& operator=(PagedCache&&) noexcept;
  ~PagedCache();

  /// Appends k [n, s, kv_heads, head_dim] and v [n, s, kv_heads, head_dim_v] (f32, bf16, f16) to the n sequences
  /// whose ids are in `sequences` (null: sequence i is i, n = batch). q [n, s, q_heads, head_dim] is read only by
  /// recipes with q_centre=mean, at a sequence's first append. Counts per sequence in `counts` ([n], <= s) or null.
  /// With `rope`, k is rotated first (in float32, not rounded before it is quantised), q for its mean likewise, and
  /// rope->q goes to rope->q_out. All or nothing: when the pool lacks pages nothing is changed.
  [[nodiscard]] Status append(const TensorView& k, const TensorView& v, const TensorView* q,
                              const std::int32_t* sequences, const std::int64_t* counts, const Rope* rope = nullptr);
  /// The same for caches with shared_kv, whose V is part of k; the channels that turn come after those of V.
  [[nodiscard]] Status append(const TensorView& k, const TensorView* q, const std::int32_t* sequences,
                              const std::int64_t* counts, const Rope* rope = nullptr);
  /// Ends the 16-bit phase of recipes with phase_switch: quantises what is still in bf16. No-op for others.
  /// Fails, with nothing changed, when pages shared after a fork must be copied and the pool lacks pages for it.
  [[nodiscard]] Status seal();
  /// Adds pages to the pool; contents and page ids stay.
  [[nodiscard]] Status grow(std::int64_t num_pages);
  /// Gives a sequence's pages back and sets its length to 0; its means are dropped unless calibrated. A page that
  /// another sequence shares stays with that one.
  [[nodiscard]] Status free_sequence(std::int64_t sequence);

  static constexpr std::int64_t all_tokens = -1;
  /// Makes the empty sequence `target` hold the first `tokens` tokens of `source`. Pages are shared and copied by the
  /// first append that writes into them, so a fork takes no page; bf16 tokens and means are copied. `tokens` is in
  /// 0..length and obeys the rule of truncate.
  [[nodiscard]] Status fork(std::int64_t source, std::int64_t target, std::int64_t tokens = all_tokens);
  /// Drops the tokens from `tokens` on and gives pages back; means stay, except that length 0 is free_sequence. What
  /// is read and appended afterwards has the bits of a cache that never saw the dropped tokens. With W and P of the
  /// sequence's view (wide_begin and packed_limit of its new last key) lengths are allowed if P >= min(W, tokens), or
  /// if the sink holds min(W, tokens) tokens: any length for recipes without bf16 tokens, and any length down to that
  /// before the last append for the others. The error names the lengths that are possible.
  [[nodiscard]] Status truncate(std::int64_t sequence, std::int64_t tokens);

  /// Turns the keys of tokens [from, length) by `delta` positions where they lie: codes are read, un-centred, turned,
  /// centred and quantised again, bf16 tokens likewise, rank-one terms are taken anew. Every call costs one more
  /// rounding of K. The row |delta| of the tables must be the rotation by |delta| positions, as in tables of fixed
  /// frequencies. Fails, with nothing changed, on K formats whose tokens share scales and when shared pages cannot be
  /// copied.
  [[nodiscard]] Status shift(std::int64_t sequence, std::int64_t from, std::int64_t delta, const Rope& rope);
  /// Drops tokens [begin, end) and closes the gap: later tokens move down, pages stay dense, V moves bit for bit. With
  /// `rope` keys that move turn by end - begin positions back as in shift, so that positions are indices again;
  /// without, they move bit for bit. Fails as shift does, on V formats whose tokens share scales, when begin is in the
  /// sink, and when tokens would have to be bf16 that exist as codes only.
  [[nodiscard]] Status remove(std::int64_t sequence, std::int64_t begin, std::int64_t end, const Rope* rope = nullptr);

  /// Writes token i of k [1, n, kv_heads, head_dim] and v [1, n, kv_heads, head_dim_v] (f32, bf16, f16) to slot
  /// slot_mapping[i] = page * page_size + slot of the pool; -1 skips the token. For callers with page tables of their
  /// own: no length or page table changes, and a free page is the caller's from its first write to free_slots. For
  /// recipes that keep no bf16 tokens and take no mean from a first append. Fails, with nothing changed, on slots
  /// outside the pool or given twice, and on pages that several sequences share. With `rope`, k is rotated at
  /// rope->positions [n], and rope->q [1, sq, q_heads, head_dim] as in append.
  [[nodiscard]] Status write_slots(const TensorView& k, const TensorView& v, std::span<const std::int64_t> slot_mapping,
                                   const Rope* rope = nullptr);
  /// The same for caches with shared_kv.
  [[nodiscard]] Status write_slots(const TensorView& k, std::span<const std::int64_t> slot_mapping,
                                   const Rope* rope = nullptr);
  /// Gives back pages that write_slots took from the pool (page ids, each once). `generations` as in set_pages.
  [[nodiscard]] Status free_slots(std::span<const std::int32_t> pages,
                                  std::optional<std::span<const std::int64_t>> generations = std::nullopt);

  /// Replaces `blob` by a sequence as bytes: recipe, formats, shape, page size, tokens, means, pages, checksum;
  /// little-endian, without a byte of other sequences. docs/cache.md has the layout.
  [[nodiscard]] Status save(std::vector<std::byte>& blob, std::int64_t sequence) const;
  /// Puts a saved sequence into the empty `sequence`. invalid_argument: the blob is of a cache with another recipe,
  /// shape, page size, static scale or phase; io_error: the blob is damaged; out_of_memory: the pool lacks pages.
  [[nodiscard]] Status load(std::span<const std::byte> blob, std::int64_t sequence);

  /// Makes the empty `sequence` hold `tokens` tokens that are in pages `ids` of the caller, in token order, in any
  /// layout; copied bit for bit. They are K' and V' as this cache would store them: same formats, page size, heads and
  /// static scales. For recipes that keep no bf16 tokens, take no mean from a first append and have no rank-one term.
  [[nodiscard]] Status import_pages(std::int64_t sequence, const Pages& k, const Pages& v,
                                    std::span<const std::int32_t> ids, std::int64_t tokens);

  /// Copies one page with codes, scales and rank-one terms (ids in [0, num_pages)); `to` is not shared.
  [[nodiscard]] Status copy_page(std::int64_t from, std::int64_t to);
  /// Replaces the page table rows of a sequence that shares no page: the same tokens at other page ids, its own or free
  /// ones, for tests and schedulers. With `generations`, one per page, refuses pages whose generation is another one.
  [[nodiscard]] Status set_pages(std::int64_t sequence, const std::vector<std::int32_t>& pages,
                                 std::optional<std::span<const std::int64_t>> generations = std::nullopt);

  /// A number to store beside a page id (in [0, num_pages)): while it stays the same, the page holds the tokens that it
  /// held then. Raised when the page is given out or given back, and when its tokens are overwritten by an append after
  /// truncate or fork, by remove, shift, copy_page, or write_slots into a sequence; grow, which keeps used pages
  /// only, raises those of free ones. Writes by slot into pages of no sequence, and into storage(), are not seen.
  [[nodiscard]] Result<std::int64_t> page_generation(std::int64_t page) const;

  [[nodiscard]] CacheView view() const;  // valid until the next non-const call
  [[nodiscard]] const CacheConfig& config() const;
  [[nodiscard]] const std::vector<std::int64_t>& lengths() const;
  [[nodiscard]] const QuantiseCounters& counters() const;
  [[nodiscard]] std::int64_t free_pages() const;
  [[nodiscard]] std::int64_t memory_bytes() const;  // bytes in use: used pages (shared: once), bf16 tokens, means
  /// Raw storage, for tests that poison it and for serialisation.
  [[nodiscard]] std::byte* storage();
  [[nodiscard]] std::int64_t storage_bytes() const;

 private:
  struct State;
  explicit PagedCache(std::unique_ptr<State> state);
  // append and write_slots; v is null with shared_kv.
  [[nodiscard]] Status append_tokens(const TensorView& k, const TensorView* v, const TensorView* q,
                                     const std::int32_t* sequences, const std::int64_t* counts, const Rope* rope);
  [[nodiscard]] Status write_tokens(const TensorView& k, const TensorView* v,
                                    std::span<const std::int64_t> slot_mapping, const Rope* rope);
  std::unique_ptr<State> state_;
};

}  // namespace mpfa
