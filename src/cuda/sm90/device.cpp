#include "cuda/sm90/device.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <string>

namespace mpfa::sm90 {

Result<int> current_device() {
  int device = 0, major = 0, multiprocessors = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (e != cudaSuccess) {
    return Status{StatusCode::unsupported,
                  fmt::format("sm90: no CUDA device ({}); plan for Device::cpu", cudaGetErrorString(e))};
  }
  if (major == 9) return multiprocessors;
  return Status{StatusCode::unsupported,
                fmt::format("sm90: device {} has compute capability {}.x, 9.x is needed; make another device current",
                            device, major)};
}

Status check_device_memory(const char* call, std::initializer_list<NamedPointer> pointers) {
  int current = 0;
  if (const cudaError_t e = cudaGetDevice(&current); e != cudaSuccess) {
    return {StatusCode::unsupported, fmt::format("{}: no CUDA device ({})", call, cudaGetErrorString(e))};
  }
  for (const auto& [name, data] : pointers) {
    if (data == nullptr) continue;  // whether it may be null was checked before
    cudaPointerAttributes a{};
    if (const cudaError_t e = cudaPointerGetAttributes(&a, data); e != cudaSuccess) {
      return {StatusCode::internal, fmt::format("{}: {}: {}", call, name, cudaGetErrorString(e))};
    }
    const bool here = a.type == cudaMemoryTypeDevice && a.device == current;
    if (here || a.type == cudaMemoryTypeManaged) continue;
    const std::string where = a.type == cudaMemoryTypeDevice ? fmt::format("of device {}", a.device)
                              : a.type == cudaMemoryTypeHost ? "pinned memory of the host"
                                                             : "memory of the host";
    return {StatusCode::invalid_argument,
            fmt::format("{}: {} is not memory of the current device, {}, but {}; copy it there or make its device "
                        "current",
                        call, name, current, where)};
  }
  return {};
}

Status check_stream(const char* call, void* stream) {
  if (stream == nullptr) return {};
  const auto asked = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  int current = 0, device = 0;
  cudaError_t e = cudaStreamIsCapturing(asked, &capture);
  if (e == cudaSuccess && capture != cudaStreamCaptureStatusNone) return {};
  if (e == cudaSuccess) e = cudaGetDevice(&current);
  if (e == cudaSuccess) e = cudaStreamGetDevice(asked, &device);
  if (e != cudaSuccess) {
    (void)cudaGetLastError();
    return {StatusCode::invalid_argument,
            fmt::format("{}: stream is no stream of CUDA ({})", call, cudaGetErrorString(e))};
  }
  if (device == current) return {};
  return {StatusCode::invalid_argument,
          fmt::format("{}: stream is not one of the current device, {}, but of device {}; make that one current or use "
                      "another stream",
                      call, current, device)};
}

Status launch_status(const char* call, cudaError_t e) {
  if (e == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {StatusCode::internal, fmt::format("{}: CUDA refused the launch: {}", call, cudaGetErrorString(e))};
}

}  // namespace mpfa::sm90
