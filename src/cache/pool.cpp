#include "cache/pool.hpp"

#include <algorithm>
#include <cstring>
#include <functional>

namespace mpfa {

PageLayout page_layout(const CacheConfig& config) {
  const Recipe& r = config.recipe;
  PageLayout l;
  l.k = page_geometry(r.k, config.head_dim, config.page_size);
  l.v = page_geometry(r.v, config.head_dim_v, config.page_size);
  const auto align16 = [](std::int64_t n) { return (n + 15) / 16 * 16; };
  l.k_data = 0;
  l.v_data = align16(l.k_data + l.k.data_bytes() * config.kv_heads);
  l.k_scale = align16(l.v_data + l.v.data_bytes() * config.kv_heads);
  l.v_scale = align16(l.k_scale + l.k.scale_bytes() * config.kv_heads);
  l.rank_one = align16(l.v_scale + l.v.scale_bytes() * config.kv_heads);
  if (r.rank_one != RankOne::off) {
    const std::int64_t width = r.rank_one == RankOne::bf16 ? 2 : 4;
    l.rank_one_bytes = config.page_size * config.q_heads * width;
  }
  l.page_bytes = (l.rank_one + l.rank_one_bytes + 63) / 64 * 64;
  return l;
}

bool PagePool::resize(std::int64_t num_pages, std::int64_t page_bytes) {
  auto* memory = static_cast<std::byte*>(
      std::aligned_alloc(64, static_cast<std::size_t>(std::max<std::int64_t>(num_pages * page_bytes, 64))));
  if (memory == nullptr) return false;
  std::vector<bool> unused(static_cast<std::size_t>(num_pages_), false);
  for (const std::int32_t id : free_) unused[id] = true;
  for (std::int64_t id = 0; id < num_pages_; ++id) {
    if (!unused[id]) std::memcpy(memory + id * page_bytes, page(id), static_cast<std::size_t>(page_bytes));
  }
  for (std::int64_t id = num_pages_; id < num_pages; ++id) free_.push_back(static_cast<std::int32_t>(id));
  std::sort(free_.begin(), free_.end(), std::greater<>());
  data_.reset(memory);
  num_pages_ = num_pages;
  page_bytes_ = page_bytes;
  return true;
}

std::int32_t PagePool::take() {
  const std::int32_t id = free_.back();
  free_.pop_back();
  return id;
}

void PagePool::give(std::int32_t id) {
  free_.insert(std::upper_bound(free_.begin(), free_.end(), id, std::greater<>()), id);
}

bool PagePool::is_free(std::int32_t id) const {
  return std::binary_search(free_.begin(), free_.end(), id, std::greater<>());
}

void PagePool::take_exactly(std::int32_t id) {
  free_.erase(std::find(free_.begin(), free_.end(), id));
}

}  // namespace mpfa
