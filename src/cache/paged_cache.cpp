#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/hadamard.hpp"
#include "cache/state.hpp"
#include "text/heap_full.hpp"

namespace mpfa {
namespace {

Status invalid(std::string message) {
  return {StatusCode::invalid_argument, std::move(message)};
}

Status check_vector(const std::vector<float>& v, bool wanted, std::int64_t size, const char* name, const char* why) {
  if (wanted && v.empty()) {
    return invalid(fmt::format("cache: {} is missing; the recipe has {}, which needs calibrated values [{} floats]",
                               name, why, size));
  }
  if (!v.empty() && static_cast<std::int64_t>(v.size()) != size) {
    return invalid(fmt::format("cache: {} has {} values; {} are needed (heads x head dim)", name, v.size(), size));
  }
  if (!v.empty() && !wanted) {
    return invalid(
        fmt::format("cache: {} was given but the recipe does not use it; set {} or leave it out", name, why));
  }
  return {};
}

Status check_rotation(std::int64_t d, const char* what) {
  if (hadamard_block(d) >= 2) return {};
  return invalid(
      fmt::format("cache: {} {} is odd and cannot be rotated; use an even head dim or rotate=none", what, d));
}

}  // namespace

Status check_config(const CacheConfig& c) {
  if (c.batch < 1 || c.batch > (1 << 24)) return invalid(fmt::format("cache: batch {} is not in 1..2^24", c.batch));
  if (c.num_pages < 0 || c.num_pages > 0x7FFFFFFF) {
    return invalid(fmt::format("cache: num_pages {} is not in 0..2^31-1", c.num_pages));
  }
  if (c.page_size < 1 || c.page_size > 4096) {
    return invalid(fmt::format("cache: page_size {} is not in 1..4096 tokens", c.page_size));
  }
  if (c.q_heads < 1 || c.kv_heads < 1 || c.q_heads % c.kv_heads != 0 || c.q_heads > 65536) {
    return invalid(fmt::format("cache: {} query heads over {} KV heads; a whole multiple of at least 1 is needed",
                               c.q_heads, c.kv_heads));
  }
  for (const std::int64_t d : {c.head_dim, c.head_dim_v}) {
    if (d < 1 || d > 1024) return invalid(fmt::format("cache: head_dim {} is not in 1..1024", d));
  }
  const Recipe& r = c.recipe;
  MPFA_RETURN_IF_ERROR(check_recipe(r));
  if (c.shared_kv) {
    MPFA_RETURN_IF_ERROR(check_shared_kv(r, c.head_dim, c.head_dim_v));
    if (!c.v_global.empty()) return invalid("cache: v_global was given, but V is read with K's scales (shared_kv)");
  }
  MPFA_RETURN_IF_ERROR(check_format(r.k, c.head_dim, c.page_size));
  MPFA_RETURN_IF_ERROR(check_format(r.q, c.head_dim, std::max<std::int64_t>(r.q.block_keys, 1)));
  MPFA_RETURN_IF_ERROR(check_format(r.v, c.head_dim_v, c.page_size));
  if (r.rotate != Rotate::none) MPFA_RETURN_IF_ERROR(check_rotation(c.head_dim, "head_dim"));
  if (r.rotate == Rotate::qkv) MPFA_RETURN_IF_ERROR(check_rotation(c.head_dim_v, "head_dim_v"));
  if (c.page_size % commit_unit(r, c.page_size) != 0) {
    return invalid(fmt::format("cache: page_size {} is not a multiple of the {} tokens that share a scale in {}",
                               c.page_size, commit_unit(r, c.page_size), recipe_text(r)));
  }
  MPFA_RETURN_IF_ERROR(
      check_vector(c.k_mean, r.centre == Centre::fixed, c.kv_heads * c.head_dim, "k_mean", "centre=static"));
  MPFA_RETURN_IF_ERROR(
      check_vector(c.q_mean, r.q_centre == QCentre::fixed, c.q_heads * c.head_dim, "q_mean", "q_centre=static"));
  MPFA_RETURN_IF_ERROR(
      check_vector(c.v_mean, r.v_mean == VMean::fixed, c.kv_heads * c.head_dim_v, "v_mean", "v_mean=static"));
  // A static scale that nobody calibrated would silently be 1: refuse it.
  MPFA_RETURN_IF_ERROR(check_vector(c.k_global, r.k.rule == ScaleRule::fixed || !c.k_global.empty(), c.kv_heads,
                                    "k_global", "a static K scale"));
  const bool own_scale = r.v.rule == ScaleRule::fixed && !c.shared_kv;
  return check_vector(c.v_global, own_scale || !c.v_global.empty(), c.kv_heads, "v_global", "a static V scale");
}

double bytes_per_token(const Recipe& recipe, std::int64_t q_heads, std::int64_t kv_heads, std::int64_t head_dim,
                       std::int64_t head_dim_v, std::int64_t page_size, bool shared_kv) {
  CacheConfig c;
  c.recipe = recipe;
  c.q_heads = q_heads;
  c.kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.head_dim_v = head_dim_v;
  c.page_size = page_size;
  const PageLayout l = page_layout(c);
  std::int64_t kv = l.k.data_bytes() + l.k.scale_bytes();
  if (!shared_kv) kv += l.v.data_bytes() + l.v.scale_bytes();
  return static_cast<double>(kv * kv_heads + l.rank_one_bytes + l.v_mean_bytes) / static_cast<double>(page_size);
}

void PagedCache::State::reserve_table(std::int64_t pages) {
  table.reserve(static_cast<std::size_t>(config.batch * (table_stride + pages)));
}

void PagedCache::State::refresh() {
  table_stride = 1;
  for (const Sequence& s : sequences) table_stride = std::max(table_stride, static_cast<std::int64_t>(s.pages.size()));
  table.assign(static_cast<std::size_t>(config.batch * table_stride), -1);
  lengths.resize(sequences.size());
  views.resize(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    std::copy(sequences[i].pages.begin(), sequences[i].pages.end(), table.begin() + i * table_stride);
    lengths[i] = sequences[i].length;
    views[i] = sequences[i].view(config.recipe.sink);
  }
}

PagedCache::PagedCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
PagedCache::PagedCache(PagedCache&&) noexcept = default;
PagedCache& PagedCache::operator=(PagedCache&&) noexcept = default;
PagedCache::~PagedCache() = default;

Result<PagedCache> PagedCache::create(CacheConfig config) try {
  if (config.head_dim_v == 0) config.head_dim_v = config.head_dim;
  if (Status s = check_config(config); !s.ok()) return s;
  auto state = std::make_unique<State>();
  state->layout = page_layout(config);
  if (!state->pool.resize(config.num_pages, state->layout.page_bytes)) {
    return Status{StatusCode::out_of_memory, fmt::format("cache: {} pages of {} bytes do not fit in memory",
                                                         config.num_pages, state->layout.page_bytes)};
  }
  state->sequences.resize(static_cast<std::size_t>(config.batch));
  state->k_rows = formats::RowQuantiser(config.recipe.k, config.head_dim);
  state->v_rows = formats::RowQuantiser(config.recipe.v, config.head_dim_v);
  state->fixed = fixed_means(config);
  state->config = std::move(config);
  state->refresh();
  return PagedCache(std::move(state));
} catch (const std::bad_alloc&) {
  return heap_full("cache");
}

Status PagedCache::grow(std::int64_t num_pages) try {
  if (num_pages < state_->pool.num_pages() || num_pages > 0x7FFFFFFF) {
    return invalid(fmt::format("grow: {} pages; the pool has {} and only grows (up to 2^31-1)", num_pages,
                               state_->pool.num_pages()));
  }
  if (!state_->pool.resize(num_pages, state_->layout.page_bytes)) {
    return {StatusCode::out_of_memory,
            fmt::format("grow: {} pages of {} bytes do not fit in memory", num_pages, state_->layout.page_bytes)};
  }
  state_->config.num_pages = num_pages;
  state_->refresh();
  return {};
} catch (const std::bad_alloc&) {
  return heap_full("grow");
}

CacheView PagedCache::view() const {
  const State& st = *state_;
  const CacheConfig& c = st.config;
  const PageLayout& l = st.layout;
  CacheView v;
  v.k_format = c.recipe.k;
  v.v_format = c.recipe.v;
  v.shared_kv = c.shared_kv;
  v.num_pages = st.pool.num_pages();
  v.page_size = c.page_size;
  v.kv_heads = c.kv_heads;
  v.head_dim = c.head_dim;
  v.head_dim_v = c.head_dim_v;
  const auto operand = [&](const PageGeometry& g, std::int64_t data, std::int64_t scale,
                           const std::vector<float>& global) {
    OperandPages p;
    p.data = st.pool.data() + data;
    p.data_page_stride = l.page_bytes;
    p.data_head_stride = g.data_bytes();
    p.data_row_stride = g.data_row_bytes;
    p.scales = g.scale_bytes() > 0 ? st.pool.data() + scale : nullptr;
    p.scale_page_stride = l.page_bytes;
    p.scale_head_stride = g.scale_bytes();
    p.scale_row_stride = g.scale_row_bytes;
    p.global = global.empty() ? nullptr : global.data();
    return p;
  };
  v.k = operand(l.k, l.k_data, l.k_scale, c.k_global);
  v.v = c.shared_kv ? v.k : operand(l.v, l.v_data, l.v_scale, c.v_global);
  v.group = c.q_heads / c.kv_heads;
  if (l.rank_one_bytes > 0) {
    v.rank_one = st.pool.data() + l.rank_one;
    v.rank_one_wide = c.recipe.rank_one == RankOne::split;
    v.rank_one_page_stride = l.page_bytes / (v.rank_one_wide ? 4 : 2);
    v.rank_one_head_stride = c.page_size * v.group;
  }
  if (l.v_mean_bytes > 0) {
    v.v_page_means = reinterpret_cast<const std::uint16_t*>(st.pool.data() + l.v_means);
    v.v_page_mean_page_stride = l.page_bytes / 2;
    v.v_page_mean_head_stride = c.head_dim_v;
  }
  v.page_table = st.table.data();
  v.page_table_stride = st.table_stride;
  v.lengths = st.lengths.data();
  v.sequences = st.views.data();
  return v;
}

const CacheConfig& PagedCache::config() const {
  return state_->config;
}
const std::vector<std::int64_t>& PagedCache::lengths() const {
  return state_->lengths;
}
const QuantiseCounters& PagedCache::counters() const {
  return state_->counters;
}
std::int64_t PagedCache::free_pages() const {
  return state_->pool.free_count();
}
std::byte* PagedCache::storage() {
  return state_->pool.data();
}
std::int64_t PagedCache::storage_bytes() const {
  return state_->pool.bytes();
}

std::int64_t PagedCache::memory_bytes() const {
  std::int64_t bytes = (state_->pool.num_pages() - state_->pool.free_count()) * state_->layout.page_bytes;
  for (const Sequence& s : state_->sequences) bytes += s.wide_bytes();
  return bytes;
}

}  // namespace mpfa
