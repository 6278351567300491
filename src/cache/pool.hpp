// The page pool: one allocation, pages of equal size, each holding K and V of all heads and their rank-one terms.
//
//   page = [K codes: head][V codes: head][K scales: head][V scales: head][rank one: head, slot, member]
//          [V means: head]
//
// With shared_kv there are no V codes and scales: those of K are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "mpfa/cache.hpp"

namespace mpfa {

/// Byte offsets inside a page, all from one place so that no two parts of the library disagree.
struct PageLayout {
  PageGeometry k, v;
  std::int64_t k_data = 0, v_data = 0, k_scale = 0, v_scale = 0, rank_one = 0, v_means = 0;
  std::int64_t rank_one_bytes = 0;  // of one page, all heads
  std::int64_t v_mean_bytes = 0;    // likewise; bf16, for v_mean=page
  std::int64_t page_bytes = 0;      // a multiple of 64
};
[[nodiscard]] PageLayout page_layout(const CacheConfig& config);

/// Raw memory that is neither touched nor cleared before use, so that a large pool costs what is used of it.
class PagePool {
 public:
  /// False when memory is not to be had; the old pages stay.
  [[nodiscard]] bool resize(std::int64_t num_pages, std::int64_t page_bytes);
  [[nodiscard]] std::byte* page(std::int64_t id) { return data_.get() + id * page_bytes_; }
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t num_pages() const { return num_pages_; }
  [[nodiscard]] std::int64_t bytes() const { return num_pages_ * page_bytes_; }

  [[nodiscard]] std::int64_t free_count() const { return static_cast<std::int64_t>(free_.size()); }
  [[nodiscard]] std::int32_t take();  // the lowest free id, for one user; the caller checked free_count()
  void take_exactly(std::int32_t id);
  void share(std::int32_t id) { ++uses_[id]; }
  void give(std::int32_t id);  // one user less; the last one frees the page
  [[nodiscard]] std::int64_t uses(std::int64_t id) const { return uses_[id]; }
  [[nodiscard]] bool is_free(std::int64_t id) const { return uses_[id] == 0; }
  /// Pages that the caller writes by slot: of no sequence, taken until given back.
  void lend(std::int32_t id);
  void take_back(std::int32_t id);
  [[nodiscard]] bool is_lent(std::int64_t id) const { return lent_[id]; }

  /// Never the same again once the page was given out, given back, or tokens in it may have become others.
  [[nodiscard]] std::int64_t generation(std::int64_t id) const { return generations_[id]; }
  void renew(std::int64_t id);  // tokens of the page become others
  /// A user forgets some of the tokens in the page, and those that it writes next may take their place.
  void cut(std::int32_t id) { cut_[id] = true; }
  void add_tokens(std::int32_t id);  // a user writes behind the tokens that it has in the page

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t num_pages_ = 0, page_bytes_ = 0;
  std::vector<std::int32_t> free_;   // descending, so that take() pops the lowest
  std::vector<std::uint32_t> uses_;  // sequences that hold the page, or 1 when lent
  std::vector<bool> lent_;
  std::vector<std::int64_t> generations_;
  std::vector<bool> cut_;
};

}  // namespace mpfa
