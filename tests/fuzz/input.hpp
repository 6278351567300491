// The bytes of a fuzz input as choices; past the end every choice is the first one.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace mpfa::fuzz {

/// Ends the run as a finding, and says why.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: %s\n", what);
  std::abort();
}

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : at_(data), left_(size) {}
  [[nodiscard]] std::size_t left() const { return left_; }

  std::uint64_t bits(std::size_t bytes) {
    std::uint64_t x = 0;
    const std::size_t n = bytes < left_ ? bytes : left_;
    if (n > 0) std::memcpy(&x, at_, n);
    at_ += n;
    left_ -= n;
    return x;
  }
  bool coin() { return bits(1) % 2 == 1; }
  /// low..high, at most 65536 values.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const auto count = static_cast<std::uint64_t>(high - low + 1);
    return low + static_cast<std::int64_t>(bits(count > 256 ? 2 : 1) % count);
  }
  template <class T, std::size_t n>
  const T& pick(const T (&values)[n]) {
    return values[bits(1) % n];
  }
  /// One time in n.
  bool rarely(std::uint64_t n) { return bits(1) % n == n - 1; }
  /// Mostly low..high, one time in 32 a number that no caller should pass.
  std::int64_t size(std::int64_t low, std::int64_t high) {
    constexpr std::int64_t kHostile[] = {-1, 0, 1LL << 31, (1LL << 32) + 1, 1LL << 40, INT64_MAX, INT64_MIN, 65537};
    if (bits(1) % 32 == 31) return pick(kHostile);
    return between(low, high);
  }

 private:
  const std::uint8_t* at_;
  std::size_t left_;
};

/// Numbers in [-3, 3] from a seed.
inline float number(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15ULL + i * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 29)) * 0x94D049BB133111EBULL;
  return static_cast<float>(static_cast<double>(x >> 40) / (1 << 23) * 3.0 - 3.0);
}

}  // namespace mpfa::fuzz
