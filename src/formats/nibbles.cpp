#include "formats/nibbles.hpp"

#include <cmath>

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
constexpr std::array<float, 16> kNibbleTable = make_table<Codec>();

}  // namespace

NibbleFormat nibble_format(const BlockFormat& f, std::int64_t head_dim) {
  NibbleFormat n;
  const std::int64_t block = channels_per_block(f, head_dim);
  const bool has_minimum = f.scale == ScaleType::f16_zero;
  if (f.axis != PackAxis::head_dim || f.block_keys != 1 || has_minimum || head_dim % block != 0) return n;
  visit_format(f, [&]<class Codec, class Scale>() {
    if constexpr (Codec::kBits == 4) n = {&kNibbleTable<Codec>, block};
  });
  return n;
}

bool read_factors(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                  ConstPageBytes page, float global, float* factors) {
  const FactorContext context{global, std::sqrt(static_cast<float>(head_dim))};
  const std::int64_t blocks = head_dim / channels_per_block(f, head_dim);
  bool finite = true;
  visit_format(f, [&]<class Codec, class Scale>() {
    for (std::int64_t t = 0; t < count; ++t) {
      const std::byte* row = page.scales + (slot + t) * page.scale_row_stride;
      for (std::int64_t b = 0; b < blocks; ++b) {
        const float factor = Scale::read(row + b * Scale::kBytes, context).factor;
        factors[t * blocks + b] = factor;
        finite = finite && factor - factor == 0.0F;
      }
    }
  });
  return finite;
}

}  // namespace mpfa::formats
