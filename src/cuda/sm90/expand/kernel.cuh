// Attention of many query rows of a KV head over a paged cache, in one pass over the keys for 128 of them.
//
// Half of the warps expand tiles of 64 keys into f16 in shared memory; the others multiply as with a cache of 16 bits.
// Beside such a cache four warps copy tiles.
// Work is shared out and results are merged as in the decode kernel.
#pragma once

#include <type_traits>

#include "cuda/sm90/expand/consume.cuh"
#include "cuda/sm90/expand/copies.cuh"
#include "cuda/sm90/expand/produce.cuh"

namespace mpfa::sm90 {

template <class Config>
__global__ void __launch_bounds__(Config::kBlockThreads, 1) expand(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  const Exchange<Config> exchange(shared);
  const Control<Config> control(ptx::shared_address(shared));
  if (threadIdx.x == 0) control.start();
  __syncthreads();
  if (threadIdx.x >= Config::kThreads) {
    ptx::give_registers<Config::kProducerRegisters>();
    std::conditional_t<Config::kCopies, Copier<Config>, Producer<Config>>(p, control).run(exchange);
  } else {
    ptx::take_registers<Config::kConsumerRegisters>();
    Consumer<Config>(p, control).run(exchange);
  }
}

}  // namespace mpfa::sm90
