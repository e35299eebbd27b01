// What every launcher needs: errors that are raised, the right device, launches that may overlap.
#ifndef MASKLESS_SRC_CUDA_LAUNCH_H_
#define MASKLESS_SRC_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless::cuda {

/// Raises a CUDA failure as Error.
inline void check(const char* op, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // leave no sticky launch error behind
  throw Error(ErrorKind::kRuntime, op, "device", "cuda failed", cudaGetErrorString(status));
}

inline constexpr std::int64_t kMaxBlocks = 0x7FFFFFFF;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Blocks of a one-dimensional grid, at most as many as there can be (kernels then loop).
inline unsigned blocks_for(std::int64_t items, std::int64_t items_a_block) {
  return static_cast<unsigned>(std::min(ceil_div(items, items_a_block), kMaxBlocks));
}

/// Fit for 16-byte accesses?
inline bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

/// Makes a device current, and the caller's device current again at the end.
class DeviceGuard {
 public:
  DeviceGuard(const char* op, Device device) {
    check(op, cudaGetDevice(&previous_));
    if (previous_ != device.index) check(op, cudaSetDevice(device.index));
    changed_ = previous_ != device.index;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(previous_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// Programmatic dependent launch: a kernel launched with launch_early may start while the one before it on the stream
/// still runs, and must call this before it touches memory that kernels share. It returns when all work before this
/// kernel is complete and visible. Without overlap (older devices, plain launches) it does nothing.
__device__ inline void wait_for_earlier_work() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel on the stream start (and wait as above) before this one ends.
__device__ inline void let_later_work_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

namespace detail {
/// Was the kernel's loaded code compiled for an architecture on which wait_for_earlier_work waits?
template <auto kKernel>
bool waits(int device) {
  static std::array<std::atomic<signed char>, 64> known = {};  // by device: 0 not asked yet, 1 no, 2 yes
  const bool cached = device < static_cast<int>(known.size());
  if (cached && known[device].load(std::memory_order_relaxed) != 0) return known[device] == 2;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;  // the question may load code: allowed in a capture, too
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaFuncAttributes attributes;
  const bool answer = cudaFuncGetAttributes(&attributes, kKernel) == cudaSuccess && attributes.ptxVersion >= 90;
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (cached) known[device].store(answer ? 2 : 1, std::memory_order_relaxed);
  return answer;
}
}  // namespace detail

template <typename... Params, typename... Args>
void launch(const char* op, void (*kernel)(Params...), dim3 grid, dim3 block, void* stream, const Args&... args) {
  kernel<<<grid, block, 0, static_cast<cudaStream_t>(stream)>>>(args...);
  check(op, cudaGetLastError());
}

/// The same with `bytes` of shared memory that the kernel has as extern __shared__. More than 48 KiB in all (the kernel
/// may have a few of its own besides) must be asked for.
template <typename... Params, typename... Args>
void launch_shared(const char* op, void (*kernel)(Params...), dim3 grid, dim3 block, int bytes, void* stream,
                   const Args&... args) {
  if (bytes > 40 << 10) check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, block, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(stream)>>>(args...);
  check(op, cudaGetLastError());
}

/// A launch that may overlap the end of the kernel before it (a fifth of a microsecond and more for small ones), with
/// `shared` bytes of shared memory, of which more than 48 KiB must have been asked for. The kernel must
/// wait_for_earlier_work in every thread before it touches memory.
template <auto kKernel, typename... Args>
void launch_early_shared(const char* op, Device device, dim3 grid, dim3 block, std::size_t shared, void* stream,
                         const Args&... args) {
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = detail::waits<kKernel>(device.index) ? 1 : 0;
  check(op, cudaLaunchKernelEx(&config, kKernel, args...));
}

template <auto kKernel, typename... Args>
void launch_early(const char* op, Device device, dim3 grid, dim3 block, void* stream, const Args&... args) {
  launch_early_shared<kKernel>(op, device, grid, block, 0, stream, args...);
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_LAUNCH_H_
