// mpfa._core.DeviceView: K and V pages, a page table and lengths that Python owns in the memory of a CUDA device.
#pragma once

#include <optional>
#include <string>

#include "cuda/runtime.hpp"
#include "extension/arrays.hpp"
#include "extension/device_state.hpp"
#include "extension/page_set.hpp"
#include "mpfa/attention.hpp"

namespace mpfa::python {

class DeviceView {
 public:
  /// recipe: empty for the operands as they are stored. Means: float32 [heads, d], or [batch, heads, d], or None.
  /// state: DeviceState of the cache that the pages are of, with its means; or None.
  DeviceView(nb::object k, nb::object v, std::string recipe, nb::handle k_mean, nb::handle v_mean, nb::object state);

  /// page_table int32 [batch, pages], rows contiguous; lengths int64 [batch].
  void set_table(nb::handle page_table, nb::handle lengths);
  /// k, v [n, heads, d]; slot_mapping int64 [n]; rope as import_device_rope takes it; counters int64 [3] or None.
  void write_slots(nb::handle k, nb::handle v, nb::handle slot_mapping, nb::handle rope, nb::handle counters,
                   std::uintptr_t stream) const;

  [[nodiscard]] std::int64_t batch() const { return table_.shape[0]; }
  [[nodiscard]] std::int64_t columns() const { return table_.shape[1]; }
  [[nodiscard]] std::string recipe_for(DType q) const;
  /// What a call reads; fails when the page table has no room for the problem's batch or max_kv.
  [[nodiscard]] CacheView view(const AttentionProblem& problem) const;

 private:
  [[nodiscard]] const PageSet& k_set() const { return *nb::inst_ptr<PageSet>(k_object_); }
  [[nodiscard]] const PageSet& v_set() const { return *nb::inst_ptr<PageSet>(v_object_); }
  /// The array of SequenceView on the device, where there are means.
  void upload_sequences();

  [[nodiscard]] const DeviceState* state() const {
    return state_object_.is_none() ? nullptr : nb::inst_ptr<DeviceState>(state_object_);
  }

  nb::object k_object_, v_object_, state_object_;  // keep the arrays alive
  std::string recipe_;
  std::optional<Array> k_mean_, v_mean_;
  Array table_, lengths_;
  cuda::Buffer sequences_;
};

}  // namespace mpfa::python
