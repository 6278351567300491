// A poisoned page for format tests: unwritten bytes are 0xFF and bytes past the end are guarded.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "mpfa/formats.hpp"

namespace mpfa::test {

inline BlockFormat format(std::string_view name) {
  const Result<BlockFormat> f = parse_format(name);
  EXPECT_TRUE(f.ok()) << f.status().message();
  return f.value();
}

class Page {
 public:
  Page(const BlockFormat& f, std::int64_t channels, std::int64_t page_size)
      : format(f), head_dim(channels), geometry(page_geometry(f, channels, page_size)) {
    data.assign(static_cast<std::size_t>(geometry.data_bytes() + kGuard), std::byte{0xFF});
    scales.assign(static_cast<std::size_t>(geometry.scale_bytes() + kGuard), std::byte{0xFF});
  }
  ~Page() {
    EXPECT_TRUE(std::all_of(data.end() - kGuard, data.end(), [](std::byte b) { return b == std::byte{0xFF}; }));
    EXPECT_TRUE(std::all_of(scales.end() - kGuard, scales.end(), [](std::byte b) { return b == std::byte{0xFF}; }));
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  PageBytes bytes() { return {data.data(), geometry.data_row_bytes, scales.data(), geometry.scale_row_bytes}; }

  void write(std::int64_t slot, const std::vector<float>& x, float global = 1.0F) {
    quantise_tokens(format, head_dim, slot, static_cast<std::int64_t>(x.size()) / head_dim, x.data(), head_dim, global,
                    bytes(), &counters);
  }
  std::vector<float> read(std::int64_t slot, std::int64_t count, float global = 1.0F) {
    std::vector<float> out(static_cast<std::size_t>(count * head_dim));
    dequantise_tokens(format, head_dim, slot, count, bytes(), global, out.data(), head_dim, 1);
    return out;
  }
  int data_byte(std::size_t i) const { return static_cast<int>(data[i]); }
  int scale_byte(std::size_t i) const { return static_cast<int>(scales[i]); }
  float scale_f32(std::size_t i) const {
    float s;
    std::memcpy(&s, scales.data() + 4 * i, 4);
    return s;
  }

  static constexpr std::int64_t kGuard = 16;
  BlockFormat format;
  std::int64_t head_dim;
  PageGeometry geometry;
  std::vector<std::byte> data, scales;
  QuantiseCounters counters;
};

/// One token written to a fresh page and read back.
inline std::vector<float> round_trip(std::string_view name, const std::vector<float>& x, float global = 1.0F) {
  Page page(format(name), static_cast<std::int64_t>(x.size()), format(name).block_keys);
  page.write(0, x, global);
  return page.read(0, 1, global);
}

/// `n` channels, the first ones given, the rest 0.
inline std::vector<float> padded(std::vector<float> first, std::size_t n) {
  first.resize(n, 0.0F);
  return first;
}

}  // namespace mpfa::test
