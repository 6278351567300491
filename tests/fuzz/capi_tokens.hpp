// Tokens on their way into a cache: appends and writes by slot, with and without rotary embedding, in every dtype. The
// twin gets them rotated and as float32.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "tests/fuzz/capi_rope.hpp"
#include "tests/fuzz/capi_world.hpp"

namespace mpfa::fuzz {

/// [n, s, heads, widest] numbers that K, V and q of a call all read, as the caller's bits and as float32.
class TokenData {
 public:
  mpfa_dtype dtype = MPFA_F32;
  std::int64_t n, s, heads, widest;
  std::vector<float> values, rotated;

  TokenData(Input& in, World& w, std::int64_t n_in, std::int64_t s_in, bool finite)
      : n(n_in), s(s_in), heads(std::max(w.config.q_heads, w.config.kv_heads)) {
    constexpr mpfa_dtype kTypes[] = {MPFA_F32, MPFA_F32, MPFA_BF16, MPFA_F16};
    dtype = in.pick(kTypes);
    widest = std::max(w.config.head_dim, w.config.head_dim_v) + in.between(0, 5);
    const std::uint64_t seed = in.bits(2);
    values.resize(static_cast<std::size_t>(n * s * heads * widest));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = number(seed, i);
      if (finite || dtype != MPFA_F32 || seed % 16 != 0 || i % 37 != 5) continue;
      w.wild = true;
      constexpr float kWild[] = {NAN, INFINITY, -INFINITY, 3e38F, 1e-42F};
      values[i] = in.pick(kWild);
    }
    for (std::size_t i = 0; dtype != MPFA_F32 && i < values.size(); ++i) {
      const bool bf16 = dtype == MPFA_BF16;
      codes_.push_back(to_sixteen(bf16, values[i]));
      values[i] = from_sixteen(bf16, codes_.back());
    }
    rotated = values;
    before_ = values;
    codes_before_ = codes_;
  }

  /// What the caller passes.
  mpfa_tensor given(std::int64_t h, std::int64_t d) {
    return tensor(dtype == MPFA_F32 ? static_cast<void*>(values.data()) : codes_.data(), dtype, h, d);
  }
  /// The same numbers, rotated, as float32.
  mpfa_tensor turned(std::int64_t h, std::int64_t d) { return tensor(rotated.data(), MPFA_F32, h, d); }
  mpfa_tensor plain(std::int64_t h, std::int64_t d) { return tensor(values.data(), MPFA_F32, h, d); }

  void turn(const RopeInput& rope, std::int64_t i, std::int64_t t, std::int64_t position) {
    for (std::int64_t h = 0; h < heads; ++h) rope.turn(rotated.data() + ((i * s + t) * heads + h) * widest, position);
  }

  void check_unchanged() const {
    // As bytes: NaN is not equal to itself.
    require(values.empty() || std::memcmp(values.data(), before_.data(), values.size() * sizeof(float)) == 0,
            "a call changed its input");
    require(codes_ == codes_before_, "a call changed its input");
  }

 private:
  mpfa_tensor tensor(void* data, mpfa_dtype type, std::int64_t h, std::int64_t d) const {
    mpfa_tensor t = mpfa_contiguous(data, type, n, s, h, d);
    t.stride[2] = widest;
    t.stride[1] = heads * widest;
    t.stride[0] = s * heads * widest;
    return t;
  }

  std::vector<std::uint16_t> codes_, codes_before_;
  std::vector<float> before_;
};

inline void append(Input& in, World& w) {
  const mpfa_cache_config& c = w.config;
  const std::int64_t n = in.rarely(8) ? in.between(1, 3) : in.between(1, c.batch), first = in.between(0, 2);
  std::int64_t s = in.size(0, 40);
  // A number of tokens that a tensor may have is taken at its word.
  if (s > 40 && s < (std::int64_t{1} << 39)) s = 40;
  const std::int64_t tokens = std::clamp<std::int64_t>(s, 0, 40);
  std::optional<RopeInput> rope;
  if (in.rarely(4)) rope.emplace(in, c);
  TokenData data(in, w, n, tokens, rope.has_value());
  if (rope) rope->of_tokens(in, c, n, tokens);
  mpfa_tensor k = data.given(c.kv_heads, in.rarely(256) ? in.size(1, 80) : c.head_dim);
  mpfa_tensor v = data.given(c.kv_heads, c.head_dim_v), q = data.given(c.q_heads, c.head_dim);
  if (tokens != s) k.shape[1] = s;  // refused before it is read
  if (in.rarely(256)) k.dtype = MPFA_I64 + 1;
  if (in.rarely(256)) v.data = nullptr;
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> counts;
  for (std::int64_t i = 0; i < n; ++i) {
    ids.push_back(static_cast<std::int32_t>(in.rarely(8) ? in.size(0, 2) : (first + i) % c.batch));
    counts.push_back(in.size(0, tokens));
  }
  const std::int32_t* const sequences = n == c.batch && in.coin() ? nullptr : ids.data();
  const std::int64_t* const parts = in.coin() ? counts.data() : nullptr;
  const bool with_q = !in.rarely(8);
  const bool with_v = (c.shared_kv == 0) == (!in.rarely(256));
  const mpfa_tensor *vp = with_v ? &v : nullptr, *qp = with_q ? &q : nullptr;
  if (!rope) {
    w.both([&](mpfa_cache* to, mpfa_error* e) {
      if (to == w.cache) return mpfa_cache_append(to, &k, vp, qp, sequences, parts, e);
      mpfa_tensor pk = k, pv = v, pq = q;
      for (mpfa_tensor* t : {&pk, &pv, &pq}) {
        if (t->dtype == data.dtype && t->data != nullptr) t->data = data.values.data(), t->dtype = MPFA_F32;
      }
      return mpfa_cache_append(to, &pk, with_v ? &pv : nullptr, with_q ? &pq : nullptr, sequences, parts, e);
    });
  } else {
    const std::vector<std::int64_t> lengths(w.stats().lengths, w.stats().lengths + c.batch);
    const auto position = [&](std::int64_t i, std::int64_t t) -> std::int64_t {
      if (parts != nullptr && t >= parts[i]) return -1;
      if (rope->rope.positions != nullptr) return rope->rope.positions[i * tokens + t];
      return lengths[static_cast<std::size_t>(sequences == nullptr ? i : sequences[i])] + t;
    };
    Checked e;
    const bool ok = e.ok(mpfa_cache_append_rope(w.cache, &k, vp, qp, sequences, parts, &rope->rope, e));
    if (ok) {
      for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t t = 0; t < tokens; ++t) data.turn(*rope, i, t, position(i, t));
      }
      const mpfa_tensor pk = data.turned(c.kv_heads, c.head_dim), pq = data.turned(c.q_heads, c.head_dim);
      const mpfa_tensor pv = data.plain(c.kv_heads, c.head_dim_v);
      Checked plain;
      plain.must(
          mpfa_cache_append(w.plain, &pk, with_v ? &pv : nullptr, with_q ? &pq : nullptr, sequences, parts, plain),
          "rotated tokens are refused where tokens with rope are not");
    }
    w.same();
    rope->check_queries(ok, position);
  }
  data.check_unchanged();
}

inline void write_slots(Input& in, World& w) {
  const mpfa_cache_config& c = w.config;
  const std::int64_t n = in.between(0, 6);
  std::optional<RopeInput> rope;
  if (in.coin()) rope.emplace(in, c);
  TokenData data(in, w, 1, n, rope.has_value());
  if (rope) rope->of_tokens(in, c, 1, n);
  const mpfa_tensor k = data.given(c.kv_heads, c.head_dim), v = data.given(c.kv_heads, c.head_dim_v);
  std::vector<std::int64_t> slots;
  for (std::int64_t i = 0; i < n; ++i) slots.push_back(in.size(-1, 300));
  const std::int64_t count = in.rarely(256) ? -1 : n;
  const bool with_v = (c.shared_kv == 0) == (!in.rarely(256));
  const auto position = [&](std::int64_t, std::int64_t t) {
    return slots[static_cast<std::size_t>(t)] == -1 || rope->rope.positions == nullptr ? -1 : rope->rope.positions[t];
  };
  Checked e;
  const bool ok =
      e.ok(rope ? mpfa_cache_write_slots_rope(w.cache, &k, with_v ? &v : nullptr, slots.data(), count, &rope->rope, e)
                : mpfa_cache_write_slots(w.cache, &k, with_v ? &v : nullptr, slots.data(), count, e));
  if (ok) {
    for (std::int64_t t = 0; rope && t < n; ++t) data.turn(*rope, 0, t, position(0, t));
    const mpfa_tensor pk = data.turned(c.kv_heads, c.head_dim), pv = data.plain(c.kv_heads, c.head_dim_v);
    Checked plain;
    plain.must(mpfa_cache_write_slots(w.plain, &pk, with_v ? &pv : nullptr, slots.data(), count, plain),
               "rotated tokens are refused where tokens with rope are not");
  }
  w.same();
  if (rope) rope->check_queries(ok, position);
  data.check_unchanged();
}

}  // namespace mpfa::fuzz
