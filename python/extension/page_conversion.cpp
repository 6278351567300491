// 16-bit pages that become packed ones in place, on the host or on a device.
#include <limits>

#include "extension/bindings.hpp"
#include "extension/page_set.hpp"
#include "mpfa/attention.hpp"
#include "mpfa/device_cache.hpp"

namespace mpfa::python {

std::vector<std::int32_t> page_ids_of(nb::handle x, const char* name, std::int64_t all) {
  std::vector<std::int32_t> ids;
  const auto given = import_integers(x, name);
  if (!given) {
    for (std::int64_t i = 0; i < all; ++i) ids.push_back(static_cast<std::int32_t>(i));
    return ids;
  }
  for (const std::int64_t id : *given) {
    if (id < 0 || id > std::numeric_limits<std::int32_t>::max()) fail("{}: {} is not a page id", name, id);
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

void PageSet::take_memory(const PageSet& source, const MutablePages& packed) {
  data_object_ = source.data_object_;
  scales_object_ = nb::none();
  data_ = source.data_;
  const OperandPages& o = packed.bytes;
  data_part_ = scales_part_ = source.data_part_;
  data_part_.strides = {o.data_page_stride, o.data_head_stride, o.data_row_stride};
  if (o.scales == nullptr) {
    scales_part_ = {};
  } else {
    scales_part_.offset += o.scales - o.data;
    scales_part_.strides = {o.scale_page_stride, o.scale_head_stride, o.scale_row_stride};
  }
  pages_ = packed.view();
}

PageSet PageSet::converted(const PageSet& source, const std::string& format, const std::vector<std::int32_t>& ids,
                           const std::vector<float>& mean, nb::handle global, QuantiseCounters& met) {
  const MutablePages wide = source.writable("pages");
  const BlockFormat f = take(parse_format(format));
  std::vector<float> scales = import_optional_floats(global, "scale", {wide.kind.kv_heads});
  const auto convert = [&] {
    nb::gil_scoped_release released;
    return convert_pages(wide, f, ids, mean.empty() ? nullptr : mean.data(), scales.empty() ? nullptr : scales.data(),
                         &met);
  };
  PageSet set;
  set.take_memory(source, take(convert()));
  set.global_ = std::move(scales);
  return set;
}

PageSet PageSet::converted_on_device(const PageSet& source, const std::string& format, nb::handle page_ids,
                                     nb::handle mean, nb::handle global, nb::handle counters, std::uintptr_t stream) {
  PageConversion c;
  c.pages = source.device_writable("pages");
  c.format = take(parse_format(format));
  const PagesKind& kind = c.pages.kind;
  PageSet set;
  set.data_ = source.data_;
  set.pages_.kind = kind;
  c.global = set.place_global(global);
  const bool array = nb::hasattr(page_ids, "__dlpack__") || nb::hasattr(page_ids, "__cuda_array_interface__");
  if (array && import_array(page_ids, "page_ids", false, Place::any).on_device) {
    const Array ids = import_dense(page_ids, "page_ids", DType::i32, {-1});
    c.ids = static_cast<const std::int32_t*>(ids.data);
    c.n = ids.shape[0];
  } else {
    const std::vector<std::int32_t> ids = page_ids_of(page_ids, "page_ids", kind.num_pages);
    set.device_ids_ = take(cuda::Buffer::make(ids.size() * sizeof(std::int32_t)));
    if (!ids.empty()) check(cuda::copy(set.device_ids_.data(), ids.data(), set.device_ids_.bytes()));
    c.ids = static_cast<const std::int32_t*>(set.device_ids_.data());
    c.n = static_cast<std::int64_t>(ids.size());
  }
  if (!mean.is_none()) {
    c.mean = static_cast<const float*>(import_dense(mean, "mean", DType::f32, {kind.kv_heads, kind.head_dim}).data);
  }
  if (!counters.is_none()) {
    c.counters = static_cast<unsigned long long*>(import_dense(counters, "counters", DType::i64, {3}, true).data);
  }
  c.stream = reinterpret_cast<void*>(stream);
  set.take_memory(source, take(convert_pages(c, take(cuda_device()))));
  return set;
}

}  // namespace mpfa::python
