// Begin and end of a piece. At the end the warps of the block merge; if the output has several pieces, their partial
// results go to memory and the block that is last sums them up, or through each other's shared memory if there are two.
// This code runs once or twice and every instruction is fetched from memory for it, so loops are not unrolled beyond
// the loads that shall be in flight together.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/merge.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/decode/wide.cuh"

namespace mpfa::sm90 {

/// The lane's share of the pieces of place `i`: row i / kQuads, quad i % kQuads.
template <class Config>
__device__ __forceinline__ Partial sum_pieces(const DecodeParams& p, const Piece& piece, int i) {
  // Few warps have many places each, so that the loads of one have to be on the way together.
  constexpr int kPlaces = Config::kRows * Config::kD / 4, kBatch = Config::kWarps < 16 ? 8 : 4;
  const std::int64_t first = static_cast<std::int64_t>(piece.slot - piece.index) * kPlaces + i;
  const float4* partials = reinterpret_cast<const float4*>(p.partial_out) + first;
  const float2* states = p.partial_state + first / 8;
  Partial x = no_keys();
#pragma unroll 1
  for (int k0 = first_source<Config>(); k0 < piece.count; k0 += Config::kShares * kBatch) {
    // The sum so far is the last source.
    x = gather<kBatch + 1>([&](int j) -> Partial {
      const int k = k0 + Config::kShares * j;
      if (j == kBatch) return x;
      if (k >= piece.count) return no_keys();
      const float2 state = __ldcg(states + k * (kPlaces / 8));
      return {__ldcg(partials + k * kPlaces), state.x, state.y};
    });
  }
  return x;
}

/// A place's sum over the block, and once for 8 places its maximum and sum of P.
template <class Config>
__device__ __forceinline__ void put_partial(const DecodeParams& p, const Piece& piece, int i, const Partial& x) {
  const std::int64_t at = static_cast<std::int64_t>(piece.slot) * (Config::kRows * Config::kD / 4) + i;
  reinterpret_cast<float4*>(p.partial_out)[at] = x.out;
  if (i % 8 == 0) p.partial_state[at / 8] = make_float2(x.max, x.sum);
}

/// Whether a word of arrivals has the mark of its address in the upper 48 bits.
__device__ __forceinline__ bool is_marked(std::uint64_t word, std::uint64_t mark) {
  return (word ^ mark) >> 16 == 0;
}
/// Adds one to a word that may be without mark, which is none; gives the marked word before.
__device__ __forceinline__ std::uint64_t count_unmarked(std::uint64_t* counter, std::uint64_t mark) {
  for (std::uint64_t seen = mark;;) {
    const std::uint64_t before = is_marked(seen, mark) ? seen : mark;
    const std::uint64_t found = ptx::compare_and_swap(counter, seen, before + 1);
    if (found == seen) return before;
    seen = found;
  }
}
/// Counts the arrivals at an output whose counter nobody has cleared: a word without mark is what lay in the workspace
/// before the call. Orders what the thread has written or seen written for who counts later. True for the last of
/// `count`, which also leaves the counter as the next call likes it best.
__device__ __forceinline__ bool last_arrival(std::uint64_t* counter, std::int32_t count) {
  const std::uint64_t mark = (reinterpret_cast<std::uint64_t>(counter) << 16) ^ 0x9E3779B97F4A0000U;
  std::uint64_t before = ptx::add_acq_rel(counter, 1);
  if (!is_marked(before, mark)) before = count_unmarked(counter, mark);
  if (before - mark != static_cast<std::uint64_t>(count) - 1) return false;
  *counter = mark;
  return true;
}

/// Whether this block is the last one of the piece's output; all threads.
template <class Config>
__device__ __forceinline__ bool last_of_output(const DecodeParams& p, const Piece& piece) {
  sync_team<Config>();
  bool last = false;
  if (threadIdx.x % Config::kThreads == 0) {
    const std::int32_t output = (piece.b * p.row_blocks + piece.row_block) * p.kv_heads + piece.head;
    last = last_arrival(p.arrivals + output, piece.count);
  }
  return any_of_team<Config>(last);
}

/// What the blocks of a pair send each other: sums of places. It lies in the first stages of warps, which no warp of
/// the block uses any longer; groups of 8 places belong to the blocks by turns.
template <class Config>
struct PairExchange {
  static constexpr int kStates = Config::kWarps >= 4 ? 2 * Config::kWarpBytes : Config::kOutBytes;
  static_assert(!Config::kPairs ||
                Config::kOutBytes + (Config::kWarps >= 4 ? 0 : Config::kOutBytes / 2) <= 2 * Config::kStageBytes);
  std::uint8_t* ring;

  [[nodiscard]] __device__ float4* out(int block, int i) const {
    return reinterpret_cast<float4*>(ring + block * Config::kWarpBytes) + i;
  }
  [[nodiscard]] __device__ float2* state(int block, int i) const {
    return reinterpret_cast<float2*>(ring + kStates + block * Config::kWarpBytes) + i;
  }
  [[nodiscard]] static __device__ std::uint32_t owner(int i) { return i / 8 % 2; }
  __device__ void send(int block, int i, const Partial& x) const {
    ptx::store_remote(ptx::remote_address(ptx::shared_address(out(block, i)), owner(i)), x.out);
    ptx::store_remote(ptx::remote_address(ptx::shared_address(state(block, i)), owner(i)), make_float2(x.max, x.sum));
  }
  /// The lane's share.
  [[nodiscard]] __device__ Partial receive(int i) const {
    return gather < Config::kShares == 1 ? 2 : 1 > ([&](int k) -> Partial {
                                                 const int block = first_source<Config>() + k;
                                                 if (block >= 2) return no_keys();
                                                 return {*out(block, i), state(block, i)->x, state(block, i)->y};
                                               });
  }
};

template <class Config>
__device__ __forceinline__ void finish_piece(const DecodeParams& p, const Sequence& s, const Piece& piece,
                                             const Exchange<Config>& exchange, State<Config>& state, bool bad_page) {
  constexpr int kQuads = Config::kD / 4;
  const std::int32_t rows = min(Config::kRows, s.sq * p.group - piece.row_block * Config::kRows);
  const PairExchange<Config> pair{exchange.ring};
  const bool paired = Config::kPairs && piece.paired != 0;
  put_warp<Config>(exchange, state, bad_page, rows);
  if (p.wide != 0) add_wide<Config>(p, s, piece, exchange.ring, rows);
  sync_team<Config>();
  if (paired) {
    ptx::arrive_cluster();  // the copies into this block's stages are done and read
    ptx::wait_cluster();
  }
  // First the warps of the block, then the pieces: both blocks of a pair do their places, or the last block all.
  const int place = first_place<Config>();
#pragma unroll 1
  for (bool pieces = false;; pieces = true) {
#pragma unroll 1
    for (int i = place; i < rows * kQuads; i += Config::kThreads / Config::kShares) {
      const int row = i / kQuads, quad = i % kQuads;
      if (pieces && paired && pair.owner(i) != static_cast<std::uint32_t>(piece.index)) continue;
      Partial x = !pieces ? sum_warps(exchange, row, quad) : paired ? pair.receive(i) : sum_pieces<Config>(p, piece, i);
      add_shares<Config>(x);
      if (first_source<Config>() != 0) continue;
      if (pieces || piece.count == 1) {
        store_row<Config>(p, s, piece, piece.row_block * Config::kRows + row, quad, x, lse_shift(p, exchange, row));
      } else if (paired) {
        pair.send(piece.index, i, x);
      } else {
        put_partial<Config>(p, piece, i, x);
      }
    }
    if (pieces || piece.count == 1) break;
    if (paired) {
      ptx::arrive_cluster();
      ptx::wait_cluster();
    } else if (!last_of_output<Config>(p, piece)) {
      break;
    }
  }
  sync_team<Config>();
}

/// Chooses what the block does next, to exchange.work[slot].
template <class Config>
__device__ __forceinline__ void choose_work(const DecodeParams& p, const Exchange<Config>& exchange, int slot,
                                            bool first) {
  if (team_warp<Config>() == 0) {
    Schedule schedule = *exchange.schedule;
    __syncwarp();
    if (first) {
      schedule.start(p, team_of_grid<Config>());
    } else if (schedule.chunk_done()) {
      schedule.take(p, *exchange.taken + static_cast<std::int32_t>(gridDim.x) * Config::kTeams);
    }
    const Work work = schedule.next(p);
    if (threadIdx.x % 32 == 0) {
      *exchange.schedule = schedule;
      exchange.work[slot] = work;
    }
  }
  sync_team<Config>();
}

}  // namespace mpfa::sm90
