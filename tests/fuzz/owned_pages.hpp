// Pages in buffers of exactly the size that they need, at strides and offsets that a fuzz input asks for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "mpfa/mpfa.h"
#include "mpfa/pages.hpp"
#include "tests/fuzz/checked.hpp"
#include "tests/fuzz/input.hpp"

namespace mpfa::fuzz {

constexpr std::byte kUntouched{0x5A};

class OwnedPages {
 public:
  mpfa_pages pages{};
  PageGeometry geometry{};

  /// False when the description was refused, or its pages would be large. Hostile: one number may be anything.
  bool make(Input& in, const char* format, const char* layout, std::int64_t num_pages, std::int64_t page_size,
            std::int64_t kv_heads, std::int64_t head_dim) {
    mpfa_pages_init(&pages, sizeof pages);
    pages.format = format;
    pages.layout = layout;
    pages.num_pages = num_pages;
    pages.page_size = page_size;
    pages.kv_heads = kv_heads;
    pages.head_dim = head_dim;
    global_.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(kv_heads, 0, 65536)), 0.5F);
    if (in.coin()) pages.global = global_.data();
    constexpr const char* kOrders[] = {"nhd", "hnd", "NHD", "HND", "dhn", ""};
    const std::uint64_t order = in.bits(1);
    Checked e;
    if (!e.ok(mpfa_pages_dense(&pages, kOrders[order % 32 < 28 ? order % 4 : order % 6], e))) return false;
    tag();
    if (pages.data_bytes > kMost || pages.scales_bytes > kMost) return false;
    if (page_size > 100000 || kv_heads > 1000) return false;  // of no pages
    const PagesKind kind{parse_format(format).value(),
                         parse_pages_layout(layout == nullptr ? "linear" : layout).value(),
                         num_pages,
                         page_size,
                         kv_heads,
                         head_dim};
    geometry = pages_geometry(kind).value();
    const bool heads_inside = order % 2 == 0;
    place(in, heads_inside, geometry.data_rows, geometry.data_row_bytes, data_, pages.data_bytes, pages.data_offset,
          pages.data_page_stride, pages.data_head_stride, pages.data_row_stride);
    place(in, heads_inside, geometry.scale_rows, geometry.scale_row_bytes, scales_, pages.scales_bytes,
          pages.scale_offset, pages.scale_page_stride, pages.scale_head_stride, pages.scale_row_stride);
    pages.data = data_.data();
    pages.scales = geometry.scale_bytes() > 0 ? scales_.data() : nullptr;
    return true;
  }

  /// One number of the description becomes another one; true when a call may refuse it.
  bool spoil(Input& in) {
    if (!in.rarely(4)) return false;
    std::int64_t* const numbers[] = {&pages.data_offset,       &pages.data_page_stride, &pages.data_head_stride,
                                     &pages.data_row_stride,   &pages.scale_offset,     &pages.scale_page_stride,
                                     &pages.scale_head_stride, &pages.scale_row_stride, &pages.num_pages,
                                     &pages.page_size,         &pages.kv_heads};
    *in.pick(numbers) = in.coin() ? in.size(-4, 4) : in.size(-600, 600);
    // There are as many factors as heads: their number is not passed.
    pages.kv_heads = std::min<std::int64_t>(pages.kv_heads, 65536);
    if (pages.kv_heads > static_cast<std::int64_t>(global_.size())) {
      global_.resize(static_cast<std::size_t>(pages.kv_heads), 0.5F);
      if (pages.global != nullptr) pages.global = global_.data();
    }
    if (pages.data_bytes > 0 && in.rarely(8)) --pages.data_bytes;
    if (pages.scales_bytes > 0 && in.rarely(8)) --pages.scales_bytes;
    return true;
  }

  void fill(std::uint64_t seed) {
    for (std::vector<std::byte>* part : {&data_, &scales_}) {
      for (std::size_t i = 0; i < part->size(); ++i) {
        (*part)[i] = static_cast<std::byte>(((seed + 1) * 0x9E3779B97F4A7C15ULL + i * 0xBF58476D1CE4E5B9ULL) >> 56);
      }
    }
  }
  void mark() {
    std::fill(data_.begin(), data_.end(), kUntouched);
    std::fill(scales_.begin(), scales_.end(), kUntouched);
  }
  [[nodiscard]] bool untouched() const {
    const auto same = [](std::byte b) { return b == kUntouched; };
    return std::all_of(data_.begin(), data_.end(), same) && std::all_of(scales_.begin(), scales_.end(), same);
  }

  [[nodiscard]] std::byte* row(std::int64_t page, std::int64_t head, std::int64_t r) {
    return data_.data() + pages.data_offset + page * pages.data_page_stride + head * pages.data_head_stride +
           r * pages.data_row_stride;
  }
  [[nodiscard]] std::byte* scale_row(std::int64_t page, std::int64_t head, std::int64_t r) {
    return scales_.data() + pages.scale_offset + page * pages.scale_page_stride + head * pages.scale_head_stride +
           r * pages.scale_row_stride;
  }
  /// Codes and scales of a page and head, row after row.
  [[nodiscard]] std::vector<std::byte> content(std::int64_t page, std::int64_t head) {
    std::vector<std::byte> x;
    for (std::int64_t r = 0; r < geometry.data_rows; ++r) {
      x.insert(x.end(), row(page, head, r), row(page, head, r) + geometry.data_row_bytes);
    }
    for (std::int64_t r = 0; r < geometry.scale_rows; ++r) {
      x.insert(x.end(), scale_row(page, head, r), scale_row(page, head, r) + geometry.scale_row_bytes);
    }
    return x;
  }
  [[nodiscard]] const std::vector<std::byte>& data() const { return data_; }
  [[nodiscard]] const std::vector<float>& global() const { return global_; }

 private:
  static constexpr std::size_t kMost = 1 << 19;

  void place(Input& in, bool heads_inside, std::int64_t rows, std::int64_t row_bytes, std::vector<std::byte>& buffer,
             std::size_t& bytes, std::int64_t& offset, std::int64_t& page_stride, std::int64_t& head_stride,
             std::int64_t& row_stride) const {
    const std::int64_t pad = in.rarely(4) ? in.between(1, 20) : 0, heads = pages.kv_heads;
    std::int64_t& inner = heads_inside ? head_stride : row_stride;
    std::int64_t& outer = heads_inside ? row_stride : head_stride;
    offset = pad;
    inner = row_bytes + pad;
    outer = inner * (heads_inside ? heads : rows) + pad;
    page_stride = outer * (heads_inside ? rows : heads) + pad;
    const bool empty = pages.num_pages == 0 || rows == 0 || row_bytes == 0;
    const std::int64_t end =
        (pages.num_pages - 1) * page_stride + (heads - 1) * head_stride + (rows - 1) * row_stride + row_bytes;
    bytes = static_cast<std::size_t>(offset + (empty ? 0 : end));
    buffer.assign(bytes, kUntouched);
  }

  void tag() const {
    char text[120], cut[20];
    Checked e;
    e.must(mpfa_pages_tag(&pages, text, sizeof text, e), "described pages have no tag");
    e.must(mpfa_pages_check_tag(&pages, text, e), "pages refuse their own tag");
    require(e.ok(mpfa_pages_tag(&pages, cut, sizeof cut, e)) && std::strlen(cut) == sizeof cut - 1, "a tag is not cut");
    require(!e.ok(mpfa_pages_check_tag(&pages, cut, e)), "half a tag is accepted");
  }

  std::vector<std::byte> data_, scales_;
  std::vector<float> global_;
};

}  // namespace mpfa::fuzz
