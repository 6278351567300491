// mpfa._core.Pages as Python sees it, and the functions over pages.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "extension/bindings.hpp"
#include "extension/page_set.hpp"

namespace mpfa::python {

namespace {

void copy(const PageSet& source, const PageSet& target, nb::handle source_ids, nb::handle target_ids,
          std::int64_t tokens) {
  const std::vector<std::int32_t> from = page_ids_of(source_ids, "source_ids", source.kind().num_pages);
  const std::vector<std::int32_t> to = page_ids_of(target_ids, "target_ids", static_cast<std::int64_t>(from.size()));
  const MutablePages written = target.writable("target");
  nb::gil_scoped_release released;
  check(copy_pages(source.pages(), written, from, to, tokens));
}

nb::tuple convert(const PageSet& pages, const std::string& format, nb::handle page_ids, nb::handle mean,
                  nb::handle scale) {
  const PagesKind& kind = pages.kind();
  const std::vector<std::int32_t> ids = page_ids_of(page_ids, "page_ids", kind.num_pages);
  const std::vector<float> means = import_optional_floats(mean, "mean", {kind.kv_heads, kind.head_dim});
  QuantiseCounters met;
  PageSet made = PageSet::converted(pages, format, ids, means, scale, met);
  return nb::make_tuple(nb::cast(std::move(made)),
                        std::vector<std::int64_t>{met.saturated_elements, met.flushed_blocks, met.nonfinite_blocks});
}

}  // namespace

void bind_pages(nb::module_& m) {
  const auto any = nb::arg().none();
  nb::class_<PageSet>(m, "Pages")
      .def(nb::init<nb::object, nb::object, const std::string&, const std::string&, const std::string&, std::int64_t,
                    nb::handle>(),
           any, any, nb::arg(), nb::arg(), nb::arg(), nb::arg(), any)
      .def("tag", [](const PageSet& p) { return pages_tag(p.kind()); })
      .def("check_tag", [](const PageSet& p, const std::string& tag) { check(check_pages_tag(p.kind(), tag)); })
      .def("format", [](const PageSet& p) { return format_name(p.kind().format); })
      .def("layout", [](const PageSet& p) { return std::string(pages_layout_name(p.kind().layout)); })
      .def("on_device", &PageSet::on_device)
      .def("extents", [](const PageSet& p) {
        const PagesKind& k = p.kind();
        return nb::make_tuple(k.num_pages, k.page_size, k.kv_heads, k.head_dim);
      });
  m.def("joined_pages", &PageSet::joined, any, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
        nb::arg());
  m.def("convert_pages", &convert, nb::arg(), nb::arg(), any, any, any);
  m.def("convert_device_pages", &PageSet::converted_on_device, nb::arg(), nb::arg(), any, any, any, any, nb::arg());
  m.def("copy_pages", &copy, nb::arg(), nb::arg(), any, any, nb::arg());
  m.def("pages_geometry", [](const std::string& format, const std::string& layout, std::int64_t num_pages,
                             std::int64_t page_size, std::int64_t kv_heads, std::int64_t head_dim) {
    const PageGeometry g = take(pages_geometry(
        {take(parse_format(format)), take(parse_pages_layout(layout)), num_pages, page_size, kv_heads, head_dim}));
    return nb::make_tuple(g.data_row_bytes, g.scale_rows, g.scale_row_bytes);
  });
}

}  // namespace mpfa::python
