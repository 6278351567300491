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

template <class Word>
bool none_has_all(const std::byte* rows, std::int64_t row_stride, std::int64_t row_bytes, std::int64_t count,
                  Word mask) {
  bool found = false;
  for (std::int64_t r = 0; r < count; ++r) {
    const auto* row = reinterpret_cast<const Word*>(rows + r * row_stride);
    for (std::int64_t i = 0; i < row_bytes / static_cast<std::int64_t>(sizeof(Word)); ++i) {
      found |= (row[i] & mask) == mask;
    }
  }
  return !found;
}

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

bool read_factors(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                  ConstPageBytes page, float global, float* factors, float* minima) {
  const FactorContext context{global, std::sqrt(static_cast<float>(head_dim))};
  const std::int64_t blocks = head_dim / channels_per_block(f, head_dim);
  const std::int64_t n = count * blocks;
  visit_format(f, [&]<class Codec, class Scale>() {
    for (std::int64_t t = 0; t < count; ++t) {
      const std::byte* row = page.scales;
      if constexpr (Scale::kBytes != 0) row += (slot + t) / f.block_keys * page.scale_row_stride;
      float* out = factors + t * blocks;
      for (std::int64_t b = 0; b < blocks; ++b) {
        if constexpr (Scale::kBytes == 1) {
          out[b] = kScaleTable<Scale>[static_cast<std::uint8_t>(row[b])];
        } else {
          const BlockFactor factor = Scale::read(row + b * Scale::kBytes, context);
          out[b] = factor.factor;
          if constexpr (std::is_same_v<Scale, F16ZeroScale>) minima[t] = factor.minimum;
        }
      }
    }
  });
  if (f.scale == ScaleType::e4m3 && global != 1.0F) {
    for (std::int64_t i = 0; i < n; ++i) factors[i] *= global;
  }
  bool finite = true;
  for (std::int64_t i = 0; i < n; ++i) finite &= factors[i] - factors[i] == 0.0F;
  if (f.scale == ScaleType::f16_zero) {
    for (std::int64_t t = 0; t < count; ++t) finite &= minima[t] - minima[t] == 0.0F;
  }
  return finite;
}

bool codes_finite(WordCode code, const std::byte* rows, std::int64_t row_stride, std::int64_t row_bytes,
                  std::int64_t count) {
  switch (code) {
    case WordCode::e4m3: return none_has_all<std::uint8_t>(rows, row_stride, row_bytes, count, 0x7F);
    case WordCode::e5m2: return none_has_all<std::uint8_t>(rows, row_stride, row_bytes, count, 0x7C);
    case WordCode::bf16: return none_has_all<std::uint16_t>(rows, row_stride, row_bytes, count, 0x7F80);
    case WordCode::f16: return none_has_all<std::uint16_t>(rows, row_stride, row_bytes, count, 0x7C00);
    case WordCode::f32: return none_has_all<std::uint32_t>(rows, row_stride, row_bytes, count, 0x7F800000);
    default: return true;
  }
}

}  // namespace mpfa::formats
