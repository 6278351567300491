#include "doctor/cuda.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace mpfa::cli {
namespace {

// The few functions needed, by hand: the driver's header is not on a user's machine. 0 is success.
struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*version)(int* version) = nullptr;
  int (*count)(int* count) = nullptr;
  int (*get)(int* device, int ordinal) = nullptr;
  int (*name)(char* name, int size, int device) = nullptr;
  int (*memory)(std::size_t* bytes, int device) = nullptr;
  int (*attribute)(int* value, int attribute, int device) = nullptr;
};
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_*

template <class F>
bool find(void* library, const char* symbol, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, symbol));
  return function != nullptr;
}

void inspect_devices(const Driver& driver, Cuda& cuda) {
  int version = 0;
  if (driver.version(&version) == 0) cuda.driver = fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  if (const int error = driver.init(0); error != 0) {
    cuda.problem = fmt::format("the CUDA driver does not start (error {})", error);
    return;
  }
  int count = 0;
  if (driver.count(&count) != 0 || count == 0) {
    cuda.problem = "the CUDA driver sees no device";
    return;
  }
  for (int i = 0; i < count; ++i) {
    int device = 0;
    CudaDevice found;
    std::array<char, 256> name{};
    if (driver.get(&device, i) != 0 || driver.name(name.data(), static_cast<int>(name.size()) - 1, device) != 0) {
      continue;
    }
    found.name = name.data();
    driver.memory(&found.memory_bytes, device);
    driver.attribute(&found.major, kMajor, device);
    driver.attribute(&found.minor, kMinor, device);
    driver.attribute(&found.multiprocessors, kMultiprocessors, device);
    cuda.devices.push_back(found);
  }
}

std::string find_on_path(std::string_view program) {
  const char* const path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::size_t end = rest.find(':');
    const std::string candidate = fmt::format("{}/{}", rest.substr(0, end), program);
    std::error_code error;
    if (std::filesystem::is_regular_file(candidate, error) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return {};
}

}  // namespace

Cuda inspect_cuda() {
  Cuda cuda;
  cuda.nvcc = find_on_path("nvcc");
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // stays loaded: drivers dislike unloading
  if (library == nullptr) {
    cuda.problem = "no CUDA driver: libcuda.so.1 cannot be loaded";
    return cuda;
  }
  Driver driver;
  const bool complete = find(library, "cuInit", driver.init) && find(library, "cuDriverGetVersion", driver.version) &&
                        find(library, "cuDeviceGetCount", driver.count) && find(library, "cuDeviceGet", driver.get) &&
                        find(library, "cuDeviceGetName", driver.name) &&
                        find(library, "cuDeviceTotalMem_v2", driver.memory) &&
                        find(library, "cuDeviceGetAttribute", driver.attribute);
  if (complete) {
    inspect_devices(driver, cuda);
  } else {
    cuda.problem = "libcuda.so.1 lacks functions of the driver interface";
  }
  return cuda;
}

}  // namespace mpfa::cli
