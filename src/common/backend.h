// The only choice of a backend: the CPU's function or the CUDA one, for arguments that are validated.
#ifndef MASKLESS_SRC_COMMON_BACKEND_H_
#define MASKLESS_SRC_COMMON_BACKEND_H_

#include "common/validate.h"
#include "maskless/tensor.h"

// A backend's function by name: null where the library is built without CUDA.
#if MASKLESS_HAS_CUDA
#define MASKLESS_CUDA_KERNEL(name) cuda::name
#else
#define MASKLESS_CUDA_KERNEL(name) nullptr
#endif

namespace maskless {

template <typename Args, typename Cpu, typename Cuda>
void run_on(const char* op, Device device, const Args& args, const Execution& execution, Cpu cpu_kernel,
            [[maybe_unused]] Cuda cuda_kernel) {
  if (device.type == DeviceType::kCpu) {
    cpu_kernel(args, execution);
    return;
  }
#if MASKLESS_HAS_CUDA
  static_cast<void>(op);
  cuda_kernel(args, device, execution.cuda_stream);
#else
  validate::no_cuda(op);
#endif
}

}  // namespace maskless

#endif  // MASKLESS_SRC_COMMON_BACKEND_H_
