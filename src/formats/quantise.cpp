// quantise_tokens and round_trip_tokens. Elements are always rounded with the scale as stored, never with the exact
// one.
#include <algorithm>
#include <array>
#include <cmath>

#include "formats/scale_rules.hpp"

namespace mpfa {

QuantiseCounters& QuantiseCounters::operator+=(const QuantiseCounters& o) {
  nonfinite_blocks += o.nonfinite_blocks;
  saturated_elements += o.saturated_elements;
  flushed_blocks += o.flushed_blocks;
  return *this;
}

namespace {

using formats::Block;
using formats::BlockFactor;
using formats::Chosen;
using formats::FactorContext;

/// Codes of one line to `dst`; a 4-bit line starts at a byte, an odd one leaves the last high nibble 0.
template <class Codec>
std::int64_t encode_line(const float* x, std::int64_t step, std::int64_t n, const BlockFactor& factor, std::byte* dst) {
  std::int64_t saturated = 0;
  const auto code = [&](std::int64_t i) {
    const float v = x[i * step];
    const formats::Code c = Codec::encode((v - factor.minimum) / factor.factor);
    if (c.saturated && std::isfinite(v)) ++saturated;
    return c.bits;
  };
  if constexpr (Codec::kBits == 4) {
    for (std::int64_t i = 0; i < n; i += 2) {
      const std::uint32_t low = code(i), high = i + 1 < n ? code(i + 1) : 0U;
      dst[i / 2] = static_cast<std::byte>(low | high << 4);
    }
  } else {
    constexpr std::size_t bytes = Codec::kBits / 8;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t bits = code(i);
      std::memcpy(dst + i * static_cast<std::int64_t>(bytes), &bits, bytes);
    }
  }
  return saturated;
}

template <class Codec>
void write_line(const Block& b, std::int64_t line, const Chosen& scale, std::byte* dst, QuantiseCounters& counters) {
  if (scale.zero_codes) {
    std::memset(dst, 0, static_cast<std::size_t>((b.length * Codec::kBits + 7) / 8));
    return;
  }
  counters.saturated_elements += encode_line<Codec>(b.x + line * b.line_stride, b.step, b.length, scale.factor, dst);
}

/// Calls fn(block, first token, first channel) for every block of `count` tokens.
template <class Fn>
void for_each_block(const BlockFormat& f, std::int64_t head_dim, std::int64_t count, const float* x,
                    std::int64_t x_stride, Fn&& fn) {
  const std::int64_t channels = formats::channels_per_block(f, head_dim);
  for (std::int64_t t = 0; t < count; t += f.block_keys) {
    const std::int64_t tokens = std::min<std::int64_t>(f.block_keys, count - t);
    for (std::int64_t c = 0; c < head_dim; c += channels) {
      const float* start = x + t * x_stride + c;
      fn(f.axis == PackAxis::keys ? Block{start, 1, tokens, 0, x_stride}
                                  : Block{start, tokens, std::min(channels, head_dim - c), x_stride, 1},
         t, c);
    }
  }
}

FactorContext make_context(std::int64_t head_dim, float global) {
  return {global, std::sqrt(static_cast<float>(head_dim))};
}

}  // namespace

void quantise_tokens(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count, const float* x,
                     std::int64_t x_stride, float global, PageBytes page, QuantiseCounters* counters) {
  QuantiseCounters counted;
  const FactorContext context = make_context(head_dim, global);
  const bool by_channel = f.axis == PackAxis::keys;
  formats::visit_format(f, [&]<class Codec, class Scale>() {
    for_each_block(f, head_dim, count, x, x_stride, [&](const Block& b, std::int64_t t, std::int64_t c) {
      const Chosen scale = formats::choose_scale<Codec, Scale>(f, b, formats::largest_bits(b), context, counted);
      const std::int64_t row = by_channel ? c : slot + t, first = by_channel ? slot + t : c;
      std::byte* line = page.data + row * page.data_row_stride + first * Codec::kBits / 8;
      for (std::int64_t l = 0; l < b.lines; ++l, line += page.data_row_stride) {
        write_line<Codec>(b, l, scale, line, counted);
      }
      if constexpr (Scale::kBytes != 0) {
        const std::int64_t group = (slot + t) / f.block_keys;
        const std::int64_t scale_row = by_channel ? c : group;
        const std::int64_t index = by_channel ? group : c / formats::channels_per_block(f, head_dim);
        std::memcpy(page.scales + scale_row * page.scale_row_stride + index * Scale::kBytes, scale.bytes.data(),
                    static_cast<std::size_t>(Scale::kBytes));
      }
    });
  });
  if (counters != nullptr) *counters += counted;
}

void round_trip_tokens(const BlockFormat& f, std::int64_t head_dim, std::int64_t tokens, const float* x,
                       std::int64_t x_stride, float* out, std::int64_t out_stride, QuantiseCounters* counters) {
  QuantiseCounters counted;
  const FactorContext context = make_context(head_dim, 1.0F);
  const bool by_channel = f.axis == PackAxis::keys;
  formats::visit_format(f, [&]<class Codec, class Scale>() {
    std::array<std::byte, formats::kMaxHeadDim * 4> codes;
    for_each_block(f, head_dim, tokens, x, x_stride, [&](const Block& b, std::int64_t t, std::int64_t c) {
      const Chosen scale = formats::choose_scale<Codec, Scale>(f, b, formats::largest_bits(b), context, counted);
      for (std::int64_t l = 0; l < b.lines; ++l) {
        write_line<Codec>(b, l, scale, codes.data(), counted);
        formats::decode_run<Codec>(codes.data(), 0, b.length, scale.factor, out + (t + l) * out_stride + c,
                                   by_channel ? out_stride : 1);
      }
    });
  });
  if (counters != nullptr) *counters += counted;
}

}  // namespace mpfa
