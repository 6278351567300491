// P V of prefill by dot products of integers, where the elements of V are whole numbers: probabilities times factors
// become 15 bits relative to the largest of their row and block in the tile, and sums are exact. Rows lie along the
// lanes, as in panel_ops.hpp.
#pragma once

#include <cmath>
#include <cstdint>

#include "cpu/integer_codes.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::cpu {

inline constexpr std::int64_t kKeyPairs = kKeyTile / 2;

/// Keys [begin, end) of a tile. Others have no weight.
struct IntegerKeys {
  std::int64_t begin, end;
  [[nodiscard]] std::int64_t first_pair() const { return begin / 2; }
  [[nodiscard]] std::int64_t last_pair() const { return (end + 1) / 2; }
};

/// out [kKeyPairs, channels, 2] from words [kKeyTile, channels], for the pairs of `keys`.
void pair_keys(const IntegerKeys& keys, std::int64_t channels, const std::int16_t* words, std::int16_t* out);

/// Words of 15 bits that have a block's factor in them, for blocks so short that weights of their own would cost as
/// much as they save: [kKeyTile, channels] with factors [kKeyTile, channels / 16] become words with factors [kKeyTile].
/// Elements and factors of 4 bits each stay exact where a factor is at least kLeastFolded of the key's largest; of
/// others the bits below go.
inline constexpr float kLeastFolded = 0x1p-6F;
void fold_blocks(const IntegerKeys& keys, std::int64_t channels, float limit, std::int16_t* words, float* factors);
/// The power of two that folded factors stay below: words of elements up to `most` have 14 bits and a sign.
[[nodiscard]] inline float fold_limit(float most) {
  return std::exp2(std::floor(std::log2(16000.0F / most)));
}

/// Factors that integer_weights() takes, besides 0: products with probabilities and their sums stay normal floats.
inline constexpr float kLeastFactor = 0x1p-90F, kMostFactor = 0x1p90F;

/// units [blocks, 2, width]: what makes integers of weights p [kKeyTile, width] * factors [kKeyTile, blocks], and what
/// these are worth with elements of `form`: NaN for a row with a NaN in p.
void integer_units(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors,
                   std::int64_t blocks, const IntegerForm& form, float* units);

/// weights [kKeyPairs, width]: integers of two keys each, of p * factors[key * stride] with units [2, width].
void integer_weights(const IntegerKeys& keys, std::int64_t width, const float* p, const float* factors,
                     std::int64_t stride, const float* units, std::uint32_t* weights);

/// o [channels, width] = o * keep + the weights times v [kKeyPairs, stride, 2]. channels is a multiple of 8.
void integer_values(const IntegerKeys& keys, std::int64_t channels, std::int64_t width, const std::int16_t* v,
                    std::int64_t stride, const std::uint32_t* weights, const float* units, const float* keep, float* o);

}  // namespace mpfa::cpu
