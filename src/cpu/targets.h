// Instruction sets that the CPU kernels are compiled for. First include of a *_cpu.cc file, before any of Highway's:
// x86 has AVX-512 (AVX3), AVX2 and SSE4, and plain C++ stands below them; other processors have what Highway chooses.
#ifndef MASKLESS_SRC_CPU_TARGETS_H_
#define MASKLESS_SRC_CPU_TARGETS_H_

#if defined(__x86_64__) || defined(__i386__)
// Bits of hwy/detect_targets.h (all versions): 8 AVX3, 9 AVX2, 11 SSE4, 61 EMU128, 62 SCALAR.
#define HWY_DISABLED_TARGETS (~((1LL << 8) | (1LL << 9) | (1LL << 11) | (1LL << 61) | (1LL << 62)))
#endif

#endif  // MASKLESS_SRC_CPU_TARGETS_H_
