// Append: centre, rotate, keep what must stay in bf16, quantise the rest into pages. All or nothing.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/convert.hpp"
#include "cache/state.hpp"

namespace mpfa {
namespace {

/// reserve() that at least doubles, so that appending token by token stays linear.
template <class T>
void reserve_growing(std::vector<T>& v, std::size_t size) {
  if (v.capacity() < size) v.reserve(std::max(size, 2 * v.capacity()));
}

void append_bf16(std::vector<std::uint16_t>& out, const std::vector<float>& x, std::int64_t heads, std::int64_t n,
                 std::int64_t d, std::int64_t take) {
  for (std::int64_t t = 0; t < take; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* row = x.data() + (h * n + t) * d;
      for (std::int64_t c = 0; c < d; ++c) out.push_back(float_to_bf16(row[c]));
    }
  }
}

}  // namespace

PageBytes PagedCache::State::k_page(std::int32_t page, std::int64_t head) {
  std::byte* base = pool.page(page);
  return {base + layout.k_data + head * layout.k.data_bytes(), layout.k.data_row_bytes,
          base + layout.k_scale + head * layout.k.scale_bytes(), layout.k.scale_row_bytes};
}

PageBytes PagedCache::State::v_page(std::int32_t page, std::int64_t head) {
  std::byte* base = pool.page(page);
  return {base + layout.v_data + head * layout.v.data_bytes(), layout.v.data_row_bytes,
          base + layout.v_scale + head * layout.v.scale_bytes(), layout.v.scale_row_bytes};
}

void PagedCache::State::write_rows(std::int32_t page, std::int64_t slot, std::int64_t count, const float* k,
                                   const float* v, std::int64_t head_rows, std::int64_t row) {
  const auto global = [](const std::vector<float>& g, std::int64_t h) { return g.empty() ? 1.0F : g[h]; };
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    const std::int64_t at = h * head_rows + row;
    quantise_tokens(config.recipe.k, config.head_dim, slot, count, k + at * config.head_dim, config.head_dim,
                    global(config.k_global, h), k_page(page, h), &counters);
    if (config.shared_kv) continue;
    quantise_tokens(config.recipe.v, config.head_dim_v, slot, count, v + at * config.head_dim_v, config.head_dim_v,
                    global(config.v_global, h), v_page(page, h), &counters);
  }
}

void PagedCache::State::pack(Sequence& s, std::int64_t first, std::int64_t n, const float* k, const float* v,
                             std::int64_t head_rows, std::int64_t row0) {
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t token = first + done;
    const std::int64_t slot = token % config.page_size;
    const std::int64_t count = std::min(n - done, config.page_size - slot);
    write_rows(s.pages[token / config.page_size], slot, count, k, v, head_rows, row0 + done);
    done += count;
  }
  s.packed_end = first + n;
}

void PagedCache::State::pack_wide(Sequence& s, std::int64_t end) {
  const std::int64_t unit = commit_unit(config.recipe, config.page_size);
  const auto widen = [&](const std::vector<std::uint16_t>& wide, std::int64_t d, std::int64_t first, std::int64_t n,
                         float* rows) {
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < config.kv_heads; ++h) {
        const std::uint16_t* from = wide.data() + ((first + t - s.wide_begin) * config.kv_heads + h) * d;
        for (std::int64_t c = 0; c < d; ++c) rows[(h * n + t) * d + c] = bf16_to_float(from[c]);
      }
    }
  };
  while (s.packed_end < end) {
    const std::int64_t n = std::min(unit, end - s.packed_end);
    widen(s.wide_k, config.head_dim, s.packed_end, n, unit_k.data());
    if (!config.shared_kv) widen(s.wide_v, config.head_dim_v, s.packed_end, n, unit_v.data());
    if (layout.v_mean_bytes > 0) take_page_means(s.pages[s.packed_end / config.page_size]);
    pack(s, s.packed_end, n, unit_k.data(), unit_v.data(), n, 0);
  }
}

void PagedCache::State::write_rank_one(std::int32_t page, std::int64_t slot, const NewTokens& tokens, std::int64_t t) {
  if (tokens.rank_one.empty()) return;
  const std::int64_t group = config.q_heads / config.kv_heads;
  std::byte* base = pool.page(page) + layout.rank_one;
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    const float* from = tokens.rank_one.data() + (h * tokens.n + t) * group;
    const std::int64_t at = (h * config.page_size + slot) * group;
    for (std::int64_t m = 0; m < group; ++m) {
      if (config.recipe.rank_one == RankOne::bf16) {
        reinterpret_cast<std::uint16_t*>(base)[at + m] = float_to_bf16(from[m]);
      } else {
        reinterpret_cast<float*>(base)[at + m] = from[m];
      }
    }
  }
}

void PagedCache::State::store_rank_one(const Sequence& s, std::int64_t first, const NewTokens& tokens) {
  for (std::int64_t t = 0; t < tokens.n; ++t) {
    const std::int64_t token = first + t;
    write_rank_one(s.pages[token / config.page_size], token % config.page_size, tokens, t);
  }
}

void PagedCache::State::drop_wide(Sequence& s, std::int64_t keep) const {
  const std::int64_t drop = keep - s.wide_begin;
  if (drop <= 0) return;
  s.wide_k.erase(s.wide_k.begin(), s.wide_k.begin() + drop * config.kv_heads * config.head_dim);
  s.wide_v.erase(s.wide_v.begin(), s.wide_v.begin() + drop * wide_v_row());
  s.wide_begin = keep;
}

Fresh PagedCache::State::prepare(Sequence& s, NewTokens tokens, const TensorView* q, std::int64_t row) const {
  const Recipe& r = config.recipe;
  Fresh f{&s, std::move(tokens), s.state};
  if (s.length == 0) set_means(config, f.tokens, q, row, f.state);
  transform_tokens(config, f.state, f.tokens);
  if (s.length == 0 && r.v_residual) fit_v_residual(config, f.tokens, f.state);
  const auto end = static_cast<std::size_t>(s.length + f.tokens.n);
  reserve_growing(s.pages, (end + config.page_size - 1) / config.page_size);
  if (keeps_wide_tokens(r)) {
    const std::size_t wide = end - s.wide_begin;
    reserve_growing(s.wide_k, wide * config.kv_heads * config.head_dim);
    reserve_growing(s.wide_v, wide * wide_v_row());
    reserve_growing(s.sink_k, static_cast<std::size_t>(r.sink * config.kv_heads * config.head_dim));
    reserve_growing(s.sink_v, static_cast<std::size_t>(r.sink * wide_v_row()));
  }
  return f;
}

void PagedCache::State::commit(Fresh& fresh) {
  const Recipe& r = config.recipe;
  Sequence& s = *fresh.sequence;
  const NewTokens& tokens = fresh.tokens;
  s.state = std::move(fresh.state);
  const std::int64_t first = s.length;
  const std::int64_t end = first + tokens.n;
  while (static_cast<std::int64_t>(s.pages.size()) * config.page_size < end) s.pages.push_back(pool.take());
  store_rank_one(s, first, tokens);
  s.length = end;
  if (!keeps_wide_tokens(r)) {
    pack(s, first, tokens.n, tokens.k.data(), tokens.v.data(), tokens.n, 0);
    s.wide_begin = end;
    return;
  }
  // Quantised from the bf16 copy, so that the bytes do not depend on how the tokens were cut into calls.
  append_bf16(s.wide_k, tokens.k, config.kv_heads, tokens.n, config.head_dim, tokens.n);
  if (!config.shared_kv) append_bf16(s.wide_v, tokens.v, config.kv_heads, tokens.n, config.head_dim_v, tokens.n);
  const std::int64_t to_sink = std::clamp<std::int64_t>(r.sink - first, 0, tokens.n);
  append_bf16(s.sink_k, tokens.k, config.kv_heads, tokens.n, config.head_dim, to_sink);
  if (!config.shared_kv) append_bf16(s.sink_v, tokens.v, config.kv_heads, tokens.n, config.head_dim_v, to_sink);
  pack_wide(s, packed_after(s, end));
  // Rows of this call start at position `first` and read nothing in bf16 before that. One key more is kept, so that
  // the whole call can be undone.
  drop_wide(s, packed_limit(first - 1, commit_unit(r, config.page_size), recent(), s.packed_end));
}

Status PagedCache::append(const TensorView& k, const TensorView& v, const TensorView* q, const std::int32_t* sequences,
                          const std::int64_t* counts) {
  return append_tokens(k, &v, q, sequences, counts);
}

Status PagedCache::append(const TensorView& k, const TensorView* q, const std::int32_t* sequences,
                          const std::int64_t* counts) {
  return append_tokens(k, nullptr, q, sequences, counts);
}

Status PagedCache::append_tokens(const TensorView& k, const TensorView* v, const TensorView* q,
                                 const std::int32_t* sequences, const std::int64_t* counts) {
  State& st = *state_;
  const CacheConfig& c = st.config;
  MPFA_RETURN_IF_ERROR(st.check_values("append", v != nullptr));
  const std::int64_t n = k.shape[0];
  const std::int64_t tokens = k.shape[1];
  if (n < 0 || tokens < 0 || (sequences == nullptr && n != c.batch)) {
    return {StatusCode::invalid_argument,
            fmt::format("append: k has {} sequences, the cache has {}; name the sequences or pass all of them", n,
                        c.batch)};
  }
  MPFA_RETURN_IF_ERROR(check_tokens("append", "k", k, n, tokens, c.kv_heads, c.head_dim));
  if (v != nullptr) MPFA_RETURN_IF_ERROR(check_tokens("append", "v", *v, n, tokens, c.kv_heads, c.head_dim_v));
  std::vector<bool> seen(st.sequences.size(), false);
  std::int64_t pages = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t id = sequences == nullptr ? i : sequences[i];
    if (id < 0 || id >= c.batch || seen[id]) {
      return {StatusCode::out_of_range,
              fmt::format("append: sequence {} is {}; ids are in 0..{}, each at most once", id,
                          id < 0 || id >= c.batch ? "out of range" : "given twice", c.batch - 1)};
    }
    seen[id] = true;
    const std::int64_t count = counts == nullptr ? tokens : counts[i];
    if (count < 0 || count > tokens) {
      return {StatusCode::out_of_range,
              fmt::format("append: counts[{}] is {}; it must be in 0..{} (the tokens given)", i, count, tokens)};
    }
    const Sequence& s = st.sequences[id];
    if (c.recipe.q_centre == QCentre::mean && s.length == 0 && count > 0) {
      if (q == nullptr) {
        return {
            StatusCode::invalid_argument,
            fmt::format("append: recipe {} takes the query mean from the first append; pass q [sequences, tokens, {}, "
                        "{}], or use q_centre=static",
                        recipe_text(c.recipe), c.q_heads, c.head_dim)};
      }
      MPFA_RETURN_IF_ERROR(check_tokens("append", "q", *q, n, tokens, c.q_heads, c.head_dim));
    }
    pages += (s.length + count + c.page_size - 1) / c.page_size - static_cast<std::int64_t>(s.pages.size());
  }
  // Everything that allocates comes first; what follows cannot fail.
  std::vector<Fresh> fresh;
  std::vector<SharedWrite> shared;
  try {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t count = counts == nullptr ? tokens : counts[i];
      if (count == 0) continue;
      Sequence& s = st.sequences[sequences == nullptr ? i : sequences[i]];
      st.find_shared_writes(s, st.packed_after(s, s.length + count), s.length + count, shared);
    }
    const std::int64_t needed = pages + st.copies_needed(shared);
    if (needed > st.pool.free_count()) {
      return {
          StatusCode::out_of_memory,
          fmt::format("append: {} more pages of {} tokens are needed, {} are free; grow the cache, free a sequence, or "
                      "append less",
                      needed, c.page_size, st.pool.free_count())};
    }
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t count = counts == nullptr ? tokens : counts[i];
      if (count == 0) continue;
      Sequence& s = st.sequences[sequences == nullptr ? i : sequences[i]];
      fresh.push_back(st.prepare(s, load_tokens(k, v, i, count), q, i));
    }
    st.reserve_table(pages);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory,
            fmt::format("append: {} tokens of {} sequences do not fit in memory; append less", tokens, n)};
  }
  st.unshare(shared);
  for (Fresh& f : fresh) st.commit(f);
  st.refresh();
  return {};
}

Status PagedCache::seal() {
  State& st = *state_;
  if (!st.config.recipe.phase_switch || st.sealed) return {};
  const auto packed = [&](const Sequence& s) {
    return packed_limit(s.length - 1, commit_unit(st.config.recipe, st.config.page_size), st.recent(), s.length);
  };
  std::vector<SharedWrite> shared;
  try {
    for (Sequence& s : st.sequences) st.find_shared_writes(s, packed(s), s.length, shared);
    if (const std::int64_t needed = st.copies_needed(shared); needed > st.pool.free_count()) {
      return {StatusCode::out_of_memory,
              fmt::format("seal: {} pages that forks share must be copied before they are written, {} are free; grow "
                          "the cache or free a sequence",
                          needed, st.pool.free_count())};
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "seal: the list of shared pages does not fit in memory; free a sequence"};
  }
  st.unshare(shared);
  st.sealed = true;
  for (Sequence& s : st.sequences) {
    st.pack_wide(s, packed(s));
    st.drop_wide(s, s.packed_end);
    s.wide_k.shrink_to_fit();  // the whole prefill was in there
    s.wide_v.shrink_to_fit();
  }
  st.refresh();
  return {};
}

}  // namespace mpfa
