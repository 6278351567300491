// The instantiations of the kernel for many rows, one translation unit per head dim and pair of operands.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/kernels.h"
#include "cuda/sm90/expand/shapes.h"

namespace mpfa::sm90 {

template <int kHeadDim, Operand kKey, Operand kValue>
[[nodiscard]] DecodeKernel expand_kernel(std::int32_t row_blocks);

/// The kernel for a shape that has one; row_blocks: of 64 rows, 1 or 2.
[[nodiscard]] DecodeKernel expand_kernel(std::int32_t head_dim, OperandPair operands, std::int32_t row_blocks);

}  // namespace mpfa::sm90
