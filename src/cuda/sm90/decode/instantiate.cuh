// Body of an instantiation.
#pragma once

#include "cuda/sm90/decode/kernel.cuh"
#include "cuda/sm90/decode/kernels.h"

namespace mpfa::sm90 {

template <class Config>
DecodeKernel kernel_of() {
  return {reinterpret_cast<const void*>(&decode<Config>), Config::kSharedBytes, Config::kThreads};
}

template <int kHeadDim, Operand kKey, Operand kValue, int kRowTiles>
DecodeKernel kernel_of(KernelCase kind) {
  if (kind == KernelCase::plain) return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, kRowTiles, KernelCase::plain>>();
  if constexpr (kRowTiles == 1) {
    if (kind == KernelCase::paged) return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 1, KernelCase::paged>>();
  }
  return kernel_of<DecodeConfig<kHeadDim, kKey, kValue, kRowTiles, KernelCase::general>>();
}

template <int kHeadDim, Operand kKey, Operand kValue>
DecodeKernel decode_kernel(std::int32_t row_tiles, KernelCase kind) {
  if (row_tiles == 1) return kernel_of<kHeadDim, kKey, kValue, 1>(kind);
  if constexpr (most_row_tiles(kHeadDim, {kKey, kValue}) == 4) {
    if (row_tiles == 4) return kernel_of<kHeadDim, kKey, kValue, 4>(kind);
  }
  return kernel_of<kHeadDim, kKey, kValue, 2>(kind);
}

}  // namespace mpfa::sm90
