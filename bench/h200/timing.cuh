// Times of graph replays with a cold second-level cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/cuda/support/decode_case.cuh"

namespace mpfa::bench {

constexpr int kRuns = 15;

/// Fills the second-level cache with lines that are clean: written-back lines of a flush would be charged to the
/// kernel.
__global__ static void read_all(const uint4* p, std::size_t n, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const uint4 v = p[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }
  if (sum == 0x12345678U) *sink = sum;
}

struct Times {
  float median, min, max;  // us
};

/// `call` enqueues the work on a stream.
template <class Call>
Times measure(Call&& call) {
  static test::Device<std::uint32_t> flush(64 << 20), sink(1);  // 256 MB, four times the cache
  cudaStream_t stream;
  test::require(cudaStreamCreate(&stream), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  test::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  call(stream);
  test::require(cudaStreamEndCapture(stream, &graph), "capture");
  test::require(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  test::require(cudaEventCreate(&begin), "event");
  test::require(cudaEventCreate(&end), "event");
  std::vector<float> us;
  for (int i = 0; i < kRuns + 3; ++i) {
    read_all<<<1024, 256, 0, stream>>>(reinterpret_cast<const uint4*>(flush.get()), flush.bytes() / 16, sink.get());
    test::require(cudaEventRecord(begin, stream), "event");
    test::require(cudaGraphLaunch(exec, stream), "launch");
    test::require(cudaEventRecord(end, stream), "event");
    test::require(cudaEventSynchronize(end), "run");
    float ms = 0;
    test::require(cudaEventElapsedTime(&ms, begin, end), "event");
    if (i >= 3) us.push_back(ms * 1000);
  }
  std::sort(us.begin(), us.end());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return {us[us.size() / 2], us.front(), us.back()};
}

}  // namespace mpfa::bench
