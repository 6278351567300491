// Writes by physical slot, for serving engines whose scheduler owns the page tables.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/state.hpp"
#include "text/heap_full.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {
namespace {

Status check_slots(const PagePool& pool, std::int64_t page_size, std::span<const std::int64_t> slots) {
  const std::int64_t end = pool.num_pages() * page_size;
  std::vector<std::int64_t> sorted;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t slot = slots[i];
    if (slot == -1) continue;
    if (slot < 0 || slot >= end) {
      return {StatusCode::out_of_range,
              fmt::format("write_slots: slot_mapping[{}] is {}; {} pages of {} tokens have slots 0..{}, and -1 skips a "
                          "token",
                          i, slot, pool.num_pages(), page_size, end - 1)};
    }
    if (const std::int64_t uses = pool.uses(slot / page_size); uses > 1) {
      return {StatusCode::invalid_argument,
              fmt::format("write_slots: slot_mapping[{}] is {} in page {}, which {} sequences share; write to a page "
                          "of one sequence or of none",
                          i, slot, slot / page_size, uses)};
    }
    sorted.push_back(slot);
  }
  std::sort(sorted.begin(), sorted.end());
  if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
    return {StatusCode::invalid_argument,
            fmt::format("write_slots: slot {} is given twice; every token needs a slot of its own", *twice)};
  }
  return {};
}

/// Row i of rope->q is skipped with token i when it has no position of its own.
bool skips_query(const Rope& rope, std::span<const std::int64_t> slots, std::int64_t i) {
  return rope.q_positions == nullptr && slots[i] == -1;
}

Status check_slot_rope(const CacheConfig& c, const NewTokens& tokens, std::span<const std::int64_t> slots) {
  const Rope& rope = *tokens.rope;
  MPFA_RETURN_IF_ERROR(check_rope("write_slots", rope, c));
  if (rope.positions == nullptr && tokens.n > 0) {
    return {StatusCode::invalid_argument,
            "write_slots: rope.positions is null; slots belong to no sequence, so give every token its position"};
  }
  for (std::int64_t t = 0; t < tokens.n; ++t) {
    if (slots[t] == -1) continue;
    MPFA_RETURN_IF_ERROR(check_position("write_slots", rope, tokens.position(t), "token", t, 0));
  }
  if (rope.q.data == nullptr) return {};
  MPFA_RETURN_IF_ERROR(check_queries("write_slots", rope, 1, tokens.n, c.q_heads, c.head_dim));
  for (std::int64_t i = 0; i < rope.q.shape[1]; ++i) {
    if (skips_query(rope, slots, i)) continue;
    MPFA_RETURN_IF_ERROR(check_position("write_slots", rope, tokens.q_position(i, rope.q.shape[1]), "query", i, 0));
  }
  return {};
}

std::vector<std::int64_t> query_positions(const NewTokens& tokens, std::span<const std::int64_t> slots) {
  const std::int64_t q_rows = tokens.rope->q.shape[1];
  std::vector<std::int64_t> positions(static_cast<std::size_t>(q_rows), -1);
  for (std::int64_t i = 0; i < q_rows; ++i) {
    if (!skips_query(*tokens.rope, slots, i)) positions[i] = tokens.q_position(i, q_rows);
  }
  return positions;
}

}  // namespace

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
  MPFA_RETURN_IF_ERROR(st.check_values("write_slots", v != nullptr));
  const auto n = static_cast<std::int64_t>(slot_mapping.size());
  MPFA_RETURN_IF_ERROR(check_page_recipe("write_slots", c.recipe));
  MPFA_RETURN_IF_ERROR(check_tokens("write_slots", "k", k, 1, n, c.kv_heads, c.head_dim));
  if (v != nullptr) MPFA_RETURN_IF_ERROR(check_tokens("write_slots", "v", *v, 1, n, c.kv_heads, c.head_dim_v));
  const NewTokens tokens{k, v == nullptr ? TensorView{} : *v, 0, n, 0, rope};
  if (rope != nullptr) MPFA_RETURN_IF_ERROR(check_slot_rope(c, tokens, slot_mapping));
  constexpr std::int64_t kChunk = 32;
  const std::int64_t chunks = (n + kChunk - 1) / kChunk;
  std::vector<QuantiseCounters> met;
  std::vector<std::int64_t> turns;
  try {
    if (rope != nullptr && rope->q.data != nullptr) turns = query_positions(tokens, slot_mapping);
    MPFA_RETURN_IF_ERROR(check_slots(st.pool, c.page_size, slot_mapping));
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
  if (rope != nullptr && !turns.empty()) rotate_queries(c, *rope, turns);
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
