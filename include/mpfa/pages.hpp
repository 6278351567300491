// Pages that the caller owns: what they hold and where, checked once, then read in place, written, or copied between
// the layouts of different programs. docs/layouts.md shows which program keeps its cache in which of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mpfa/cache_view.hpp"
#include "mpfa/status.hpp"

namespace mpfa {

/// Order of the dimensions of a page.
enum class PageOrder : std::uint8_t {
  nhd,  // [num_pages, page_size, kv_heads, row]
  hnd,  // [num_pages, kv_heads, page_size, row]
};

/// How the bytes of one (page, head) are arranged. Only `linear` pages can be attended to in place.
enum class PagesLayout : std::uint8_t {
  linear,         // rows of codes and rows of scales, as page_geometry says
  page_swizzle4,  // the same, scales in ScaleLayout::page_swizzle4
  tile_128x4,     // rows of codes; the scales of a page and head are ScaleLayout::tile_128x4, one run of bytes
  ggml,           // rows of ggml blocks, which hold codes and scales; no scales part (see GgmlType)
};

[[nodiscard]] std::string_view page_order_name(PageOrder order);
[[nodiscard]] std::string_view pages_layout_name(PagesLayout layout);
[[nodiscard]] Result<PageOrder> parse_page_order(std::string_view name);  // "nhd", "hnd", also in upper case
[[nodiscard]] Result<PagesLayout> parse_pages_layout(std::string_view name);

/// What K or V of a set of pages is. Two programs that exchange pages exchange this too, as pages_tag.
struct PagesKind {
  BlockFormat format;
  PagesLayout layout = PagesLayout::linear;
  std::int64_t num_pages = 0, page_size = 0;  // page_size in tokens
  std::int64_t kv_heads = 0, head_dim = 0;
};

/// Rows and row bytes of one (page, head), or why the format cannot be kept in that layout: other layouts than linear
/// need one-byte scales along the head dim (ggml: mxfp4, nvfp4, int8_g32, int4_g32), page_swizzle4 multiples of 4
/// tokens and 4 blocks, ggml whole blocks. num_pages 0..2^31-1, page_size 1..2^31-1, kv_heads 1..65536.
[[nodiscard]] Result<PageGeometry> pages_geometry(const PagesKind& kind);

/// "nvfp4 linear page_size=16 kv_heads=8 head_dim=128": travels beside the bytes.
[[nodiscard]] std::string pages_tag(const PagesKind& kind);
/// ok when `tag` is that of `kind`; the message shows both.
[[nodiscard]] Status check_pages_tag(const PagesKind& kind, std::string_view tag);

/// Bytes between pages, heads and rows.
struct PageStrides {
  std::int64_t page = 0, head = 0, row = 0;
};
/// Strides without padding for `rows` rows of `row_bytes` bytes per page and head.
[[nodiscard]] PageStrides dense_strides(PageOrder order, std::int64_t rows, std::int64_t kv_heads,
                                        std::int64_t row_bytes);

/// Codes or scales of all pages inside a buffer: row r of head h of page p begins at
///   data + offset + p * strides.page + h * strides.head + r * strides.row
/// Page and head strides may be negative or 0 for pages that are only read.
template <class Byte>
struct BasicPagePart {
  Byte* data = nullptr;    // the buffer, null for formats without scales
  std::int64_t bytes = 0;  // of the buffer: no row may leave it
  std::int64_t offset = 0;
  PageStrides strides;
};
using PagePart = BasicPagePart<const std::byte>;
using MutablePagePart = BasicPagePart<std::byte>;

/// K or V of a set of pages, ready to be read. `bytes` of linear pages go into a CacheView as they are.
struct Pages {
  PagesKind kind;
  OperandPages bytes;
};
/// The same, and no two rows share a byte.
struct MutablePages {
  PagesKind kind;
  OperandPages bytes;
  std::byte* data = nullptr;  // bytes.data and bytes.scales, writable
  std::byte* scales = nullptr;
  [[nodiscard]] PageBytes page(std::int64_t page, std::int64_t head) const;
  [[nodiscard]] Pages view() const { return {kind, bytes}; }
};

/// Checks that every row lies inside its buffer (and, for MutablePages, apart from every other row).
/// global [kv_heads] (or null = 1) is kept by address.
[[nodiscard]] Result<Pages> make_pages(const PagesKind& kind, const PagePart& data, const PagePart& scales,
                                       const float* global = nullptr);
[[nodiscard]] Result<MutablePages> make_pages(const PagesKind& kind, const MutablePagePart& data,
                                              const MutablePagePart& scales, const float* global = nullptr);

/// Where the four parts lie in pages of one buffer, each page [K data | K scales | V data | V scales] with the rows of
/// every part in `order` and without padding: vLLM's packed cache, and with a 16-bit format K and V interleaved as
/// [num_pages, 2, ...]. All parts span the whole buffer.
struct JoinedParts {
  PagePart k_data, k_scales, v_data, v_scales;
};
struct MutableJoinedParts {
  MutablePagePart k_data, k_scales, v_data, v_scales;
};
/// page_stride: bytes between pages, 0 for pages without padding. Refuses kinds with other pages, page sizes or heads.
[[nodiscard]] Result<JoinedParts> joined_parts(const PagesKind& k, const PagesKind& v, PageOrder order,
                                               std::span<const std::byte> buffer, std::int64_t page_stride = 0);
[[nodiscard]] Result<MutableJoinedParts> joined_parts(const PagesKind& k, const PagesKind& v, PageOrder order,
                                                      std::span<std::byte> buffer, std::int64_t page_stride = 0);

/// K and V of a view as pages of the layout `linear`.
[[nodiscard]] Pages k_pages(const CacheView& view);
[[nodiscard]] Pages v_pages(const CacheView& view);

/// True when both formats have the same bytes and read alike (they may differ in the rule that made the scales).
[[nodiscard]] bool same_bytes(const BlockFormat& a, const BlockFormat& b);

/// Copies page from_ids[i] to page to_ids[i], changing the layout where the two differ. No code or scale changes its
/// value, so going back gives the same bytes. `global` is not copied. Both sides must have formats of the same bytes,
/// page size, heads and head dim; to_ids are distinct. Refuses scales that ggml blocks of mxfp4 and nvfp4 cannot hold
/// (NaN, negative). Fails with nothing written. The two sides share no bytes, or are the same pool and no page is both.
/// tokens: how many the pages hold together when from_ids are the pages of a sequence in token order; slots of the last
/// page past them are not read and become zeros (formats along the keys: are copied). all_slots: every slot counts.
inline constexpr std::int64_t all_slots = -1;
[[nodiscard]] Status copy_pages(const Pages& from, const MutablePages& to, std::span<const std::int32_t> from_ids,
                                std::span<const std::int32_t> to_ids, std::int64_t tokens = all_slots);

/// Converts pages of bf16 or fp16 (layout linear) to `format`, any format of 8 or 4 bits, in the memory they are in, as
/// after a prefill. A page must be contiguous, in either order; pages may lie apart by any stride.
/// ids     the pages to convert, each once. All their slots are converted: for formats whose tokens share scales
///         (block_keys > 1) they must be full, for others an unused slot costs nothing but counters
/// mean    [kv_heads, head_dim] float32 that is subtracted first (k_mean or v_mean of the view), or null
/// global  [kv_heads] calibrated scales, or null = 1; kept by address
/// A converted page begins with [codes: head][scales: head], the scales at the next multiple of 16 bytes: the bytes of
/// quantise_tokens over the page. What lies behind them in the page is left as it was and free, and no other page is
/// touched. The temporary is one page. Returns the whole pool as pages of `format`, of which converted ones may be
/// read; without ids nothing is written. A refused call changes nothing.
[[nodiscard]] Result<MutablePages> convert_pages(const MutablePages& pages, const BlockFormat& format,
                                                 std::span<const std::int32_t> ids, const float* mean = nullptr,
                                                 const float* global = nullptr, QuantiseCounters* counters = nullptr);

/// A page table in compressed rows, as FlashInfer has it: sequence b holds the pages
/// indices[indptr[b] .. indptr[b + 1]), the last of them filled with last_page_len[b] tokens.
struct CsrPageTable {
  std::span<const std::int32_t> indptr;         // [batch + 1]
  std::span<const std::int32_t> indices;        // indptr[batch] or more
  std::span<const std::int32_t> last_page_len;  // [batch]
};
/// What CacheView wants: page_table [batch, stride] (-1 past the pages of a sequence) and lengths [batch].
struct DensePageTable {
  std::vector<std::int32_t> page_table;
  std::int64_t stride = 0;  // at least 1
  std::vector<std::int64_t> lengths;
};
/// Refuses an indptr that does not start at 0 or falls, a last_page_len outside 1..page_size (0 for a sequence without
/// pages), page ids outside 0..num_pages-1, and num_pages or page_size above 2^31-1. Pages may be shared or repeated.
[[nodiscard]] Result<DensePageTable> dense_page_table(const CsrPageTable& table, std::int64_t num_pages,
                                                      std::int64_t page_size);

}  // namespace mpfa
