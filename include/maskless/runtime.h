// What this build and this machine offer.
#ifndef MASKLESS_RUNTIME_H_
#define MASKLESS_RUNTIME_H_

#include <string>
#include <vector>

#include "maskless/tensor.h"

namespace maskless {

/// Instruction sets that this build has code for and this processor runs, ascending; the last is the one used.
std::vector<Isa> instruction_sets();
const char* isa_name(Isa isa);

/// Threads that Execution{}.threads == 0 uses.
int default_threads();

struct CudaDevice {
  int index = 0;
  std::string name;
  int compute_capability = 0;  ///< major * 10 + minor
  std::int64_t memory_bytes = 0;
};

/// True if the library was built with its CUDA backend.
bool built_with_cuda();

/// CUDA devices that can be used; empty without a driver, a device or the backend.
std::vector<CudaDevice> cuda_devices();

}  // namespace maskless

#endif  // MASKLESS_RUNTIME_H_
