#include "cuda/sm90/convert_pages.hpp"

#include <cstdint>
#include <limits>

#include "cuda/sm90/device.hpp"
#include "cuda/sm90/row_format.hpp"
#include "pages/pages.hpp"

namespace mpfa::sm90 {

Result<MutablePages> convert_pages(const PageConversion& c) {
  constexpr const char* kCall = "convert_pages";
  const PagesKind& kind = c.pages.kind;
  const OperandPages& from = c.pages.bytes;
  Result<MutablePages> packed = pages::converted_pages(c.pages, c.format, c.global);
  if (!packed.ok()) return packed;
  const MutablePages& to = packed.value();
  const Result<RowFormat> row = row_format(kCall, "format", to.kind, c.mean, c.global);
  if (!row.ok()) return row.status();
  const std::int64_t bytes = kind.page_size * kind.kv_heads * kind.head_dim * 2;
  if (bytes > kLargestPage) {
    return refused(StatusCode::unsupported, kCall,
                   "a page of '{}' has {} bytes; the GPU takes up to {}; make pages smaller, or copy to the host",
                   pages_tag(kind), bytes, kLargestPage);
  }
  if (!aligned(c.pages.data, {from.data_page_stride}, 16)) {
    return refused(StatusCode::invalid_argument, kCall, "pages must begin at multiples of 16 bytes");
  }
  if (c.n < 0 || c.n > std::numeric_limits<std::int32_t>::max() || (c.n > 0 && c.ids == nullptr)) {
    return refused(StatusCode::invalid_argument, kCall, "ids is {} with n {}; n ids are needed",
                   c.ids == nullptr ? "null" : "given", c.n);
  }
  if (const Result<int> device = current_device(); !device.ok()) return device.status();
  MPFA_RETURN_IF_ERROR(check_device_memory(
      kCall,
      {{"pages", c.pages.data}, {"ids", c.ids}, {"mean", c.mean}, {"global", c.global}, {"counters", c.counters}}));
  MPFA_RETURN_IF_ERROR(check_stream(kCall, c.stream));
  if (c.n == 0 || kind.num_pages == 0) return packed;
  ConvertParams p{};
  p.row = row.value();
  p.pages = reinterpret_cast<std::uint8_t*>(c.pages.data);
  p.page_stride = from.data_page_stride;
  p.x_head = from.data_head_stride, p.x_row = from.data_row_stride;
  p.data_head = to.bytes.data_head_stride, p.data_row = to.bytes.data_row_stride;
  p.scales = to.scales == nullptr ? 0 : to.scales - to.data;
  p.scale_head = to.bytes.scale_head_stride, p.scale_row = to.bytes.scale_row_stride;
  p.num_pages = static_cast<std::int32_t>(kind.num_pages), p.page_size = static_cast<std::int32_t>(kind.page_size);
  p.heads = static_cast<std::int32_t>(kind.kv_heads), p.n = static_cast<std::int32_t>(c.n);
  p.page_bytes = static_cast<std::int32_t>(bytes);
  p.ids = c.ids, p.counters = c.counters;
  const AppendInput input = kind.format.element == Element::f16 ? AppendInput::f16 : AppendInput::bf16;
  MPFA_RETURN_IF_ERROR(launch_status(kCall, launch_convert(input, p, static_cast<cudaStream_t>(c.stream))));
  return packed;
}

}  // namespace mpfa::sm90
