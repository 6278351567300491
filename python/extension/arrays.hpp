// Arrays that come in from Python (NumPy, torch, any DLPack producer) and how failures go out.
#pragma once

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mpfa/status.hpp"
#include "mpfa/tensor.hpp"

namespace mpfa::python {

namespace nb = nanobind;

/// Becomes mpfa.MpfaError.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) {
  throw Error(fmt::format(text, std::forward<Args>(args)...));
}

inline void check(const Status& status) {
  if (!status.ok()) throw Error(status.message());
}

template <class T>
T take(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

/// Where the memory of an array may be: of the host (also pinned), or of a CUDA device.
enum class Place { host, device, any };

/// A view of the memory of a Python array, which it keeps alive.
struct Array {
  nb::object object;
  nb::ndarray<nb::ro> owner;  // empty when the memory is borrowed from `object`
  void* data = nullptr;
  DType dtype = DType::f32;
  bool boolean = false;  // a u8 whose values are truth values
  bool on_device = false;
  int ndim = 0;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};
  std::array<std::int64_t, 4> stride{0, 0, 0, 0};  // elements

  [[nodiscard]] TensorView view() const { return {data, dtype, shape, stride}; }
  [[nodiscard]] MutableTensorView mutable_view() const { return {data, dtype, shape, stride}; }
};

/// Imports an array of 1 to 4 dimensions; `name` is for messages. Unused (last) dimensions get extent 1.
/// `writable`: refuse read-only memory. Device arrays come by DLPack or __cuda_array_interface__, and no stream is made
/// to wait: the caller orders the work.
[[nodiscard]] Array import_array(nb::handle x, const char* name, bool writable = false, Place place = Place::host);
/// The same for arrays [batch, rows, heads, d] or, when `ragged`, [rows, heads, d] as [1, rows, heads, d].
[[nodiscard]] Array import_rows(nb::handle x, const char* name, bool ragged, bool writable = false,
                                Place place = Place::host);
/// Imports a device array of exactly this dtype and shape, contiguous; -1 in `shape` takes any extent.
[[nodiscard]] Array import_dense(nb::handle x, const char* name, DType dtype, const std::vector<std::int64_t>& shape,
                                 bool writable = false);
/// Values of a floating array of exactly `shape` as fp32.
[[nodiscard]] std::vector<float> import_floats(nb::handle x, const char* name, const std::vector<std::int64_t>& shape);
/// The same, or an empty vector for None.
[[nodiscard]] inline std::vector<float> import_optional_floats(nb::handle x, const char* name,
                                                               const std::vector<std::int64_t>& shape) {
  return x.is_none() ? std::vector<float>{} : import_floats(x, name, shape);
}
/// Values of a one-dimensional int32 or int64 array or a sequence of ints; None gives no value.
[[nodiscard]] std::optional<std::vector<std::int64_t>> import_integers(nb::handle x, const char* name);

/// "f32", "bf16", ...
[[nodiscard]] const char* dtype_text(DType t);
[[nodiscard]] bool is_float16_or_32(DType t);
/// "[2, 3]"
[[nodiscard]] std::string shape_text(const Array& a);

}  // namespace mpfa::python
