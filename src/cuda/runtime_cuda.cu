#include <cuda_runtime.h>

#include "maskless/runtime.h"

namespace maskless {

std::vector<CudaDevice> cuda_devices() {
  std::vector<CudaDevice> devices;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver, no device: an answer, not a failure
    return devices;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    CudaDevice device;
    device.index = i;
    device.name = properties.name;
    device.compute_capability = properties.major * 10 + properties.minor;
    device.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
    devices.push_back(device);
  }
  return devices;
}

}  // namespace maskless
