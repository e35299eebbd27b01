// 16-byte vectors of elements, and float arithmetic by the hardware's conversions.
#ifndef MASKLESS_SRC_CUDA_VECTOR_H_
#define MASKLESS_SRC_CUDA_VECTOR_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/float_types.h"

namespace maskless::cuda {

inline constexpr int kVectorBytes = 16;

/// Elements of a 16-byte vector.
template <typename T>
inline constexpr int kVectorSize = kVectorBytes / static_cast<int>(sizeof(T));

/// Sixteen bytes that move in one instruction.
union Vector {
  uint4 all;
  std::uint32_t word[4];
  float f32[4];
  double f64[2];
};

__device__ inline Vector load_vector(const void* p) { return {*static_cast<const uint4*>(p)}; }
__device__ inline void store_vector(void* p, const Vector& v) { *static_cast<uint4*>(p) = v.all; }

/// Two 16-bit elements of a word as floats, and back with one rounding each.
template <typename T>
__device__ inline float2 unpack2(std::uint32_t word);
template <>
__device__ inline float2 unpack2<BFloat16>(std::uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u));
}
template <>
__device__ inline float2 unpack2<Float16>(std::uint32_t word) {
  __half2 h;
  memcpy(&h, &word, sizeof h);
  return __half22float2(h);
}

template <typename T>
__device__ inline std::uint32_t pack2(float2 f);
template <>
__device__ inline std::uint32_t pack2<BFloat16>(float2 f) {
  const __nv_bfloat162 b = __float22bfloat162_rn(f);
  std::uint32_t word;
  memcpy(&word, &b, sizeof word);
  return word;
}
template <>
__device__ inline std::uint32_t pack2<Float16>(float2 f) {
  const __half2 h = __float22half2_rn(f);
  std::uint32_t word;
  memcpy(&word, &h, sizeof word);
  return word;
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_VECTOR_H_
