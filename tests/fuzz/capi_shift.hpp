// Keys that turn where they lie and tokens that leave the middle of a sequence. The reference reads the sequence before
// and after: a query turned along with its keys, or a mask over what is removed, must give the same result.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "mpfa/reference.hpp"
#include "tests/fuzz/capi_rope.hpp"
#include "tests/fuzz/capi_world.hpp"

namespace mpfa::fuzz {

inline double tolerance(const Recipe& r) {
  if (r.p == PMode::f32 && !keeps_wide_tokens(r)) return 1e-4;
  return r.p == PMode::f32 || r.p == PMode::bf16 ? 2e-2 : r.p <= PMode::e4m3_loglin ? 8e-2 : 0.4;
}

/// Row of q [q_heads, head_dim] for every sequence, keys [begin, end) masked in all of them, in float64.
inline std::vector<double> read(const World& w, const std::vector<float>& q, std::int64_t begin, std::int64_t end) {
  const CacheConfig& c = w.cache->cache.config();
  const std::vector<std::int64_t>& lengths = w.cache->cache.lengths();
  AttentionProblem p;
  p.recipe = c.recipe;
  p.batch = c.batch;
  p.max_kv = std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  p.q_heads = c.q_heads;
  p.kv_heads = c.kv_heads;
  p.head_dim = c.head_dim;
  p.head_dim_v = c.head_dim_v;
  p.page_size = c.page_size;
  std::vector<std::uint8_t> keep(static_cast<std::size_t>(p.max_kv), 1);
  for (std::int64_t i = begin; i < end; ++i) keep[static_cast<std::size_t>(i)] = 0;
  AttentionTensors t;
  t.q = contiguous(static_cast<const void*>(q.data()), DType::f32, {c.batch, 1, c.q_heads, c.head_dim});
  t.q.stride[0] = 0;
  if (begin < end) {
    p.mask = MaskTensor::boolean;
    t.mask = contiguous(static_cast<const void*>(keep.data()), DType::u8, {1, 1, 1, p.max_kv});
  }
  t.cache = w.cache->cache.view();
  std::vector<double> out, lse;
  const Status s = reference::attend(p, t, reference::Precision::f64, out, lse);
  require(s.ok(), s.message().c_str());
  return out;
}

inline void require_close(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  for (std::size_t i = 0; i < a.size(); ++i)
    require(std::abs(a[i] - b[i]) <= bound, "a moved sequence reads otherwise");
}

inline std::vector<float> query(const World& w) {
  std::vector<float> q(static_cast<std::size_t>(w.config.q_heads * w.config.head_dim));
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = number(13, i);
  return q;
}

inline std::int64_t any_sequence(Input& in, const World& w) {
  return in.rarely(8) ? in.size(0, 2) : in.between(0, w.config.batch - 1);
}
/// Mostly one that the sequence has.
inline std::int64_t any_token(Input& in, const World& w, std::int64_t sequence) {
  const bool known = sequence >= 0 && sequence < w.config.batch && !in.rarely(8);
  return in.size(0, known ? std::min<std::int64_t>(w.cache->cache.lengths()[sequence], 200) : 60);
}

inline void shift(Input& in, World& w) {
  const std::int64_t a = any_sequence(in, w), from = in.coin() ? 0 : any_token(in, w, a), delta = in.size(-40, 40);
  RopeInput rope(in, w.config);
  if (in.rarely(256)) rope.of_tokens(in, w.config, 1, 1);
  const BlockFormat k = w.cache->cache.config().recipe.k;
  const bool exact = k.element == Element::f32 && !w.wild && from == 0;
  std::vector<float> q = query(w);
  const std::vector<double> before = exact ? read(w, q, 0, 0) : std::vector<double>();
  if (!w.both([&](mpfa_cache* c, mpfa_error* e) { return mpfa_cache_shift(c, a, from, delta, &rope.rope, e); })) return;
  if (!exact) return;
  for (std::int64_t h = 0; h < w.config.q_heads; ++h) rope.turn_by(q.data() + h * w.config.head_dim, delta);
  const std::vector<double> after = read(w, q, 0, 0);
  const auto row = static_cast<std::ptrdiff_t>(after.size()) / w.config.batch;
  require_close({before.begin() + a * row, before.begin() + (a + 1) * row},
                {after.begin() + a * row, after.begin() + (a + 1) * row}, 5e-2);  // q is rounded to bf16 after the turn
}

inline void remove(Input& in, World& w) {
  const std::int64_t a = any_sequence(in, w), begin = any_token(in, w, a);
  const std::int64_t end = in.coin() ? std::clamp<std::int64_t>(begin, -1, 60) + 1 : any_token(in, w, a);
  std::optional<RopeInput> rope;
  if (in.coin()) rope.emplace(in, w.config);
  const std::vector<std::int64_t> lengths = w.cache->cache.lengths();
  const bool inside = a >= 0 && a < w.config.batch && begin >= 0 && begin <= end && end <= lengths[a];
  // Where keys share a scale there are no masks, and no removal.
  const CacheConfig& config = w.cache->cache.config();
  const bool compared = inside && !rope && !w.wild && commit_unit(config.recipe, config.page_size) == 1;
  const std::vector<float> q = query(w);
  const std::vector<double> before = compared ? read(w, q, begin, end) : std::vector<double>();
  const bool ok = w.both([&](mpfa_cache* c, mpfa_error* e) {
    return mpfa_cache_remove(c, a, begin, end, rope ? &rope->rope : nullptr, e);
  });
  require(!ok || inside, "tokens outside of the sequence were removed");
  if (ok) require(w.cache->cache.lengths()[a] == lengths[a] - (end - begin), "a wrong length after a removal");
  if (!ok || !compared) return;
  const std::vector<double> after = read(w, q, 0, 0);
  const Recipe& r = config.recipe;
  // Tokens may be read as bf16 that were read as codes, and P is rounded in other groups.
  const double bound = 4 * (keeps_wide_tokens(r) ? 0.4 : tolerance(r));
  const auto row = static_cast<std::ptrdiff_t>(after.size()) / w.config.batch;
  require_close({before.begin() + a * row, before.begin() + (a + 1) * row},
                {after.begin() + a * row, after.begin() + (a + 1) * row}, bound);
}

}  // namespace mpfa::fuzz
