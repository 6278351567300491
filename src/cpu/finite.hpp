#pragma once

#include <bit>
#include <cstdint>

namespace mpfa::cpu {

/// True when no value is a NaN or Inf: adding the lowest bit of the exponent to |v| carries into the sign bit for
/// those.
[[nodiscard]] inline bool all_finite(const float* v, std::int64_t n) {
  std::uint32_t carry = 0;
  for (std::int64_t i = 0; i < n; ++i) carry |= (std::bit_cast<std::uint32_t>(v[i]) & 0x7FFFFFFFU) + 0x00800000U;
  return (carry & 0x80000000U) == 0;
}

}  // namespace mpfa::cpu
