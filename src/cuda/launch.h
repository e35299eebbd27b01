// What every launcher needs: errors that are raised, the right device, a grid that fits.
#ifndef MASKLESS_SRC_CUDA_LAUNCH_H_
#define MASKLESS_SRC_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <string>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless::cuda {

/// Raises a CUDA failure as Error.
inline void check(const char* op, cudaError_t status) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // leave no sticky launch error behind
  throw Error(ErrorKind::kRuntime, op, "device", "cuda failed", cudaGetErrorString(status));
}

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

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_LAUNCH_H_
