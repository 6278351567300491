// Centre, quantise and write tokens to FP4 pages.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/common/divisor.h"
#include "mpfa/formats.hpp"

namespace mpfa::sm90 {

/// K or V of one call. Strides of x in elements, of pages in bytes.
struct AppendOperand {
  const void* x;      // [n, heads, d]
  const float* mean;  // [heads, d] or null
  std::int64_t x_row, x_head;
  std::uint8_t* data;  // [num_pages, heads, page_size, d / 2]
  std::uint8_t* scales;
  const float* global;  // [heads] or null
  std::int64_t data_page, data_head, data_row, scale_page, scale_head, scale_row;
  std::int32_t blocks;  // of a head
  ScaleRule rule;
};

struct AppendParams {
  AppendOperand operand[2];   // K, V
  const std::int64_t* slots;  // [n]
  std::int64_t end_slot;      // num_pages * page_size
  Divisor page_div;
  std::int32_t n, heads, page_size;
  unsigned long long* counters;  // [3] non-finite blocks, saturated elements, flushed blocks; or null
};

enum class AppendInput { f32, bf16, f16 };

/// `scale`: ScaleType::e8m0 (blocks of 32) or e4m3 (blocks of 16), for K and V alike. n * heads * blocks < 2^31.
[[nodiscard]] cudaError_t launch_append(AppendInput input, ScaleType scale, const AppendParams& params,
                                        cudaStream_t stream);

}  // namespace mpfa::sm90
