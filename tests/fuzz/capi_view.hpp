// Attention over pages that the caller owns: those of a cache, copied to buffers of other strides.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/fuzz/capi_world.hpp"
#include "tests/fuzz/owned_pages.hpp"

namespace mpfa::fuzz {

class CallerView {
 public:
  /// args reads copies of the cache's pages. False when a number of the view was changed: the call may then be refused,
  /// or give other numbers.
  bool read_from(Input& in, World& w, mpfa_attend_args& args) {
    view_.struct_size = sizeof view_;
    Checked e;
    e.must(mpfa_cache_get_view(w.cache, &view_, e), "a cache has no view");
    copy(in, view_.k_format, view_.head_dim, view_.k, k_);
    if (view_.shared_kv == 1) {
      view_.v = view_.k;
    } else {
      copy(in, view_.v_format, view_.head_dim_v, view_.v, v_);
    }
    args.cache = nullptr;
    args.view = &view_;
    if (!in.rarely(8)) return true;
    lengths_.assign(view_.lengths, view_.lengths + w.config.batch);
    table_.assign(view_.page_table, view_.page_table + w.config.batch * view_.page_table_stride);
    view_.lengths = lengths_.data();
    view_.page_table = table_.data();
    if (!table_.empty() && in.coin()) {
      table_[in.bits(1) % table_.size()] = static_cast<std::int32_t>(in.size(-1, 12));
    } else {
      // Beyond its pages a sequence has none to read.
      std::int64_t& length = lengths_[in.bits(1) % lengths_.size()];
      const std::int64_t other = in.size(0, 60);
      length = in.coin() ? std::min(other, length) : -1;
    }
    return false;
  }

 private:
  void copy(Input& in, const char* format, std::int64_t head_dim, mpfa_operand_pages& operand, OwnedPages& to) {
    mpfa_pages from{};
    mpfa_pages_init(&from, sizeof from);
    from.format = format;
    from.num_pages = view_.num_pages;
    from.page_size = view_.page_size;
    from.kv_heads = view_.kv_heads;
    from.head_dim = head_dim;
    from.global = operand.global;
    if (!to.make(in, format, nullptr, from.num_pages, from.page_size, from.kv_heads, head_dim)) return;
    to.pages.global = operand.global;
    const auto bytes = [&](std::int64_t page, std::int64_t head, std::int64_t row, std::int64_t rows, std::int64_t n) {
      return static_cast<std::size_t>(rows == 0 || from.num_pages == 0
                                          ? 0
                                          : (from.num_pages - 1) * page + (from.kv_heads - 1) * head +
                                                (rows - 1) * row + n);
    };
    from.data = const_cast<void*>(operand.data);
    from.data_page_stride = operand.data_page_stride;
    from.data_head_stride = operand.data_head_stride;
    from.data_row_stride = operand.data_row_stride;
    from.data_bytes = bytes(operand.data_page_stride, operand.data_head_stride, operand.data_row_stride,
                            to.geometry.data_rows, to.geometry.data_row_bytes);
    from.scales = const_cast<void*>(operand.scales);
    from.scale_page_stride = operand.scale_page_stride;
    from.scale_head_stride = operand.scale_head_stride;
    from.scale_row_stride = operand.scale_row_stride;
    from.scales_bytes = bytes(operand.scale_page_stride, operand.scale_head_stride, operand.scale_row_stride,
                              to.geometry.scale_rows, to.geometry.scale_row_bytes);
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < from.num_pages; ++i) ids.push_back(i);
    Checked e;
    e.must(mpfa_pages_copy(&from, &to.pages, ids.data(), ids.data(), from.num_pages, MPFA_ALL_TOKENS, e),
           "the pages of a cache cannot be copied");
    e.must(mpfa_pages_operand(&to.pages, &operand, e), "copied pages cannot be read");
  }

  mpfa_cache_view view_{};
  OwnedPages k_, v_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int32_t> table_;
};

}  // namespace mpfa::fuzz
