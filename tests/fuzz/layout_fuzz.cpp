// Converters of packed layouts: sizes and bytes that do not fit are refused with a message and nothing written; the
// others come back as they were.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "mpfa/layout.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using mpfa::fuzz::Input;
using mpfa::fuzz::require;
using Bytes = std::vector<std::byte>;

constexpr std::int64_t kMost = 1 << 16;  // bytes that a run touches

Bytes bytes_of(Input& in, std::int64_t n) {
  Bytes x(static_cast<std::size_t>(n));
  const std::uint64_t seed = in.bits(8);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<std::byte>(in.left() > 0 ? in.bits(1) : (seed + i * 0x9E3779B97F4A7C15ULL) >> 56);
  }
  return x;
}

void refused(const mpfa::Status& s, const Bytes& out) {
  require(!s.ok() && !s.message().empty(), "refused without a message");
  const bool untouched = std::all_of(out.begin(), out.end(), [](std::byte b) { return b == std::byte{0x5A}; });
  require(untouched, "a refused call wrote");
}

void nibbles(Input& in) {
  constexpr mpfa::NibbleOrder kOrders[] = {mpfa::NibbleOrder::interleaved, mpfa::NibbleOrder::split,
                                           static_cast<mpfa::NibbleOrder>(9)};
  const mpfa::NibbleOrder from = in.pick(kOrders), to = in.pick(kOrders);
  const std::int64_t block = in.size(0, 70);
  std::int64_t elements = in.size(0, 2000);
  // The call is told no buffer size: whole blocks of any number are taken at its word.
  if (elements > kMost && block > 0 && elements % block == 0) elements = 0;
  const Bytes x = bytes_of(in, std::clamp<std::int64_t>(elements, 0, kMost) / 2);
  Bytes y(x.size(), std::byte{0x5A});
  const mpfa::Status s = mpfa::convert_nibbles(from, to, block, elements, x.data(), y.data());
  if (!s.ok()) return refused(s, y);
  Bytes z = y;
  require(mpfa::convert_nibbles(to, from, block, elements, z.data(), z.data()).ok(), "no way back in place");
  require(z == x, "nibbles do not come back");
}

void scales(Input& in) {
  constexpr mpfa::ScaleLayout kLayouts[] = {mpfa::ScaleLayout::linear, mpfa::ScaleLayout::tile_128x4,
                                            mpfa::ScaleLayout::page_swizzle4, static_cast<mpfa::ScaleLayout>(7)};
  const mpfa::ScaleLayout from = in.pick(kLayouts), to = in.pick(kLayouts);
  const std::int64_t rows = in.size(0, 300), blocks = in.size(0, 40);
  const auto from_bytes = mpfa::scale_layout_bytes(from, rows, blocks);
  const auto to_bytes = mpfa::scale_layout_bytes(to, rows, blocks);
  const auto usable = [](const auto& n) { return n.ok() && n.value() <= kMost; };
  const std::int64_t n_in = usable(from_bytes) ? from_bytes.value() : 64;
  const std::int64_t n_out = usable(to_bytes) ? to_bytes.value() : 64;
  const std::int64_t given_in = in.coin() ? n_in : in.size(0, n_in), given_out = in.coin() ? n_out : in.size(0, n_out);
  const Bytes x = bytes_of(in, n_in);
  Bytes y(static_cast<std::size_t>(n_out), std::byte{0x5A});
  const mpfa::Status s = mpfa::convert_scales(from, to, rows, blocks, x.data(), given_in, y.data(), given_out);
  if (!s.ok()) return refused(s, y);
  require(usable(from_bytes) && usable(to_bytes) && given_in == n_in && given_out == n_out, "wrong sizes were taken");
  Bytes back(x.size()), again(y.size());
  require(mpfa::convert_scales(to, from, rows, blocks, y.data(), n_out, back.data(), n_in).ok(), "no way back");
  require(mpfa::convert_scales(from, to, rows, blocks, back.data(), n_in, again.data(), n_out).ok(), "no second way");
  require(again == y, "scales do not come back");
}

void ggml(Input& in) {
  constexpr mpfa::GgmlType kTypes[] = {mpfa::GgmlType::mxfp4, mpfa::GgmlType::nvfp4};
  const mpfa::GgmlType type = in.pick(kTypes);
  const std::int64_t block = type == mpfa::GgmlType::mxfp4 ? 32 : 16;
  const std::int64_t rows = in.size(0, 6), head_dim = in.coin() ? in.between(1, 4) * 64 : in.size(0, 300);
  const auto row = mpfa::ggml_row_bytes(type, head_dim);
  if (!row.ok()) require(!row.status().message().empty(), "refused without a message");
  const bool usable = row.ok() && row.value() <= kMost && rows >= 0 && rows <= 6;
  const std::int64_t n = usable ? rows * row.value() : 64;
  const Bytes x = bytes_of(in, n);
  const std::int64_t codes_row = usable ? head_dim / 2 + in.between(0, 3) : 32;
  const std::int64_t scales_row = usable ? head_dim / block + in.between(0, 3) : 4;
  Bytes codes(static_cast<std::size_t>(usable ? rows * codes_row : 64), std::byte{0x5A});
  Bytes scale(static_cast<std::size_t>(usable ? rows * scales_row : 64), std::byte{0x5A});
  const mpfa::Status s = mpfa::from_ggml_blocks(type, rows, head_dim, x.data(), in.coin() ? n : in.size(0, n),
                                                codes.data(), codes_row, scale.data(), scales_row);
  if (!s.ok()) {
    refused(s, codes);
    return refused(s, scale);
  }
  if (rows == 0) return;
  require(usable, "sizes beyond the buffers were taken");
  Bytes back(x.size());
  const mpfa::Status t =
      mpfa::to_ggml_blocks(type, rows, head_dim, codes.data(), codes_row, scale.data(), scales_row, back.data(), n);
  require(t.ok() && back == x, "ggml blocks do not come back");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  switch (in.bits(1) % 3) {
    case 0: nibbles(in); break;
    case 1: scales(in); break;
    default: ggml(in);
  }
  return 0;
}
