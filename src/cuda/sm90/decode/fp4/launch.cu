#include <algorithm>

#include "cuda/sm90/decode/fp4/kernels.h"
#include "cuda/sm90/decode/fp4/launch.h"
#include "cuda/sm90/decode/fp4/schedule.cuh"

namespace mpfa::sm90 {
namespace {

template <int kHeadDim>
DecodeKernel kernel_for(Fp4Scale scale, std::int32_t row_tiles, bool plain) {
  return scale == Fp4Scale::e8m0_32 ? decode_kernel<kHeadDim, Fp4Scale::e8m0_32>(row_tiles, plain)
                                    : decode_kernel<kHeadDim, Fp4Scale::e4m3_16>(row_tiles, plain);
}

DecodeKernel kernel_for(std::int32_t head_dim, Fp4Scale scale, std::int32_t row_tiles, bool plain) {
  if (head_dim == 64) return kernel_for<64>(scale, row_tiles, plain);
  if (head_dim == 128) return kernel_for<128>(scale, row_tiles, plain);
  return kernel_for<256>(scale, row_tiles, plain);
}

__global__ void clear_counters(std::int32_t* counters, std::int32_t n) {
  cudaTriggerProgrammaticLaunchCompletion();
  for (std::int32_t i = threadIdx.x; i < n; i += blockDim.x) counters[i] = 0;
}

constexpr std::size_t align(std::size_t n) {
  return (n + 255) / 256 * 256;
}

}  // namespace

bool has_decode_kernel(std::int32_t head_dim) {
  return head_dim == 64 || head_dim == 128 || head_dim == 256;
}

DecodeLaunch plan_decode(const DecodeShape& shape, std::int32_t multiprocessors) {
  DecodeLaunch l;
  const std::int64_t rows = static_cast<std::int64_t>(shape.group) * shape.max_q;
  l.row_tiles = rows <= 8 ? 1 : 2;
  const std::int64_t block_rows = 8 * l.row_tiles;
  l.row_blocks = static_cast<std::int32_t>((rows + block_rows - 1) / block_rows);
  const DecodeKernel kernel = kernel_for(shape.head_dim, shape.scale, l.row_tiles, true);
  const std::int64_t lines = static_cast<std::int64_t>(shape.batch) * shape.kv_heads * l.row_blocks;
  const std::int64_t tiles = std::max<std::int64_t>((shape.max_kv + kTileKeys - 1) / kTileKeys + 1, 1);
  // A row's keys lie in at most ceil(tiles / chunk) + 1 chunks.
  l.least_chunk = static_cast<std::int32_t>((tiles + kMaxSplits - 2) / (kMaxSplits - 1));
  l.fixed_split = std::max(shape.fixed_split_keys / kTileKeys, shape.fixed_split_keys > 0 ? l.least_chunk : 0);

  l.blocks = static_cast<std::int32_t>(std::min<std::int64_t>(multiprocessors, lines * tiles));
  const std::int64_t chunks = l.fixed_split > 0 ? lines * ((tiles + l.fixed_split - 1) / l.fixed_split) : l.blocks;
  const auto slots = static_cast<std::size_t>(chunks + lines);
  l.states = align(static_cast<std::size_t>(1 + lines) * sizeof(std::int32_t));
  l.outs = l.states + align(slots * block_rows * sizeof(float2));
  l.workspace_bytes = l.outs + align(slots * block_rows * shape.head_dim * sizeof(float));
  return l;
}

cudaError_t launch_decode(const DecodeShape& shape, const DecodeLaunch& launch, DecodeParams params, void* workspace,
                          cudaStream_t stream) {
  if (launch.blocks <= 0) return cudaSuccess;
  auto* memory = static_cast<std::uint8_t*>(workspace);
  params.row_blocks = launch.row_blocks;
  params.fixed_split = launch.fixed_split;
  params.least_chunk = launch.least_chunk;
  params.counters = reinterpret_cast<std::int32_t*>(memory + launch.counters);
  params.partial_state = reinterpret_cast<float2*>(memory + launch.states);
  params.partial_out = reinterpret_cast<float*>(memory + launch.outs);
  const DecodeKernel kernel = kernel_for(shape.head_dim, shape.scale, launch.row_tiles, params.plain != 0);
  if (const cudaError_t e =
          cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kernel.shared_bytes);
      e != cudaSuccess) {
    return e;
  }
  const auto counters = static_cast<std::int32_t>((launch.states - launch.counters) / sizeof(std::int32_t));
  clear_counters<<<1, 256, 0, stream>>>(params.counters, counters);
  if (const cudaError_t e = cudaGetLastError(); e != cudaSuccess) return e;
  // The kernel starts while the counters are being cleared and waits for that before it counts.
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.blocks);
  config.blockDim = dim3(kernel.threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(kernel.shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  void* arguments[] = {&params};
  return cudaLaunchKernelExC(&config, kernel.function, arguments);
}

}  // namespace mpfa::sm90
