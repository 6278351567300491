#include "cache/pool.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <utility>

namespace mpfa {

PageLayout page_layout(const CacheConfig& config) {
  const Recipe& r = config.recipe;
  PageLayout l;
  l.k = page_geometry(r.k, config.head_dim, config.page_size);
  l.v = page_geometry(r.v, config.head_dim_v, config.page_size);
  const auto align16 = [](std::int64_t n) { return (n + 15) / 16 * 16; };
  l.k_data = 0;
  const std::int64_t v_heads = config.shared_kv ? 0 : config.kv_heads;
  l.v_data = align16(l.k_data + l.k.data_bytes() * config.kv_heads);
  l.k_scale = align16(l.v_data + l.v.data_bytes() * v_heads);
  l.v_scale = align16(l.k_scale + l.k.scale_bytes() * config.kv_heads);
  l.rank_one = align16(l.v_scale + l.v.scale_bytes() * v_heads);
  if (r.rank_one != RankOne::off) {
    const std::int64_t width = r.rank_one == RankOne::bf16 ? 2 : 4;
    l.rank_one_bytes = config.page_size * config.q_heads * width;
  }
  l.v_means = align16(l.rank_one + l.rank_one_bytes);
  if (r.v_mean == VMean::page) l.v_mean_bytes = config.kv_heads * config.head_dim_v * 2;
  l.page_bytes = (l.v_means + l.v_mean_bytes + 63) / 64 * 64;
  return l;
}

bool PagePool::resize(std::int64_t num_pages, std::int64_t page_bytes) {
  if (num_pages > std::numeric_limits<std::int64_t>::max() / page_bytes) return false;
  const auto count = static_cast<std::size_t>(num_pages);
  std::unique_ptr<std::byte, Free> memory(static_cast<std::byte*>(
      std::aligned_alloc(64, static_cast<std::size_t>(std::max<std::int64_t>(num_pages * page_bytes, 64)))));
  if (memory == nullptr) return false;
  try {
    free_.reserve(count);
    uses_.resize(count, 0);
    lent_.resize(count, false);
    generations_.resize(count, 0);
    cut_.resize(count, false);
  } catch (const std::bad_alloc&) {
    return false;
  }
  for (std::int64_t id = 0; id < num_pages_; ++id) {
    if (is_free(id)) {
      renew(id);  // what copy_page put there is not kept
    } else {
      std::memcpy(memory.get() + id * page_bytes, page(id), static_cast<std::size_t>(page_bytes));
    }
  }
  for (std::int64_t id = num_pages_; id < num_pages; ++id) free_.push_back(static_cast<std::int32_t>(id));
  std::sort(free_.begin(), free_.end(), std::greater<>());
  data_ = std::move(memory);
  num_pages_ = num_pages;
  page_bytes_ = page_bytes;
  return true;
}

std::int32_t PagePool::take() {
  const std::int32_t id = free_.back();
  free_.pop_back();
  uses_[id] = 1;
  renew(id);
  return id;
}

void PagePool::take_exactly(std::int32_t id) {
  free_.erase(std::lower_bound(free_.begin(), free_.end(), id, std::greater<>()));
  uses_[id] = 1;
  renew(id);
}

void PagePool::give(std::int32_t id) {
  if (--uses_[id] > 0) return;
  renew(id);
  free_.insert(std::upper_bound(free_.begin(), free_.end(), id, std::greater<>()), id);
}

void PagePool::lend(std::int32_t id) {
  take_exactly(id);
  lent_[id] = true;
}

void PagePool::take_back(std::int32_t id) {
  lent_[id] = false;
  give(id);
}

void PagePool::renew(std::int64_t id) {
  ++generations_[id];
  cut_[id] = false;
}

void PagePool::add_tokens(std::int32_t id) {
  // A shared page is not written: its bf16 tokens are beside it, and their codes go to a copy.
  if (cut_[id] && uses_[id] == 1) renew(id);
}

}  // namespace mpfa
