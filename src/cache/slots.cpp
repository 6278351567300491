// Writes by physical slot, for serving engines whose scheduler owns the page tables.
#include "cache/slots.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/state.hpp"
#include "text/heap_full.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {
namespace {

/// ok when no slot is in a page that several sequences share.
Status check_unshared(const PagePool& pool, std::int64_t page_size, std::span<const std::int64_t> slots) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == -1) continue;
    const std::int64_t page = slots[i] / page_size, uses = pool.uses(page);
    if (uses <= 1) continue;
    return {StatusCode::invalid_argument,
            fmt::format("write_slots: slot_mapping[{}] is {} in page {}, which {} sequences share; write to a page of "
                        "one sequence or of none",
                        i, slots[i], page, uses)};
  }
  return {};
}

/// Row i of rope.q is skipped with token i when it has no position of its own.
bool skips_query(const Rope& rope, std::span<const std::int64_t> slots, std::int64_t i) {
  return rope.q_positions == nullptr && slots[i] == -1;
}

}  // namespace

Status check_slots(const char* call, std::int64_t num_pages, std::int64_t page_size,
                   std::span<const std::int64_t> slots) {
  const std::int64_t end = num_pages * page_size;
  std::vector<std::int64_t> sorted;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == -1) continue;
    if (slots[i] < 0 || slots[i] >= end) {
      return {StatusCode::out_of_range,
              fmt::format("{}: slot_mapping[{}] is {}; {} pages of {} tokens have slots 0..{}, and -1 skips a token",
                          call, i, slots[i], num_pages, page_size, end - 1)};
    }
    sorted.push_back(slots[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return {};
  return {StatusCode::invalid_argument,
          fmt::format("{}: slot {} is given twice; every token needs a slot of its own", call, *twice)};
}

Status check_slot_rope(const char* call, const CacheConfig& c, const NewTokens& tokens,
                       std::span<const std::int64_t> slots) {
  if (tokens.rope == nullptr) return {};
  const Rope& rope = *tokens.rope;
  MPFA_RETURN_IF_ERROR(check_rope(call, rope, c));
  if (rope.positions == nullptr && tokens.n > 0) {
    return {
        StatusCode::invalid_argument,
        fmt::format("{}: rope.positions is null; slots belong to no sequence, so give every token its position", call)};
  }
  for (std::int64_t t = 0; t < tokens.n; ++t) {
    if (slots[t] == -1) continue;
    MPFA_RETURN_IF_ERROR(check_position(call, rope, tokens.position(t), "token", t, 0));
  }
  if (rope.q.data == nullptr) return {};
  MPFA_RETURN_IF_ERROR(check_queries(call, rope, 1, tokens.n, c.q_heads, c.head_dim));
  for (std::int64_t i = 0; i < rope.q.shape[1]; ++i) {
    if (skips_query(rope, slots, i)) continue;
    MPFA_RETURN_IF_ERROR(check_position(call, rope, tokens.q_position(i, rope.q.shape[1]), "query", i, 0));
  }
  return {};
}

std::vector<std::int64_t> query_positions(const NewTokens& tokens, std::span<const std::int64_t> slots) {
  if (tokens.rope == nullptr || tokens.rope->q.data == nullptr) return {};
  const std::int64_t q_rows = tokens.rope->q.shape[1];
  std::vector<std::int64_t> positions(static_cast<std::size_t>(q_rows), -1);
  for (std::int64_t i = 0; i < q_rows; ++i) {
    if (!skips_query(*tokens.rope, slots, i)) positions[i] = tokens.q_position(i, q_rows);
  }
  return positions;
}

Status PagedCache::write_slots(const TensorView& k, const TensorView& v, std::span<const std::int64_t> slot_mapping,
                               const Rope* rope) {
  return write_tokens(k, &v, slot_mapping, rope);
}

Status PagedCache::write_slots(const TensorView& k, std::span<const std::int64_t> slot_mapping, const Rope* rope) {
  return write_tokens(k, nullptr, slot_mapping, rope);
}

Status PagedCache::write_tokens(const TensorView& k, const TensorView* v, std::span<const std::int64_t> slot_mapping,
                                const Rope* rope) try {
  State& st = *state_;
  const CacheConfig& c = st.config;
  MPFA_RETURN_IF_ERROR(check_values("write_slots", c, v != nullptr));
  const auto n = static_cast<std::int64_t>(slot_mapping.size());
  MPFA_RETURN_IF_ERROR(check_page_recipe("write_slots", c.recipe));
  MPFA_RETURN_IF_ERROR(check_tokens("write_slots", "k", k, 1, n, c.kv_heads, c.head_dim));
  if (v != nullptr) MPFA_RETURN_IF_ERROR(check_tokens("write_slots", "v", *v, 1, n, c.kv_heads, c.head_dim_v));
  const NewTokens tokens{k, v == nullptr ? TensorView{} : *v, 0, n, 0, rope};
  MPFA_RETURN_IF_ERROR(check_slot_rope("write_slots", c, tokens, slot_mapping));
  constexpr std::int64_t kChunk = 32;
  const std::int64_t chunks = (n + kChunk - 1) / kChunk;
  std::vector<QuantiseCounters> met;
  std::vector<std::int64_t> turns;
  try {
    turns = query_positions(tokens, slot_mapping);
    MPFA_RETURN_IF_ERROR(check_slots("write_slots", st.pool.num_pages(), c.page_size, slot_mapping));
    MPFA_RETURN_IF_ERROR(check_unshared(st.pool, c.page_size, slot_mapping));
    met.resize(static_cast<std::size_t>(chunks));
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, fmt::format("write_slots: {} tokens do not fit in memory; write less", n)};
  }
  for (const std::int64_t slot : slot_mapping) {
    const auto page = static_cast<std::int32_t>(slot / c.page_size);
    if (slot < 0 || st.pool.is_lent(page)) continue;
    st.pool.is_free(page) ? st.pool.lend(page) : st.pool.renew(page);
  }
  const int threads = threads_for(c, n * c.kv_heads * (c.head_dim + c.head_dim_v));
  threads::run_tasks(c.executor, chunks, threads, [&](std::int64_t chunk, int) {
    for (std::int64_t t = chunk * kChunk; t < std::min(n, (chunk + 1) * kChunk); ++t) {
      if (slot_mapping[t] < 0) continue;
      const Place place{static_cast<std::int32_t>(slot_mapping[t] / c.page_size), slot_mapping[t] % c.page_size};
      st.write_token(tokens, t, st.fixed, place, met[chunk]);
    }
  });
  for (const QuantiseCounters& m : met) st.counters += m;
  if (!turns.empty()) rotate_queries(c, *rope, turns);
  return {};
} catch (const std::bad_alloc&) {
  return heap_full("write_slots");
}

Status PagedCache::free_slots(std::span<const std::int32_t> pages,
                              std::optional<std::span<const std::int64_t>> generations) try {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_generations("free_slots", pages, generations));
  std::vector<std::int32_t> sorted;
  try {
    sorted.assign(pages.begin(), pages.end());
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory,
            fmt::format("free_slots: {} pages do not fit in memory; give fewer back", pages.size())};
  }
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int32_t id = sorted[i];
    MPFA_RETURN_IF_ERROR(st.check_page("free_slots", id));
    const bool twice = i > 0 && sorted[i - 1] == id;
    if (!st.pool.is_lent(id) || twice) {
      return {StatusCode::invalid_argument,
              fmt::format("free_slots: page {} {}; name pages that write_slots took, each once", id,
                          twice ? "is given twice" : "is free or belongs to a sequence")};
    }
  }
  for (const std::int32_t id : pages) st.pool.take_back(id);
  return {};
} catch (const std::bad_alloc&) {
  return heap_full("free_slots");
}

}  // namespace mpfa
