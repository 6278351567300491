// Copy on write: a page that several sequences hold is copied before one of them writes into it.
#include <algorithm>
#include <cstring>

#include "cache/state.hpp"

namespace mpfa {

std::int64_t PagedCache::State::packed_after(const Sequence& s, std::int64_t end) const {
  if (config.recipe.phase_switch && !sealed) return s.packed_end;
  return packed_limit(end - 1, commit_unit(config.recipe, config.page_size), recent(), end);
}

void PagedCache::State::find_shared_writes(Sequence& s, std::int64_t packed, std::int64_t end,
                                           std::vector<SharedWrite>& writes) const {
  const auto held = static_cast<std::int64_t>(s.pages.size());
  std::int64_t next = 0;  // pages before it are in `writes` already
  const auto add = [&](std::int64_t first, std::int64_t last) {
    if (first >= last) return;
    const std::int64_t stop = std::min(held, (last + config.page_size - 1) / config.page_size);
    for (std::int64_t i = std::max(next, first / config.page_size); i < stop; ++i) {
      if (pool.uses(s.pages[i]) > 1) writes.push_back({&s, i});
      next = i + 1;
    }
  };
  add(s.packed_end, packed);
  // Rank-one terms are written when a token comes, which may be before its codes.
  if (config.recipe.rank_one != RankOne::off) add(s.length, end);
}

std::int64_t PagedCache::State::copies_needed(const std::vector<SharedWrite>& writes) const {
  std::vector<std::int32_t> ids;
  ids.reserve(writes.size());
  for (const SharedWrite& w : writes) ids.push_back(w.sequence->pages[w.index]);
  std::sort(ids.begin(), ids.end());
  std::int64_t copies = 0;
  for (auto it = ids.begin(); it != ids.end();) {
    const auto next = std::upper_bound(it, ids.end(), *it);
    copies += std::min<std::int64_t>(next - it, pool.uses(*it) - 1);
    it = next;
  }
  return copies;
}

void PagedCache::State::unshare(const std::vector<SharedWrite>& writes) {
  for (const SharedWrite& w : writes) {
    std::int32_t& page = w.sequence->pages[w.index];
    if (pool.uses(page) == 1) continue;
    const std::int32_t copy = pool.take();
    std::memcpy(pool.page(copy), pool.page(page), static_cast<std::size_t>(layout.page_bytes));
    pool.give(page);
    page = copy;
  }
}

}  // namespace mpfa
