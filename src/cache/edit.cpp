// Editing sequences and pages without new tokens: fork, truncate, free, copy and replace pages.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "cache/state.hpp"
#include "text/heap_full.hpp"

namespace mpfa {
namespace {

/// The lengths that check_rewind allows, as text. `kept` is where the bf16 copies begin.
std::string allowed_lengths(std::int64_t kept, std::int64_t unit, std::int64_t recent, std::int64_t sink,
                            std::int64_t length) {
  std::string text = sink > 0 ? fmt::format("0 to {}", sink) : std::string("0");
  if (recent == 0) text += fmt::format(", multiples of {}", unit);
  return text + fmt::format(", {} to {}", kept + recent, length);
}

}  // namespace

bool PagedCache::State::empty() const {
  return std::all_of(sequences.begin(), sequences.end(), [](const Sequence& s) { return s.length == 0; });
}

Status PagedCache::State::check_sequence(const char* call, std::int64_t sequence) const {
  if (sequence >= 0 && sequence < config.batch) return {};
  return {StatusCode::out_of_range,
          fmt::format("{}: sequence {} is out of range; ids are in 0..{}", call, sequence, config.batch - 1)};
}

Status check_values(const char* call, const CacheConfig& config, bool given) {
  if (given != config.shared_kv) return {};
  if (given) {
    return {StatusCode::invalid_argument,
            fmt::format("{}: v was given, but V of this cache is the first {} channels of K (shared_kv); pass k alone",
                        call, config.head_dim_v)};
  }
  return {StatusCode::invalid_argument,
          fmt::format("{}: v is missing; pass v with head dim {}, or take shared_kv where V is part of K", call,
                      config.head_dim_v)};
}

Status PagedCache::State::check_empty(const char* call, std::int64_t sequence) const {
  MPFA_RETURN_IF_ERROR(check_sequence(call, sequence));
  if (sequences[sequence].length == 0) return {};
  return {StatusCode::invalid_argument, fmt::format("{}: sequence {} holds {} tokens; free it, or take an empty one",
                                                    call, sequence, sequences[sequence].length)};
}

Status PagedCache::State::check_rewind(const char* call, const Sequence& s, std::int64_t tokens) const {
  if (tokens < 0 || tokens > s.length) {
    return {StatusCode::out_of_range,
            fmt::format("{}: {} tokens are not in 0..{}, the length of the sequence", call, tokens, s.length)};
  }
  if (tokens == 0) return {};
  const std::int64_t unit = commit_unit(config.recipe, config.page_size);
  const std::int64_t packed = packed_limit(tokens - 1, unit, recent(), s.packed_end);
  const std::int64_t kept = std::min(s.wide_begin, tokens);
  if (packed >= kept || kept <= config.recipe.sink) return {};
  return {StatusCode::invalid_argument,
          fmt::format("{}: at {} tokens the recipe has tokens from {} on in 16 bits, but those before {} exist as "
                      "codes only; allowed lengths: {}; take one of them and append the rest again",
                      call, tokens, packed, s.wide_begin,
                      allowed_lengths(s.wide_begin, unit, recent(), config.recipe.sink, s.length))};
}

void PagedCache::State::rewind(Sequence& s, std::int64_t tokens) const {
  const std::int64_t packed =
      packed_limit(tokens - 1, commit_unit(config.recipe, config.page_size), recent(), s.packed_end);
  const std::int64_t kept = std::min(s.wide_begin, tokens);
  const std::int64_t begin = std::min(packed, kept);  // tokens [begin, kept) come back from the sink
  const std::int64_t k_row = config.kv_heads * config.head_dim;
  const std::int64_t v_row = wide_v_row();
  if (begin < kept) {
    s.wide_k.reserve(static_cast<std::size_t>((tokens - begin) * k_row));
    s.wide_v.reserve(static_cast<std::size_t>((tokens - begin) * v_row));
  }
  const auto restore = [&](std::vector<std::uint16_t>& wide, std::vector<std::uint16_t>& sink, std::int64_t row) {
    wide.resize(static_cast<std::size_t>((tokens - kept) * row));
    if (begin < kept) wide.insert(wide.begin(), sink.begin() + begin * row, sink.begin() + kept * row);
    sink.resize(std::min(sink.size(), static_cast<std::size_t>(tokens * row)));
  };
  restore(s.wide_k, s.sink_k, k_row);
  restore(s.wide_v, s.sink_v, v_row);
  s.wide_begin = begin;
  s.packed_end = packed;
  s.length = tokens;
}

Status PagedCache::fork(std::int64_t source, std::int64_t target, std::int64_t tokens) {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_sequence("fork", source));
  MPFA_RETURN_IF_ERROR(st.check_empty("fork", target));
  const Sequence& from = st.sequences[source];
  const std::int64_t n = tokens == all_tokens ? from.length : tokens;
  MPFA_RETURN_IF_ERROR(st.check_rewind("fork", from, n));
  if (n == 0) return {};
  try {
    Sequence copy = from;
    st.rewind(copy, n);
    copy.pages.resize(static_cast<std::size_t>((n + st.config.page_size - 1) / st.config.page_size));
    for (const std::int32_t page : copy.pages) st.pool.share(page);
    if (n < from.length && n % st.config.page_size != 0) st.pool.cut(copy.pages.back());
    st.sequences[target] = std::move(copy);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory,
            fmt::format("fork: the bf16 tokens of a sequence of {} tokens do not fit in memory; free a sequence", n)};
  }
  st.refresh();
  return {};
}

Status PagedCache::truncate(std::int64_t sequence, std::int64_t tokens) {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_sequence("truncate", sequence));
  Sequence& s = st.sequences[sequence];
  MPFA_RETURN_IF_ERROR(st.check_rewind("truncate", s, tokens));
  if (tokens == 0) return free_sequence(sequence);
  const bool drops = tokens < s.length;
  try {
    st.rewind(s, tokens);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "truncate: the bf16 tokens do not fit in memory; free a sequence"};
  }
  while ((static_cast<std::int64_t>(s.pages.size()) - 1) * st.config.page_size >= tokens) {
    st.pool.give(s.pages.back());
    s.pages.pop_back();
  }
  if (drops && tokens % st.config.page_size != 0) st.pool.cut(s.pages.back());
  st.refresh();
  return {};
}

Status PagedCache::free_sequence(std::int64_t sequence) {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_sequence("free_sequence", sequence));
  Sequence& s = st.sequences[sequence];
  for (const std::int32_t page : s.pages) st.pool.give(page);
  s = Sequence{};
  // The 16-bit phase belongs to the requests in the cache: an empty cache starts a new one.
  if (st.empty()) st.sealed = false;
  st.refresh();
  return {};
}

Status PagedCache::copy_page(std::int64_t from, std::int64_t to) {
  State& st = *state_;
  const std::int64_t n = st.pool.num_pages();
  if (from < 0 || from >= n || to < 0 || to >= n) {
    return {StatusCode::out_of_range, fmt::format("copy_page: {} -> {}; page ids are in 0..{}", from, to, n - 1)};
  }
  if (st.pool.uses(to) > 1) {
    return {StatusCode::invalid_argument,
            fmt::format("copy_page: page {} is shared by {} sequences; copy to a page of one sequence or a free one",
                        to, st.pool.uses(to))};
  }
  if (from == to) return {};
  std::memcpy(st.pool.page(to), st.pool.page(from), static_cast<std::size_t>(st.layout.page_bytes));
  st.pool.renew(to);
  return {};
}

Status PagedCache::set_pages(std::int64_t sequence, const std::vector<std::int32_t>& pages,
                             std::optional<std::span<const std::int64_t>> generations) try {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_sequence("set_pages", sequence));
  Sequence& s = st.sequences[sequence];
  if (pages.size() != s.pages.size()) {
    return {StatusCode::invalid_argument, fmt::format("set_pages: {} pages given, the sequence of {} tokens has {}",
                                                      pages.size(), s.length, s.pages.size())};
  }
  MPFA_RETURN_IF_ERROR(st.check_generations("set_pages", pages, generations));
  for (const std::int32_t id : s.pages) {
    if (st.pool.uses(id) == 1) continue;
    return {StatusCode::invalid_argument,
            fmt::format("set_pages: page {} of the sequence is shared by {} sequences; free the others first", id,
                        st.pool.uses(id))};
  }
  std::vector<std::int32_t> sorted = pages;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return {StatusCode::invalid_argument, "set_pages: a page id is given twice; every page of a sequence is its own"};
  }
  const auto mine = [&](std::int32_t id) { return std::find(s.pages.begin(), s.pages.end(), id) != s.pages.end(); };
  for (const std::int32_t id : pages) {
    if (id < 0 || id >= st.pool.num_pages() || !(mine(id) || st.pool.is_free(id))) {
      return {StatusCode::out_of_range,
              fmt::format("set_pages: page {} is neither free nor the sequence's own; ids are in 0..{}", id,
                          st.pool.num_pages() - 1)};
    }
  }
  // A page that stays is never free in between, so it keeps its generation.
  for (const std::int32_t id : pages) mine(id) ? st.pool.share(id) : st.pool.take_exactly(id);
  for (const std::int32_t id : s.pages) st.pool.give(id);
  s.pages = pages;
  st.refresh();
  return {};
} catch (const std::bad_alloc&) {
  return heap_full("set_pages");
}

}  // namespace mpfa
