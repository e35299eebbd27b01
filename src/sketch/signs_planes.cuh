// Dense signs multiply bits of S with bits of x (signs_dense.cuh). Here are those of x: every kStage columns of a
// vector, rounded to fixed point, 16 bits with the sign (float32: 24), relative to the largest of them, plane by plane.
//
// What is rounded is at most 2^-16 of the stage's largest element (float32: 2^-24), as a random error of each element.
#ifndef MASKLESS_SRC_SKETCH_SIGNS_PLANES_CUH_
#define MASKLESS_SRC_SKETCH_SIGNS_PLANES_CUH_

#include <cuda_fp16.h>

#include <cstdint>

#include "common/float_types.h"
#include "cuda/launch.h"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {

inline constexpr int kStage = 1024;    // columns with one scale
inline constexpr int kPlaneWarps = 4;  // of a block: few enough to run beside dense_kernel

/// Bits of fixed point, with the sign.
template <typename T>
inline constexpr int kPlanes = sizeof(T) == 4 ? 24 : 16;

/// Of a vector's stage: its sum is (high * 2^(planes - 16) + low) * scale[0] * scale[1].
struct alignas(16) StageInfo {
  float scale[2];
  int high, low;
};

/// A stage of 8 * N vectors: infos, then planes as [n][plane][block of 128 columns][vector][word of a Philox call:
/// 1, 0, 3, 2]. Eight vectors by four words are a core matrix of wgmma.
template <int P, int N>
inline constexpr int kStageBytes = N*(8 * static_cast<int>(sizeof(StageInfo)) + P * kStage);

__device__ __forceinline__ float power_of_two(int n) { return __int_as_float((n + 127) << 23); }

__device__ __forceinline__ float input_float(float x) { return x; }
__device__ __forceinline__ float input_float(BFloat16 x) { return __uint_as_float(std::uint32_t{x.bits} << 16); }
__device__ __forceinline__ float input_float(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }

/// Transposes bits: bit b of r[i] goes to bit i of r[b], in squares of 32 x 32, or of 16 x 16 in both halves of the
/// words.
template <int Size>
__device__ __forceinline__ void transpose_bits(std::uint32_t (&r)[Size]) {
  const auto swap = [&](int step, auto mix) {
#pragma unroll
    for (int i = 0; i < Size; ++i)
      if ((i & step) == 0) mix(r[i], r[i + step]);
  };
  if constexpr (Size == 32)
    swap(16, [](std::uint32_t& a, std::uint32_t& b) {
      const std::uint32_t low = __byte_perm(a, b, 0x5410);
      b = __byte_perm(a, b, 0x7632), a = low;
    });
  swap(8, [](std::uint32_t& a, std::uint32_t& b) {
    const std::uint32_t low = __byte_perm(a, b, 0x6240);
    b = __byte_perm(a, b, 0x7351), a = low;
  });
  const auto shifted = [&](int step, std::uint32_t mask) {
    swap(step, [=](std::uint32_t& a, std::uint32_t& b) {
      const std::uint32_t low = (a & mask) | (b << step & ~mask);
      b = (a >> step & mask) | (b & ~mask), a = low;
    });
  };
  shifted(4, 0x0F0F0F0Fu);
  shifted(2, 0x33333333u);
  shifted(1, 0x55555555u);
}

/// Stages [first, first + stages) of all vectors (a multiple of 8 * N with those after the last one), to records[vector
/// / (8 * N)][stages]. A warp has one stage of one vector, a lane 32 columns of it. `first` counts from column 0 of the
/// whole.
///
/// It runs beside the dense_kernel of the chunk before (with launch_early), which has registers left; nothing that one
/// of them writes is read by the other. But it must not end first, since the next dense_kernel waits for its end alone:
/// its last thread block waits.
template <typename T, int N>
__global__ __launch_bounds__(kPlaneWarps * 32) void planes_kernel(SketchArgs args, std::int64_t first,
                                                                  std::int64_t stages, char* records) {
  let_later_work_start();  // of the next dense_kernel, which waits
  constexpr int P = kPlanes<T>, kEach = 16 / static_cast<int>(sizeof(T));
  const std::int64_t id = blockIdx.x * std::int64_t{kPlaneWarps} + threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  const std::int64_t stage = id / 8 % stages, vector = id / 8 / stages * 8 + id % 8;
  const std::int64_t column =
      (first + stage) * kStage + 32 * lane - static_cast<std::int64_t>(args.matrix.column_offset);
  const T* x = static_cast<const T*>(args.in) + vector * args.in_strides[0] + column * args.in_strides[1];
  float value[32];
  if (vector < args.batch && column >= 0 && column + 32 <= args.matrix.cols && args.in_strides[1] == 1 &&
      reinterpret_cast<std::uintptr_t>(x) % 16 == 0) {
#pragma unroll
    for (int i = 0; i < 32; i += kEach) {
      union {
        uint4 load;
        T values[kEach];
      } u;
      u.load = *reinterpret_cast<const uint4*>(x + i);
#pragma unroll
      for (int e = 0; e < kEach; ++e) value[i + e] = input_float(u.values[e]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 32; ++i)
      value[i] = vector < args.batch && column + i >= 0 && column + i < args.matrix.cols
                     ? input_float(x[i * args.in_strides[1]])
                     : 0.f;
  }

  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) largest = max(largest, __float_as_uint(value[i]) & 0x7FFFFFFFu);
  largest = __reduce_max_sync(~0u, largest);
  const bool finite = largest < 0x7F800000u;
  const int shift =
      P - 2 + 127 - static_cast<int>(largest >> 23);  // all are below 2^(P - 1) when multiplied by 2^shift
  const float up[2] = {power_of_two(shift >> 1), power_of_two(shift - (shift >> 1))};
  StageInfo info;
  int q[32], sum = 0, low = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    q[i] = min(__float2int_rn(value[i] * up[0] * up[1]), (1 << (P - 1)) - 1);
    // Infinities are 1 or -1 times infinity, and the rest nothing beside them.
    if (!finite) q[i] = isinf(value[i]) ? (value[i] > 0 ? 1 << (P - 16) : -(1 << (P - 16))) : 0;
    sum += q[i] >> (P - 16);
    if (P > 16) low += q[i] & ((1 << (P - 16)) - 1);
  }
  info.scale[0] = finite ? power_of_two(-(shift >> 1)) : 1.f;
  info.scale[1] = finite ? power_of_two((shift >> 1) - shift) : __uint_as_float(largest);
  info.high = __reduce_add_sync(~0u, sum);
  info.low = P > 16 ? __reduce_add_sync(~0u, low) : 0;

  char* record = records + (vector / (8 * N) * stages + stage) * kStageBytes<P, N>;
  const int v = static_cast<int>(vector % (8 * N));
  if (lane == 0) reinterpret_cast<StageInfo*>(record)[v] = info;
  auto* to = reinterpret_cast<std::uint32_t*>(record + 8 * N * sizeof(StageInfo)) + v / 8 * (P * kStage / 4) +
             lane / 4 * 32 + v % 8 * 4 + (lane % 4 ^ 1);
  if constexpr (P == 16) {
    std::uint32_t r[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) r[i] = __byte_perm(q[i], q[i + 16], 0x5410);
    transpose_bits(r);
#pragma unroll
    for (int p = 0; p < P; ++p) to[p * (kStage / 4)] = r[p];
  } else {
    std::uint32_t r[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) r[i] = static_cast<std::uint32_t>(q[i]);
    transpose_bits(r);
#pragma unroll
    for (int p = 0; p < P; ++p) to[p * (kStage / 4)] = r[p];
  }
  if (blockIdx.x == gridDim.x - 1) wait_for_earlier_work();
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_SKETCH_SIGNS_PLANES_CUH_
