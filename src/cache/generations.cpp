// Generations of pages: whether an id that a caller stored still names the tokens that it named then.
#include <fmt/format.h>

#include <new>

#include "cache/state.hpp"
#include "text/heap_full.hpp"

namespace mpfa {

Status PagedCache::State::check_page(const char* call, std::int64_t page) const {
  if (page >= 0 && page < pool.num_pages()) return {};
  return {StatusCode::out_of_range,
          fmt::format("{}: page {} is out of range; page ids are in 0..{}", call, page, pool.num_pages() - 1)};
}

Status PagedCache::State::check_generations(const char* call, std::span<const std::int32_t> pages,
                                            std::optional<std::span<const std::int64_t>> generations) const {
  if (!generations) return {};
  if (generations->size() != pages.size()) {
    return {StatusCode::invalid_argument, fmt::format("{}: {} generations given for {} pages; one for each is needed",
                                                      call, generations->size(), pages.size())};
  }
  for (std::size_t i = 0; i < pages.size(); ++i) {
    MPFA_RETURN_IF_ERROR(check_page(call, pages[i]));
    const std::int64_t now = pool.generation(pages[i]);
    if (now == (*generations)[i]) continue;
    return {StatusCode::invalid_argument,
            fmt::format("{}: page {} was {} since its id was stored (generation {}, expected {}); drop the entry that "
                        "names it",
                        call, pages[i], pool.is_free(pages[i]) ? "given back" : "given out again or overwritten", now,
                        (*generations)[i])};
  }
  return {};
}

Result<std::int64_t> PagedCache::page_generation(std::int64_t page) const try {
  MPFA_RETURN_IF_ERROR(state_->check_page("page_generation", page));
  return state_->pool.generation(page);
} catch (const std::bad_alloc&) {
  return heap_full("page_generation");
}

}  // namespace mpfa
