// quantise_tokens for formats that pack token by token, in vectors of the machine: the same bytes and counters.
#pragma once

#include "formats/dispatch.hpp"

namespace mpfa::formats {

/// Rows are handed over with zeros up to a multiple of this, so that vectors need no tail.
inline constexpr std::int64_t kRowMultiple = 16;
[[nodiscard]] constexpr std::int64_t padded_row(std::int64_t head_dim) {
  return (head_dim + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

/// Writes one row of codes and its scales.
using QuantiseRow = void (*)(const BlockFormat& f, std::int64_t head_dim, const float* x, const FactorContext& context,
                             std::byte* data, std::byte* scales, QuantiseCounters& counters);

/// A format and head dim with the function that fits the machine.
class RowQuantiser {
 public:
  RowQuantiser() = default;
  /// `f` has axis head_dim and block_keys 1.
  RowQuantiser(const BlockFormat& f, std::int64_t head_dim);
  /// As quantise_tokens(f, head_dim, slot, 1, x, ...); x [padded_row(head_dim)] with zeros past head_dim.
  void write(std::int64_t slot, const float* x, float global, const PageBytes& page, QuantiseCounters& counters) const;
  /// False: rows of this format go through quantise_tokens.
  [[nodiscard]] bool vectorised() const { return row_ != nullptr; }

 private:
  BlockFormat format_;
  std::int64_t head_dim_ = 0;
  QuantiseRow row_ = nullptr;
};

}  // namespace mpfa::formats
