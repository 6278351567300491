// Between a recipe and pages that the caller owns: quantising writes by slot, and pages taken over into a cache.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/row_ops.hpp"
#include "cache/slots.hpp"
#include "cache/state.hpp"
#include "pages/pages.hpp"
#include "text/heap_full.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {
namespace {

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

Status check_global(const char* call, const char* name, const std::vector<float>& config, const OperandPages& pages,
                    std::int64_t heads) {
  for (std::int64_t h = 0; h < heads; ++h) {
    const float wanted = config.empty() ? 1.0F : config[h];
    if (wanted == pages.global_scale(h)) continue;
    return invalid(fmt::format("{}: {} of head {} is {} in the configuration and {} in the pages; they must be equal",
                               call, name, h, wanted, pages.global_scale(h)));
  }
  return {};
}

Status check_kind(const char* call, const char* name, const PagesKind& kind, const BlockFormat& format,
                  const CacheConfig& c, std::int64_t head_dim) {
  if (same_bytes(kind.format, format) && kind.page_size == c.page_size && kind.kv_heads == c.kv_heads &&
      kind.head_dim == head_dim) {
    return {};
  }
  return invalid(fmt::format("{}: {} is '{}'; {} with page_size {}, {} KV heads and head_dim {} is needed", call, name,
                             pages_tag(kind), format_name(format), c.page_size, c.kv_heads, head_dim));
}

Status check_caller_recipe(const char* call, const Recipe& r) {
  MPFA_RETURN_IF_ERROR(check_page_recipe(call, r));
  if (r.rank_one == RankOne::off) return {};
  return invalid(
      fmt::format("{}: recipe {} stores rank-one terms, for which these pages have no place; use rank_one=off, or "
                  "append to a PagedCache",
                  call, recipe_text(r)));
}

/// The pages of one operand, where they are given.
Status check_target(const char* call, const char* name, const MutablePages& pages, const BlockFormat& format,
                    const std::vector<float>& global, const CacheConfig& c, std::int64_t head_dim) {
  MPFA_RETURN_IF_ERROR(check_kind(call, name, pages.kind, format, c, head_dim));
  if (pages.kind.num_pages != c.num_pages) {
    return invalid(fmt::format("{}: {} has {} pages, the configuration {}; they must be equal", call, name,
                               pages.kind.num_pages, c.num_pages));
  }
  if (pages.kind.layout != PagesLayout::linear) {
    return invalid(
        fmt::format("{}: pages of layout {} cannot be written token by token; write linear pages and copy_pages to "
                    "them",
                    call, pages_layout_name(pages.kind.layout)));
  }
  return check_global(call, name[0] == 'k' ? "k_global" : "v_global", global, pages.bytes, c.kv_heads);
}

Status check_targets(const char* call, const CacheConfig& c, const MutablePages& kp, const MutablePages& vp) {
  MPFA_RETURN_IF_ERROR(check_target(call, "k_pages", kp, c.recipe.k, c.k_global, c, c.head_dim));
  if (c.shared_kv) return {};
  MPFA_RETURN_IF_ERROR(check_target(call, "v_pages", vp, c.recipe.v, c.v_global, c, c.head_dim_v));
  if (!pages::share_bytes(kp.view(), vp.view())) return {};
  return invalid(
      fmt::format("{}: k_pages and v_pages share bytes; give each memory of its own, or where V is part of K write K "
                  "alone, with shared_kv (Python: a PageView with v=None)",
                  call));
}

}  // namespace

Status check_page_recipe(const char* call, const Recipe& r) {
  if (keeps_wide_tokens(r)) {
    return invalid(
        fmt::format("{}: recipe {} keeps tokens in bf16 beside the pages (sink, recent, blocks along keys, v_mean=page "
                    "or phase_switch); append to a PagedCache, or use a recipe without them",
                    call, recipe_text(r)));
  }
  if (r.centre != Centre::mean && r.q_centre != QCentre::mean && r.v_mean != VMean::mean && !r.v_residual) return {};
  return invalid(
      fmt::format("{}: recipe {} takes means from the first append of a sequence, which pages do not have; take "
                  "centre, q_centre and v_mean static or none and v_residual=off",
                  call, recipe_text(r)));
}

Status quantise_to_pages(const CacheConfig& c, const MutablePages& kp, const MutablePages& vp, const TensorView& k,
                         const TensorView& v, std::span<const std::int64_t> slots, QuantiseCounters* counters,
                         const Rope* rope) try {
  constexpr const char* kCall = "quantise_to_pages";
  const auto n = static_cast<std::int64_t>(slots.size());
  MPFA_RETURN_IF_ERROR(check_config(c));
  MPFA_RETURN_IF_ERROR(check_caller_recipe(kCall, c.recipe));
  MPFA_RETURN_IF_ERROR(check_values(kCall, c, v.data != nullptr || vp.kind.page_size > 0));
  MPFA_RETURN_IF_ERROR(check_targets(kCall, c, kp, vp));
  MPFA_RETURN_IF_ERROR(check_tokens(kCall, "k", k, 1, n, c.kv_heads, c.head_dim));
  if (!c.shared_kv) MPFA_RETURN_IF_ERROR(check_tokens(kCall, "v", v, 1, n, c.kv_heads, c.head_dim_v));
  const NewTokens tokens{k, v, 0, n, 0, rope};
  MPFA_RETURN_IF_ERROR(check_slot_rope(kCall, c, tokens, slots));
  constexpr std::int64_t kChunk = 32;
  const std::int64_t chunks = (n + kChunk - 1) / kChunk;
  std::vector<QuantiseCounters> parts;
  std::vector<std::int64_t> turns;
  SequenceState means;
  try {
    MPFA_RETURN_IF_ERROR(check_slots(kCall, c.num_pages, c.page_size, slots));
    turns = query_positions(tokens, slots);
    means = fixed_means(c);
    parts.resize(static_cast<std::size_t>(chunks));
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, fmt::format("{}: {} tokens do not fit in memory; write less", kCall, n)};
  }
  const formats::RowQuantiser k_rows(c.recipe.k, c.head_dim), v_rows(c.recipe.v, c.head_dim_v);
  const int threads = threads_for(c, n * c.kv_heads * (c.head_dim + c.head_dim_v));
  threads::run_tasks(c.executor, chunks, threads, [&](std::int64_t chunk, int) {
    rows::Row row;
    for (std::int64_t t = chunk * kChunk; t < std::min(n, (chunk + 1) * kChunk); ++t) {
      if (slots[t] < 0) continue;
      const RopeRow turn = rope_row(tokens, t);
      const std::int64_t page = slots[t] / c.page_size, slot = slots[t] % c.page_size;
      for (std::int64_t h = 0; h < c.kv_heads; ++h) {
        centred_key(c, means, tokens, t, h, turn, row.x);
        if (c.recipe.rotate != Rotate::none) rows::hadamard(row.x, c.head_dim);
        k_rows.write(slot, row.x, kp.bytes.global_scale(h), kp.page(page, h), parts[chunk]);
        if (c.shared_kv) continue;
        stored_value(c, means, tokens, t, h, row.x);
        v_rows.write(slot, row.x, vp.bytes.global_scale(h), vp.page(page, h), parts[chunk]);
      }
    }
  });
  QuantiseCounters met;
  for (const QuantiseCounters& p : parts) met += p;
  if (counters != nullptr) *counters += met;
  if (!turns.empty()) rotate_queries(c, *rope, turns);
  return {};
} catch (const std::bad_alloc&) {
  return heap_full("quantise_to_pages");
}

Status quantise_to_pages(const CacheConfig& config, const MutablePages& k_pages, const MutablePages& v_pages,
                         const TensorView& k, const TensorView& v, std::span<const std::int32_t> slot_mapping,
                         QuantiseCounters* counters, const Rope* rope) try {
  const std::vector<std::int64_t> wide(slot_mapping.begin(), slot_mapping.end());
  return quantise_to_pages(config, k_pages, v_pages, k, v, wide, counters, rope);
} catch (const std::bad_alloc&) {
  return heap_full("quantise_to_pages");
}

Status PagedCache::import_pages(std::int64_t sequence, const Pages& k, const Pages& v,
                                std::span<const std::int32_t> ids, std::int64_t tokens) {
  constexpr const char* kCall = "import_pages";
  State& st = *state_;
  const CacheConfig& c = st.config;
  MPFA_RETURN_IF_ERROR(st.check_empty(kCall, sequence));
  if (c.shared_kv) {
    return invalid(
        fmt::format("{}: V of this cache is part of K (shared_kv), and pages of V would overwrite it; use a "
                    "cache without shared_kv, or append",
                    kCall));
  }
  MPFA_RETURN_IF_ERROR(check_caller_recipe(kCall, c.recipe));
  MPFA_RETURN_IF_ERROR(check_kind(kCall, "k", k.kind, c.recipe.k, c, c.head_dim));
  MPFA_RETURN_IF_ERROR(check_kind(kCall, "v", v.kind, c.recipe.v, c, c.head_dim_v));
  MPFA_RETURN_IF_ERROR(check_global(kCall, "k_global", c.k_global, k.bytes, c.kv_heads));
  MPFA_RETURN_IF_ERROR(check_global(kCall, "v_global", c.v_global, v.bytes, c.kv_heads));
  const auto pages = static_cast<std::int64_t>(ids.size());
  if (tokens < 0 || tokens > pages * c.page_size || tokens <= (pages - 1) * c.page_size) {
    return {StatusCode::out_of_range,
            fmt::format("{}: {} tokens do not fill {} pages of {}; name just the pages that hold them", kCall, tokens,
                        pages, c.page_size)};
  }
  if (pages > st.pool.free_count()) {
    return {StatusCode::out_of_memory,
            fmt::format("{}: {} pages are needed, {} are free; grow the cache or free a sequence", kCall, pages,
                        st.pool.free_count())};
  }
  Sequence& s = st.sequences[sequence];
  std::vector<std::int32_t> taken;
  SequenceState means;
  try {
    means = fixed_means(c);
    taken.reserve(ids.size());
    st.reserve_table(pages);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, fmt::format("{}: {} pages do not fit in memory; import less", kCall, pages)};
  }
  for (std::int64_t i = 0; i < pages; ++i) taken.push_back(st.pool.take());
  const auto own = [&](const OperandPages& view, std::byte* base, const Pages& like) {
    PagesKind kind = like.kind;
    kind.layout = PagesLayout::linear;
    kind.num_pages = st.pool.num_pages();
    return MutablePages{kind, view, base + (view.data - st.pool.data()),
                        view.scales == nullptr ? nullptr : base + (view.scales - st.pool.data())};
  };
  const CacheView view = this->view();
  Status copied = copy_pages(k, own(view.k, storage(), k), ids, taken, tokens);
  if (copied.ok()) copied = copy_pages(v, own(view.v, storage(), v), ids, taken, tokens);
  if (!copied.ok()) {
    for (const std::int32_t id : taken) st.pool.give(id);
    return copied;
  }
  s.state = std::move(means);
  s.pages = std::move(taken);
  s.length = s.packed_end = s.wide_begin = tokens;
  st.refresh();
  return {};
}

}  // namespace mpfa
