// Numbers as bf16 or fp16 bits, and back.
#pragma once

#include <cstdint>

#include "formats/elements.hpp"

namespace mpfa::fuzz {

inline std::uint16_t to_sixteen(bool bf16, float x) {
  return static_cast<std::uint16_t>((bf16 ? formats::Bf16::encode(x) : formats::F16::encode(x)).bits);
}
inline float from_sixteen(bool bf16, std::uint16_t bits) {
  return bf16 ? formats::Bf16::decode(bits) : formats::F16::decode(bits);
}

}  // namespace mpfa::fuzz
