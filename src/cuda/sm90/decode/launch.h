// Host side of the decode kernel: the launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/sm90/decode/params.h"
#include "cuda/sm90/decode/plan.h"
#include "mpfa/formats.hpp"

namespace mpfa::sm90 {

/// Whether there is a kernel for these operands.
[[nodiscard]] bool has_decode_kernel(OperandPair operands);

/// Fills scale_bytes, row_scale and scale_shift of pages of format `f`.
void set_scale_groups(const BlockFormat& f, std::int64_t head_dim, DecodePages& pages);

/// Whether the verify kernel reaches every page; it has 32 bits for their places, see stride_unit.
[[nodiscard]] bool reaches_pages(const DecodeParams& p);

/// Enqueues the kernel (and, of fixed splits, the clearing of a counter) on `stream`. Fills the fields of `params` that
/// come from the plan and the workspace.
[[nodiscard]] cudaError_t launch_decode(const DecodeShape& shape, const DecodeLaunch& launch, DecodeParams params,
                                        void* workspace, cudaStream_t stream);

}  // namespace mpfa::sm90
