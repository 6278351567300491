// Between a recipe and pages that the caller owns: quantising writes by slot, and pages taken over into a cache.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/row_ops.hpp"
#include "cache/state.hpp"
#include "pages/pages.hpp"
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

template <class Slot>
Status check_slots(std::span<const Slot> slots, const PagesKind& kind) {
  const std::int64_t end = kind.num_pages * kind.page_size;
  std::vector<std::int64_t> sorted;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] == -1) continue;
    if (slots[i] < 0 || slots[i] >= end) {
      return {StatusCode::out_of_range,
              fmt::format("quantise_to_pages: slot_mapping[{}] is {}; {} pages of {} tokens have slots 0..{}, and -1 "
                          "skips a token",
                          i, slots[i], kind.num_pages, kind.page_size, end - 1)};
    }
    sorted.push_back(slots[i]);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice == sorted.end()) return {};
  return invalid(fmt::format("quantise_to_pages: slot {} is given twice; every token needs a slot of its own", *twice));
}

template <class Slot>
Status write(const CacheConfig& c, const MutablePages& kp, const MutablePages& vp, const TensorView& k,
             const TensorView& v, std::span<const Slot> slots, QuantiseCounters* counters) {
  constexpr const char* kCall = "quantise_to_pages";
  const auto n = static_cast<std::int64_t>(slots.size());
  MPFA_RETURN_IF_ERROR(check_config(c));
  MPFA_RETURN_IF_ERROR(check_caller_recipe(kCall, c.recipe));
  if (c.shared_kv) {
    return invalid(
        fmt::format("{}: the configuration shares the storage of K and V, this call writes both; use a "
                    "PagedCache and write_slots",
                    kCall));
  }
  MPFA_RETURN_IF_ERROR(check_kind(kCall, "k_pages", kp.kind, c.recipe.k, c, c.head_dim));
  MPFA_RETURN_IF_ERROR(check_kind(kCall, "v_pages", vp.kind, c.recipe.v, c, c.head_dim_v));
  if (kp.kind.num_pages != c.num_pages || vp.kind.num_pages != c.num_pages) {
    return invalid(fmt::format("{}: k_pages has {} pages, v_pages {}, the configuration {}; they must be equal", kCall,
                               kp.kind.num_pages, vp.kind.num_pages, c.num_pages));
  }
  for (const MutablePages* p : {&kp, &vp}) {
    if (p->kind.layout == PagesLayout::linear) continue;
    return invalid(
        fmt::format("{}: pages of layout {} cannot be written token by token; write linear pages and "
                    "copy_pages to them",
                    kCall, pages_layout_name(p->kind.layout)));
  }
  if (pages::share_bytes(kp.view(), vp.view())) {
    return invalid(fmt::format("{}: k_pages and v_pages share bytes; give each memory of its own", kCall));
  }
  MPFA_RETURN_IF_ERROR(check_global(kCall, "k_global", c.k_global, kp.bytes, c.kv_heads));
  MPFA_RETURN_IF_ERROR(check_global(kCall, "v_global", c.v_global, vp.bytes, c.kv_heads));
  MPFA_RETURN_IF_ERROR(check_tokens(kCall, "k", k, 1, n, c.kv_heads, c.head_dim));
  MPFA_RETURN_IF_ERROR(check_tokens(kCall, "v", v, 1, n, c.kv_heads, c.head_dim_v));
  const NewTokens tokens{k, v, 0, n};
  constexpr std::int64_t kChunk = 32;
  const std::int64_t chunks = (n + kChunk - 1) / kChunk;
  std::vector<QuantiseCounters> parts;
  SequenceState means;
  try {
    MPFA_RETURN_IF_ERROR(check_slots(slots, kp.kind));
    means = fixed_means(c);
    parts.resize(static_cast<std::size_t>(chunks));
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, fmt::format("{}: {} tokens do not fit in memory; write less", kCall, n)};
  }
  const formats::RowQuantiser k_rows(c.recipe.k, c.head_dim), v_rows(c.recipe.v, c.head_dim_v);
  const int threads = threads_for(c, n * c.kv_heads * (c.head_dim + c.head_dim_v));
  threads::run_tasks(c.executor, chunks, threads, [&](std::int64_t chunk, int) {
    const RopeRow no_turn;
    rows::Row row;
    for (std::int64_t t = chunk * kChunk; t < std::min(n, (chunk + 1) * kChunk); ++t) {
      if (slots[t] < 0) continue;
      const std::int64_t page = slots[t] / c.page_size, slot = slots[t] % c.page_size;
      for (std::int64_t h = 0; h < c.kv_heads; ++h) {
        centred_key(c, means, tokens, t, h, no_turn, row.x);
        if (c.recipe.rotate != Rotate::none) rows::hadamard(row.x, c.head_dim);
        k_rows.write(slot, row.x, kp.bytes.global_scale(h), kp.page(page, h), parts[chunk]);
        stored_value(c, means, tokens, t, h, row.x);
        v_rows.write(slot, row.x, vp.bytes.global_scale(h), vp.page(page, h), parts[chunk]);
      }
    }
  });
  QuantiseCounters met;
  for (const QuantiseCounters& p : parts) met += p;
  if (counters != nullptr) *counters += met;
  return {};
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

Status quantise_to_pages(const CacheConfig& config, const MutablePages& k_pages, const MutablePages& v_pages,
                         const TensorView& k, const TensorView& v, std::span<const std::int64_t> slot_mapping,
                         QuantiseCounters* counters) {
  return write(config, k_pages, v_pages, k, v, slot_mapping, counters);
}

Status quantise_to_pages(const CacheConfig& config, const MutablePages& k_pages, const MutablePages& v_pages,
                         const TensorView& k, const TensorView& v, std::span<const std::int32_t> slot_mapping,
                         QuantiseCounters* counters) {
  return write(config, k_pages, v_pages, k, v, slot_mapping, counters);
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
