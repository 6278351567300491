// Context shift: keys turned to other positions where they lie, and tokens removed from the middle of a sequence.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "cache/row_ops.hpp"
#include "cache/state.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {
namespace {

/// ok when the row |delta| of the tables is a rotation.
Status check_delta(const char* call, const Rope& rope, std::int64_t delta, const CacheConfig& config) {
  MPFA_RETURN_IF_ERROR(check_rope(call, rope, config));
  if (rope.q.data != nullptr) {
    return {StatusCode::invalid_argument,
            fmt::format("{}: rope.q is given, but stored keys are all that turns; leave it empty", call)};
  }
  const std::int64_t rows = rope.cos.shape[0];
  if (delta <= -rows || delta >= rows) {
    return {StatusCode::out_of_range,
            fmt::format("{}: keys turn by {} positions; rope.cos and rope.sin have rows 0..{} "
                        "and the row of the distance is needed, pass longer tables",
                        call, delta, rows - 1)};
  }
  if (RopeRow turn; !turn.set_delta(rope, delta)) {
    return {StatusCode::invalid_argument,
            fmt::format("{}: row {} of rope.cos and rope.sin has a pair that is 0 or not finite, which is no rotation; "
                        "pass the cosines and sines of the angles",
                        call, std::abs(delta))};
  }
  return {};
}

Status check_rows(const char* call, const char* name, const BlockFormat& f) {
  if (packs_rows(f)) return {};
  return {StatusCode::unsupported,
          fmt::format("{}: {} is stored as {}, where {} tokens share a scale and cannot be moved apart; free the "
                      "sequence and append it again, or use a format whose blocks lie along the head dim",
                      call, name, format_name(f), f.block_keys)};
}

}  // namespace

void PagedCache::State::move_token(const Move& m, std::int64_t from, std::int64_t to, std::int64_t head,
                                   QuantiseCounters& met) {
  Sequence& s = *m.sequence;
  const auto place = [&](std::int64_t token) {
    return Place{s.pages[token / config.page_size], token % config.page_size};
  };
  const Place source = place(from), target = place(to);
  const bool packed = from < s.packed_end;
  const auto wide_row = [&](std::vector<std::uint16_t>& wide, std::int64_t token, std::int64_t begin, std::int64_t d) {
    return wide.data() + ((token - begin) * config.kv_heads + head) * d;
  };
  const auto copy_codes = [&](const PageBytes& a, const PageBytes& b, const PageGeometry& g) {
    if (!packed || from == to) return;
    std::memcpy(b.data + target.slot * g.data_row_bytes, a.data + source.slot * g.data_row_bytes, g.data_row_bytes);
    if (g.scale_rows == 0) return;
    std::memcpy(b.scales + target.slot * g.scale_row_bytes, a.scales + source.slot * g.scale_row_bytes,
                g.scale_row_bytes);
  };
  const auto copy_wide = [&](std::vector<std::uint16_t>& wide, std::int64_t d) {
    if (from < s.wide_begin) return;
    const std::uint16_t* a = wide_row(wide, from, s.wide_begin, d);
    std::uint16_t* b = wide_row(wide, to, m.wide_begin, d);
    if (a != b) std::copy_n(a, d, b);
  };
  if (!config.shared_kv) {
    copy_codes(v_page(source.page, head), v_page(target.page, head), layout.v);
    copy_wide(s.wide_v, config.head_dim_v);
  }
  const PageBytes keys = k_page(target.page, head);
  if (m.turn == nullptr) {
    copy_codes(k_page(source.page, head), keys, layout.k);
    copy_wide(s.wide_k, config.head_dim);
    copy_rank_one(source, target, head);
    return;
  }
  const std::int64_t d = config.head_dim;
  const bool rotated = config.recipe.rotate != Rotate::none;
  const float* mean = s.state.k_mean.empty() ? nullptr : s.state.k_mean.data() + head * d;
  const float global = config.k_global.empty() ? 1.0F : config.k_global[head];
  rows::Row row;
  std::uint16_t* const wide = from >= s.wide_begin ? wide_row(s.wide_k, from, s.wide_begin, d) : nullptr;
  std::uint16_t* const sink = from < config.recipe.sink ? wide_row(s.sink_k, from, 0, d) : nullptr;
  if (const std::uint16_t* copy = wide != nullptr ? wide : sink; copy != nullptr) {
    rows::load({copy, DType::bf16}, 0, 1, d, row.x);
  } else {
    std::fill_n(row.x + d, formats::padded_row(d) - d, 0.0F);
    dequantise_tokens(config.recipe.k, d, source.slot, 1, k_page(source.page, head), global, row.x, d, 1);
  }
  if (rotated) rows::hadamard(row.x, d);
  if (mean != nullptr) rows::add(row.x, mean, d);
  m.turn->turn(row.x);
  if (mean != nullptr) rows::subtract(row.x, mean, d);
  if (config.recipe.rank_one != RankOne::off) write_rank_one(target, head, s.state, row.x);
  if (rotated) rows::hadamard(row.x, d);
  if (wide != nullptr || sink != nullptr) {
    std::uint16_t* copy = wide != nullptr ? wide_row(s.wide_k, to, m.wide_begin, d) : sink;
    rows::to_bf16(row.x, d, copy);
    if (wide != nullptr && sink != nullptr) std::copy_n(copy, d, sink);
    rows::load({copy, DType::bf16}, 0, 1, d, row.x);  // codes are made from the bf16 copy where there is one
  }
  if (packed) k_rows.write(target.slot, row.x, global, keys, met);
}

void PagedCache::State::copy_rank_one(const Place& source, const Place& target, std::int64_t head) {
  if (config.recipe.rank_one == RankOne::off) return;
  const std::int64_t bytes = layout.rank_one_bytes / config.kv_heads / config.page_size;
  const auto at = [&](const Place& p) {
    return pool.page(p.page) + layout.rank_one + (head * config.page_size + p.slot) * bytes;
  };
  std::memmove(at(target), at(source), static_cast<std::size_t>(bytes));
}

Status PagedCache::State::move_tokens(const char* call, Move m, std::int64_t first, std::int64_t target) {
  Sequence& s = *m.sequence;
  const std::int64_t length = s.length - (first - target);
  std::vector<SharedWrite> shared;
  std::vector<QuantiseCounters> met;
  try {
    met.resize(static_cast<std::size_t>(config.kv_heads));
    for (std::int64_t i = target / config.page_size; i * config.page_size < length; ++i) {
      if (pool.uses(s.pages[i]) > 1) shared.push_back({&s, i});
    }
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, fmt::format("{}: the list of shared pages does not fit in memory", call)};
  }
  // A page that is left behind may be the copy that is needed.
  const auto kept = static_cast<std::size_t>((length + config.page_size - 1) / config.page_size);
  if (const std::int64_t needed = copies_needed(shared); needed > pool.free_count()) {
    return {StatusCode::out_of_memory,
            fmt::format("{}: {} pages that forks share must be copied before they are written, {} are free; grow the "
                        "cache or free a sequence",
                        call, needed, pool.free_count())};
  }
  // The last pages are read, so they go back after the move; shared ones among them are not written.
  unshare(shared);
  for (auto i = static_cast<std::size_t>(target / config.page_size); i < kept; ++i) pool.renew(s.pages[i]);
  const std::int64_t elements = (s.length - first) * config.kv_heads * (config.head_dim + config.head_dim_v);
  threads::run_tasks(config.executor, config.kv_heads, threads_for(config, elements), [&](std::int64_t head, int) {
    for (std::int64_t t = first; t < s.length; ++t) move_token(m, t, t - (first - target), head, met[head]);
  });
  for (const QuantiseCounters& c : met) counters += c;
  for (std::size_t i = kept; i < s.pages.size(); ++i) pool.give(s.pages[i]);
  s.pages.resize(kept);
  s.packed_end = m.packed_end;
  s.wide_begin = m.wide_begin;
  s.length = length;
  if (keeps_wide_tokens(config.recipe)) {
    s.wide_k.resize(static_cast<std::size_t>((length - s.wide_begin) * config.kv_heads * config.head_dim));
    s.wide_v.resize(static_cast<std::size_t>((length - s.wide_begin) * wide_v_row()));
  }
  refresh();
  return {};
}

Status PagedCache::shift(std::int64_t sequence, std::int64_t from, std::int64_t delta, const Rope& rope) {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_sequence("shift", sequence));
  Sequence& s = st.sequences[sequence];
  if (from < 0 || from > s.length) {
    return {StatusCode::out_of_range,
            fmt::format("shift: token {} is not in 0..{}, the length of the sequence", from, s.length)};
  }
  MPFA_RETURN_IF_ERROR(check_rows("shift", "K", st.config.recipe.k));
  MPFA_RETURN_IF_ERROR(check_delta("shift", rope, delta, st.config));
  if (delta == 0 || from == s.length) return {};
  RopeRow turn;
  (void)turn.set_delta(rope, delta);
  return st.move_tokens("shift", {&s, &turn, s.packed_end, s.wide_begin}, from, from);
}

Status PagedCache::remove(std::int64_t sequence, std::int64_t begin, std::int64_t end, const Rope* rope) {
  State& st = *state_;
  MPFA_RETURN_IF_ERROR(st.check_sequence("remove", sequence));
  Sequence& s = st.sequences[sequence];
  if (begin < 0 || begin > end || end > s.length) {
    return {StatusCode::out_of_range,
            fmt::format("remove: tokens [{}, {}) are not in 0..{}, the length of the sequence", begin, end, s.length)};
  }
  const Recipe& r = st.config.recipe;
  const std::int64_t count = end - begin;
  MPFA_RETURN_IF_ERROR(check_rows("remove", "K", r.k));
  MPFA_RETURN_IF_ERROR(check_rows("remove", "V", r.v));
  if (r.v_mean == VMean::page) {
    return {StatusCode::unsupported,
            "remove: v_mean=page keeps one mean for the tokens of a page, which cannot be moved apart; free the "
            "sequence and append it again, or use another v_mean"};
  }
  if (rope != nullptr) MPFA_RETURN_IF_ERROR(check_delta("remove", *rope, -count, st.config));
  if (count == 0) return {};
  if (count == s.length) return free_sequence(sequence);
  if (begin < r.sink) {
    return {
        StatusCode::invalid_argument,
        fmt::format("remove: tokens from {} on; the first {} stay in 16 bits by recipe {}, and no later token could "
                    "take their place; begin at {}",
                    begin, r.sink, recipe_text(r), r.sink)};
  }
  const auto moved = [&](std::int64_t t) { return t <= begin ? t : t < end ? begin : t - count; };
  const std::int64_t length = s.length - count;
  const std::int64_t packed = packed_limit(length - 1, 1, st.recent(), moved(s.packed_end));
  const std::int64_t wide = keeps_wide_tokens(r) ? moved(s.wide_begin) : length;
  if (packed < wide && wide > r.sink) {
    return {
        StatusCode::invalid_argument,
        fmt::format("remove: at {} tokens the recipe has tokens from {} on in 16 bits, but those before {} exist as "
                    "codes only; remove tokens before {}",
                    length, packed, wide, s.wide_begin)};
  }
  RopeRow turn;
  if (rope != nullptr) (void)turn.set_delta(*rope, -count);
  return st.move_tokens("remove", {&s, rope == nullptr ? nullptr : &turn, packed, wide}, end, begin);
}

}  // namespace mpfa
