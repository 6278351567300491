// The paged cache behind the C ABI.
#include "mpfa/cache.hpp"

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "capi/handles.hpp"

using mpfa::Status;
using mpfa::capi::check_list;
using mpfa::capi::check_struct;
using mpfa::capi::from_pages;
using mpfa::capi::guarded;
using mpfa::capi::not_null;
using mpfa::capi::to_view;
using mpfa::capi::to_views;

namespace {

void copy_if(const float* from, std::int64_t n, std::vector<float>& to) {
  if (from != nullptr && n > 0) to.assign(from, from + n);
}

mpfa_sequence_view from_sequence(const mpfa::SequenceView& s) {
  return {s.k_mean, s.q_mean, s.v_mean,     s.v_alpha, s.v_beta, s.sink,
          s.sink_k, s.sink_v, s.wide_begin, s.wide_k,  s.wide_v, s.packed_end};
}

}  // namespace

mpfa_operand_pages mpfa::capi::from_pages(const mpfa::OperandPages& p) {
  return {p.data,   p.data_page_stride,  p.data_head_stride,  p.data_row_stride,
          p.scales, p.scale_page_stride, p.scale_head_stride, p.scale_row_stride,
          p.global};
}

mpfa::Result<mpfa::CacheConfig> mpfa::capi::to_config(const char* call, const mpfa_cache_config* c) {
  if (Status s = check_struct(call, "config", c); !s.ok()) return s;
  if (Status s = not_null(call, "config->recipe", c->recipe); !s.ok()) return s;
  constexpr std::int64_t kLargest = std::int64_t{1} << 20;  // keeps the products below far from overflow
  for (const std::int64_t n : {c->q_heads, c->kv_heads, c->head_dim, c->head_dim_v}) {
    if (n < 1 || n > kLargest) {
      return mpfa::capi::invalid(fmt::format("{}: q_heads {}, kv_heads {}, head_dim {}, head_dim_v {} must be 1 to {}",
                                             call, c->q_heads, c->kv_heads, c->head_dim, c->head_dim_v, kLargest));
    }
  }
  mpfa::CacheConfig config;
  config.recipe = c->recipe->recipe;
  config.batch = c->batch;
  config.num_pages = c->num_pages;
  config.page_size = c->page_size;
  config.q_heads = c->q_heads;
  config.kv_heads = c->kv_heads;
  config.head_dim = c->head_dim;
  config.head_dim_v = c->head_dim_v;
  copy_if(c->k_mean, c->kv_heads * c->head_dim, config.k_mean);
  copy_if(c->q_mean, c->q_heads * c->head_dim, config.q_mean);
  copy_if(c->v_mean, c->kv_heads * c->head_dim_v, config.v_mean);
  copy_if(c->k_global, c->kv_heads, config.k_global);
  copy_if(c->v_global, c->kv_heads, config.v_global);
  config.shared_kv = c->shared_kv != 0;
  config.threads = c->threads;
  auto executor = mpfa::capi::to_executor(call, c->executor);
  if (!executor.ok()) return executor.status();
  config.executor = executor.value();
  return config;
}

extern "C" {

void mpfa_cache_config_init(mpfa_cache_config* config, size_t struct_size) {
  mpfa_cache_config defaults{};
  defaults.batch = 1;
  defaults.page_size = 64;
  mpfa::capi::init_struct(config, struct_size, defaults);
}

mpfa_status mpfa_cache_create(const mpfa_cache_config* config, mpfa_cache** cache, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_create", "cache", cache));
    *cache = nullptr;
    auto converted = mpfa::capi::to_config("mpfa_cache_create", config);
    if (!converted.ok()) return converted.status();
    auto made = mpfa::PagedCache::create(std::move(converted).value());
    if (!made.ok()) return made.status();
    *cache = new mpfa_cache(std::move(made).value());
    return {};
  });
}

void mpfa_cache_destroy(mpfa_cache* cache) {
  delete cache;
}

mpfa_status mpfa_cache_append(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v, const mpfa_tensor* q,
                              const int32_t* sequences, const int64_t* counts, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_cache_append";
    MPFA_RETURN_IF_ERROR(not_null(kCall, "cache", cache));
    const auto views = to_views(kCall, k, v);
    if (!views.ok()) return views.status();
    std::optional<mpfa::TensorView> q_view;
    if (q != nullptr) {
      const auto view = to_view(kCall, "q", *q);
      if (!view.ok()) return view.status();
      q_view = view.value();
    }
    const auto& [k_view, v_view] = views.value();
    const mpfa::TensorView* const queries = q_view ? &*q_view : nullptr;
    if (!v_view) return cache->cache.append(k_view, queries, sequences, counts);
    return cache->cache.append(k_view, *v_view, queries, sequences, counts);
  });
}

mpfa_status mpfa_cache_seal(mpfa_cache* cache, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_seal", "cache", cache));
    return cache->cache.seal();
  });
}

mpfa_status mpfa_cache_grow(mpfa_cache* cache, int64_t num_pages, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_grow", "cache", cache));
    return cache->cache.grow(num_pages);
  });
}

mpfa_status mpfa_cache_free_sequence(mpfa_cache* cache, int64_t sequence, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_free_sequence", "cache", cache));
    return cache->cache.free_sequence(sequence);
  });
}

mpfa_status mpfa_cache_copy_page(mpfa_cache* cache, int64_t from, int64_t to, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_copy_page", "cache", cache));
    return cache->cache.copy_page(from, to);
  });
}

mpfa_status mpfa_cache_page_generation(const mpfa_cache* cache, int64_t page, int64_t* generation, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_page_generation", "cache", cache));
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_page_generation", "generation", generation));
    const auto now = cache->cache.page_generation(page);
    if (now.ok()) *generation = now.value();
    return now.status();
  });
}

mpfa_status mpfa_cache_set_pages(mpfa_cache* cache, int64_t sequence, const int32_t* pages, const int64_t* generations,
                                 int64_t count, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_set_pages", "cache", cache));
    MPFA_RETURN_IF_ERROR(check_list("mpfa_cache_set_pages", "pages", pages, count));
    std::optional<std::span<const int64_t>> expected;
    if (generations != nullptr) expected.emplace(generations, count);
    return cache->cache.set_pages(sequence, {pages, pages + count}, expected);
  });
}

mpfa_status mpfa_cache_get_stats(const mpfa_cache* cache, mpfa_cache_stats* stats, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_get_stats", "cache", cache));
    MPFA_RETURN_IF_ERROR(check_struct("mpfa_cache_get_stats", "stats", stats));
    const mpfa::CacheConfig& config = cache->cache.config();
    const mpfa::QuantiseCounters& met = cache->cache.counters();
    stats->lengths = cache->cache.lengths().data();
    stats->num_pages = config.num_pages;
    stats->free_pages = cache->cache.free_pages();
    stats->memory_bytes = cache->cache.memory_bytes();
    stats->bytes_per_token = mpfa::bytes_per_token(config.recipe, config.q_heads, config.kv_heads, config.head_dim,
                                                   config.head_dim_v, config.page_size, config.shared_kv);
    stats->counters = {met.nonfinite_blocks, met.saturated_elements, met.flushed_blocks};
    return {};
  });
}

mpfa_status mpfa_cache_get_view(mpfa_cache* cache, mpfa_cache_view* view, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_get_view", "cache", cache));
    MPFA_RETURN_IF_ERROR(check_struct("mpfa_cache_get_view", "view", view));
    const mpfa::CacheView c = cache->cache.view();
    cache->k_format = mpfa::format_name(c.k_format);
    cache->v_format = mpfa::format_name(c.v_format);
    cache->sequences.clear();
    for (std::int64_t i = 0; c.sequences != nullptr && i < cache->cache.config().batch; ++i) {
      cache->sequences.push_back(from_sequence(c.sequences[i]));
    }
    view->k_format = cache->k_format.c_str();
    view->v_format = cache->v_format.c_str();
    view->num_pages = c.num_pages;
    view->page_size = c.page_size;
    view->kv_heads = c.kv_heads;
    view->head_dim = c.head_dim;
    view->head_dim_v = c.head_dim_v;
    view->k = from_pages(c.k);
    view->v = from_pages(c.v);
    view->rank_one = c.rank_one;
    view->rank_one_wide = c.rank_one_wide ? 1 : 0;
    view->group = c.group;
    view->rank_one_page_stride = c.rank_one_page_stride;
    view->rank_one_head_stride = c.rank_one_head_stride;
    view->page_table = c.page_table;
    view->page_table_stride = c.page_table_stride;
    view->lengths = c.lengths;
    view->sequences = c.sequences == nullptr ? nullptr : cache->sequences.data();
    view->v_page_means = c.v_page_means;
    view->v_page_mean_page_stride = c.v_page_mean_page_stride;
    view->v_page_mean_head_stride = c.v_page_mean_head_stride;
    view->shared_kv = c.shared_kv ? 1 : 0;
    return {};
  });
}

mpfa_status mpfa_cache_fork(mpfa_cache* cache, int64_t source, int64_t target, int64_t tokens, mpfa_error* error) {
  static_assert(MPFA_ALL_TOKENS == mpfa::PagedCache::all_tokens);
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_fork", "cache", cache));
    return cache->cache.fork(source, target, tokens);
  });
}

mpfa_status mpfa_cache_truncate(mpfa_cache* cache, int64_t sequence, int64_t tokens, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_truncate", "cache", cache));
    return cache->cache.truncate(sequence, tokens);
  });
}

mpfa_status mpfa_cache_write_slots(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v,
                                   const int64_t* slot_mapping, int64_t count, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_cache_write_slots";
    MPFA_RETURN_IF_ERROR(not_null(kCall, "cache", cache));
    MPFA_RETURN_IF_ERROR(check_list(kCall, "slot_mapping", slot_mapping, count));
    const auto views = to_views(kCall, k, v);
    if (!views.ok()) return views.status();
    const auto& [k_view, v_view] = views.value();
    if (!v_view) return cache->cache.write_slots(k_view, std::span(slot_mapping, count));
    return cache->cache.write_slots(k_view, *v_view, std::span(slot_mapping, count));
  });
}

mpfa_status mpfa_cache_free_slots(mpfa_cache* cache, const int32_t* pages, int64_t count, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_free_slots", "cache", cache));
    MPFA_RETURN_IF_ERROR(check_list("mpfa_cache_free_slots", "pages", pages, count));
    return cache->cache.free_slots(std::span(pages, count));
  });
}

mpfa_status mpfa_cache_save(const mpfa_cache* cache, int64_t sequence, mpfa_blob** blob, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_save", "blob", blob));
    *blob = nullptr;
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_save", "cache", cache));
    auto made = std::make_unique<mpfa_blob>();
    MPFA_RETURN_IF_ERROR(cache->cache.save(made->bytes, sequence));
    *blob = made.release();
    return {};
  });
}

const void* mpfa_blob_data(const mpfa_blob* blob) {
  return blob == nullptr ? nullptr : blob->bytes.data();
}

size_t mpfa_blob_bytes(const mpfa_blob* blob) {
  return blob == nullptr ? 0 : blob->bytes.size();
}

void mpfa_blob_destroy(mpfa_blob* blob) {
  delete blob;
}

mpfa_status mpfa_cache_load(mpfa_cache* cache, const void* data, size_t bytes, int64_t sequence, mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_load", "cache", cache));
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_load", "data", data));
    return cache->cache.load(std::span(static_cast<const std::byte*>(data), bytes), sequence);
  });
}

}  // extern "C"
