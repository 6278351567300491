// The instantiations of the kernel, one translation unit per head dim and pair of operands.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/decode/params.h"

namespace mpfa::sm90 {

struct DecodeKernel {
  const void* function = nullptr;  // takes one DecodeParams
  std::int32_t shared_bytes = 0, threads = 0;
};

template <int kHeadDim, Operand kKey, Operand kValue>
[[nodiscard]] DecodeKernel decode_kernel(std::int32_t row_tiles, KernelCase kind);

}  // namespace mpfa::sm90
