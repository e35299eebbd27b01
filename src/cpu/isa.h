// Which instruction sets this processor runs. The kernels' namespaces are chosen by cpu/dispatch.h.
#ifndef MASKLESS_SRC_CPU_ISA_H_
#define MASKLESS_SRC_CPU_ISA_H_

#include "maskless/tensor.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

namespace maskless::cpu {

/// True if the processor and the operating system run `isa`, as Highway's target of that name is compiled.
inline bool supports(Isa isa) {
#if defined(__x86_64__) || defined(__i386__)
  static const Isa best = [] {
    if (!(__builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("aes") &&
          __builtin_cpu_supports("pclmul")))
      return Isa::kScalar;
    unsigned a = 0, b = 0, c = 0, d = 0, ext_c = 0;  // F16C and LZCNT are not known to every compiler's builtin
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || __get_cpuid(0x80000001u, &a, &b, &ext_c, &d) == 0) return Isa::kSse4;
    const bool f16c = (c >> 29 & 1) != 0, lzcnt = (ext_c >> 5 & 1) != 0;
    if (!(f16c && lzcnt && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
          __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2")))
      return Isa::kSse4;
    if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
          __builtin_cpu_supports("avx512vl")))
      return Isa::kAvx2;
    return Isa::kAvx512;
  }();
  return isa <= best;
#else
  return isa == Isa::kScalar;
#endif
}

/// Is `isa` to be used by a caller who allows `at_most`?
inline bool runs(Isa isa, Isa at_most) { return isa <= at_most && supports(isa); }

}  // namespace maskless::cpu

#endif  // MASKLESS_SRC_CPU_ISA_H_
