// Storage formats of Q, K and V: elements, blocks and scales, and the functions that write and read them.
//
// A format says how one head's tokens become bytes. All formats share one page geometry:
//   data   [data_rows][data_row_bytes]     row = token (axis head_dim) or channel (axis keys)
//   scales [scale_rows][scale_row_bytes]   row = group of block_keys tokens, or channel (axis keys)
// so that a kernel needs a base pointer and a row stride and nothing else. Scales of a row follow each other, without
// padding; 4-bit elements go two to a byte, the earlier one in the low nibble (int4: two's complement).
//
// value = element * factor (+ minimum), all in fp32 without contraction, where factor is the stored scale, times
// `global` for e4m3 scales; norm: the stored norm / sqrt(head_dim); fixed: `global`.
// Writing: element = RN(x / factor) with the factor of the scale AS STORED, ties to the even code, saturating.
// * amax 0, or a scale so small that every element becomes 0: scale code 0 (-1.0 for fp32 scales of 4-bit floats, which
//   readers take as 0), codes 0, value exactly 0.
// * NaN or Inf in a block: formats with a stored scale write a NaN scale and codes 0, so the block reads as NaN and no
//   other block changes. f32, bf16 and fp16 keep NaN and Inf; *_static fp8 keeps NaN and saturates Inf.
// * A block cut off by the end of the head uses its real elements only.
// * Finite input never reads back as Inf: scales are chosen for at most 2^127, float16 scales and minima stop at 65504,
//   e4m3 scales at 448, e8m0 exponents at -127 and 127, fp32 scales are at least 2^-126.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mpfa/status.hpp"

namespace mpfa {

enum class Element : std::uint8_t {
  f32,
  bf16,
  f16,
  e4m3,
  e5m2,  // OCP FP8: e4m3 is the FN kind (no Inf, NaN 0x7F/0xFF)
  e2m1,
  e3m0,  // 4-bit floats: max 6 and 16
  int8,
  int4,    // symmetric, -127..127 and -7..7
  uint4,   // 0..15 with a zero point
  lloyd4,  // 16 Lloyd-Max levels of a unit normal, scaled by the token's L2 norm / sqrt(d)
};

enum class ScaleType : std::uint8_t {
  none,
  e8m0,
  e4m3,
  f16,
  f32,
  f16_zero,  // fp16 scale followed by fp16 minimum (asymmetric formats)
};

/// How the scale follows from a block's largest magnitude (amax).
enum class ScaleRule : std::uint8_t {
  none,
  amax,           // amax / element max
  four_over_six,  // amax->6, or amax->4 if its squared error (fp32, summed in order) is strictly smaller (2512.02010)
  least_error,    // E8M0: ceil(log2(amax / 7.25)), exact on bits (arXiv 2607.24377: least mean error)
  floor,          // E8M0: floor(log2 amax) - floor(log2 element max): OCP MX v1.0, clips
  ceil,           // E8M0: ceil(log2(amax / element max)): never clips
  min_max,        // asymmetric: (max - min) / 15; a constant block has scale 0 and reads as its minimum
  norm,           // fp16 L2 norm of the token (arXiv 2504.19874 without its residual stage)
  fixed,          // no stored scale: the head's global scale, calibrated by the caller
};

enum class PackAxis : std::uint8_t { head_dim, keys };

struct BlockFormat {
  Element element = Element::bf16;
  ScaleType scale = ScaleType::none;
  ScaleRule rule = ScaleRule::none;
  PackAxis axis = PackAxis::head_dim;
  std::int32_t block_channels = 1;  // channels that share a scale; 0 = the whole head dim
  std::int32_t block_keys = 1;      // tokens that share a scale, and so are written together
  bool operator==(const BlockFormat&) const = default;
};

/// Bits of one element (without scales).
[[nodiscard]] int element_bits(Element e);
/// Largest finite magnitude of the element (6 for e2m1, 448 for e4m3, 127 for int8, ...).
[[nodiscard]] float element_max(Element e);

/// Every format name, in the order of the documentation.
[[nodiscard]] const std::vector<std::string>& format_names();
/// "nvfp4", "mxfp4_f32", "nvfp4@keys", ...; the error lists what is allowed.
[[nodiscard]] Result<BlockFormat> parse_format(std::string_view name);
/// The inverse of parse_format.
[[nodiscard]] std::string format_name(const BlockFormat& f);
/// One line on element, block, scale and rule, for tables and help texts.
[[nodiscard]] std::string format_description(const BlockFormat& f);

/// ok, or why `f` cannot hold heads of `head_dim` channels in pages of `page_size` tokens: f is one of the named
/// formats, 1 <= head_dim <= 4096 (any number: blocks may be cut off), page_size a multiple of block_keys.
/// The functions below expect arguments that passed this check.
[[nodiscard]] Status check_format(const BlockFormat& f, std::int64_t head_dim, std::int64_t page_size);

/// Bytes of one (page, head) of K or V.
struct PageGeometry {
  std::int64_t data_rows = 0, data_row_bytes = 0;
  std::int64_t scale_rows = 0, scale_row_bytes = 0;
  [[nodiscard]] std::int64_t data_bytes() const { return data_rows * data_row_bytes; }
  [[nodiscard]] std::int64_t scale_bytes() const { return scale_rows * scale_row_bytes; }
};
[[nodiscard]] PageGeometry page_geometry(const BlockFormat& f, std::int64_t head_dim, std::int64_t page_size);

/// What a quantiser met. Counted per call, added to what is there.
/// An element is saturated when x / factor, rounded on the element's grid continued without end, exceeds element_max
/// (e2m1: |x / factor| >= 7, e4m3: > 464, int8: >= 127.5); with norm, all elements of a token whose norm exceeds 65504.
struct QuantiseCounters {
  std::int64_t nonfinite_blocks = 0;    // blocks with a NaN or Inf; formats without a stored scale: tokens
  std::int64_t saturated_elements = 0;  // finite elements only
  std::int64_t flushed_blocks = 0;      // blocks that are not zero (min_max: not constant) but whose scale rounds to 0
  QuantiseCounters& operator+=(const QuantiseCounters& o);
};

/// One (page, head): base pointers and row strides in bytes.
struct PageBytes {
  std::byte* data = nullptr;
  std::int64_t data_row_stride = 0;
  std::byte* scales = nullptr;
  std::int64_t scale_row_stride = 0;
};
struct ConstPageBytes {
  const std::byte* data = nullptr;
  std::int64_t data_row_stride = 0;
  const std::byte* scales = nullptr;
  std::int64_t scale_row_stride = 0;
  ConstPageBytes() = default;
  ConstPageBytes(const std::byte* d, std::int64_t drs, const std::byte* s, std::int64_t srs)
      : data(d), data_row_stride(drs), scales(s), scale_row_stride(srs) {}
  ConstPageBytes(const PageBytes& p)  // NOLINT(google-explicit-constructor)
      : data(p.data), data_row_stride(p.data_row_stride), scales(p.scales), scale_row_stride(p.scale_row_stride) {}
};

/// Writes tokens x[count][head_dim] (row stride x_stride floats) into slots [slot, slot+count) of a page.
/// slot is a multiple of f.block_keys, count too unless the last group is meant to stay partial. `global` is the head's
/// fp32 scale, finite and > 0, 1 unless calibrated; formats without an e4m3 scale or rule fixed do not use it.
/// Bytes of other slots keep their value.
void quantise_tokens(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count, const float* x,
                     std::int64_t x_stride, float global, PageBytes page, QuantiseCounters* counters);

/// Reads slots [slot, slot+count) (any range) to out[token * token_stride + channel * channel_stride].
void dequantise_tokens(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                       ConstPageBytes page, float global, float* out, std::int64_t token_stride,
                       std::int64_t channel_stride);

/// x -> dequantise(quantise(x)) for `tokens` rows, without a page: the value a 4- or 8-bit Q has in a kernel.
/// Rows are grouped in block_keys from row 0; a last partial group uses its real rows only.
void round_trip_tokens(const BlockFormat& f, std::int64_t head_dim, std::int64_t tokens, const float* x,
                       std::int64_t x_stride, float* out, std::int64_t out_stride, QuantiseCounters* counters);

}  // namespace mpfa
