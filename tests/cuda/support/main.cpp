// Runs the tests when the current device is an sm_90 card; otherwise says SKIPPED and exits with 77.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  constexpr int kExitSkipped = 77;
  testing::InitGoogleTest(&argc, argv);
  int device = 0, major = 0;
  cudaError_t e = cudaGetDevice(&device);
  if (e == cudaSuccess) e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (e != cudaSuccess || major != 9) {
    std::printf("SKIPPED: no sm_90 device (%s)\n", e != cudaSuccess ? cudaGetErrorString(e) : "another one is current");
    return kExitSkipped;
  }
  return RUN_ALL_TESTS();
}
