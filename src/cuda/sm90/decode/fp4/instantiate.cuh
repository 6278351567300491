// Body of an instantiation.
#pragma once

#include "cuda/sm90/decode/fp4/kernel.cuh"
#include "cuda/sm90/decode/fp4/kernels.h"

namespace mpfa::sm90 {

template <class Config>
DecodeKernel kernel_of() {
  return {reinterpret_cast<const void*>(&decode<Config>), Config::kSharedBytes, Config::kThreads};
}

template <int kHeadDim, Operand kKey, Operand kValue>
DecodeKernel decode_kernel(std::int32_t row_tiles, bool plain) {
  if (row_tiles == 1) {
    return plain ? kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 1, true>>()
                 : kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 1, false>>();
  }
  return plain ? kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 2, true>>()
               : kernel_of<DecodeConfig<kHeadDim, kKey, kValue, 2, false>>();
}

}  // namespace mpfa::sm90
