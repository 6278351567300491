// Division by a constant of a launch without a division instruction.
#pragma once

#include <cstdint>

namespace mpfa {

/// n / d for n < 2^31. Plain data, for kernel parameters.
struct Divisor {
  std::uint32_t d = 1, multiplier = 0, shift = 32;  // shift 32: d is 1
};

inline Divisor make_divisor(std::uint32_t d) {
  if (d <= 1) return {};
  // ceil(2^(32 + s) / d) with 2^(s + 1) >= d: exact for n < 2^31.
  std::uint32_t shift = 0;
  while ((std::uint64_t{1} << (shift + 1)) < d) ++shift;
  const std::uint64_t multiplier = ((std::uint64_t{1} << (32 + shift)) + d - 1) / d;
  return {d, static_cast<std::uint32_t>(multiplier), shift};
}

#if defined(__CUDACC__)
__device__ __forceinline__ std::uint32_t divide(std::uint32_t n, const Divisor& d) {
  return d.shift >= 32 ? n : __umulhi(n, d.multiplier) >> d.shift;
}
#endif

}  // namespace mpfa
