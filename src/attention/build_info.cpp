#include "mpfa/build_info.hpp"

#include <fmt/format.h>

#include "attention/names.hpp"

namespace mpfa {

const BuildInfo& build_info() {
#ifdef MPFA_HAVE_CUDA
  static const BuildInfo info{MPFA_VERSION, {Device::cpu, Device::sm90}, MPFA_CUDA_VERSION, ""};
#else
  static const BuildInfo info{MPFA_VERSION, {Device::cpu}, "", MPFA_WITHOUT_CUDA};
#endif
  return info;
}

std::string build_text() {
  const BuildInfo& info = build_info();
  std::string text = fmt::format("mpfa {}: kernels for ", info.version);
  for (const Device d : info.devices)
    text += fmt::format("{}{}", d == info.devices.front() ? "" : ", ", device_name(d));
  return text + (info.cuda.empty() ? "; built without CUDA kernels: " + info.without_cuda
                                   : fmt::format(" (CUDA {})", info.cuda));
}

}  // namespace mpfa
