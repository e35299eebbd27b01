// Copies from global to shared memory that run ahead of their use: places of 16 bytes of a thread's own. No thread sees
// another's, so there is nothing to synchronise. A warp's places lie together, 32 vectors apart for a thread.
#ifndef MASKLESS_SRC_CUDA_RING_H_
#define MASKLESS_SRC_CUDA_RING_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace maskless::cuda {

/// Starts a copy of 16 bytes, both aligned.
__device__ inline void copy_ahead(uint4* shared, const void* global) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global)
      : "memory");
}
/// Ends a group of copies.
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits for all but the last kPending groups.
template <int kPending>
__device__ inline void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_RING_H_
