// Rotation of Q: a thread turns a share of the rows of some heads of a token, which have cos and sin in common.
#pragma once

#include "cuda/sm90/append/rows.cuh"

namespace mpfa::sm90 {

/// Heads of a token that a thread turns.
inline constexpr int kQueryHeads = 4;

/// kCount channels of heads of Q in any dtype.
template <int kCount>
struct AnyRows {
  struct Raw {
    float v[kCount];
    __device__ __forceinline__ void widen(float (&x)[kCount]) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) x[i] = v[i];
    }
  };
  const AppendRope& r;
  std::int64_t from, to;  // elements of the first head

  __device__ __forceinline__ void load(int head, int c, Raw& raw) const {
    load_run(r.q, r.q_dtype, from + head * r.q_head + c * r.q_step, r.q_step, kCount > 1, raw.v);
  }
  __device__ __forceinline__ void keep(int head, int c, const float (&x)[kCount]) const {
    store_run(r.q_out, r.q_out_dtype, to + head * r.q_out_head + c * r.q_out_step, r.q_out_step, kCount > 1, x);
  }
};

/// 8 channels of heads of Q where it has the 16-bit dtype of K and keeps it.
template <AppendInput kInput>
struct NarrowRows {
  using Raw = RawRun<kInput, 8>;
  using Pair = std::conditional_t<kInput == AppendInput::bf16, __nv_bfloat162, __half2>;
  using Codec = std::conditional_t<kInput == AppendInput::bf16, formats::Bf16, formats::F16>;
  const AppendRope& r;
  const std::uint16_t* from;
  std::uint16_t* to;

  __device__ __forceinline__ NarrowRows(const AppendRope& rope, std::int64_t first, std::int64_t first_out)
      : r(rope),
        from(static_cast<const std::uint16_t*>(rope.q) + first),
        to(static_cast<std::uint16_t*>(rope.q_out) + first_out) {}
  __device__ __forceinline__ void load(int head, int c, Raw& raw) const { raw.load(from, head * r.q_head + c); }
  /// The conversion of the card has infinity where the codec saturates; that and NaN times 0 are NaN.
  __device__ __forceinline__ void keep(int head, int c, const float (&x)[8]) const {
    std::uint32_t words[4];
    Pair sum = make_pair(0.0F, 0.0F);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Pair pair = make_pair(x[2 * i], x[2 * i + 1]);
      words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
      sum = __hfma2(pair, make_pair(0.0F, 0.0F), sum);
    }
    if ((*reinterpret_cast<const std::uint32_t*>(&sum) & 0x7FFF7FFFU) != 0U) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = Codec::encode(x[2 * i]).bits | Codec::encode(x[2 * i + 1]).bits << 16;
    }
    *reinterpret_cast<uint4*>(to + head * r.q_out_head + c) = make_uint4(words[0], words[1], words[2], words[3]);
  }

 private:
  static __device__ __forceinline__ Pair make_pair(float a, float b) {
    if constexpr (kInput == AppendInput::bf16) return __floats2bfloat162_rn(a, b);
    if constexpr (kInput != AppendInput::bf16) return __floats2half2_rn(a, b);
  }
};

/// kCount channels from `channel` on of `heads` heads, and their partners. A pair is read and written by one thread, so
/// that q_out may be q. All that is read is asked for at once.
template <int kCount, class Rows>
__device__ __forceinline__ void turn_query(const AppendRope& r, const Rows& rows, std::int64_t position, int heads,
                                           int channel) {
  const int first = channel - r.begin;
  const bool halves = r.style == RopeStyle::half, turns = first >= 0 && first < 2 * r.half;
  if (!halves && kCount == 1 && turns && first % 2 != 0) return;  // written with the one before
  const int partner = !turns ? 0 : halves ? r.half : kCount == 1 ? 1 : 0;
  typename Rows::Raw x_raw[kQueryHeads], y_raw[kQueryHeads];
#pragma unroll
  for (int h = 0; h < kQueryHeads; ++h) {
    if (h >= heads) continue;
    rows.load(h, channel, x_raw[h]);
    if (partner > 0) rows.load(h, channel + partner, y_raw[h]);
  }
  if (position < 0 || position >= r.rows) return;
  float cos[kCount], sin[kCount];
  if (turns) {
    const std::int64_t pair = halves ? first : first / 2;
    const auto table = [&](const void* base, DType dtype, std::int64_t row, std::int64_t step, float(&t)[kCount]) {
      const std::int64_t at = position * row + pair * step;
      if (halves || kCount == 1) return load_run(base, dtype, at, step, kCount > 1, t);
#pragma unroll
      for (int i = 0; i < kCount / 2; ++i) t[i] = load_element(base, dtype, at + i * step);
    };
    table(r.cos, r.dtype, r.cos_row, r.cos_step, cos);
    table(r.sin, r.sin_dtype, r.sin_row, r.sin_step, sin);
  }
#pragma unroll
  for (int h = 0; h < kQueryHeads; ++h) {
    if (h >= heads) continue;
    float x[kCount], y[kCount];
    x_raw[h].widen(x);
    if (partner > 0) {
      y_raw[h].widen(y);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float a = x[i], b = y[i];
        x[i] = turn_first(a, b, cos[i], sin[i]), y[i] = turn_second(a, b, cos[i], sin[i]);
      }
      rows.keep(h, channel + partner, y);
    } else if (turns) {
#pragma unroll
      for (int i = 0; i + 1 < kCount; i += 2) {
        const float a = x[i], b = x[i + 1];
        x[i] = turn_first(a, b, cos[i / 2], sin[i / 2]), x[i + 1] = turn_second(a, b, cos[i / 2], sin[i / 2]);
      }
    }
    rows.keep(h, channel, x);
  }
}

/// Share `i` of some heads of a token of Q: kCount pairs or channels of each.
template <AppendInput kInput, int kCount>
__device__ __forceinline__ void write_query(const AppendParams& p, std::uint32_t i) {
  const AppendRope& r = p.rope;
  if (i >= static_cast<std::uint32_t>(r.q_rows) * r.shares_div.d * r.groups_div.d) return;
  const std::uint32_t line = divide(i, r.shares_div), row = divide(line, r.groups_div);
  const int head = static_cast<int>(line - row * r.groups_div.d) * kQueryHeads;
  if (r.q_positions == nullptr && static_cast<std::uint64_t>(p.slots[row]) >= static_cast<std::uint32_t>(p.end_slot)) {
    return;
  }
  const std::int64_t position = r.q_positions == nullptr ? r.positions[row] : r.q_positions[row];
  // Pairs that turn first, then the channels around them.
  const int share = static_cast<int>(i - line * r.shares_div.d) * kCount;
  const int turning = r.style == RopeStyle::half ? r.half : 2 * r.half, rest = share - turning;
  const int channel = rest < 0 ? r.begin + share : rest < r.begin ? rest : rest + 2 * r.half;
  const std::int64_t from = row * r.q_row + head * r.q_head, to = row * r.q_out_row + head * r.q_out_head;
  const int heads = min(kQueryHeads, r.q_heads - head);
  constexpr DType kDType = kInput == AppendInput::bf16 ? DType::bf16 : DType::f16;
  if constexpr (kCount > 1 && kInput != AppendInput::f32) {
    if (r.q_dtype == kDType && r.q_out_dtype == kDType) {
      return turn_query<kCount>(r, NarrowRows<kInput>(r, from, to), position, heads, channel);
    }
  }
  turn_query<kCount>(r, AnyRows<kCount>{r, from, to}, position, heads, channel);
}

}  // namespace mpfa::sm90
