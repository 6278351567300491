// CUDA as this machine has it: the driver is asked through libcuda, the toolkit is looked for on PATH.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace mpfa::cli {

struct CudaDevice {
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
};

struct Cuda {
  std::string driver;   // CUDA version the driver runs, "13.0"; empty when there is none
  std::string problem;  // why there is no driver or no device, one sentence
  std::vector<CudaDevice> devices;
  std::string nvcc;  // path, empty when not on PATH
};
[[nodiscard]] Cuda inspect_cuda();

}  // namespace mpfa::cli
