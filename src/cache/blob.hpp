// The bytes of a saved sequence: a writer and a reader that trusts nothing. docs/cache.md describes the layout.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mpfa {

static_assert(std::endian::native == std::endian::little, "pages and blobs are little-endian");

inline constexpr std::string_view kBlobMagic = "MPFA-SEQ";
inline constexpr std::int64_t kBlobVersion = 2;
inline constexpr std::size_t kBlobHead = 24;  // magic, version, size of the whole blob
inline constexpr std::size_t kBlobTail = 8;   // checksum

/// FNV-1a, 64 bits: any change of one byte changes it.
[[nodiscard]] inline std::uint64_t blob_checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  for (const std::byte b : bytes) hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001B3U;
  return hash;
}

class BlobWriter {
 public:
  explicit BlobWriter(std::vector<std::byte>& out) : out_(out) {}
  void raw(const void* data, std::size_t n) {
    const std::size_t at = out_.size();
    out_.resize(at + n);
    if (n > 0) std::memcpy(out_.data() + at, data, n);
  }
  void integer(std::int64_t x) { raw(&x, sizeof x); }
  void text(std::string_view s) {
    integer(static_cast<std::int64_t>(s.size()));
    raw(s.data(), s.size());
  }
  template <class T>
  void array(const std::vector<T>& v) {
    integer(static_cast<std::int64_t>(v.size()));
    raw(v.data(), v.size() * sizeof(T));
  }

 private:
  std::vector<std::byte>& out_;
};

/// Every read checks what is left first; false means that the blob ends before its content does.
class BlobReader {
 public:
  explicit BlobReader(std::span<const std::byte> in) : in_(in) {}
  [[nodiscard]] std::size_t left() const { return in_.size(); }
  [[nodiscard]] bool raw(void* out, std::size_t n) {
    if (n > in_.size()) return false;
    if (n > 0) std::memcpy(out, in_.data(), n);
    in_ = in_.subspan(n);
    return true;
  }
  [[nodiscard]] bool integer(std::int64_t& x) { return raw(&x, sizeof x); }
  [[nodiscard]] bool text(std::string& s) {
    std::int64_t n = 0;
    if (!integer(n) || n < 0 || static_cast<std::uint64_t>(n) > in_.size()) return false;
    s.resize(static_cast<std::size_t>(n));
    return raw(s.data(), s.size());
  }
  /// An array of exactly `count` elements: nothing is allocated for a count that the blob made up.
  template <class T>
  [[nodiscard]] bool array(std::vector<T>& v, std::int64_t count) {
    std::int64_t n = 0;
    if (!integer(n) || n != count || static_cast<std::uint64_t>(n) > in_.size() / sizeof(T)) return false;
    v.resize(static_cast<std::size_t>(n));
    return raw(v.data(), v.size() * sizeof(T));
  }

 private:
  std::span<const std::byte> in_;
};

}  // namespace mpfa
