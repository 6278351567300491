// mpfa._core: a thin layer that turns arrays into views and statuses into mpfa.MpfaError. Outputs are arrays that the
// Python package allocates, so that this file needs no array library.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "attention/names.hpp"
#include "extension/bindings.hpp"
#include "mpfa/build_info.hpp"

namespace mpfa::python {

namespace {

/// What the package asks about an array of a library it does not know.
nb::tuple describe(nb::handle x) {
  const Array a = import_array(x, "array", false, Place::any);
  nb::list shape;
  for (int i = 0; i < a.ndim; ++i) shape.append(a.shape[i]);
  return nb::make_tuple(nb::tuple(shape), a.boolean ? "bool" : dtype_text(a.dtype));
}

/// Zeroed memory with __dlpack__, for libraries that the package does not import itself.
nb::object allocate(const std::vector<std::int64_t>& shape, const std::string& dtype) {
  nb::dlpack::dtype type{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float), 32, 1};
  if (dtype == "bfloat16") type = {static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  if (dtype == "float16") type.bits = 16;
  if (dtype == "uint8") type = {static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt), 8, 1};
  std::vector<std::size_t> extents;
  std::size_t bytes = type.bits / 8;
  for (const std::int64_t n : shape) {
    extents.push_back(static_cast<std::size_t>(n));
    bytes *= static_cast<std::size_t>(n);
  }
  auto* memory = new char[bytes]();
  const nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<char*>(p); });
  return nb::cast(nb::ndarray<nb::array_api>(memory, extents.size(), extents.data(), owner, nullptr, type));
}

/// (version, devices, CUDA version or "", why there are no GPU kernels or "")
nb::tuple build() {
  const BuildInfo& info = build_info();
  nb::list devices;
  for (const Device d : info.devices) devices.append(device_name(d));
  return nb::make_tuple(info.version, nb::tuple(devices), info.cuda, info.without_cuda);
}

}  // namespace

}  // namespace mpfa::python

NB_MODULE(_core, m) {
  namespace nb = nanobind;
  nb::exception<mpfa::python::Error>(m, "MpfaError", PyExc_ValueError);
  m.def("version", [] { return MPFA_VERSION; });
  m.def("build_info", &mpfa::python::build);
  m.def("describe", &mpfa::python::describe, nb::arg().none());
  m.def("allocate", &mpfa::python::allocate);
  m.def("integers", [](nb::handle x, const std::string& name) {
    return mpfa::python::import_integers(x, name.c_str()).value_or(std::vector<std::int64_t>{});
  });
  mpfa::python::bind_cache(m);
  mpfa::python::bind_attention(m);
  mpfa::python::bind_kvcache(m);
  mpfa::python::bind_formats(m);
  mpfa::python::bind_pages(m);
  mpfa::python::bind_page_view(m);
  mpfa::python::bind_device(m);
}
