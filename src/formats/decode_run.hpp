// Decoding a run of elements of one data row: the inner loops of dequantisation.
#pragma once

#include <array>

#include "formats/dispatch.hpp"

namespace mpfa::formats {

template <class Codec>
constexpr std::array<float, 256> make_byte_table() {
  std::array<float, 256> table{};
  for (std::uint32_t b = 0; b < 256U; ++b) table[b] = Codec::decode(b);
  return table;
}
template <class Codec>
constexpr std::array<std::array<float, 2>, 256> make_pair_table() {
  std::array<std::array<float, 2>, 256> table{};
  for (std::uint32_t b = 0; b < 256U; ++b) table[b] = {Codec::decode(b & 15U), Codec::decode(b >> 4)};
  return table;
}
template <class Codec>
inline constexpr std::array<float, 256> kByteTable = make_byte_table<Codec>();
/// Byte -> its low-nibble and high-nibble element.
template <class Codec>
inline constexpr std::array<std::array<float, 2>, 256> kPairTable = make_pair_table<Codec>();

template <class Codec>
float apply(float element, BlockFactor b) {
  if constexpr (Codec::kAffine) {
    return element * b.factor + b.minimum;
  } else {
    return element * b.factor;
  }
}

/// Elements [first, first + n) of a data row to out[i * step].
template <class Codec>
void decode_run(const std::byte* row, std::int64_t first, std::int64_t n, BlockFactor factor, float* out,
                std::int64_t step) {
  if constexpr (Codec::kBits == 4) {
    const auto& table = kPairTable<Codec>;
    const std::byte* p = row + first / 2;
    std::int64_t i = 0;
    if (first % 2 != 0 && n > 0) out[i++ * step] = apply<Codec>(table[static_cast<std::uint8_t>(*p++)][1], factor);
    if (step == 1) {
      for (; i + 2 <= n; i += 2) {
        const auto& pair = table[static_cast<std::uint8_t>(*p++)];
        out[i] = apply<Codec>(pair[0], factor);
        out[i + 1] = apply<Codec>(pair[1], factor);
      }
    } else {
      for (; i + 2 <= n; i += 2) {
        const auto& pair = table[static_cast<std::uint8_t>(*p++)];
        out[i * step] = apply<Codec>(pair[0], factor);
        out[(i + 1) * step] = apply<Codec>(pair[1], factor);
      }
    }
    if (i < n) out[i * step] = apply<Codec>(table[static_cast<std::uint8_t>(*p)][0], factor);
  } else {
    constexpr std::int64_t bytes = Codec::kBits / 8;
    const auto element = [row](std::int64_t k) {
      const std::byte* p = row + k * bytes;
      if constexpr (bytes == 4) {
        return Codec::decode(load<std::uint32_t>(p));
      } else if constexpr (bytes == 2) {
        return Codec::decode(load<std::uint16_t>(p));
      } else {
        return kByteTable<Codec>[static_cast<std::uint8_t>(*p)];
      }
    };
    if (step == 1) {
      for (std::int64_t i = 0; i < n; ++i) out[i] = apply<Codec>(element(first + i), factor);
    } else {
      for (std::int64_t i = 0; i < n; ++i) out[i * step] = apply<Codec>(element(first + i), factor);
    }
  }
}

}  // namespace mpfa::formats
