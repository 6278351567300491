// Arrays in CUDA memory as Python hands them out, without making any stream wait.
#pragma once

#include <array>
#include <cstdint>

#include "extension/arrays.hpp"

namespace mpfa::python {

/// What __cuda_array_interface__ says, in the terms of DLPack.
struct CudaInterface {
  void* data = nullptr;
  nb::dlpack::dtype dtype{};
  int ndim = 0;
  std::array<std::int64_t, 4> shape{}, stride{};  // elements
  [[nodiscard]] nb::dlpack::dltensor tensor();
};

/// Fills `out` when x has __cuda_array_interface__; fails on what it cannot be read as. Its `stream` is not waited for.
[[nodiscard]] bool import_cuda_interface(nb::handle x, const char* name, bool writable, CudaInterface& out);

/// The DLPack import of an array that says it is on a CUDA device, with stream=-1: no synchronisation.
[[nodiscard]] bool import_device_dlpack(nb::handle x, nb::ndarray<nb::ro>& out);

}  // namespace mpfa::python
