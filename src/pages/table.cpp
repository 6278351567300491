// Page tables in compressed rows as the dense table that kernels read.
#include <algorithm>

#include "pages/pages.hpp"

namespace mpfa {
namespace {

Status check_table(const CsrPageTable& t, std::int64_t num_pages, std::int64_t page_size) {
  if (t.indptr.empty()) return pages::invalid("page table: indptr is empty; batch + 1 offsets from 0 on are needed");
  const std::size_t batch = t.indptr.size() - 1;
  if (t.last_page_len.size() != batch) {
    return pages::invalid("page table: last_page_len has {} entries, indptr {}; one for each of {} sequences is needed",
                          t.last_page_len.size(), t.indptr.size(), batch);
  }
  constexpr std::int64_t kLargest = (std::int64_t{1} << 31) - 1;
  if (num_pages < 0 || num_pages > kLargest || page_size < 1 || page_size > kLargest) {
    return pages::invalid("page table: {} pages of {} tokens; 0..{} pages of 1..{} tokens are allowed", num_pages,
                          page_size, kLargest, kLargest);
  }
  if (t.indptr[0] != 0) return pages::invalid("page table: indptr[0] is {}; it must be 0", t.indptr[0]);
  for (std::size_t b = 0; b < batch; ++b) {
    if (t.indptr[b + 1] < t.indptr[b]) {
      return pages::invalid("page table: indptr falls from {} to {} at {}; it must not decrease", t.indptr[b],
                            t.indptr[b + 1], b + 1);
    }
    const bool empty = t.indptr[b + 1] == t.indptr[b];
    const std::int32_t last = t.last_page_len[b];
    if (empty ? last == 0 : last >= 1 && last <= page_size) continue;
    if (empty) {
      return pages::invalid("page table: last_page_len[{}] is {}, but sequence {} has no pages; it must be 0", b, last,
                            b);
    }
    return pages::invalid(
        "page table: last_page_len[{}] is {}; it must be in 1..{} (the tokens of the last of {} pages)", b, last,
        page_size, t.indptr[b + 1] - t.indptr[b]);
  }
  const std::int64_t used = t.indptr[batch];
  if (used > static_cast<std::int64_t>(t.indices.size())) {
    return pages::out_of_range("page table: indptr ends at {}, indices has {} entries; pass all of them", used,
                               t.indices.size());
  }
  for (std::int64_t i = 0; i < used; ++i) {
    if (t.indices[i] >= 0 && t.indices[i] < num_pages) continue;
    return pages::out_of_range("page table: indices[{}] is {}; page ids must be in [0, {})", i, t.indices[i],
                               num_pages);
  }
  return {};
}

}  // namespace

Result<DensePageTable> dense_page_table(const CsrPageTable& t, std::int64_t num_pages, std::int64_t page_size) {
  if (Status s = check_table(t, num_pages, page_size); !s.ok()) return s;
  const std::size_t batch = t.indptr.size() - 1;
  DensePageTable dense;
  dense.stride = 1;
  for (std::size_t b = 0; b < batch; ++b) {
    dense.stride = std::max<std::int64_t>(dense.stride, t.indptr[b + 1] - t.indptr[b]);
  }
  std::int64_t entries = 0;
  if (__builtin_mul_overflow(dense.stride, static_cast<std::int64_t>(batch), &entries) ||
      entries > (std::int64_t{1} << 33)) {
    return Status{StatusCode::out_of_memory,
                  fmt::format("page table: {} sequences of up to {} pages do not fit in a dense table; split the batch",
                              batch, dense.stride)};
  }
  dense.page_table.assign(static_cast<std::size_t>(entries), -1);
  dense.lengths.reserve(batch);
  for (std::size_t b = 0; b < batch; ++b) {
    const std::int64_t pages = t.indptr[b + 1] - t.indptr[b];
    std::copy_n(t.indices.begin() + t.indptr[b], pages,
                dense.page_table.begin() + static_cast<std::int64_t>(b) * dense.stride);
    dense.lengths.push_back(pages == 0 ? 0 : (pages - 1) * page_size + t.last_page_len[b]);
  }
  return dense;
}

}  // namespace mpfa
