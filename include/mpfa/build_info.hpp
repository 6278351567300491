// What this build of the library contains.
#pragma once

#include <string>
#include <vector>

#include "mpfa/attention.hpp"

namespace mpfa {

struct BuildInfo {
  std::string version;          // of the library
  std::vector<Device> devices;  // that have kernels in this build; the CPU is always first
  std::string cuda;             // version of the CUDA toolkit that compiled the GPU kernels; empty where there are none
  std::string without_cuda;     // why there are none
};
[[nodiscard]] const BuildInfo& build_info();

/// "mpfa 0.1.0: kernels for cpu, sm90 (CUDA 13.0)", or "mpfa 0.1.0: kernels for cpu; built without CUDA kernels: why".
[[nodiscard]] std::string build_text();

}  // namespace mpfa
