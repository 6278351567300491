// mpfa._core.DevicePlan: one attention call on a CUDA device, planned once and enqueued any number of times.
#include <nanobind/stl/string.h>

#include "extension/bindings.hpp"
#include "extension/device_view.hpp"
#include "extension/problem.hpp"
#include "extension/runner.hpp"
#include "mpfa/device_merge.hpp"

namespace mpfa::python {

namespace {

class DevicePlan {
 public:
  DevicePlan(nb::object view, const nb::tuple& problem, const std::string& device) : view_object_(std::move(view)) {
    const AttentionProblem p = import_problem(problem);
    plan_ = take(plan(p, take(device_kind(device))));
    if (plan_.multiprocessors == 0) fail("DevicePageView: device is '{}', which is no GPU; use mpfa.PageView", device);
    // What a call would find, found now.
    (void)view_ref().view(p);
  }

  /// Device memory of the plan's own, for calls that bring none.
  void allocate() {
    if (own_.data() == nullptr) own_ = take(cuda::Buffer::make(plan_.workspace_bytes));
  }

  void attend(nb::handle q, nb::handle out, nb::handle lse, nb::handle sinks, nb::handle mask, nb::handle alibi_slopes,
              nb::handle cu_seqlens_q, nb::handle workspace, std::uintptr_t stream) const {
    const AttentionProblem& p = plan_.problem;
    const bool ragged = !cu_seqlens_q.is_none();
    const Array q_array = import_rows(q, "q", ragged, false, Place::device);
    const Array out_array = import_rows(out, "out", ragged, true, Place::device);
    AttentionTensors t;
    t.q = q_array.view();
    t.out = out_array.mutable_view();
    t.cache = view_ref().view(p);
    if (ragged) {
      t.cu_seqlens_q =
          static_cast<const std::int64_t*>(import_dense(cu_seqlens_q, "cu_seqlens_q", DType::i64, {p.batch + 1}).data);
    }
    if (!lse.is_none()) {
      const Array lse_array = import_array(lse, "lse", true, Place::device);
      check_lse(lse_array, q_array, ragged, p.q_heads);
      t.lse = static_cast<float*>(lse_array.data);
    }
    const auto per_head = [&](nb::handle x, const char* name) -> const float* {
      return x.is_none() ? nullptr : static_cast<const float*>(import_dense(x, name, DType::f32, {p.q_heads}).data);
    };
    t.sinks = per_head(sinks, "sinks");
    t.alibi_slopes = per_head(alibi_slopes, "alibi_slopes");
    if (!mask.is_none()) t.mask = import_mask(mask, Place::device).view();
    t.stream = reinterpret_cast<void*>(stream);
    check(mpfa::attend(plan_, t, workspace_of(workspace)));
  }

  [[nodiscard]] std::size_t workspace_bytes() const { return plan_.workspace_bytes; }
  [[nodiscard]] std::string kernel() const { return plan_.kernel; }

 private:
  [[nodiscard]] const DeviceView& view_ref() const { return *nb::inst_ptr<DeviceView>(view_object_); }

  [[nodiscard]] Workspace workspace_of(nb::handle given) const {
    if (given.is_none()) return {own_.data(), own_.bytes()};
    const Array a = import_dense(given, "workspace", DType::u8, {-1}, true);
    return {a.data, static_cast<std::size_t>(a.shape[0])};
  }

  nb::object view_object_;
  Plan plan_;
  cuda::Buffer own_;
};

/// Results o [b, rows, heads, d] with lse [b, heads, rows] over disjoint keys, or both without the batch.
void merge_on_device(nb::handle o_a, nb::handle lse_a, nb::handle o_b, nb::handle lse_b, nb::handle out, nb::handle lse,
                     std::uintptr_t stream) {
  const bool ragged = import_array(o_a, "o_a", false, Place::device).ndim == 3;
  const Array a = import_rows(o_a, "o_a", ragged, false, Place::device),
              b = import_rows(o_b, "o_b", ragged, false, Place::device),
              to = import_rows(out, "out", ragged, true, Place::device);
  std::vector<std::int64_t> shape{a.shape[0], a.shape[2], a.shape[1]};
  if (ragged) shape.erase(shape.begin());
  const auto numbers = [&](nb::handle x, const char* name, bool written) {
    return static_cast<float*>(import_dense(x, name, DType::f32, shape, written).data);
  };
  StateMerge m;
  m.a = a.view(), m.b = b.view(), m.out = to.mutable_view();
  m.lse_a = numbers(lse_a, "lse_a", false), m.lse_b = numbers(lse_b, "lse_b", false);
  m.lse = numbers(lse, "lse", true);
  m.stream = reinterpret_cast<void*>(stream);
  check(merge_states(m, take(cuda_device())));
}

/// Bytes in device memory that belong to Python.
nb::object upload(nb::handle host) {
  const Array a = import_array(host, "array");
  const auto bytes = static_cast<std::size_t>(a.shape[0]) * dtype_bytes(a.dtype);
  if (a.ndim != 1 || (a.shape[0] > 1 && a.stride[0] != 1))
    fail("array has shape {}; one run of bytes is needed", shape_text(a));
  cuda::Buffer buffer = take(cuda::Buffer::make(bytes));
  if (bytes > 0) check(cuda::copy(buffer.data(), a.data, bytes));
  return nb::cast(std::move(buffer));
}

void download(const cuda::Buffer& from, nb::handle host) {
  const Array a = import_array(host, "array", true);
  const auto bytes = static_cast<std::size_t>(a.shape[0]) * dtype_bytes(a.dtype);
  if (a.ndim != 1 || bytes != from.bytes())
    fail("array has shape {}; {} bytes are needed", shape_text(a), from.bytes());
  if (bytes > 0) check(cuda::copy(a.data, from.data(), bytes));
}

}  // namespace

void bind_device(nb::module_& m) {
  const auto any = nb::arg().none();
  nb::class_<cuda::Buffer>(m, "DeviceBuffer")
      .def("address", [](const cuda::Buffer& b) { return reinterpret_cast<std::uintptr_t>(b.data()); })
      .def("download", &download, any);
  m.def("upload", &upload, any);
  m.def("on_device", [](nb::handle x, const char* name) { return import_array(x, name, false, Place::any).on_device; });
  m.def("merge_on_device", &merge_on_device, any, any, any, any, any, any, nb::arg());
  nb::class_<DeviceState>(m, "DeviceState");
  nb::class_<DeviceView>(m, "DeviceView")
      .def(
          "__init__",
          [](DeviceView* self, nb::object k, nb::object v, std::string recipe, nb::object k_mean, nb::object v_mean,
             nb::object state) {
            if (!nb::isinstance<PageSet>(k) || !nb::isinstance<PageSet>(v)) {
              fail("DevicePageView: k and v must be mpfa.Pages");
            }
            if (!state.is_none() && !nb::isinstance<DeviceState>(state)) {
              fail("DevicePageView: state is none of a cache");
            }
            new (self) DeviceView(std::move(k), std::move(v), std::move(recipe), k_mean, v_mean, std::move(state));
          },
          any, any, nb::arg(), any, any, any)
      .def("set_table", &DeviceView::set_table, any, any)
      .def("write_slots", &DeviceView::write_slots, any, any, any, any, any, nb::arg())
      .def("batch", &DeviceView::batch)
      .def("columns", &DeviceView::columns)
      .def("recipe_for", [](const DeviceView& v, const std::string& q) {
        return v.recipe_for(q == "float32" ? DType::f32 : q == "float16" ? DType::f16 : DType::bf16);
      });
  nb::class_<DevicePlan>(m, "DevicePlan")
      .def(
          "__init__",
          [](DevicePlan* self, nb::object view, const nb::tuple& problem, const std::string& device) {
            if (!nb::isinstance<DeviceView>(view)) fail("DevicePlan: view must be an mpfa.DevicePageView");
            new (self) DevicePlan(std::move(view), problem, device);
          },
          any, nb::arg(), nb::arg())
      .def("allocate", &DevicePlan::allocate)
      .def("attend", &DevicePlan::attend, any, any, any, any, any, any, any, any, nb::arg())
      .def("workspace_bytes", &DevicePlan::workspace_bytes)
      .def("kernel", &DevicePlan::kernel);
}

}  // namespace mpfa::python
