// Body of an instantiation.
#pragma once

#include "cuda/sm90/decode/kernel.cuh"
#include "cuda/sm90/decode/kernels.h"

namespace mpfa::sm90 {

template <class Config>
DecodeKernel kernel_of() {
  DecodeKernel kernel{reinterpret_cast<const void*>(&decode<Config, false>),
                      Config::kSharedBytes,
                      Config::kBlockThreads,
                      Config::kTeams,
                      Config::kPairs,
                      Config::kDirect,
                      Config::kClusters};
  if constexpr (Config::kDirect) {
    kernel.window = reinterpret_cast<const void*>(&decode_window<Config, false>);
    kernel.window_with_means = reinterpret_cast<const void*>(&decode_window<Config, true>);
    kernel.with_means = reinterpret_cast<const void*>(&decode<Config, true>);
  }
  return kernel;
}

/// With teams, of which each has two warps or more.
template <int kHeadDim, Operand kKey, Operand kValue, KernelCase kCase>
DecodeKernel team_kernel_of(std::int32_t teams) {
  constexpr int kWarps = DecodeConfig<kHeadDim, kKey, kValue, 1, kCase>::kWarps;
  if constexpr (kWarps >= 4) {
    if (teams == 2) return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 1, kCase, 2>>();
  }
  if constexpr (kWarps >= 8) {
    if (teams == 4) return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 1, kCase, 4>>();
  }
  return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 1, kCase>>();
}

template <int kHeadDim, Operand kKey, Operand kValue, int kRowTiles>
DecodeKernel kernel_of(KernelCase kind, std::int32_t teams) {
  if constexpr (kRowTiles == 1) {
    if (kind == KernelCase::plain) return team_kernel_of<kHeadDim, kKey, kValue, KernelCase::plain>(teams);
    if (kind == KernelCase::halves) return team_kernel_of<kHeadDim, kKey, kValue, KernelCase::halves>(teams);
    if (kind == KernelCase::paged) return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 1, KernelCase::paged>>();
  } else if (kind == KernelCase::plain) {
    return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, kRowTiles, KernelCase::plain>>();
  }
  return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, kRowTiles, KernelCase::general>>();
}

template <int kHeadDim, Operand kKey, Operand kValue>
DecodeKernel decode_kernel(std::int32_t row_tiles, KernelCase kind, std::int32_t teams) {
  if (row_tiles == 1) return kernel_of<kHeadDim, kKey, kValue, 1>(kind, teams);
  if constexpr (most_row_tiles(kHeadDim, {kKey, kValue}) == 4) {
    if (row_tiles == 4) return kernel_of<kHeadDim, kKey, kValue, 4>(kind, teams);
  }
  return kernel_of<kHeadDim, kKey, kValue, 2>(kind, teams);
}

}  // namespace mpfa::sm90
