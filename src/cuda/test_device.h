// For tests: memory on the device, and a skip with its reason where there is none.
#ifndef MASKLESS_SRC_CUDA_TEST_DEVICE_H_
#define MASKLESS_SRC_CUDA_TEST_DEVICE_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "maskless/runtime.h"

#define MASKLESS_NEEDS_CUDA_DEVICE() \
  if (maskless::cuda_devices().empty()) GTEST_SKIP() << "no CUDA device or driver on this machine"

namespace maskless::testing {

inline constexpr Device kCuda = {DeviceType::kCuda, 0};

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

/// Bytes on the device, freed at the end.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes == 0 ? 1 : bytes)); }
  template <typename T>
  explicit DeviceMemory(const std::vector<T>& host) : DeviceMemory(host.size() * sizeof(T)) {
    check(cudaMemcpy(data_, host.data(), bytes_, cudaMemcpyHostToDevice));
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  void* data() const { return data_; }
  template <typename T = char>
  T* as() const {
    return static_cast<T*>(data_);
  }
  /// Waits for the device, and raises what went wrong there.
  template <typename T = char>
  std::vector<T> host() const {
    std::vector<T> copy(bytes_ / sizeof(T));
    check(cudaDeviceSynchronize());
    check(cudaMemcpy(copy.data(), data_, copy.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return copy;
  }

 private:
  std::size_t bytes_;
  void* data_ = nullptr;
};

}  // namespace maskless::testing

#endif  // MASKLESS_SRC_CUDA_TEST_DEVICE_H_
