#include "maskless/runtime.h"

#include <omp.h>

namespace maskless {

std::vector<Isa> instruction_sets() {
  std::vector<Isa> sets = {Isa::kScalar};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v3")) sets.push_back(Isa::kAvx2);
  if (__builtin_cpu_supports("x86-64-v4")) sets.push_back(Isa::kAvx512);
#endif
  return sets;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kSse4: return "sse4";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kBest: return "best";
  }
  return "unknown";
}

int default_threads() { return omp_get_max_threads(); }

bool built_with_cuda() { return MASKLESS_HAS_CUDA != 0; }

#if !MASKLESS_HAS_CUDA
std::vector<CudaDevice> cuda_devices() { return {}; }
#endif

}  // namespace maskless
