// mpfa._core.Pages: K or V in pages that Python owns.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cuda/runtime.hpp"
#include "extension/arrays.hpp"
#include "mpfa/pages.hpp"

namespace mpfa::python {

class PageSet {
 public:
  /// data [num_pages, page_size, kv_heads, bytes] in `order`, of any dtype; scales likewise (None for formats without),
  /// both of the host or both of a CUDA device. global: fp32 scale per head, or None; copied to the device when it is
  /// not there.
  PageSet(nb::object data, nb::object scales, const std::string& format, const std::string& layout,
          const std::string& order, std::int64_t head_dim, nb::handle global);
  /// K and V of a buffer [num_pages, page bytes]: see joined_parts.
  static std::pair<PageSet, PageSet> joined(nb::object buffer, const std::pair<std::string, std::string>& formats,
                                            const std::pair<std::string, std::string>& layouts,
                                            const std::string& order, std::int64_t page_size, std::int64_t kv_heads,
                                            const std::pair<std::int64_t, std::int64_t>& head_dims,
                                            const std::pair<nb::object, nb::object>& globals);

  /// The pages of `source`, 16 bits, converted in place: see convert_pages. Adds to `met`.
  static PageSet converted(const PageSet& source, const std::string& format, const std::vector<std::int32_t>& ids,
                           const std::vector<float>& mean, nb::handle global, QuantiseCounters& met);

  /// The same on the device, enqueued on `stream`. page_ids: int32 on the device, or what the host lists (None: all);
  /// mean float32 [heads, d] and counters int64 [3] on the device, or None.
  static PageSet converted_on_device(const PageSet& source, const std::string& format, nb::handle page_ids,
                                     nb::handle mean, nb::handle global, nb::handle counters, std::uintptr_t stream);

  [[nodiscard]] const PagesKind& kind() const { return pages_.kind; }
  [[nodiscard]] bool on_device() const { return data_.on_device; }
  /// Pages that the host may read; fails on those of a device.
  [[nodiscard]] const Pages& pages() const;
  /// The same pages to write to; fails on read-only arrays and on rows that share bytes.
  [[nodiscard]] MutablePages writable(const char* name) const;
  /// Pages in device memory; fails on those of the host.
  [[nodiscard]] const Pages& device_pages(const char* name) const;
  [[nodiscard]] MutablePages device_writable(const char* name) const;
  [[nodiscard]] std::vector<float> global() const { return global_; }

 private:
  PageSet() = default;
  /// In the memory of `source`, whose pages a conversion makes `packed`.
  void take_memory(const PageSet& source, const MutablePages& packed);
  void finish(nb::handle global);
  /// The calibrated scales where the pages are.
  [[nodiscard]] const float* place_global(nb::handle global);
  [[nodiscard]] MutablePages make_writable() const;

  nb::object data_object_, scales_object_;
  Array data_, scales_;
  MutablePagePart data_part_, scales_part_;
  std::vector<float> global_;   // pages_ keeps its address, which moving the vector does not change
  cuda::Buffer device_global_;  // likewise
  cuda::Buffer device_ids_;     // of a conversion, which may still read them
  nb::object global_object_;
  Pages pages_;
};

/// Page ids of the host: int32 or int64 array or a sequence of ints; None: 0 to all - 1.
[[nodiscard]] std::vector<std::int32_t> page_ids_of(nb::handle x, const char* name, std::int64_t all);

}  // namespace mpfa::python
