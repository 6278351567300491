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

Status check_on_device(const char* name, const void* pointer) {
  if (pointer == nullptr) return {};  // whether it may be null was checked before
  int device = 0;
  cudaPointerAttributes attributes{};
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaPointerGetAttributes(&attributes, pointer);
  if (e != cudaSuccess) return {StatusCode::internal, fmt::format("attend: {}: {}", name, cudaGetErrorString(e))};
  const bool shared = attributes.type == cudaMemoryTypeManaged || attributes.type == cudaMemoryTypeHost;
  if (shared || (attributes.type == cudaMemoryTypeDevice && attributes.device == device)) return {};
  const std::string where =
      attributes.type == cudaMemoryTypeDevice ? fmt::format("on device {}", attributes.device) : "memory of the host";
  return {StatusCode::invalid_argument,
          fmt::format("attend: {} is not memory of the current device, {}, but {}; copy it there or make its device "
                      "current",
                      name, device, where)};
}

bool is_fp4(const BlockFormat& f) {
  const bool mx = f.scale == ScaleType::e8m0 && f.block_channels == 32;
  const bool nv = f.scale == ScaleType::e4m3 && f.block_channels == 16;
  return f.element == Element::e2m1 && f.axis == PackAxis::head_dim && (mx || nv);
}

}  // namespace mpfa::sm90
