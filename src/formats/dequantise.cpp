// dequantise_tokens: any slot range of a page to floats.
#include <algorithm>
#include <cmath>

#include "formats/decode_run.hpp"

namespace mpfa {
namespace {

using formats::BlockFactor;
using formats::FactorContext;

struct Slots {
  std::int64_t begin, end;
};

/// Rows are tokens, blocks run along the channels.
template <class Codec, class Scale>
void read_token_rows(const BlockFormat& f, std::int64_t head_dim, Slots slots, const ConstPageBytes& page,
                     const FactorContext& context, float* out, std::int64_t token_stride, std::int64_t channel_stride) {
  const std::int64_t block = formats::channels_per_block(f, head_dim);
  for (std::int64_t t = slots.begin; t < slots.end; ++t, out += token_stride) {
    const std::byte* row = page.data + t * page.data_row_stride;
    const std::byte* scale = page.scales;
    if constexpr (Scale::kBytes != 0) scale += t / f.block_keys * page.scale_row_stride;
    for (std::int64_t c = 0; c < head_dim; c += block, scale += Scale::kBytes) {
      formats::decode_run<Codec>(row, c, std::min(block, head_dim - c), Scale::read(scale, context),
                                 out + c * channel_stride, channel_stride);
    }
  }
}

/// Rows are channels, blocks run along the slots.
template <class Codec, class Scale>
void read_channel_rows(const BlockFormat& f, std::int64_t head_dim, Slots slots, const ConstPageBytes& page,
                       const FactorContext& context, float* out, std::int64_t token_stride,
                       std::int64_t channel_stride) {
  for (std::int64_t c = 0; c < head_dim; ++c, out += channel_stride) {
    const std::byte* row = page.data + c * page.data_row_stride;
    const std::byte* scales = page.scales + c * page.scale_row_stride;
    for (std::int64_t t = slots.begin; t < slots.end;) {
      const std::int64_t group = t / f.block_keys;
      const std::int64_t n = std::min((group + 1) * f.block_keys, slots.end) - t;
      formats::decode_run<Codec>(row, t, n, Scale::read(scales + group * Scale::kBytes, context),
                                 out + (t - slots.begin) * token_stride, token_stride);
      t += n;
    }
  }
}

}  // namespace

void dequantise_tokens(const BlockFormat& f, std::int64_t head_dim, std::int64_t slot, std::int64_t count,
                       ConstPageBytes page, float global, float* out, std::int64_t token_stride,
                       std::int64_t channel_stride) {
  const FactorContext context{global, std::sqrt(static_cast<float>(head_dim))};
  const Slots slots{slot, slot + count};
  formats::visit_format(f, [&]<class Codec, class Scale>() {
    const auto read = f.axis == PackAxis::keys ? read_channel_rows<Codec, Scale> : read_token_rows<Codec, Scale>;
    read(f, head_dim, slots, page, context, out, token_stride, channel_stride);
  });
}

}  // namespace mpfa
