// Barriers in shared memory between warps that write tiles and warps that read them, and how registers are shared out.
#pragma once

#include <cstdint>

namespace mpfa::ptx {

__device__ __forceinline__ void init_barrier(std::uint32_t barrier, std::int32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives when all asynchronous copies that the thread has started are done.
__device__ __forceinline__ void arrive_behind_copies(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Until the phase of this parity is over.
__device__ __forceinline__ void wait_phase(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t"
      "@!p bra again;}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Counts a warp's threads at barrier `id` of as many of the block, without waiting.
template <int kThreads>
__device__ __forceinline__ void arrive_some(int id) {
  asm volatile("barrier.arrive.aligned %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

/// Registers of a thread of this warpgroup from here on.
template <int kCount>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace mpfa::ptx
