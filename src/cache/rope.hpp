// RoPE tables as rows of float32, and the checks of what a caller passes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "cache/row_ops.hpp"
#include "mpfa/cache.hpp"
#include "mpfa/rope.hpp"
#include "mpfa/status.hpp"

namespace mpfa {

/// cos and sin of one position. Without a Rope it turns nothing.
class RopeRow {
 public:
  RopeRow() {}  // NOLINT(modernize-use-equals-default): the copies stay unset
  RopeRow(const Rope& rope, std::int64_t position);
  RopeRow(const RopeRow&) = delete;
  RopeRow& operator=(const RopeRow&) = delete;
  /// The turn by `delta` positions, either way, of unit length whatever the rounding or scaling of the table. False
  /// when the row of the table is no rotation.
  [[nodiscard]] bool set_delta(const Rope& rope, std::int64_t delta);
  /// Rotates a row of a head.
  void turn(float* x) const {
    if (half_ > 0) rows::rotate(x + begin_, cos_, sin_, half_, style_);
  }

 private:
  std::int64_t half_ = 0, begin_ = 0;
  RopeStyle style_ = RopeStyle::half;
  const float *cos_ = nullptr, *sin_ = nullptr;  // the table itself when it is contiguous float32
  std::array<float, rows::kLongest / 2> cos_copy_, sin_copy_;
};

/// ok when style and tables can turn heads of head_dim.
[[nodiscard]] Status check_rope(const char* call, const Rope& rope, std::int64_t head_dim);
/// The same for the keys of a cache: what turns is not part of V.
[[nodiscard]] Status check_rope(const char* call, const Rope& rope, const CacheConfig& config);
/// ok when the tables have a row for `position`, which is that of `what` `index` of batch row `row`.
[[nodiscard]] Status check_position(const char* call, const Rope& rope, std::int64_t position, const char* what,
                                    std::int64_t index, std::int64_t row);
/// ok when rope.q and rope.q_out are tensors [n, sq, q_heads, head_dim] of float dtypes; sq is s without positions.
[[nodiscard]] Status check_queries(const char* call, const Rope& rope, std::int64_t n, std::int64_t s,
                                   std::int64_t q_heads, std::int64_t head_dim);
/// rope.q to rope.q_out, row i of batch row b at positions[b * sq + i]; rows at -1 are left alone.
void rotate_queries(const CacheConfig& config, const Rope& rope, const std::vector<std::int64_t>& positions);

}  // namespace mpfa
