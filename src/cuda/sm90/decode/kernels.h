// The instantiations of the kernel, one translation unit per head dim and pair of operands.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/decode/config.h"
#include "cuda/sm90/decode/params.h"

namespace mpfa::sm90 {

struct DecodeKernel {
  const void* function = nullptr;  // takes one DecodeParams
  std::int32_t shared_bytes = 0, threads = 0, teams = 1;
  bool pairs = false;     // has code for blocks that are clusters of two
  bool direct = false;    // and for the short way of direct.cuh
  bool clusters = false;  // where clusters merge through shared memory
  // Those of calls that go the short way with windows, and with means of K or V.
  const void *window = nullptr, *with_means = nullptr, *window_with_means = nullptr;
};

/// One of a single team where there is none of `teams`.
template <int kHeadDim, Operand kKey, Operand kValue>
[[nodiscard]] DecodeKernel decode_kernel(std::int32_t row_tiles, KernelCase kind, std::int32_t teams);

}  // namespace mpfa::sm90
