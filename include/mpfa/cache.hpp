// PagedCache: owns pages, page table, lengths and the per-sequence state; append writes, view() is what kernels read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "mpfa/cache_view.hpp"
#include "mpfa/recipe.hpp"
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
  // Calibrated means for centre=static / q_centre=static / v_mean=static, and scales for formats with rule fixed:
  std::vector<float> k_mean;    // [kv_heads, head_dim]
  std::vector<float> q_mean;    // [q_heads, head_dim]
  std::vector<float> v_mean;    // [kv_heads, head_dim_v]
  std::vector<float> k_global;  // [kv_heads]
  std::vector<float> v_global;  // [kv_heads]
};

/// Exact bytes per token over all KV heads: codes, scales and rank-one terms of K and V.
/// Tokens kept in bf16 (sink, recent) come on top; PagedCache::memory_bytes counts them.
[[nodiscard]] double bytes_per_token(const Recipe& recipe, std::int64_t q_heads, std::int64_t kv_heads,
                                     std::int64_t head_dim, std::int64_t head_dim_v, std::int64_t page_size);

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
  /// All or nothing: when the pool lacks pages nothing is changed.
  [[nodiscard]] Status append(const TensorView& k, const TensorView& v, const TensorView* q,
                              const std::int32_t* sequences, const std::int64_t* counts);
  /// Ends the 16-bit phase of recipes with phase_switch: quantises what is still in bf16. No-op for others.
  [[nodiscard]] Status seal();
  /// Adds pages to the pool; contents and page ids stay.
  [[nodiscard]] Status grow(std::int64_t num_pages);
  /// Gives a sequence's pages back and sets its length to 0; its means are dropped unless calibrated.
  [[nodiscard]] Status free_sequence(std::int64_t sequence);
  /// Copies one page with codes, scales and rank-one terms (ids in [0, num_pages)).
  [[nodiscard]] Status copy_page(std::int64_t from, std::int64_t to);
  /// Replaces the page table rows of a sequence: the same tokens at other page ids, for tests and schedulers.
  [[nodiscard]] Status set_pages(std::int64_t sequence, const std::vector<std::int32_t>& pages);

  [[nodiscard]] CacheView view() const;  // valid until the next non-const call
  [[nodiscard]] const CacheConfig& config() const;
  [[nodiscard]] const std::vector<std::int64_t>& lengths() const;
  [[nodiscard]] const QuantiseCounters& counters() const;
  [[nodiscard]] std::int64_t free_pages() const;
  [[nodiscard]] std::int64_t memory_bytes() const;  // bytes in use: used pages, bf16 tokens, means
  /// Raw storage, for tests that poison it and for serialisation.
  [[nodiscard]] std::byte* storage();
  [[nodiscard]] std::int64_t storage_bytes() const;

 private:
  struct State;
  explicit PagedCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace mpfa
