// Safetensors files: 8 bytes of header length, a JSON header, then the tensors' bytes without gaps.
// The reader trusts nothing: every length, offset, shape and name is checked before a byte is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mpfa/status.hpp"

namespace mpfa::io {

enum class FileType : std::uint8_t { bf16, f16, f32, f64, u8, i8, i32, i64 };
[[nodiscard]] std::string_view file_type_name(FileType t);  // "BF16", ...
[[nodiscard]] std::size_t file_type_bytes(FileType t);

struct TensorEntry {
  std::string name;
  FileType type = FileType::f32;
  std::vector<std::int64_t> shape;   // outermost first, row-major; empty for a scalar
  std::uint64_t begin = 0, end = 0;  // bytes, relative to the end of the header
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxRank = 16;

/// Reads the JSON text of a header whose file has `data_bytes` bytes after it. Fails with io_error on malformed or
/// nested-too-deep JSON, unknown types, sizes that overflow or do not match, overlaps, gaps, names given twice.
[[nodiscard]] Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes);

class SafetensorsFile {
 public:
  /// Opens a regular file and checks its header; no tensor is read yet.
  [[nodiscard]] static Result<SafetensorsFile> open(const std::string& path);

  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  /// The tensor of that name, or null.
  [[nodiscard]] const TensorEntry* find(std::string_view name) const;
  /// The bytes of one tensor, little-endian, aligned for any element.
  [[nodiscard]] Result<std::vector<std::byte>> read(const TensorEntry& tensor) const;

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
  SafetensorsHeader header_;
  std::uint64_t data_offset_ = 0;
};

struct TensorToWrite {
  std::string name;
  FileType type = FileType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};
/// Writes all tensors in the order given; the file appears whole or not at all. Fails with invalid_argument on names
/// given twice or bytes that do not match the shape, with io_error when the file cannot be written.
[[nodiscard]] Status write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors,
                                       const std::map<std::string, std::string>& metadata = {});

/// Bytes of a tensor, or an error when the product overflows or an extent is negative.
[[nodiscard]] Result<std::uint64_t> tensor_bytes(FileType t, const std::vector<std::int64_t>& shape);

}  // namespace mpfa::io
