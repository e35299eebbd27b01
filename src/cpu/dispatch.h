// Our own choice of a namespace at run time, so that nothing of Highway but its headers is needed (its macros call
// libhwy). Include after <hwy/highway.h>, in the part of a file that is compiled once (#if HWY_ONCE).
//
// MASKLESS_CHOOSE(at_most, name, fallback) is a pointer: &N_AVX3::name, &N_AVX2::name, ... of the best instruction set
// that the processor runs and the caller allows, or `fallback` where there is none.
#ifndef MASKLESS_SRC_CPU_DISPATCH_H_
#define MASKLESS_SRC_CPU_DISPATCH_H_

#include "cpu/isa.h"

#if HWY_TARGETS & HWY_AVX3
#define MASKLESS_AVX3_OR(at_most, name) ::maskless::cpu::runs(::maskless::Isa::kAvx512, at_most) ? &N_AVX3::name:
#else
#define MASKLESS_AVX3_OR(at_most, name)
#endif
#if HWY_TARGETS & HWY_AVX2
#define MASKLESS_AVX2_OR(at_most, name) ::maskless::cpu::runs(::maskless::Isa::kAvx2, at_most) ? &N_AVX2::name:
#else
#define MASKLESS_AVX2_OR(at_most, name)
#endif
#if HWY_TARGETS & HWY_SSE4
#define MASKLESS_SSE4_OR(at_most, name) ::maskless::cpu::runs(::maskless::Isa::kSse4, at_most) ? &N_SSE4::name:
#else
#define MASKLESS_SSE4_OR(at_most, name)
#endif
#if !HWY_ARCH_X86 && HWY_STATIC_TARGET != HWY_SCALAR && HWY_STATIC_TARGET != HWY_EMU128
#define MASKLESS_STATIC_OR(at_most, name) (at_most) != ::maskless::Isa::kScalar ? &HWY_STATIC_DISPATCH(name):
#else
#define MASKLESS_STATIC_OR(at_most, name)
#endif

#define MASKLESS_CHOOSE(at_most, name, fallback)                                                   \
  (MASKLESS_AVX3_OR(at_most, name) MASKLESS_AVX2_OR(at_most, name) MASKLESS_SSE4_OR(at_most, name) \
       MASKLESS_STATIC_OR(at_most, name)(fallback))

#endif  // MASKLESS_SRC_CPU_DISPATCH_H_
