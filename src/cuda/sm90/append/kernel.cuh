// A thread writes 16 channels of one head of one token after another, so that means, scales of heads and strides are
// found once. Warps hold the same head of neighbouring tokens: their scales lie side by side. As src/formats does on
// the host, to the same bytes: every sum and product is rounded by itself.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/append/quantise.cuh"
#include "cuda/sm90/append/rows.cuh"

namespace mpfa::sm90 {

inline constexpr int kAppendThreads = 256;

/// A warp's place: its head and part of the row, its lane's channels and token.
struct Lane {
  int lane, head, part, channel, token, tokens;
  bool active;

  __device__ Lane(const RowFormat& row, int column)
      : lane(static_cast<int>(threadIdx.x) % 32),
        head(row.parts == 1 ? column : column / row.parts),
        part(column - head * row.parts),
        channel(part * kWarpChannels + (lane & (row.lanes - 1)) * kChunk),
        token(lane >> row.lanes_shift),
        tokens(32 >> row.lanes_shift),
        active(channel < row.d) {}
};

/// The means of a thread's channels, kept in shared memory for want of registers. Only the thread itself reads them.
template <int kThreads>
class Mean {
 public:
  __device__ Mean(const RowFormat& row, const Lane& at) {
    __shared__ float4 all[kChunk / 4][kThreads];
    mine_ = ptx::shared_address(&all[0][threadIdx.x]);
    given_ = row.mean != nullptr;
    if (!given_) return;
    const auto* from = reinterpret_cast<const float4*>(row.mean + at.head * row.d + at.channel);
#pragma unroll
    for (int i = 0; i < kChunk / 4; ++i)
      all[i][threadIdx.x] = at.active ? from[i] : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  }
  __device__ __forceinline__ void subtract_from(float (&x)[kChunk]) const {
    if (!given_) return;
#pragma unroll
    for (int i = 0; i < kChunk / 4; ++i) {
      const float4 m = ptx::load_shared(mine_ + static_cast<std::uint32_t>(sizeof(float4) * kThreads * i));
      x[4 * i] = __fsub_rn(x[4 * i], m.x), x[4 * i + 1] = __fsub_rn(x[4 * i + 1], m.y);
      x[4 * i + 2] = __fsub_rn(x[4 * i + 2], m.z), x[4 * i + 3] = __fsub_rn(x[4 * i + 3], m.w);
    }
  }

 private:
  std::uint32_t mine_;
  bool given_;
};

/// Chunks of coming tokens on their way into shared memory, each thread's own.
template <AppendInput kInput>
class Ring {
 public:
  static constexpr int kVectors = RawRun<kInput>::kVectors, kStages = 2;

  __device__ explicit Ring(bool active) {
    __shared__ uint4 all[kStages][kVectors][kAppendThreads];
    mine_ = ptx::shared_address(&all[0][0][threadIdx.x]);
    if (active) return;  // others are never written, and read as zeros
    for (auto& stage : all) {
      for (auto& line : stage) line[threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
  }
  /// A group for every stage, also when there is nothing to copy.
  __device__ __forceinline__ void fetch(const std::uint8_t* from, bool exists) {
    if (exists) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) ptx::copy_async16_cached(mine_ + at_ + kLine * i, from + 16 * i);
    }
    ptx::commit_copies();
    at_ = at_ == kLine * kVectors * (kStages - 1) ? 0U : at_ + kLine * kVectors;
  }
  /// The oldest chunk, whose place the next fetch takes.
  __device__ __forceinline__ void read(RawRun<kInput>& raw) const {
    ptx::wait_copies<kStages - 1>();
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw.v[i] = ptx::load_shared_words(mine_ + at_ + kLine * i);
  }

 private:
  static constexpr std::uint32_t kLine = 16U * kAppendThreads;
  std::uint32_t mine_, at_ = 0;
};

__device__ __forceinline__ void add_counts(unsigned long long* counters, const Counts& counts) {
  if (counters == nullptr) return;
  if (counts.nonfinite != 0U) atomicAdd(counters, static_cast<unsigned long long>(counts.nonfinite));
  if (counts.saturated != 0U) atomicAdd(counters + 1, static_cast<unsigned long long>(counts.saturated));
  if (counts.flushed != 0U) atomicAdd(counters + 2, static_cast<unsigned long long>(counts.flushed));
}

__device__ __forceinline__ std::int64_t offset(std::uint32_t index, std::int32_t stride) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(index) * static_cast<std::uint32_t>(stride));
}

template <AppendInput kInput, bool kRope, class Q>
__device__ __forceinline__ void write_operand(const AppendParams& p, const AppendOperand& o, const Divisor& columns,
                                              std::uint32_t block, bool turns) {
  const std::uint32_t warp = block * (kAppendThreads / 32) + threadIdx.x / 32, line = divide(warp, columns);
  const std::uint32_t lines = static_cast<std::uint32_t>(o.lines);
  if (line >= lines) return;  // warps beyond a whole number of lines
  const Lane at(o.row, static_cast<int>(warp - line * columns.d));

  const std::uint32_t n = static_cast<std::uint32_t>(p.n);
  std::uint32_t step = lines * static_cast<std::uint32_t>(at.tokens);
  ptx::keep_in_register(step);
  std::uint32_t begin = line * static_cast<std::uint32_t>(at.tokens);
  std::uint32_t token = begin + static_cast<std::uint32_t>(at.token);
  constexpr int kSize = kInput == AppendInput::f32 ? 4 : 2;
  const auto* next =
      static_cast<const std::uint8_t*>(o.x) + (o.x_row * token + at.head * o.x_head + at.channel) * kSize;
  const std::int64_t x_step = o.x_row * step * kSize;
  const bool asks_position = kRope && turns;
  Ring<kInput> ring(at.active);
  const std::uint8_t* here = next;
#pragma unroll
  for (std::uint32_t i = 0; i < Ring<kInput>::kStages; ++i, next += x_step) {
    ring.fetch(next, at.active && token + i * step < n);
  }
  std::int64_t next_slot = -1, next_position = 0;
  const auto fetch_slot = [&](std::uint32_t t) {
    next_slot = -1;
    if (!at.active || t >= n) return;
    next_slot = __ldg(p.slots + t);
    if (asks_position) next_position = __ldg(p.rope.positions + t);
  };
  fetch_slot(token);

  const Q quantiser(o.row, at.head, at.lane);
  const Mean<kAppendThreads> mean(o.row, at);
  const bool leads = quantiser.leads && Q::kScaleBytes > 0;
  std::uint8_t* const data = o.data + at.head * o.data_head + at.channel * Q::Codec::kBits / 8;
  std::uint8_t* const scales =
      o.scales + at.head * o.scale_head + (at.channel / kChunk >> o.row.group_shift) * Q::kScaleBytes;
  Counts counts;
  for (; begin < n; begin += step, token += step) {
    float x[kChunk];
    RawRun<kInput> raw;
    ring.read(raw);
    raw.widen(x);
    ring.fetch(next, at.active && token + Ring<kInput>::kStages * step < n);
    next += x_step;
    bool written = static_cast<std::uint64_t>(next_slot) < static_cast<std::uint32_t>(p.end_slot);
    const std::uint32_t slot = static_cast<std::uint32_t>(next_slot);
    const std::int64_t position = next_position;
    fetch_slot(token + step);
    if constexpr (kRope) {
      if (asks_position) {
        written = written && position >= 0 && position < p.rope.rows;
        if (written) turn_chunk<kInput>(p.rope, position, here - at.channel * kSize, at.channel, x);
        here += x_step;
      }
    }
    mean.subtract_from(x);
    Block<typename Q::Codec> block;
    quantiser(x, written, block, counts);
    if (!written) continue;
    const std::uint32_t page = divide(slot, p.page_div), row = slot - page * static_cast<std::uint32_t>(p.page_size);
    store<Q>(block, leads, data + offset(page, o.data_page) + offset(row, o.data_row),
             scales + offset(page, o.scale_page) + offset(row, o.scale_row));
  }
  add_counts(p.counters, counts);
}

/// One share of some heads of a token of Q: kCount pairs or channels of each.
template <int kCount>
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
  turn_query<kCount>(r, position, row * r.q_row + head * r.q_head, row * r.q_out_row + head * r.q_out_head,
                     min(kQueryHeads, r.q_heads - head), channel);
}

/// Blocks for K, for V, then for Q.
template <AppendInput kInput, bool kRope>
__global__ void __launch_bounds__(kAppendThreads, kRope ? 3 : 4) append(const __grid_constant__ AppendParams p) {
  const std::uint32_t blocks = static_cast<std::uint32_t>(p.blocks), which = blockIdx.x < blocks ? 0 : 1;
  if (blockIdx.x < blocks * static_cast<std::uint32_t>(p.operands)) {
    const AppendOperand& o = p.operand[which];
    visit(o.row.format, [&]<class Q>() {
      write_operand<kInput, kRope, Q>(p, o, p.columns[which], blockIdx.x - which * blocks, which == 0);
    });
    return;
  }
  if constexpr (kRope) {
    const std::uint32_t i =
        (blockIdx.x - blocks * static_cast<std::uint32_t>(p.operands)) * kAppendThreads + threadIdx.x;
    p.rope.q_wide ? write_query<8>(p, i) : write_query<1>(p, i);
  }
}

}  // namespace mpfa::sm90
