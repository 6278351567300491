// A thread writes 16 channels of one head of one token after another, so that means, scales of heads and strides are
// found once; where tokens go, a block finds once for all heads. Warps hold the same head of neighbouring tokens: their
// scales lie side by side. As src/formats does on the host, to the same bytes: every sum and product is rounded by
// itself.
#pragma once

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/append/quantise.cuh"
#include "cuda/sm90/append/queries.cuh"
#include "cuda/sm90/append/rows.cuh"

namespace mpfa::sm90 {

inline constexpr int kAppendThreads = 256;
/// Blocks that a multiprocessor runs at a time; those that rotate or try two scales need more registers.
inline constexpr int kManyBlocks = 3, kFewBlocks = 2;

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

/// The means of a thread's channels.
class Mean {
 public:
  __device__ Mean(const RowFormat& row, const Lane& at) : given_(row.mean != nullptr) {
    if (!given_ || !at.active) return;
    const auto* from = reinterpret_cast<const float4*>(row.mean + at.head * row.d + at.channel);
#pragma unroll
    for (int i = 0; i < kChunk / 4; ++i) mine_[i] = from[i];
  }
  __device__ __forceinline__ void subtract_from(float (&x)[kChunk]) const {
    if (!given_) return;
#pragma unroll
    for (int i = 0; i < kChunk / 4; ++i) {
      const float4 m = mine_[i];
      x[4 * i] = __fsub_rn(x[4 * i], m.x), x[4 * i + 1] = __fsub_rn(x[4 * i + 1], m.y);
      x[4 * i + 2] = __fsub_rn(x[4 * i + 2], m.z), x[4 * i + 3] = __fsub_rn(x[4 * i + 3], m.w);
    }
  }

 private:
  float4 mine_[kChunk / 4] = {};
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
    ptx::keep_in_register(mine_);
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
    at_ ^= kLine * kVectors;
  }
  __device__ __forceinline__ void wait() const {
    ptx::wait_copies<kStages - 1>();
  }
  /// The oldest chunk, whose place the next fetch takes, of the thread that is `away` from this one.
  __device__ __forceinline__ void read(RawRun<kInput>& raw, int away = 0) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) raw.v[i] = ptx::load_shared_words(mine_ + at_ + kLine * i + 16 * away);
  }

 private:
  static constexpr std::uint32_t kLine = 16U * kAppendThreads;
  static_assert(kStages == 2 && (kLine * kVectors & (kLine * kVectors - 1)) == 0);
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

/// Where the rows of a tile's tokens go: bytes from the first row of a head, data < 0 for nowhere. Tokens past the last
/// one are among them. To be read after a barrier.
template <bool kRope>
class Places {
 public:
  struct Place {
    std::int64_t data, scales;
  };
  static constexpr std::uint32_t kBytes = sizeof(Place);

  __device__ Places(const AppendParams& p, const AppendOperand& o, bool turns, std::uint32_t first) {
    __shared__ Place places[kMostTile];
    __shared__ std::int64_t positions[kRope ? kMostTile : 1];
    place_ = ptx::shared_address(places), position_ = positions;
    ptx::keep_in_register(place_);
    for (std::uint32_t i = threadIdx.x; i < static_cast<std::uint32_t>(o.tile); i += blockDim.x) {
      std::int64_t slot = -1;
      if (first + i < static_cast<std::uint32_t>(p.n)) {
        slot = __ldg(p.slots + first + i);
        if (kRope && turns) {
          positions[i] = __ldg(p.rope.positions + first + i);
          if (positions[i] < 0 || positions[i] >= p.rope.rows) slot = -1;
        }
      }
      places[i] = {-1, 0};
      if (static_cast<std::uint64_t>(slot) >= static_cast<std::uint32_t>(p.end_slot)) continue;
      const std::uint32_t at = static_cast<std::uint32_t>(slot), page = divide(at, p.page_div),
                          row = at - page * static_cast<std::uint32_t>(p.page_size);
      places[i] = {offset(page, o.data_page) + offset(row, o.data_row),
                   offset(page, o.scale_page) + offset(row, o.scale_row)};
    }
  }
  __device__ __forceinline__ Place place(int token) const {
    const uint4 v = ptx::load_shared_words(place_ + kBytes * static_cast<std::uint32_t>(token));
    return {static_cast<std::int64_t>(static_cast<std::uint64_t>(v.y) << 32 | v.x),
            static_cast<std::int64_t>(static_cast<std::uint64_t>(v.w) << 32 | v.z)};
  }
  __device__ __forceinline__ std::int64_t position(int token) const { return position_[token]; }

 private:
  std::uint32_t place_;
  const std::int64_t* position_;
};

/// A block takes up to o.tile tokens of as many heads as it has warps for.
template <AppendInput kInput, bool kRope, class Q>
__device__ __forceinline__ void write_operand(const AppendParams& p, const AppendOperand& o, std::uint32_t block,
                                              bool turns) {
  const std::uint32_t tile = divide(block, o.groups), group = block - tile * o.groups.d;
  const std::uint32_t warp = threadIdx.x / 32, line = divide(warp, o.across);
  const std::uint32_t column = group * o.across.d + warp - line * o.across.d;
  const bool works = line < static_cast<std::uint32_t>(o.lines) && column < static_cast<std::uint32_t>(o.columns);
  const Lane at(o.row, works ? static_cast<int>(column) : 0);
  std::int32_t step = o.lines * at.tokens;
  ptx::keep_in_register(step);
  const auto index = static_cast<std::int32_t>(tile);
  const std::int32_t before = index * o.steps + min(index, o.longer), steps = o.steps + (index < o.longer ? 1 : 0);
  const std::uint32_t first = static_cast<std::uint32_t>(before * step);
  // Of the block; this thread takes every `step`th from `token` on.
  const int tokens = min(steps * step, p.n - static_cast<int>(first));
  int token = static_cast<int>(line) * at.tokens + at.token;

  constexpr int kSize = kInput == AppendInput::f32 ? 4 : 2, kStages = Ring<kInput>::kStages;
  const auto* next =
      static_cast<const std::uint8_t*>(o.x) + (o.x_row * (first + token) + at.head * o.x_head + at.channel) * kSize;
  const std::uint8_t* here = next;
  const std::int64_t x_step = o.x_row * step * kSize;
  Ring<kInput> ring(at.active);
  const int end = at.active && works ? tokens : 0;
#pragma unroll
  for (int i = 0; i < kStages; ++i, next += x_step) ring.fetch(next, token + i * step < end);
  const Mean mean(o.row, at);
  const Q quantiser(o.row, at.head, at.lane);
  const Places<kRope> places(p, o, turns, first);
  std::uint8_t* const data = o.data + at.head * o.data_head + at.channel * Q::Codec::kBits / 8;
  std::uint8_t* const scales =
      o.scales + at.head * o.scale_head + (at.channel / kChunk >> o.row.group_shift) * Q::kScaleBytes;
  __syncthreads();
  if (!works) return;

  const bool leads = quantiser.leads && Q::kScaleBytes > 0;
  // Partners of halves lie in the ring, some lanes away.
  const bool beside = p.rope.k_wide && p.rope.style == RopeStyle::half &&
                      p.rope.begin % kWarpChannels + 2 * p.rope.half <= kWarpChannels;
  int pair = at.channel - p.rope.begin, away = p.rope.half / kChunk;
  const bool pairs = pair >= 0 && pair < 2 * p.rope.half;
  if (pair >= p.rope.half) pair -= p.rope.half, away = -away;
  Counts counts;
  for (int left = tokens - static_cast<int>(line) * at.tokens; left > 0; left -= step, token += step) {
    float x[kChunk];
    RawRun<kInput> raw;
    ring.wait();
    ring.read(raw);
    raw.widen(x);
    const auto place = places.place(token);
    const bool written = at.active && place.data >= 0;
    if (kRope && turns) {
      if (beside) {
        __syncwarp();
        ring.read(raw, pairs ? away : 0);
        __syncwarp();
        if (written && pairs) turn_with<kInput>(p.rope, places.position(token), raw, away < 0, pair, x);
      } else if (written) {
        turn_chunk<kInput>(p.rope, places.position(token), here - at.channel * kSize, at.channel, x);
      }
      here += x_step;
    }
    ring.fetch(next, token + kStages * step < end);
    next += x_step;
    mean.subtract_from(x);
    Block<typename Q::Codec> block;
    quantiser(x, written, block, counts);
    if (written) store<Q>(block, leads, data + place.data, scales + place.scales);
  }
  add_counts(p.counters, counts);
}

/// Blocks for K, for V, then for Q.
template <AppendInput kInput, bool kRope, int kBlocks>
__global__ void __launch_bounds__(kAppendThreads, kBlocks) append(const __grid_constant__ AppendParams p) {
  const std::uint32_t k = static_cast<std::uint32_t>(p.operand[0].blocks), which = blockIdx.x < k ? 0 : 1,
                      block = blockIdx.x - which * k;
  if (block < static_cast<std::uint32_t>(p.operand[which].blocks)) {
    const AppendOperand& o = p.operand[which];
    visit(o.row, [&]<class Q>() {
      if constexpr (kBlocks == kFewBlocks || !kTriesTwo<typename Q::Scale>) {
        write_operand<kInput, kRope, Q>(p, o, block, which == 0);
      }
    });
  } else if constexpr (kRope) {
    const std::uint32_t i = (block - static_cast<std::uint32_t>(p.operand[1].blocks)) * blockDim.x + threadIdx.x;
    p.rope.q_wide ? write_query<kInput, 8>(p, i) : write_query<kInput, 1>(p, i);
  }
}

}  // namespace mpfa::sm90
