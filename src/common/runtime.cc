#include "maskless/runtime.h"

#include <omp.h>

#include "cpu/isa.h"

namespace maskless {

std::vector<Isa> instruction_sets() {
  std::vector<Isa> sets = {Isa::kScalar};
  for (Isa isa : {Isa::kSse4, Isa::kAvx2, Isa::kAvx512})
    if (cpu::supports(isa)) sets.push_back(isa);
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
