// Writes by physical slot, for serving engines whose scheduler owns the page tables.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/state.hpp"

namespace mpfa {
namespace {

Status check_slot_recipe(const Recipe& r) {
  if (keeps_wide_tokens(r)) {
    return {
        StatusCode::invalid_argument,
        fmt::format("write_slots: recipe {} keeps tokens in bf16 beside the pages (sink, recent, blocks along keys, "
                    "v_mean=page or phase_switch); use append, or a recipe without them",
                    recipe_text(r))};
  }
  if (r.centre == Centre::mean || r.q_centre == QCentre::mean || r.v_mean == VMean::mean || r.v_residual) {
    return {StatusCode::invalid_argument,
            fmt::format("write_slots: recipe {} takes means from the first append of a sequence, and slots belong to "
                        "none; take centre, q_centre and v_mean static or none and v_residual=off",
                        recipe_text(r))};
  }
  return {};
}

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

}  // namespace

Status PagedCache::write_slots(const TensorView& k, const TensorView& v, std::span<const std::int64_t> slot_mapping) {
  return write_tokens(k, &v, slot_mapping);
}

Status PagedCache::write_slots(const TensorView& k, std::span<const std::int64_t> slot_mapping) {
  return write_tokens(k, nullptr, slot_mapping);
}

Status PagedCache::write_tokens(const TensorView& k, const TensorView* v, std::span<const std::int64_t> slot_mapping) {
  State& st = *state_;
  const CacheConfig& c = st.config;
  MPFA_RETURN_IF_ERROR(st.check_values("write_slots", v != nullptr));
  const auto n = static_cast<std::int64_t>(slot_mapping.size());
  MPFA_RETURN_IF_ERROR(check_slot_recipe(c.recipe));
  MPFA_RETURN_IF_ERROR(check_tokens("write_slots", "k", k, 1, n, c.kv_heads, c.head_dim));
  if (v != nullptr) MPFA_RETURN_IF_ERROR(check_tokens("write_slots", "v", *v, 1, n, c.kv_heads, c.head_dim_v));
  NewTokens tokens;
  try {
    MPFA_RETURN_IF_ERROR(check_slots(st.pool, c.page_size, slot_mapping));
    tokens = load_tokens(k, v, 0, n);
    SequenceState means;
    set_means(c, tokens, nullptr, 0, means);
    transform_tokens(c, means, tokens);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, fmt::format("write_slots: {} tokens do not fit in memory; write less", n)};
  }
  for (std::int64_t t = 0; t < n; ++t) {
    if (slot_mapping[t] < 0) continue;
    const auto page = static_cast<std::int32_t>(slot_mapping[t] / c.page_size);
    const std::int64_t slot = slot_mapping[t] % c.page_size;
    if (st.pool.is_free(page)) st.pool.lend(page);
    st.write_rows(page, slot, 1, tokens.k.data(), tokens.v.data(), n, t);
    st.write_rank_one(page, slot, tokens, t);
  }
  return {};
}

Status PagedCache::free_slots(std::span<const std::int32_t> pages) {
  State& st = *state_;
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
    if (id < 0 || id >= st.pool.num_pages()) {
      return {StatusCode::out_of_range,
              fmt::format("free_slots: page {} is out of range; page ids are in 0..{}", id, st.pool.num_pages() - 1)};
    }
    const bool twice = i > 0 && sorted[i - 1] == id;
    if (!st.pool.is_lent(id) || twice) {
      return {StatusCode::invalid_argument,
              fmt::format("free_slots: page {} {}; name pages that write_slots took, each once", id,
                          twice ? "is given twice" : "is free or belongs to a sequence")};
    }
  }
  for (const std::int32_t id : pages) st.pool.take_back(id);
  return {};
}

}  // namespace mpfa
