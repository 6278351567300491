// Attention of 9 or more query rows of a KV head over a paged cache, in one pass over the keys.
//
// A warpgroup works alone on tiles of 64 keys. Each warp expands the codes of its 16 keys of K once for all rows, and
// those of all 64 keys of V for its part of the channels; products are asynchronous MMAs that run while the next codes
// are expanded. Work is shared out and results are merged as in the decode kernel.
#pragma once

#include "cuda/sm90/verify/walk.cuh"

namespace mpfa::sm90 {

template <class Config>
__global__ void __launch_bounds__(Config::kBlockThreads, 1) verify(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(128) std::uint8_t shared[];
  const Exchange<Config> exchange(shared + team_of_block<Config>() * Config::kTeamBytes);
  const std::uint32_t memory = ptx::shared_address(exchange.ring) + team_warp<Config>() / 4 * Config::kGroupBytes;
  GroupState<Config> state;
  GroupWalk<Config> walk(p);
  int round = 0;
  for (;; ++round) {
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
    if (!first) {
      put_piece<Config>(p, done, exchange, state, bad_page);
      if (merges_in_cluster(p, done, exchange)) break;
      merge_groups<Config>(p, done.sequence, done.piece, exchange);
    }
    if (!more) break;
    load_shifts<Config>(p, work.sequence, work.piece, exchange);
    if (threadIdx.x % Config::kThreads == 0 && work.ends_chunk != 0 && work.last == 0) {
      *exchange.taken = atomicAdd(p.taken, 1);
    }
    if constexpr (Config::kMasked) load_group_biases<Config>(p, work, exchange.row_bias);
    clear_state<Config>(state);
    store_group_query<Config>(p, work, query, exchange);
    sync_team<Config>();
    walk.run(exchange, work, memory, state);
  }
  if constexpr (Config::kMerges) {
    constexpr bool kApart = Config::kRowTiles == 4 && (kScalesSums<Config> || Config::kFewRegisters);
    const Work& done = exchange.work[round % 2 ^ 1];
    if (round > 0 && merges_in_cluster(p, done, exchange)) {
      merge_in_cluster<Config, kApart>(p, done, exchange);
    }
  }
}

}  // namespace mpfa::sm90
