#include "extension/page_set.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "extension/bindings.hpp"

namespace mpfa::python {

namespace {

/// Position of the page, head and row dimensions of an array.
struct Dims {
  int page = 0, head = 0, row = 0;
};
Dims dims_of(PageOrder order) {
  return order == PageOrder::nhd ? Dims{0, 2, 1} : Dims{0, 1, 2};
}

/// The bytes of an array as a part: its lowest address to its highest.
MutablePagePart part_of(const Array& a, const Dims& d, bool one_row) {
  const auto size = static_cast<std::int64_t>(dtype_bytes(a.dtype));
  std::int64_t low = 0, high = size;
  for (int i = 0; i < a.ndim; ++i) {
    const std::int64_t reach = a.stride[i] * size * std::max<std::int64_t>(a.shape[i] - 1, 0);
    (reach < 0 ? low : high) += reach;
  }
  MutablePagePart p;
  p.data = static_cast<std::byte*>(a.data) + low;
  p.bytes = high - low;
  p.offset = -low;
  p.strides = {a.stride[d.page] * size, a.stride[d.head] * size, one_row ? 0 : a.stride[d.row] * size};
  return p;
}

void check_array(const Array& a, const char* name, const std::vector<std::int64_t>& shape, bool contiguous_rows) {
  if (!std::equal(shape.begin(), shape.end(), a.shape.begin(), a.shape.begin() + a.ndim)) {
    fail("Pages: {} has shape {} of {}; [{}] is needed", name, shape_text(a), dtype_text(a.dtype),
         fmt::join(shape, ", "));
  }
  if (contiguous_rows && a.shape[a.ndim - 1] > 1 && a.stride[a.ndim - 1] != 1) {
    fail("Pages: {} has stride {} in its last dimension; it must be 1", name, a.stride[a.ndim - 1]);
  }
}

}  // namespace

PageSet::PageSet(nb::object data, nb::object scales, const std::string& format, const std::string& layout,
                 const std::string& order_name, std::int64_t head_dim, nb::handle global)
    : data_object_(std::move(data)), scales_object_(std::move(scales)) {
  const PageOrder order = take(parse_page_order(order_name));
  const Dims dims = dims_of(order);
  data_ = import_array(data_object_, "data", false, Place::any);
  if (data_.ndim != 4) {
    fail(
        "Pages: data has shape {}; [num_pages, page_size, kv_heads, row] (NHD) or [num_pages, kv_heads, page_size, "
        "row] "
        "(HND) is needed",
        shape_text(data_));
  }
  PagesKind& kind = pages_.kind;
  kind.format = take(parse_format(format));
  kind.layout = take(parse_pages_layout(layout));
  if (kind.format.axis == PackAxis::keys) {
    fail(
        "Pages: format {} keeps the tokens of a page transposed, and its newest ones in 16 bits elsewhere; use a "
        "PagedCache, or a format with blocks along the head dim",
        format);
  }
  kind.num_pages = data_.shape[0];
  kind.page_size = data_.shape[dims.row];
  kind.kv_heads = data_.shape[dims.head];
  const auto size = static_cast<std::int64_t>(dtype_bytes(data_.dtype));
  kind.head_dim = head_dim > 0 ? head_dim : data_.shape[3] * size * 8 / element_bits(kind.format.element);
  const PageGeometry g = take(pages_geometry(kind));
  if (data_.shape[3] * size != g.data_row_bytes) {
    fail("Pages: data has rows of {} bytes; {} with head_dim {} has {} (give head_dim, or slice the padding off)",
         data_.shape[3] * size, format, kind.head_dim, g.data_row_bytes);
  }
  check_array(data_, "data", {data_.shape.begin(), data_.shape.end()}, true);
  data_part_ = part_of(data_, dims, false);
  if (g.scale_bytes() > 0) {
    if (scales_object_.is_none()) fail("Pages: scales is None; format {} stores them beside its codes", format);
    scales_ = import_array(scales_object_, "scales", false, Place::any);
    if (scales_.on_device != data_.on_device) {
      fail("Pages: data is in {} memory and scales in {} memory; put both in one", data_.on_device ? "device" : "host",
           scales_.on_device ? "device" : "host");
    }
    const auto item = static_cast<std::int64_t>(dtype_bytes(scales_.dtype));
    const std::int64_t row = g.scale_row_bytes / item;
    // One scale per row may leave the last dimension out; tiles are one run of bytes per page and head.
    const bool tiles = kind.layout == PagesLayout::tile_128x4, flat = !tiles && scales_.ndim == 3 && row == 1;
    std::vector<std::int64_t> shape{kind.num_pages, kind.kv_heads, kind.kv_heads};
    if (!tiles) shape[static_cast<std::size_t>(dims.row)] = g.scale_rows;
    if (tiles) shape[2] = row;
    if (!tiles && !flat) shape.push_back(row);
    check_array(scales_, "scales", shape, !flat);
    if (row * item != g.scale_row_bytes)
      fail("Pages: scales is {}; format {} stores others", dtype_text(scales_.dtype), format);
    scales_part_ = part_of(scales_, tiles ? Dims{0, 1, 0} : dims, tiles);
  } else if (!scales_object_.is_none()) {
    fail("Pages: scales were given, but {} in layout {} has none of its own; leave them out", format, layout);
  }
  finish(global);
}

std::pair<PageSet, PageSet> PageSet::joined(nb::object buffer, const std::pair<std::string, std::string>& formats,
                                            const std::pair<std::string, std::string>& layouts,
                                            const std::string& order, std::int64_t page_size, std::int64_t kv_heads,
                                            const std::pair<std::int64_t, std::int64_t>& head_dims,
                                            const std::pair<nb::object, nb::object>& globals) {
  const Array a = import_array(buffer, "buffer", false, Place::any);
  const std::int64_t page_stride = a.shape[0] > 1 ? a.stride[0] : a.shape[1];
  if (a.ndim != 2 || a.dtype != DType::u8 || (a.shape[1] > 1 && a.stride[1] != 1) || page_stride < a.shape[1]) {
    fail("joined_pages: buffer is {} of shape {}; uint8 [num_pages, bytes of a page] with contiguous pages is needed",
         dtype_text(a.dtype), shape_text(a));
  }
  const std::int64_t pages = a.shape[0];
  const PagesKind k{take(parse_format(formats.first)),
                    take(parse_pages_layout(layouts.first)),
                    pages,
                    page_size,
                    kv_heads,
                    head_dims.first};
  const PagesKind v{take(parse_format(formats.second)),
                    take(parse_pages_layout(layouts.second)),
                    pages,
                    page_size,
                    kv_heads,
                    head_dims.second};
  const auto bytes = static_cast<std::size_t>(pages == 0 ? 0 : (pages - 1) * page_stride + a.shape[1]);
  const MutableJoinedParts p = take(joined_parts(k, v, take(parse_page_order(order)),
                                                 std::span(static_cast<std::byte*>(a.data), bytes), page_stride));
  std::pair<PageSet, PageSet> sets{PageSet(), PageSet()};
  const auto fill = [&](PageSet& set, const PagesKind& kind, const MutablePagePart& data, const MutablePagePart& scales,
                        const nb::object& global) {
    set.data_object_ = buffer;
    set.scales_object_ = nb::none();
    set.data_ = a;
    set.data_part_ = data;
    set.scales_part_ = scales;
    set.pages_.kind = kind;
    set.finish(global);
  };
  fill(sets.first, k, p.k_data, p.k_scales, globals.first);
  fill(sets.second, v, p.v_data, p.v_scales, globals.second);
  return sets;
}

const float* PageSet::place_global(nb::handle global) {
  const std::int64_t heads = pages_.kind.kv_heads;
  global_object_ = nb::borrow(global);
  if (global.is_none()) return nullptr;
  if (!data_.on_device) {
    global_ = import_floats(global, "scale", {heads});
    return global_.data();
  }
  if (import_array(global, "scale", false, Place::any).on_device) {
    return static_cast<const float*>(import_dense(global, "scale", DType::f32, {heads}).data);
  }
  const std::vector<float> host = import_floats(global, "scale", {heads});
  device_global_ = take(cuda::Buffer::make(host.size() * sizeof(float)));
  check(cuda::copy(device_global_.data(), host.data(), host.size() * sizeof(float)));
  return static_cast<const float*>(device_global_.data());
}

void PageSet::finish(nb::handle global) {
  const PagesKind kind = pages_.kind;
  const auto read_only = [](const MutablePagePart& p) { return PagePart{p.data, p.bytes, p.offset, p.strides}; };
  pages_ = take(make_pages(kind, read_only(data_part_), read_only(scales_part_), place_global(global)));
}

const Pages& PageSet::pages() const {
  if (on_device())
    fail("the pages are in device memory and this call works on the CPU; move them with Pages.to_host()");
  return pages_;
}

const Pages& PageSet::device_pages(const char* name) const {
  if (!on_device()) fail("{} is in host memory; move it with Pages.to_device(), or use mpfa.PageView", name);
  return pages_;
}

MutablePages PageSet::make_writable() const {
  return take(make_pages(pages_.kind, data_part_, scales_part_, pages_.bytes.global));
}

MutablePages PageSet::writable(const char* name) const {
  (void)pages();
  // Imported again: an array that was fine to read may be read-only.
  (void)import_array(data_object_, name, true);
  if (!scales_object_.is_none()) (void)import_array(scales_object_, name, true);
  return make_writable();
}

MutablePages PageSet::device_writable(const char* name) const {
  (void)device_pages(name);
  (void)import_array(data_object_, name, true, Place::device);
  if (!scales_object_.is_none()) (void)import_array(scales_object_, name, true, Place::device);
  return make_writable();
}

}  // namespace mpfa::python
