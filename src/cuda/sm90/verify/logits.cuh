// Softcap and ALiBi of the verify kernel.
#pragma once

#include <cstdint>

#include "cuda/sm90/decode/mask.cuh"
#include "cuda/sm90/verify/softmax.cuh"

namespace mpfa::sm90 {

/// Whether scores have to become logits before they are compared.
__device__ __forceinline__ bool scales_logits(const DecodeParams& p) {
  return p.softcap > 0.0F || p.alibi_slopes != nullptr || (p.mask.data != nullptr && p.mask.additive != 0);
}

/// Scores become logits in the log2 domain, with softcap and ALiBi. `first`: the first key of the warp.
template <class Config>
__device__ __forceinline__ void scale_group_logits(const DecodeParams& p, const Exchange<Config>& exchange, float unit,
                                                   std::int32_t first, float (&x)[Config::kScores]) {
#pragma unroll
  for (int k = 0; k < Config::kScores; ++k) x[k] *= exchange.factors[column_row(k / 4, k % 2)] * unit;
  if (p.softcap > 0.0F) {
#pragma unroll
    for (int k = 0; k < Config::kScores; ++k) {
      x[k] = capped_logit(p.softcap, exchange.row_shift[column_row(k / 4, k % 2)], x[k]);
    }
  }
  if (p.alibi_slopes != nullptr) {
    const std::int32_t key = first + static_cast<std::int32_t>(threadIdx.x % 32 / 4);
#pragma unroll
    for (int k = 0; k < Config::kScores; ++k) {
      const RowBias& row = exchange.row_bias[column_row(k / 4, k % 2)];
      x[k] = fmaf(-row.slope, static_cast<float>(abs(row.position - key - k / 2 % 2 * 8)), x[k]);
    }
  }
}

}  // namespace mpfa::sm90
