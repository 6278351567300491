// Rows on their way into the cache: every row is read, centred, rotated and quantised while it is in the level-1 cache.
#include <algorithm>

#include "cache/convert.hpp"
#include "cache/row_ops.hpp"
#include "cache/state.hpp"
#include "threads/run_tasks.hpp"

namespace mpfa {
namespace {

float global_of(const std::vector<float>& global, std::int64_t head) {
  return global.empty() ? 1.0F : global[head];
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

void PagedCache::State::write_rank_one(const Place& place, std::int64_t head, const SequenceState& means,
                                       const float* key) {
  constexpr std::int64_t kMembers = 16;
  const std::int64_t group = config.q_heads / config.kv_heads;
  const std::int64_t at = (head * config.page_size + place.slot) * group;
  std::byte* base = pool.page(place.page) + layout.rank_one;
  for (std::int64_t m = 0; m < group; m += kMembers) {
    float terms[kMembers];
    const std::int64_t n = std::min(kMembers, group - m);
    rows::rank_one(means.q_mean.data() + (head * group + m) * config.head_dim, key, config.head_dim, n, terms);
    if (config.recipe.rank_one == RankOne::bf16) {
      for (std::int64_t i = 0; i < n; ++i) {
        reinterpret_cast<std::uint16_t*>(base)[at + m + i] = float_to_bf16(terms[i]);
      }
    } else {
      std::copy_n(terms, n, reinterpret_cast<float*>(base) + at + m);
    }
  }
}

void PagedCache::State::write_token(const NewTokens& tokens, std::int64_t t, const SequenceState& means,
                                    const Place& place, QuantiseCounters& met) {
  const Recipe& r = config.recipe;
  const RopeRow turn = rope_row(tokens, t);
  rows::Row row;
  const auto keep = [&](std::uint16_t* wide, std::uint16_t* sink, std::int64_t head, std::int64_t d) {
    rows::to_bf16(row.x, d, wide + head * d);
    if (sink != nullptr) std::copy_n(wide + head * d, d, sink + head * d);
  };
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    centred_key(config, means, tokens, t, h, turn, row.x);
    // From the unquantised K': from the codes it would put back the error that centring removed.
    if (r.rank_one != RankOne::off) write_rank_one(place, h, means, row.x);
    if (r.rotate != Rotate::none) rows::hadamard(row.x, config.head_dim);
    if (place.wide_k != nullptr) {
      keep(place.wide_k, place.sink_k, h, config.head_dim);
    } else {
      k_rows.write(place.slot, row.x, global_of(config.k_global, h), k_page(place.page, h), met);
    }
    if (config.shared_kv) continue;
    stored_value(config, means, tokens, t, h, row.x);
    if (place.wide_k != nullptr) {
      keep(place.wide_v, place.sink_v, h, config.head_dim_v);
    } else {
      v_rows.write(place.slot, row.x, global_of(config.v_global, h), v_page(place.page, h), met);
    }
  }
}

void PagedCache::State::write_range(WriteTask& task) {
  Sequence& s = *task.sequence;
  const std::int64_t k_row = config.kv_heads * config.head_dim;
  const std::int64_t v_row = wide_v_row();
  const std::int64_t first = s.length - task.tokens->n;
  const bool wide = keeps_wide_tokens(config.recipe);
  for (std::int64_t t = task.begin; t < task.end; ++t) {
    const std::int64_t token = first + t;
    Place place{s.pages[token / config.page_size], token % config.page_size};
    if (wide) {
      place.wide_k = s.wide_k.data() + (token - s.wide_begin) * k_row;
      place.wide_v = s.wide_v.data() + (token - s.wide_begin) * v_row;
      if (token < config.recipe.sink) {
        place.sink_k = s.sink_k.data() + token * k_row;
        place.sink_v = s.sink_v.data() + token * v_row;
      }
    }
    write_token(*task.tokens, t, s.state, place, task.counters);
  }
}

void PagedCache::State::pack_units(const WriteTask& task, bool keys, float* unit, QuantiseCounters& met) {
  const Sequence& s = *task.sequence;
  const BlockFormat& f = keys ? config.recipe.k : config.recipe.v;
  const std::int64_t d = keys ? config.head_dim : config.head_dim_v;
  const std::uint16_t* wide = keys ? s.wide_k.data() : s.wide_v.data();
  const formats::RowQuantiser& quantiser = keys ? k_rows : v_rows;
  const bool centred = !keys && layout.v_mean_bytes > 0;  // then the task is a whole page
  for (std::int64_t h = 0; h < config.kv_heads; ++h) {
    const auto row_of = [&](std::int64_t token) {
      return TensorView{wide + ((token - s.wide_begin) * config.kv_heads + h) * d, DType::bf16};
    };
    const std::int32_t id = s.pages[task.begin / config.page_size];
    const PageBytes page = keys ? k_page(id, h) : v_page(id, h);
    const float global = global_of(keys ? config.k_global : config.v_global, h);
    rows::Row row, mean;
    if (centred) take_page_mean(id, h, task.end - task.begin, row_of(task.begin), mean.x);
    for (std::int64_t token = task.begin; token < task.end; ++token) {
      rows::load(row_of(token), 0, 1, d, row.x);
      if (centred) rows::subtract(row.x, mean.x, d);
      const std::int64_t slot = token % config.page_size;
      if (packs_rows(f)) {
        quantiser.write(slot, row.x, global, page, met);
        continue;
      }
      const std::int64_t held = (token - task.begin) % f.block_keys + 1;
      std::copy_n(row.x, d, unit + (held - 1) * d);
      if (held < f.block_keys && token + 1 < task.end) continue;
      quantise_tokens(f, d, slot + 1 - held, held, unit, d, global, page, &met);
    }
  }
}

void PagedCache::State::pack_range(WriteTask& task, int worker) {
  float* const rows = units.data() + worker * unit_floats();
  pack_units(task, true, rows, task.counters);
  if (!config.shared_kv) pack_units(task, false, rows, task.counters);
}

void PagedCache::State::reserve_tasks(std::int64_t parts, std::int64_t tokens) {
  // A task is a page or less of a sequence: whole pages and two that are cut.
  tasks.reserve(static_cast<std::size_t>(tokens / config.page_size + 2 * parts));
  if (!keeps_wide_tokens(config.recipe)) return;
  const std::size_t size = threads::resolve_threads(config.threads) * unit_floats();
  if (units.size() < size) units.resize(size);
}

void PagedCache::State::add_tasks(Sequence& s, const NewTokens* tokens, std::int64_t begin, std::int64_t end,
                                  std::int64_t first) {
  while (begin < end) {
    const std::int64_t page_end = ((first + begin) / config.page_size + 1) * config.page_size - first;
    const std::int64_t stop = std::min(end, page_end);
    pool.add_tokens(s.pages[(first + begin) / config.page_size]);
    tasks.push_back({&s, tokens, begin, stop, {}});
    begin = stop;
  }
}

void PagedCache::State::add_packs(Sequence& s, std::int64_t end) {
  add_tasks(s, nullptr, s.packed_end, end, 0);
  s.packed_end = std::max(s.packed_end, end);
}

void PagedCache::State::run_writes(bool packs) {
  std::int64_t tokens = 0;
  for (const WriteTask& t : tasks) tokens += t.end - t.begin;
  int workers = threads_for(config, tokens * config.kv_heads * (config.head_dim + config.head_dim_v));
  if (packs) workers = std::min(workers, static_cast<int>(static_cast<std::int64_t>(units.size()) / unit_floats()));
  threads::run_tasks(config.executor, static_cast<std::int64_t>(tasks.size()), workers,
                     [&](std::int64_t i, int worker) { packs ? pack_range(tasks[i], worker) : write_range(tasks[i]); });
  for (const WriteTask& t : tasks) counters += t.counters;
  tasks.clear();
}

}  // namespace mpfa
