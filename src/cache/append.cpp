// Append: centre, rotate, keep what must stay in bf16, quantise the rest into pages. All or nothing.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "cache/state.hpp"
#include "text/heap_full.hpp"

namespace mpfa {
namespace {

/// reserve() that at least doubles, so that appending token by token stays linear.
template <class T>
void reserve_growing(std::vector<T>& v, std::size_t size) {
  if (v.capacity() < size) v.reserve(std::max(size, 2 * v.capacity()));
}

}  // namespace

void PagedCache::State::drop_wide(Sequence& s, std::int64_t keep) const {
  const std::int64_t drop = keep - s.wide_begin;
  if (drop <= 0) return;
  s.wide_k.erase(s.wide_k.begin(), s.wide_k.begin() + drop * config.kv_heads * config.head_dim);
  s.wide_v.erase(s.wide_v.begin(), s.wide_v.begin() + drop * wide_v_row());
  s.wide_begin = keep;
}

Fresh PagedCache::State::prepare(Sequence& s, NewTokens tokens, const TensorView* q) const {
  const Recipe& r = config.recipe;
  Fresh f{&s, tokens, {}};
  if (s.length == 0) measure(config, f.tokens, q, f.first.emplace(fixed));
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

void PagedCache::State::commit(std::span<Fresh> fresh) {
  const Recipe& r = config.recipe;
  const bool wide = keeps_wide_tokens(r);
  const std::int64_t k_row = config.kv_heads * config.head_dim;
  const std::int64_t v_row = wide_v_row();
  for (Fresh& f : fresh) {
    Sequence& s = *f.sequence;
    if (f.first) s.state = std::move(*f.first);
    const std::int64_t first = s.length;
    s.length += f.tokens.n;
    while (static_cast<std::int64_t>(s.pages.size()) * config.page_size < s.length) s.pages.push_back(pool.take());
    if (wide) {
      const std::int64_t sink = std::min(r.sink, s.length);
      s.wide_k.resize(static_cast<std::size_t>((s.length - s.wide_begin) * k_row));
      s.wide_v.resize(static_cast<std::size_t>((s.length - s.wide_begin) * v_row));
      s.sink_k.resize(static_cast<std::size_t>(sink * k_row));
      s.sink_v.resize(static_cast<std::size_t>(sink * v_row));
    } else {
      s.packed_end = s.wide_begin = s.length;
    }
    add_tasks(s, &f.tokens, 0, f.tokens.n, first);
  }
  run_writes(false);
  if (!wide) return;
  // Quantised from the bf16 copy, so that the bytes do not depend on how the tokens were cut into calls.
  for (Fresh& f : fresh) add_packs(*f.sequence, packed_after(*f.sequence, f.sequence->length));
  run_writes(true);
  // Rows of this call start at its first position and read nothing in bf16 before that. One key more is kept, so that
  // the whole call can be undone.
  for (Fresh& f : fresh) {
    Sequence& s = *f.sequence;
    drop_wide(s, packed_limit(s.length - f.tokens.n - 1, unit(), recent(), s.packed_end));
  }
}

Status PagedCache::State::query_positions(const Rope* rope, const TensorView& k, const std::int32_t* ids,
                                          const std::int64_t* counts, std::vector<std::int64_t>& positions) const {
  if (rope == nullptr || rope->q.data == nullptr) return {};
  const std::int64_t q_rows = rope->q.shape[1];
  positions.assign(static_cast<std::size_t>(k.shape[0] * q_rows), -1);
  for (std::int64_t i = 0; i < k.shape[0]; ++i) {
    const NewTokens tokens{k, {}, i, 0, sequences[ids == nullptr ? i : ids[i]].length, rope};
    const bool by_token = rope->q_positions == nullptr && counts != nullptr;
    for (std::int64_t r = 0; r < (by_token ? counts[i] : q_rows); ++r) {
      const std::int64_t at = tokens.q_position(r, q_rows);
      MPFA_RETURN_IF_ERROR(check_position("append", *rope, at, "query", r, i));
      positions[i * q_rows + r] = at;
    }
  }
  return {};
}

Status PagedCache::append(const TensorView& k, const TensorView& v, const TensorView* q, const std::int32_t* sequences,
                          const std::int64_t* counts, const Rope* rope) {
  return append_tokens(k, &v, q, sequences, counts, rope);
}

Status PagedCache::append(const TensorView& k, const TensorView* q, const std::int32_t* sequences,
                          const std::int64_t* counts, const Rope* rope) {
  return append_tokens(k, nullptr, q, sequences, counts, rope);
}

Status PagedCache::append_tokens(const TensorView& k, const TensorView* v, const TensorView* q,
                                 const std::int32_t* sequences, const std::int64_t* counts, const Rope* rope) try {
  State& st = *state_;
  const CacheConfig& c = st.config;
  MPFA_RETURN_IF_ERROR(check_values("append", st.config, v != nullptr));
  const TensorView values = v == nullptr ? TensorView{} : *v;
  const std::int64_t n = k.shape[0];
  const std::int64_t tokens = k.shape[1];
  if (n < 0 || tokens < 0 || (sequences == nullptr && n != c.batch)) {
    return {StatusCode::invalid_argument,
            fmt::format("append: k has {} sequences, the cache has {}; name the sequences or pass all of them", n,
                        c.batch)};
  }
  MPFA_RETURN_IF_ERROR(check_tokens("append", "k", k, n, tokens, c.kv_heads, c.head_dim));
  if (v != nullptr) MPFA_RETURN_IF_ERROR(check_tokens("append", "v", *v, n, tokens, c.kv_heads, c.head_dim_v));
  if (rope != nullptr) {
    MPFA_RETURN_IF_ERROR(check_rope("append", *rope, c));
    if (rope->q.data != nullptr) {
      MPFA_RETURN_IF_ERROR(check_queries("append", *rope, n, tokens, c.q_heads, c.head_dim));
    }
  }
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
    for (std::int64_t t = 0; rope != nullptr && t < count; ++t) {
      const std::int64_t at = NewTokens{k, values, i, count, s.length, rope}.position(t);
      MPFA_RETURN_IF_ERROR(check_position("append", *rope, at, "token", t, i));
    }
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
  std::vector<std::int64_t> turns;
  std::int64_t unpacked = 0;
  try {
    MPFA_RETURN_IF_ERROR(st.query_positions(rope, k, sequences, counts, turns));
    fresh.reserve(static_cast<std::size_t>(n));
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
      fresh.push_back(st.prepare(s, {k, values, i, count, s.length, rope}, q));
      unpacked += s.length + count - s.packed_end;
    }
    st.reserve_tasks(n, unpacked);
    st.reserve_table(pages);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory,
            fmt::format("append: {} tokens of {} sequences do not fit in memory; append less", tokens, n)};
  }
  st.unshare(shared);
  st.commit(fresh);
  if (rope != nullptr && !turns.empty()) rotate_queries(c, *rope, turns);
  st.refresh();
  return {};
} catch (const std::bad_alloc&) {
  return heap_full("append");
}

Status PagedCache::seal() {
  State& st = *state_;
  if (!st.config.recipe.phase_switch || st.sealed) return {};
  const auto packed = [&](const Sequence& s) { return packed_limit(s.length - 1, st.unit(), st.recent(), s.length); };
  std::vector<SharedWrite> shared;
  std::int64_t unpacked = 0;
  try {
    for (Sequence& s : st.sequences) {
      st.find_shared_writes(s, packed(s), s.length, shared);
      unpacked += s.length - s.packed_end;
    }
    st.reserve_tasks(st.config.batch, unpacked);
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
  for (Sequence& s : st.sequences) st.add_packs(s, packed(s));
  st.run_writes(true);
  for (Sequence& s : st.sequences) {
    st.drop_wide(s, s.packed_end);
    s.wide_k.shrink_to_fit();  // the whole prefill was in there
    s.wide_v.shrink_to_fit();
  }
  st.refresh();
  return {};
}

}  // namespace mpfa
