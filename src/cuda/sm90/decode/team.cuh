// Teams of warps. With more outputs than multiprocessors a block has several pieces, and at the end of each its warps
// wait for each other. So its warps are teams that have pieces, shared memory and barriers of their own: while one ends
// a piece, the others go on.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/sm90/decode/config.h"

namespace mpfa::sm90 {

/// The warp's team in the block. The shuffle tells the compiler that it is alike in a warp, which saves registers.
template <class Config>
__device__ __forceinline__ int team_of_block() {
  return Config::kTeams == 1 ? 0 : __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / Config::kThreads, 0);
}
/// The warp's number in its team.
template <class Config>
__device__ __forceinline__ int team_warp() {
  return static_cast<int>(Config::kTeams == 1 ? threadIdx.x : threadIdx.x % Config::kThreads) / 32;
}
/// Number of the team in the grid: what the schedule calls a block. Teams of a block are far apart, so that they do not
/// end pieces at the same time.
template <class Config>
__device__ __forceinline__ std::int32_t team_of_grid() {
  return static_cast<std::int32_t>(blockIdx.x + gridDim.x * team_of_block<Config>());
}

template <class Config>
__device__ __forceinline__ void sync_team() {
  if constexpr (Config::kThreads == Config::kBlockThreads) {
    __syncthreads();
  } else {
    ptx::sync_some<Config::kThreads>(1 + team_of_block<Config>());
  }
}
/// Whether x is true for any thread of the team, after a barrier.
template <class Config>
__device__ __forceinline__ bool any_of_team(bool x) {
  if constexpr (Config::kThreads == Config::kBlockThreads) {
    return __syncthreads_or(x ? 1 : 0) != 0;
  } else {
    return ptx::any_of_some<Config::kThreads>(1 + team_of_block<Config>(), x);
  }
}

}  // namespace mpfa::sm90
