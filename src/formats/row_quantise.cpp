#include "formats/row_quantise.hpp"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "formats/scale_rules.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "formats/row_quantise.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mpfa::formats::HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
/// No vectors: quantise_tokens is what there is.
QuantiseRow FindQuantiseRow(const BlockFormat& /*f*/) {
  return nullptr;
}
#else
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kRowMultiple>;

#include "formats/row_codecs-inl.hpp"

/// largest_bits of n elements, a multiple of the lanes.
HWY_INLINE std::uint32_t row_largest_bits(const float* x, std::int64_t n) {
  const D d;
  const DI di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(di);
  for (std::int64_t i = 0; i < n; i += lanes) {
    largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::LoadU(d, x + i)), hn::Set(di, kFloatAbs)));
  }
  return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
}

/// Codes of n elements (padded to the lanes with zeros) to `to`; adds a lane of `saturated` for every one that was.
template <class Codec, class Scale>
HWY_INLINE VU encode_row(const float* x, std::int64_t n, float factor, std::byte* to, VU saturated) {
  const D d;
  const DU du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  // A power of two divides and its inverse multiplies to the same bits, in a third of the time.
  constexpr bool kMultiplies = std::is_same_v<Scale, E8m0Scale> || std::is_same_v<Scale, NoScale>;
  constexpr bool kScaled = Scale::kBytes != 0;
  const VF divisor = hn::Set(d, kMultiplies ? 1.0F / factor : factor);
  for (std::int64_t i = 0; i < n; i += lanes) {
    const VF v = hn::LoadU(d, x + i);
    const Codes codes = LaneCodec<Codec>::encode(kMultiplies ? hn::Mul(v, divisor) : hn::Div(v, divisor));
    store_codes<Codec::kBits>(codes.bits, to + i * Codec::kBits / 8);
    VU counted = codes.saturated;
    // Blocks with a stored scale hold no NaN and no Inf where they are encoded.
    if constexpr (!kScaled) {
      counted = hn::AndNot(above(hn::And(hn::BitCast(du, v), hn::Set(du, kFloatAbs)), kFloatInf - 1U), counted);
    }
    saturated = hn::Sub(saturated, counted);
  }
  return saturated;
}

template <class Codec, class Scale>
void QuantiseOneRow(const BlockFormat& f, std::int64_t head_dim, const float* x, const FactorContext& context,
                    std::byte* data, std::byte* scales, QuantiseCounters& counters) {
  const DU du;
  constexpr bool kScaled = Scale::kBytes != 0;
  const std::int64_t block = channels_per_block(f, head_dim);
  // Vectors write whole multiples of 16 codes; a row that ends earlier is written elsewhere first.
  HWY_ALIGN std::byte whole[kMaxHeadDim * Codec::kBits / 8];
  const bool direct = head_dim % kRowMultiple == 0;
  std::byte* const line = direct ? data : whole;
  VU saturated = hn::Zero(du);
  for (std::int64_t c = 0; c < head_dim; c += block, scales += Scale::kBytes) {
    const std::int64_t n = padded_row(std::min(block, head_dim - c));
    const Block b{x + c, 1, n, 0, 1};
    const Chosen scale = choose_scale<Codec, Scale>(f, b, row_largest_bits(b.x, n), context, counters);
    if (scale.zero_codes) {
      std::memset(line + c * Codec::kBits / 8, 0, static_cast<std::size_t>(n * Codec::kBits / 8));
    } else {
      saturated = encode_row<Codec, Scale>(b.x, n, scale.factor.factor, line + c * Codec::kBits / 8, saturated);
    }
    if constexpr (kScaled) std::memcpy(scales, scale.bytes.data(), static_cast<std::size_t>(Scale::kBytes));
  }
  counters.saturated_elements += hn::GetLane(hn::SumOfLanes(du, saturated));
  if (!direct) std::memcpy(data, whole, static_cast<std::size_t>((head_dim * Codec::kBits + 7) / 8));
}

#include "formats/row_nvfp4-inl.hpp"

QuantiseRow FindQuantiseRow(const BlockFormat& f) {
  if (f.element == Element::e2m1 && f.scale == ScaleType::e4m3) {
    return f.rule == ScaleRule::four_over_six ? &QuantiseNvfp4Row<true> : &QuantiseNvfp4Row<false>;
  }
  QuantiseRow found = nullptr;
  visit_format(f, [&]<class Codec, class Scale>() {
    constexpr bool kOther = std::is_same_v<Scale, E4m3Scale> || Codec::kAffine;
    if constexpr (LaneCodec<Codec>::kExists && !kOther) found = &QuantiseOneRow<Codec, Scale>;
  });
  return found;
}
#endif

}  // namespace mpfa::formats::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mpfa::formats {

HWY_EXPORT(FindQuantiseRow);

RowQuantiser::RowQuantiser(const BlockFormat& f, std::int64_t head_dim)
    : format_(f), head_dim_(head_dim), row_(HWY_DYNAMIC_DISPATCH(FindQuantiseRow)(f)) {}

void RowQuantiser::write(std::int64_t slot, const float* x, float global, const PageBytes& page,
                         QuantiseCounters& counters) const {
  if (row_ == nullptr) return quantise_tokens(format_, head_dim_, slot, 1, x, head_dim_, global, page, &counters);
  const FactorContext context{global, std::sqrt(static_cast<float>(head_dim_))};
  row_(format_, head_dim_, x, context, page.data + slot * page.data_row_stride,
       page.scales == nullptr ? nullptr : page.scales + slot * page.scale_row_stride, counters);
}

}  // namespace mpfa::formats
#endif
