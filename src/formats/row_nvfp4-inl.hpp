// nvfp4 rows in vectors: the scales of many blocks are made together, with either rule. Included once for every target
// after encode_row, inside formats::HWY_NAMESPACE, and therefore without include guard.

/// Blocks whose scales are made together, one in a lane.
constexpr std::int64_t kGroup = kRowMultiple;
constexpr std::int64_t kBlock = 16;  // channels of a block with an e4m3 scale

/// Scales that up to kGroup blocks may take, and what they would make of the elements.
struct Candidate {
  HWY_ALIGN float factor[kGroup];
  HWY_ALIGN std::uint32_t code[kGroup];
  HWY_ALIGN float error[kGroup];
  HWY_ALIGN float term[kGroup * kBlock];
  HWY_ALIGN std::byte line[kGroup * kBlock / 2];
  HWY_ALIGN std::uint32_t saturates[kGroup];
};

/// e4m3_scale of every lane, and the factors the codes mean.
HWY_INLINE void e4m3_scales(const float* amax, float target, const FactorContext& context, Candidate& to) {
  const D d;
  const DU du;
  const DI di;
  for (std::int64_t i = 0; i < kGroup; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    const VF exact = hn::Div(hn::Div(hn::Load(d, amax + i), hn::Set(d, target)), hn::Set(d, context.global));
    const VU code = LaneCodec<E4M3>::encode(exact).bits;
    const VF normal = hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(code), hn::Set(du, 120U << 23)));
    const VF subnormal = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, code)), hn::Set(d, 0x1p-9F));
    const VF value = hn::IfThenElse(hn::MaskFromVec(hn::BitCast(d, above(code, 7U))), normal, subnormal);
    hn::Store(code, du, to.code + i);
    hn::Store(hn::Mul(value, hn::Set(d, context.global)), d, to.factor + i);
  }
}

/// |value| of e2m1 codes.
HWY_INLINE VF e2m1_magnitude(VU code) {
  const D d;
  const DU du;
  const VU magnitude = hn::And(code, hn::Set(du, 7U));
  if constexpr (hn::MaxLanes(D()) >= 8) {
    HWY_ALIGN static constexpr float kTable[16] = {0, .5F, 1, 1.5F, 2, 3, 4, 6, 0, .5F, 1, 1.5F, 2, 3, 4, 6};
    return hn::TableLookupLanes(hn::Load(d, kTable), hn::IndicesFromVec(d, magnitude));
  }
  const VF normal = hn::BitCast(d, hn::ShiftLeft<22>(hn::Add(magnitude, hn::Set(du, 252U))));
  const VF half = hn::IfThenElseZero(hn::MaskFromVec(hn::BitCast(d, above(magnitude, 0U))), hn::Set(d, .5F));
  return hn::IfThenElse(hn::MaskFromVec(hn::BitCast(d, above(magnitude, 1U))), normal, half);
}

/// squared_error of `blocks` blocks: the terms in vectors, the sum of a block in order.
HWY_INLINE void squared_errors(const float* x, std::int64_t blocks, const float* unit, Candidate& c) {
  const D d;
  const DU du;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t b = 0; b < blocks; ++b) {
    const VF factor = hn::Set(d, c.factor[b]);
    const VF scale = hn::Set(d, unit[b]);
    for (std::int64_t i = b * kBlock; i < (b + 1) * kBlock; i += lanes) {
      const VF v = hn::LoadU(d, x + i);
      const VU code = LaneCodec<E2M1>::encode(hn::Div(v, factor)).bits;
      store_codes<4>(code, c.line + i / 2);
      const VF q = hn::CopySign(hn::Mul(e2m1_magnitude(code), factor), v);
      const VF off = hn::Mul(hn::Sub(v, c.factor[b] > 0.0F ? q : hn::Zero(d)), scale);
      hn::Store(hn::Mul(off, off), d, c.term + i);
    }
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    float sum = 0.0F;
    for (std::int64_t i = 0; i < kBlock; ++i) sum += c.term[b * kBlock + i];
    c.error[b] = sum;
  }
}

/// Takes the lanes of `four` whose error is strictly smaller.
HWY_INLINE void take_better(const float* x, std::int64_t blocks, const float* amax, const FactorContext& context,
                            Candidate& six) {
  const D d;
  const DU du;
  const DI di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Candidate four;
  HWY_ALIGN float unit[kGroup];
  e4m3_scales(amax, 4.0F, context, four);
  for (std::int64_t i = 0; i < kGroup; i += lanes) {
    // 2^-floor(log2 amax), kept in the range of normal numbers.
    const auto exponent = hn::ShiftRight<23>(hn::BitCast(di, hn::Load(d, amax + i)));
    const auto held = hn::Min(hn::Max(exponent, hn::Set(di, 1)), hn::Set(di, 253));
    hn::Store(hn::BitCast(d, hn::ShiftLeft<23>(hn::Sub(hn::Set(di, 254), held))), d, unit + i);
  }
  squared_errors(x, blocks, unit, four);
  squared_errors(x, blocks, unit, six);
  for (std::int64_t i = 0; i < kGroup; i += lanes) {
    const auto better = hn::Lt(hn::Load(d, four.error + i), hn::Load(d, six.error + i));
    hn::Store(hn::IfThenElse(better, hn::Load(d, four.factor + i), hn::Load(d, six.factor + i)), d, six.factor + i);
    hn::Store(hn::IfThenElse(hn::RebindMask(du, better), hn::Load(du, four.code + i), hn::Load(du, six.code + i)), du,
              six.code + i);
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::byte* from = four.error[b] < six.error[b] ? four.line : six.line;
    std::memmove(six.line + b * kBlock / 2, from + b * kBlock / 2, kBlock / 2);
  }
}

/// The rules of choose_scale for an e4m3 scale, for `blocks` blocks at once. Factor 0: all codes are 0.
template <bool kFourOverSix>
HWY_INLINE void choose_e4m3_scales(const float* x, std::int64_t blocks, const FactorContext& context, Candidate& chosen,
                                   QuantiseCounters& counters) {
  const D d;
  const DU du;
  const DI di;
  HWY_ALIGN std::uint32_t largest[kGroup] = {};
  HWY_ALIGN float amax[kGroup];
  for (std::int64_t b = 0; b < blocks; ++b) largest[b] = row_largest_bits(x + b * kBlock, kBlock);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t i = 0; i < kGroup; i += lanes) {
    hn::Store(hn::Min(hn::BitCast(d, hn::Load(du, largest + i)), hn::Set(d, kLargestMagnitude)), d, amax + i);
  }
  e4m3_scales(amax, 6.0F, context, chosen);
  if constexpr (kFourOverSix) take_better(x, blocks, amax, context, chosen);
  for (std::int64_t i = 0; i < kGroup; i += lanes) {
    const VU bits = hn::Load(du, largest + i);
    const VF factor = hn::Load(d, chosen.factor + i);
    const VU nonfinite = above(bits, kFloatInf - 1U);
    const VU nonzero = above(bits, 0U);
    const Codes top = LaneCodec<E2M1>::encode(hn::Div(hn::Load(d, amax + i), factor));
    const VU positive = hn::BitCast(du, hn::VecFromMask(d, hn::Gt(factor, hn::Zero(d))));
    const VU kept = hn::AndNot(nonfinite, hn::And(nonzero, hn::And(positive, above(top.bits, 0U))));
    const VU flushed = hn::AndNot(nonfinite, hn::AndNot(kept, nonzero));
    const VU code = hn::And(kept, hn::Load(du, chosen.code + i));
    hn::Store(top.saturated, du, chosen.saturates + i);
    hn::Store(choose(nonfinite, hn::Set(du, 0x7FU), code), du, chosen.code + i);
    hn::Store(hn::And(hn::BitCast(d, kept), factor), d, chosen.factor + i);
    counters.nonfinite_blocks += hn::CountTrue(di, hn::MaskFromVec(hn::BitCast(di, nonfinite)));
    counters.flushed_blocks += hn::CountTrue(di, hn::MaskFromVec(hn::BitCast(di, flushed)));
  }
}

/// QuantiseOneRow for nvfp4: so many blocks in a row that their scales are worth vectors too.
template <bool kFourOverSix>
void QuantiseNvfp4Row(const BlockFormat& /*f*/, std::int64_t head_dim, const float* x, const FactorContext& context,
                      std::byte* data, std::byte* scales, QuantiseCounters& counters) {
  const DU du;
  HWY_ALIGN std::byte whole[kMaxHeadDim / 2];
  const bool direct = head_dim % kBlock == 0;
  std::byte* const line = direct ? data : whole;
  const std::int64_t row_blocks = padded_row(head_dim) / kBlock;
  VU saturated = hn::Zero(du);
  for (std::int64_t first = 0; first < row_blocks; first += kGroup) {
    const std::int64_t blocks = std::min(kGroup, row_blocks - first);
    Candidate chosen;
    choose_e4m3_scales<kFourOverSix>(x + first * kBlock, blocks, context, chosen, counters);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t at = (first + b) * kBlock;
      scales[first + b] = static_cast<std::byte>(chosen.code[b]);
      if (chosen.factor[b] > 0.0F && kFourOverSix && chosen.saturates[b] == 0) {
        std::memcpy(line + at / 2, chosen.line + b * kBlock / 2, kBlock / 2);
      } else if (chosen.factor[b] > 0.0F) {
        saturated = encode_row<E2M1, E4m3Scale>(x + at, kBlock, chosen.factor[b], line + at / 2, saturated);
      } else {
        std::memset(line + at / 2, 0, kBlock / 2);
      }
    }
  }
  counters.saturated_elements += hn::GetLane(hn::SumOfLanes(du, saturated));
  if (!direct) std::memcpy(data, whole, static_cast<std::size_t>((head_dim + 1) / 2));
}
