// What the host code of all sm_90 kernels asks first.
#pragma once

#include <cuda_runtime_api.h>

#include <initializer_list>

#include "mpfa/status.hpp"

namespace mpfa::sm90 {

/// Multiprocessors of the current device, or why it is no sm_90.
[[nodiscard]] Result<int> current_device();

struct NamedPointer {
  const char* name;
  const void* data;
};
/// ok when every pointer that is not null is memory of the current device (or managed). `call` is for the message. Asks
/// the driver and waits for nothing; allowed while a stream is captured.
[[nodiscard]] Status check_device_memory(const char* call, std::initializer_list<NamedPointer> pointers);

/// ok when the stream is one of the current device: on another's a kernel would run there, far from its memory. A
/// stream that is captured cannot be asked and is taken.
[[nodiscard]] Status check_stream(const char* call, void* stream);

/// The status of a launch. Takes back the error that CUDA keeps for the thread.
[[nodiscard]] Status launch_status(const char* call, cudaError_t e);

}  // namespace mpfa::sm90
