#include "extension/device_arrays.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace mpfa::python {

namespace {

constexpr int kCuda = 2;

/// The element type of a typestr such as "<f4".
bool parse_typestr(const std::string& text, nb::dlpack::dtype& type) {
  using Code = nb::dlpack::dtype_code;
  struct Known {
    const char* text;
    Code code;
    std::uint8_t bits;
  };
  constexpr Known kKnown[] = {{"<f4", Code::Float, 32}, {"<f2", Code::Float, 16}, {"<f8", Code::Float, 64},
                              {"|u1", Code::UInt, 8},   {"|b1", Code::Bool, 8},   {"<i4", Code::Int, 32},
                              {"<i8", Code::Int, 64}};
  for (const Known& k : kKnown) {
    if (text != k.text) continue;
    type = {static_cast<std::uint8_t>(k.code), k.bits, 1};
    return true;
  }
  return false;
}

}  // namespace

nb::dlpack::dltensor CudaInterface::tensor() {
  nb::dlpack::dltensor t{};
  t.data = data;
  t.device = {kCuda, 0};  // the ordinal is not part of the interface; the library asks the driver
  t.ndim = ndim;
  t.dtype = dtype;
  t.shape = shape.data();
  t.strides = stride.data();
  return t;
}

bool import_cuda_interface(nb::handle x, const char* name, bool writable, CudaInterface& out) {
  if (nb::hasattr(x, "__dlpack__") || !nb::hasattr(x, "__cuda_array_interface__")) return false;
  const auto interface = nb::cast<nb::dict>(x.attr("__cuda_array_interface__"));
  const auto typestr = nb::cast<std::string>(interface["typestr"]);
  if (!parse_typestr(typestr, out.dtype)) {
    fail("{} has elements of type '{}'; float32, float16, uint8, int32 and int64 are known", name, typestr);
  }
  const auto shape = nb::cast<std::vector<std::int64_t>>(nb::list(interface["shape"]));
  if (shape.empty() || shape.size() > 4) fail("{} has {} dimensions; 1 to 4 are allowed", name, shape.size());
  const auto data = nb::cast<nb::tuple>(interface["data"]);
  if (writable && nb::cast<bool>(data[1])) fail("{} is read-only; memory that can be written is needed", name);
  out.data = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0]));
  out.ndim = static_cast<int>(shape.size());
  const std::int64_t size = out.dtype.bits / 8;
  std::int64_t contiguous = 1;
  for (int i = out.ndim - 1; i >= 0; --i) {
    out.shape[i] = shape[i];
    out.stride[i] = contiguous;
    contiguous *= shape[i];
  }
  const nb::object strides = interface.contains("strides") ? nb::object(interface["strides"]) : nb::none();
  if (strides.is_none()) return true;
  const auto bytes = nb::cast<std::vector<std::int64_t>>(nb::list(strides));
  for (int i = 0; i < out.ndim; ++i) {
    if (bytes.at(i) % size != 0) fail("{} has a stride of {} bytes for elements of {}", name, bytes[i], size);
    out.stride[i] = bytes[i] / size;
  }
  return true;
}

bool import_device_dlpack(nb::handle x, nb::ndarray<nb::ro>& out) {
  if (!nb::hasattr(x, "__dlpack_device__")) return false;
  const auto device = nb::cast<nb::tuple>(x.attr("__dlpack_device__")());
  if (nb::cast<int>(nb::int_(device[0])) != kCuda) return false;
  return nb::try_cast(x.attr("__dlpack__")(nb::arg("stream") = -1), out);
}

}  // namespace mpfa::python
