#include "formats/words.hpp"

#include <cmath>
#include <type_traits>

#include "formats/dispatch.hpp"

namespace mpfa::formats {
namespace {

template <class Codec>
constexpr std::array<float, 16> make_table() {
  std::array<float, 16> table{};
  for (std::uint32_t code = 0; code < 16; ++code) table[code] = Codec::decode(code);
  return table;
}
template <class Codec>
constexpr std::array<float, 16> kTable16 = make_table<Codec>();

template <class Codec>
constexpr WordCode word_code() {
  if constexpr (Codec::kBits == 4) return WordCode::table16;
  if constexpr (std::is_same_v<Codec, Int8>) return WordCode::int8;
  if constexpr (std::is_same_v<Codec, E4M3>) return WordCode::e4m3;
  if constexpr (std::is_same_v<Codec, E5M2>) return WordCode::e5m2;
  if constexpr (std::is_same_v<Codec, Bf16>) return WordCode::bf16;
  if constexpr (std::is_same_v<Codec, F16>) return WordCode::f16;
  return WordCode::f32;
}

/// Every one-byte scale at global scale 1.
template <class Scale>
std::array<float, 256> make_scale_table() {
  std::array<float, 256> table{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const auto byte = static_cast<std::byte>(code);
    table[code] = Scale::read(&byte, FactorContext{}).factor;
  }
  return table;
}
template <class Scale>
const std::array<float, 256> kScaleTable = make_scale_table<Scale>();

}  // namespace

WordFormat word_format(const BlockFormat& f, std::int64_t head_dim) {
  WordFormat w;
  const std::int64_t block = channels_per_block(f, head_dim);
  w.has_minimum = f.scale == ScaleType::f16_zero;
  if (f.axis != PackAxis::head_dim || head_dim % block != 0 || (w.has_minimum && block != head_dim)) return {};
  visit_format(f, [&]<class Codec, class Scale>() {
    w.code = word_code<Codec>();
    w.per_word = 32 / Codec::kBits;
    w.block = block;
    if constexpr (Codec::kBits == 4) w.table = &kTable16<Codec>;
  });
  return w;
}

void read_factors(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                  ConstPageBytes page, float global, float* factors, float* minima) {
  const FactorContext context{global, std::sqrt(static_cast<float>(head_dim))};
  const std::int64_t blocks = head_dim / channels_per_block(f, head_dim);
  const std::int64_t n = count * blocks;
  visit_format(f, [&]<class Codec, class Scale>() {
    // Rows that adjoin are read as one: a loop over the few scales of a token is mostly overhead.
    const bool adjoin = f.block_keys == 1 && page.scale_row_stride == blocks * Scale::kBytes;
    const std::int64_t rows = adjoin ? 1 : count;
    const std::int64_t in_row = adjoin ? n : blocks;
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::byte* row = page.scales;
      if constexpr (Scale::kBytes != 0) row += (slot + t) / f.block_keys * page.scale_row_stride;
      float* out = factors + t * blocks;
      for (std::int64_t b = 0; b < in_row; ++b) {
        if constexpr (Scale::kBytes == 1) {
          out[b] = kScaleTable<Scale>[static_cast<std::uint8_t>(row[b])];
        } else {
          const BlockFactor factor = Scale::read(row + b * Scale::kBytes, context);
          out[b] = factor.factor;
          if constexpr (std::is_same_v<Scale, F16ZeroScale>) minima[t + b] = factor.minimum;
        }
      }
    }
  });
  if (f.scale == ScaleType::e4m3 && global != 1.0F) {
    for (std::int64_t i = 0; i < n; ++i) factors[i] *= global;
  }
}

}  // namespace mpfa::formats
