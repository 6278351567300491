// Rotate, centre, quantise and write tokens to pages, and convert 16-bit pages in place.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/sm90/append/params.h"

namespace mpfa::sm90 {

enum class AppendInput : std::uint8_t { f32, bf16, f16 };

/// Bytes of the largest page that launch_convert takes: it is staged in shared memory.
inline constexpr std::int64_t kLargestPage = 227 * 1024;

/// n * heads * d < 2^31 for K, V and Q.
[[nodiscard]] cudaError_t launch_append(AppendInput input, bool rope, const AppendParams& params, cudaStream_t stream);
/// `input`: bf16 or f16.
[[nodiscard]] cudaError_t launch_convert(AppendInput input, const ConvertParams& params, cudaStream_t stream);

}  // namespace mpfa::sm90
