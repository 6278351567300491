// The instantiations of the verify kernel, one translation unit per head dim and pair of operands.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/kernels.h"
#include "cuda/sm90/verify/shapes.h"

namespace mpfa::sm90 {

template <int kHeadDim, Operand kKey, Operand kValue>
[[nodiscard]] DecodeKernel verify_kernel(std::int32_t row_tiles, std::int32_t teams, VerifyCase kind);

/// The kernel for a shape that has one.
[[nodiscard]] DecodeKernel verify_kernel(std::int32_t head_dim, OperandPair operands, std::int32_t row_tiles,
                                         std::int32_t teams, VerifyCase kind);

}  // namespace mpfa::sm90
