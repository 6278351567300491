// Body of an instantiation.
#pragma once

#include "cuda/sm90/decode/fp4/kernel.cuh"
#include "cuda/sm90/decode/fp4/kernels.h"

namespace mpfa::sm90 {

template <class Config>
DecodeKernel kernel_of() {
  return {reinterpret_cast<const void*>(&decode<Config>), Config::kSharedBytes, Config::kThreads};
}

template <int kHeadDim, Operand kKey, Operand kValue, int kRowTiles>
DecodeKernel kernel_of(bool plain) {
  return plain ? kernel_of<DecodeConfig<kHeadDim, kKey, kValue, kRowTiles, true>>()
               : kernel_of<DecodeConfig<kHeadDim, kKey, kValue, kRowTiles, false>>();
}

template <int kHeadDim, Operand kKey, Operand kValue>
DecodeKernel decode_kernel(std::int32_t row_tiles, bool plain) {
  if (row_tiles == 1) return kernel_of<kHeadDim, kKey, kValue, 1>(plain);
  if constexpr (most_row_tiles(kHeadDim, {kKey, kValue}) == 4) {
    if (row_tiles == 4) return kernel_of<kHeadDim, kKey, kValue, 4>(plain);
  }
  return kernel_of<kHeadDim, kKey, kValue, 2>(plain);
}

}  // namespace mpfa::sm90
