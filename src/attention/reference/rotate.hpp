// The Hadamard rotation undone in the precision of the sums.
#pragma once

#include <cmath>
#include <cstdint>

#include "cache/hadamard.hpp"

namespace mpfa::reference {

/// x[0..d) <- x H in blocks; the butterflies of hadamard_rows, which is float32 only.
template <class Real>
void unrotate(Real* x, std::int64_t d, std::int64_t block) {
  for (std::int64_t half = 1; half < block; half *= 2) {
    for (std::int64_t i = 0; i < d; ++i) {
      if ((i & half) != 0) continue;
      const Real a = x[i];
      const Real b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
  const Real norm = 1 / std::sqrt(static_cast<Real>(block));
  for (std::int64_t i = 0; i < d; ++i) x[i] *= norm;
}
template <class Real>
void unrotate(Real* x, std::int64_t d) {
  unrotate(x, d, hadamard_block(d));
}

}  // namespace mpfa::reference
