#include "cuda/runtime.hpp"

#ifdef MPFA_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#else
#include "attention/device_kind.hpp"
#endif

namespace mpfa::cuda {

#ifdef MPFA_HAVE_CUDA

namespace {

Status no_device(cudaError_t e) {
  return {StatusCode::unsupported, fmt::format("no CUDA device ({})", cudaGetErrorString(e))};
}

/// Allocations while another thread or library captures a stream: they are not part of what is captured.
class OutsideCapture {
 public:
  OutsideCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;
  ~OutsideCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

Result<std::pair<int, int>> current_capability() {
  int device = 0, major = 0, minor = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  if (e != cudaSuccess) return no_device(e);
  return std::pair(major, minor);
}

Result<int> current_ordinal() {
  int device = 0;
  const cudaError_t e = cudaGetDevice(&device);
  if (e != cudaSuccess) return no_device(e);
  return device;
}

Result<Buffer> Buffer::make(std::size_t bytes) {
  Buffer b;
  if (bytes == 0) return b;
  const OutsideCapture outside;
  const cudaError_t e = cudaMalloc(&b.data_, bytes);
  if (e != cudaSuccess) {
    (void)cudaGetLastError();
    return Status{StatusCode::out_of_memory,
                  fmt::format("{} bytes of device memory were refused ({}); free some or use a smaller problem", bytes,
                              cudaGetErrorString(e))};
  }
  b.bytes_ = bytes;
  return b;
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  const OutsideCapture outside;
  (void)cudaFree(data_);
}

Status copy(void* to, const void* from, std::size_t bytes) {
  const cudaError_t e = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
  if (e == cudaSuccess) return {};
  (void)cudaGetLastError();
  return {StatusCode::invalid_argument,
          fmt::format("{} bytes could not be copied ({}); is a stream being captured?", bytes, cudaGetErrorString(e))};
}

#else

Result<std::pair<int, int>> current_capability() {
  return check_built("cuda", Device::sm90);
}
Result<int> current_ordinal() {
  return check_built("cuda", Device::sm90);
}
Result<Buffer> Buffer::make(std::size_t) {
  return check_built("cuda", Device::sm90);
}
Buffer::~Buffer() = default;
Status copy(void*, const void*, std::size_t) {
  return check_built("cuda", Device::sm90);
}

#endif

}  // namespace mpfa::cuda
