// K' and V' of one (sequence, KV head) as numbers: the packed tokens and the bf16 copies, apart.
#pragma once

#include <cstdint>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa::reference {

/// Row j of k is token j. Only tokens the cache holds in that form are filled; the rest is never read.
template <class Real>
struct Tokens {
  std::vector<float> k;  // [length, head_dim]
  std::vector<Real> v;   // [length, head_dim_v]
};

template <class Real>
struct KeyHead {
  std::int64_t length = 0;
  Tokens<Real> packed;  // tokens [0, packed_end), dequantised; v with alpha and beta applied
  Tokens<Real> wide;    // tokens [0, sink) and [wide_begin, length)
};

/// Tensors have passed check_tensors. `g` is the KV head.
template <class Real>
[[nodiscard]] KeyHead<Real> load_keys(const AttentionProblem& problem, const CacheView& cache, std::int64_t b,
                                      std::int64_t g);

extern template KeyHead<float> load_keys(const AttentionProblem&, const CacheView&, std::int64_t, std::int64_t);
extern template KeyHead<double> load_keys(const AttentionProblem&, const CacheView&, std::int64_t, std::int64_t);

}  // namespace mpfa::reference
