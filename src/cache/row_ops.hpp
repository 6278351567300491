// What happens to a row of K or V between the caller's tensor and the quantiser, in vectors of the machine. Every
// function gives the bits of the plain code that its comment names. x is a row of d floats, aligned to 64 bytes and
// with zeros up to a multiple of formats::kRowMultiple.
#pragma once

#include <cstdint>

#include "formats/row_quantise.hpp"
#include "mpfa/rope.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa::rows {

/// Longest row of a cache, and a buffer for one.
inline constexpr std::int64_t kLongest = 1024;
struct alignas(64) Row {
  float x[kLongest];
};

/// load_row of convert.hpp for f32, bf16 and f16, with zeros after it.
void load(const TensorView& t, std::int64_t offset, std::int64_t stride, std::int64_t d, float* x);
/// Fetches a row into the caches: callers name the token after the one they load, which the hardware does not foresee
/// across memory pages.
void prefetch(const TensorView& t, std::int64_t offset, std::int64_t d);
/// x -= mean.
void subtract(float* x, const float* mean, std::int64_t d);
/// x += mean.
void add(float* x, const float* mean, std::int64_t d);
/// terms[m] = rank_one_term(a + m * d, x, d) for m in [0, group).
void rank_one(const float* a, const float* x, std::int64_t d, std::int64_t group, float* terms);
/// hadamard_rows of one row.
void hadamard(float* x, std::int64_t d);
/// One pair of RoPE.
inline void turn_pair(float& x, float& y, float cos, float sin) {
  const float turned = x * cos - y * sin;
  y = x * sin + y * cos;
  x = turned;
}
/// Turns the pairs of the first 2 * half channels: (x, y) to (x cos - y sin, x sin + y cos).
void rotate(float* x, const float* cos, const float* sin, std::int64_t half, RopeStyle style);
/// float_to_bf16 of every element.
void to_bf16(const float* x, std::int64_t d, std::uint16_t* out);
/// A row of d elements, `stride` apart, of a tensor of f32, bf16 or f16; to nearest even.
void store(const float* x, std::int64_t d, const MutableTensorView& t, std::int64_t offset, std::int64_t stride);
/// Adds the finite elements to sum, and one to skipped for every other.
void add_finite(const float* x, std::int64_t d, double* sum, std::int64_t* skipped);

}  // namespace mpfa::rows
