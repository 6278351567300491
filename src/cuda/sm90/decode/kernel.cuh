// Attention of few query rows over a paged cache of one of the operand pairs.
//
// Every warp works alone on tiles of 32 keys: codes come through a ring of asynchronous copies, are expanded to 16 bits
// in registers and go straight into MMAs. The warps of a block share a range of keys of one KV head and merge at its
// end, while the copies of the next range are on their way; ranges of the same rows are merged by the block that
// finishes last.
#pragma once

#include "cuda/sm90/decode/direct.cuh"
#include "cuda/sm90/decode/finish.cuh"
#include "cuda/sm90/decode/query.cuh"
#include "cuda/sm90/decode/schedule.cuh"
#include "cuda/sm90/decode/walk.cuh"

namespace mpfa::sm90 {

/// Fetches the page ids of a sequence, at most 1024, to the second-level cache while its length is still being read.
__device__ __forceinline__ void prefetch_pages(const DecodeParams& p) {
  // The first warp has more urgent things to do.
  const auto entry = static_cast<std::int32_t>(threadIdx.x % 32 * 32);
  if (static_cast<std::int32_t>(blockIdx.x) >= p.batch || threadIdx.x / 32 != 1) return;
  if (static_cast<std::int64_t>(entry) * p.page_size >= p.max_kv) return;
  ptx::prefetch(p.page_table + blockIdx.x * p.page_table_stride + entry);
}

/// The warp's ring of a team's shared memory.
template <class Config>
__device__ __forceinline__ std::uint32_t ring_of_warp(const Exchange<Config>& exchange) {
  return ptx::same_in_warp(ptx::shared_address(exchange.ring) + team_warp<Config>() * Config::kWarpBytes);
}

/// kMeans: the short way has means of K and V. In one kernel for both a call without them would take up to a fortieth
/// longer.
template <class Config, bool kMeans>
__global__ void __launch_bounds__(Config::kBlockThreads, 1) decode(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const Exchange<Config> exchange(shared + team_of_block<Config>() * Config::kTeamBytes);
  const std::uint32_t memory = ring_of_warp(exchange);
  if constexpr (Config::kDirect) {
    if (p.direct != 0 && attend_directly<Config, false, kMeans>(p, exchange, memory)) return;
  }
  State<Config> state;
  Walk<Config> walk(p);
  prefetch_pages(p);
  for (int round = 0;; ++round) {
    const int slot = round % 2;
    const bool first = round == 0;
    const Work& work = exchange.work[slot];
    const Work& done = exchange.work[slot ^ 1];
    const bool choose = first || done.last == 0;
    if (choose) choose_work(p, exchange, slot, first);
    const bool more = choose && work.more != 0;
    const bool bad_page = walk.bad_page();
    RawQuery<Config> query{};
    if (more) {
      query = load_query<Config>(p, work);
      walk.start(work, memory);
    }
    if (!first) finish_piece<Config>(p, done.sequence, done.piece, exchange, state, bad_page);
    if (!more) break;
    if (p.wide != 0) prefetch_wide<Config>(p, work.sequence, work.piece);
    load_shifts<Config>(p, work.sequence, work.piece, exchange);
    if (threadIdx.x % Config::kThreads == 0 && work.ends_chunk != 0 && work.last == 0) {
      *exchange.taken = atomicAdd(p.taken, 1);
    }
    if constexpr (Config::kGeneral) load_row_biases<Config>(p, work, exchange.row_bias);
    clear_state<Config>(state);
    if constexpr (Config::kGeneral) {
      if (p.page_means != nullptr) leave_room_for_means<Config>(state);
    }
    store_query<Config>(p, work, key_global(p, work.piece.head), query, exchange);
    sync_team<Config>();
    walk.run(exchange, work, memory, state);
  }
}

/// Windows of few tiles, always the short way; apart for the same reason.
template <class Config, bool kMeans>
__global__ void __launch_bounds__(Config::kBlockThreads, 1) decode_window(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const Exchange<Config> exchange(shared + team_of_block<Config>() * Config::kTeamBytes);
  attend_directly<Config, true, kMeans>(p, exchange, ring_of_warp(exchange));
}

}  // namespace mpfa::sm90
