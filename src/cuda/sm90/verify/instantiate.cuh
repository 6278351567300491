// Body of an instantiation.
#pragma once

#include "cuda/sm90/verify/kernel.cuh"
#include "cuda/sm90/verify/kernels.h"

namespace mpfa::sm90 {

template <class Config>
DecodeKernel verify_kernel_of() {
  return {reinterpret_cast<const void*>(&verify<Config>), Config::kSharedBytes, Config::kThreads};
}

template <int kHeadDim, Operand kKey, Operand kValue>
DecodeKernel verify_kernel(std::int32_t row_tiles) {
  if (row_tiles == 2) return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, 2>>();
  if (row_tiles == 4) return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, 4>>();
  return verify_kernel_of<VerifyConfig<kHeadDim, kKey, kValue, 8>>();
}

}  // namespace mpfa::sm90
