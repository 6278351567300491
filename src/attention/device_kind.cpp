#include "attention/device_kind.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "attention/check.hpp"
#include "attention/names.hpp"
#include "cpu/kernel.hpp"
#include "cuda/runtime.hpp"
#include "cuda/sm90/support.hpp"
#include "mpfa/build_info.hpp"
#ifdef MPFA_HAVE_CUDA
#include "cuda/sm90/device.hpp"
#endif

namespace mpfa {

Support supports_when_built(const AttentionProblem& problem, Device device) {
  if (const Status s = check_problem(problem); !s.ok()) return {"", {s.message()}};
  if (device == Device::cpu) return cpu::supports(problem);
  if (device == Device::sm90) return sm90::supports(problem);
  return {"", {fmt::format("the library has no {} kernel yet; plan for Device::cpu", device_name(device))}};
}

Status check_built(const char* call, Device device) {
  const BuildInfo& info = build_info();
  if (std::find(info.devices.begin(), info.devices.end(), device) != info.devices.end()) return {};
  if (device != Device::sm90) {
    return {StatusCode::unsupported, fmt::format("{}: the library has no {} kernel yet", call, device_name(device))};
  }
  return {
      StatusCode::unsupported,
      fmt::format("{}: unsupported: built without CUDA kernels ({}); install nvcc of CUDA 13 and build again, or use "
                  "Device::cpu",
                  call, info.without_cuda)};
}

Support supports(const AttentionProblem& problem, Device device) {
  Support support = supports_when_built(problem, device);
  if (!support.supported() || device == Device::cpu) return support;
  if (const Status s = check_built("supports", device); !s.ok()) return {"", {s.message()}};
  return support;
}

Status available(Device device) {
  if (device == Device::cpu) return {};
  MPFA_RETURN_IF_ERROR(check_built("available", device));
#ifdef MPFA_HAVE_CUDA
  return sm90::current_device().status();
#else
  return {};
#endif
}

Result<Device> cuda_device() {
  MPFA_RETURN_IF_ERROR(check_built("cuda_device", Device::sm90));
  const auto capability = cuda::current_capability();
  if (!capability.ok()) return capability.status();
  const auto [major, minor] = capability.value();
  if (major == 9) return Device::sm90;
  if (major == 10) return Device::sm100;
  if (major == 12) return Device::sm120;
  return Status{
      StatusCode::unsupported,
      fmt::format("cuda_device: the current CUDA device has compute capability {}.{}; there are kernels for 9.0 "
                  "(H100, H200) only: make another device current or use Device::cpu",
                  major, minor)};
}

}  // namespace mpfa
