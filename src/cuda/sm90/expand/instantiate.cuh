// Body of an instantiation.
#pragma once

#include "cuda/sm90/expand/kernel.cuh"
#include "cuda/sm90/expand/kernels.h"

namespace mpfa::sm90 {

template <int kHeadDim, Operand kKey, Operand kValue, int kRowBlocks>
DecodeKernel expand_kernel_of() {
  if constexpr (has_expand_blocks(kHeadDim, {kKey, kValue}, kRowBlocks)) {
    using Config = ExpandConfig<kHeadDim, kKey, kValue, kRowBlocks>;
    return {reinterpret_cast<const void*>(&expand<Config>), Config::kSharedBytes, Config::kBlockThreads};
  }
  return {};
}

template <int kHeadDim, Operand kKey, Operand kValue>
DecodeKernel expand_kernel(std::int32_t row_blocks) {
  return row_blocks == 1 ? expand_kernel_of<kHeadDim, kKey, kValue, 1>()
                         : expand_kernel_of<kHeadDim, kKey, kValue, 2>();
}

}  // namespace mpfa::sm90
