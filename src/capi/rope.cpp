// Rotary embedding and context shift behind the C ABI.
#include "mpfa/rope.hpp"

#include <span>

#include "capi/handles.hpp"

namespace mpfa::capi {

Result<Rope> to_rope(const char* call, const mpfa_rope* r) {
  if (Status s = check_struct(call, "rope", r); !s.ok()) return s;
  if (r->style != MPFA_ROPE_HALF && r->style != MPFA_ROPE_INTERLEAVED) {
    return invalid(fmt::format("{}: rope->style is {}; take MPFA_ROPE_HALF or MPFA_ROPE_INTERLEAVED", call, r->style));
  }
  Rope rope;
  rope.style = static_cast<RopeStyle>(r->style);
  rope.begin = r->begin;
  rope.positions = r->positions;
  rope.q_positions = r->q_positions;
  const auto cos = to_view(call, "rope->cos", r->cos), sin = to_view(call, "rope->sin", r->sin);
  if (!cos.ok()) return cos.status();
  if (!sin.ok()) return sin.status();
  rope.cos = cos.value();
  rope.sin = sin.value();
  if (r->q.data == nullptr) return rope;
  const auto q = to_view(call, "rope->q", r->q), out = to_view(call, "rope->q_out", r->q_out);
  if (!q.ok()) return q.status();
  if (!out.ok()) return out.status();
  rope.q = q.value();
  rope.q_out = {r->q_out.data, out.value().dtype, out.value().shape, out.value().stride};
  return rope;
}

}  // namespace mpfa::capi

using mpfa::Status;
using mpfa::capi::check_list;
using mpfa::capi::guarded;
using mpfa::capi::not_null;
using mpfa::capi::to_rope;
using mpfa::capi::to_view;
using mpfa::capi::to_views;

extern "C" {

void mpfa_rope_init(mpfa_rope* rope, size_t struct_size) {
  mpfa::capi::init_struct(rope, struct_size, mpfa_rope{});
}

mpfa_status mpfa_cache_append_rope(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v, const mpfa_tensor* q,
                                   const int32_t* sequences, const int64_t* counts, const mpfa_rope* rope,
                                   mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_cache_append_rope";
    MPFA_RETURN_IF_ERROR(not_null(kCall, "cache", cache));
    const auto tokens = to_views(kCall, k, v);
    if (!tokens.ok()) return tokens.status();
    const auto turn = to_rope(kCall, rope);
    if (!turn.ok()) return turn.status();
    const auto q_view = to_view(kCall, "q", q == nullptr ? *k : *q);
    if (!q_view.ok()) return q_view.status();
    const mpfa::TensorView* const queries = q == nullptr ? nullptr : &q_view.value();
    const auto& [k_view, v_view] = tokens.value();
    if (!v_view) return cache->cache.append(k_view, queries, sequences, counts, &turn.value());
    return cache->cache.append(k_view, *v_view, queries, sequences, counts, &turn.value());
  });
}

mpfa_status mpfa_cache_write_slots_rope(mpfa_cache* cache, const mpfa_tensor* k, const mpfa_tensor* v,
                                        const int64_t* slot_mapping, int64_t count, const mpfa_rope* rope,
                                        mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    constexpr const char* kCall = "mpfa_cache_write_slots_rope";
    MPFA_RETURN_IF_ERROR(not_null(kCall, "cache", cache));
    const auto tokens = to_views(kCall, k, v);
    if (!tokens.ok()) return tokens.status();
    MPFA_RETURN_IF_ERROR(check_list(kCall, "slot_mapping", slot_mapping, count));
    const auto turn = to_rope(kCall, rope);
    if (!turn.ok()) return turn.status();
    const auto& [k_view, v_view] = tokens.value();
    if (!v_view) return cache->cache.write_slots(k_view, std::span(slot_mapping, count), &turn.value());
    return cache->cache.write_slots(k_view, *v_view, std::span(slot_mapping, count), &turn.value());
  });
}

mpfa_status mpfa_cache_shift(mpfa_cache* cache, int64_t sequence, int64_t from, int64_t delta, const mpfa_rope* rope,
                             mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_shift", "cache", cache));
    const auto turn = to_rope("mpfa_cache_shift", rope);
    return turn.ok() ? cache->cache.shift(sequence, from, delta, turn.value()) : turn.status();
  });
}

mpfa_status mpfa_cache_remove(mpfa_cache* cache, int64_t sequence, int64_t begin, int64_t end, const mpfa_rope* rope,
                              mpfa_error* error) {
  return guarded(error, [&]() -> Status {
    MPFA_RETURN_IF_ERROR(not_null("mpfa_cache_remove", "cache", cache));
    if (rope == nullptr) return cache->cache.remove(sequence, begin, end);
    const auto turn = to_rope("mpfa_cache_remove", rope);
    return turn.ok() ? cache->cache.remove(sequence, begin, end, &turn.value()) : turn.status();
  });
}

}  // extern "C"
