// Tiles of x, weight and dy in shared memory: four neighbouring elements at a time, in the type of the sums.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_TILE_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_TILE_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/float_types.h"

namespace maskless::cuda {

template <typename T>
struct Sum {
  using type = float;
};
template <>
struct Sum<double> {
  using type = double;
};
template <typename T>
using SumOf = typename Sum<T>::type;

__device__ __forceinline__ float load_sum(const float* p) { return *p; }
__device__ __forceinline__ double load_sum(const double* p) { return *p; }
__device__ __forceinline__ float load_sum(const BFloat16* p) { return to_float(*p); }
__device__ __forceinline__ float load_sum(const Float16* p) { return __half2float(__ushort_as_half(p->bits)); }
__device__ __forceinline__ void store_sum(float* p, float v) { *p = v; }
__device__ __forceinline__ void store_sum(double* p, double v) { *p = v; }
__device__ __forceinline__ void store_sum(BFloat16* p, float v) {
  p->bits = __bfloat16_as_ushort(__float2bfloat16_rn(v));
}
__device__ __forceinline__ void store_sum(Float16* p, float v) { p->bits = __half_as_ushort(__float2half_rn(v)); }

template <typename S>
struct alignas(4 * sizeof(S)) Four {
  S v[4];
};

/// Four neighbouring elements at p, aligned to all four (doubles to 16 bytes).
template <typename T>
__device__ __forceinline__ Four<SumOf<T>> load_four_here(const T* p) {
  struct alignas(sizeof(T) == 2 ? 8 : 16) Raw {
    T v[4];
  };
  const Raw raw = *reinterpret_cast<const Raw*>(p);
  Four<SumOf<T>> four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.v[i] = load_sum(raw.v + i);
  return four;
}

/// The converse.
template <typename T>
__device__ __forceinline__ void store_four(T* p, const SumOf<T>* v) {
  struct alignas(sizeof(T) == 2 ? 8 : 16) Raw {
    T v[4];
  };
  Raw raw;
#pragma unroll
  for (int i = 0; i < 4; ++i) store_sum(raw.v + i, v[i]);
  *reinterpret_cast<Raw*>(p) = raw;
}

__device__ __forceinline__ void copy16_async(void* shared, const void* global, int bytes) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void copy16_async(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#endif
}
__device__ __forceinline__ void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Four neighbouring elements at p, aligned to all four. float and double travel asynchronously.
template <typename T>
__device__ __forceinline__ void load_four_inside(SumOf<T>* shared, const T* p) {
  if constexpr (sizeof(T) >= 4) {
#pragma unroll
    for (int i = 0; i < 4; i += 16 / static_cast<int>(sizeof(T))) copy16_async(shared + i, p + i);
  } else {
    const uint2 raw = *reinterpret_cast<const uint2*>(p);
    const T* elements = reinterpret_cast<const T*>(&raw);
    Four<SumOf<T>> four;
#pragma unroll
    for (int i = 0; i < 4; ++i) four.v[i] = load_sum(elements + i);
    *reinterpret_cast<Four<SumOf<T>>*>(shared) = four;
  }
}

/// As above, where only the first `count` exist; the others become 0.
template <typename T>
__device__ __forceinline__ void load_four_wide(SumOf<T>* shared, const T* p, int count) {
  using S = SumOf<T>;
  if constexpr (sizeof(T) >= 4) {
    constexpr int kPer16 = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < 4; i += kPer16) {
      const int here = max(min(count - i, kPer16), 0);
      copy16_async(shared + i, p + (here > 0 ? i : 0), here * static_cast<int>(sizeof(T)));
    }
  } else {
    Four<S> four = {};
    if (count >= 4) {
      const uint2 raw = *reinterpret_cast<const uint2*>(p);
      const T* elements = reinterpret_cast<const T*>(&raw);
#pragma unroll
      for (int i = 0; i < 4; ++i) four.v[i] = load_sum(elements + i);
    } else {
#pragma unroll
      for (int i = 0; i < 3; ++i) four.v[i] = i < count ? load_sum(p + i) : S{0};
    }
    *reinterpret_cast<Four<S>*>(shared) = four;
  }
}

/// Four elements from p on, `col` apart, of which those with index in [first, last) exist.
template <typename T>
__device__ __forceinline__ void load_four(SumOf<T>* shared, const T* p, std::int64_t col, int first, int last) {
  Four<SumOf<T>> four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.v[i] = i >= first && i < last ? load_sum(p + i * col) : SumOf<T>{0};
  *reinterpret_cast<Four<SumOf<T>>*>(shared) = four;
}

/// May the four elements from a position that is a multiple of four on, element k being at position shift + k, be
/// loaded at once in every row?
template <typename T>
bool wide_rows(const void* data, std::int64_t row, std::int64_t col, std::int64_t shift) {
  constexpr std::int64_t kAlign = sizeof(T) == 2 ? 8 : 16;
  return col == 1 && shift % 4 == 0 && (row * static_cast<std::int64_t>(sizeof(T))) % kAlign == 0 &&
         (reinterpret_cast<std::uintptr_t>(data) - static_cast<std::uintptr_t>(shift) * sizeof(T)) % kAlign == 0;
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_TILE_CUH_
