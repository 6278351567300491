// Looks for Inf and NaN among packed codes of one byte. Included once per instruction set, after word_codecs-inl.hpp.

/// Whether a code of the first `keys` rows is special for the codec.
template <class Codec>
HWY_INLINE bool has_special(const WordRows& x, std::int64_t keys) {
  const hn::CappedTag<std::uint8_t, 64> d;
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(d));
  constexpr std::uint8_t kSign = 0x80, kFirst = 0x80 | Codec::kFirstSpecial;
  auto largest = hn::Zero(d);
  int rest = 0;
  for (std::int64_t j = 0; j < keys; ++j) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(x.codes + j * x.row_stride);
    std::int64_t i = 0;
    for (; i + kStep <= x.words * 4; i += kStep) {
      largest = hn::Max(largest, hn::Or(hn::LoadU(d, bytes + i), hn::Set(d, kSign)));
    }
    for (; i < x.words * 4; ++i) rest = std::max(rest, bytes[i] | kSign);
  }
  return rest >= kFirst || !hn::AllTrue(d, hn::Lt(largest, hn::Set(d, kFirst)));
}
