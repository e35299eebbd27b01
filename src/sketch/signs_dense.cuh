// Dense signs (density 1) of 16- and 32-bit inputs on CUDA: y = sum_j s_j x_j = sum_j x_j - 2 sum_j D_j x_j, where D_j
// is the bit of column j. The words of Philox are the A operand of products of single bits as they are: 256 columns an
// instruction and nothing to expand. The other operand are the bits of x, plane by plane: every kStage columns of a
// vector are rounded to fixed point, 16 bits with the sign (float32: 24), relative to the largest of them. So sums over
// a stage are exact integers, and their order does not matter; the sums of stages are added in float32, in order.
//
// What is rounded is at most 2^-16 of the stage's largest element (float32: 2^-24), as a random error of each element.
//
// Two kernels in turns, a chunk of the columns each: planes_kernel writes the planes of x in the order in which tensor
// cores read them, dense_kernel multiplies. There a lane makes the Philox calls whose words it needs, those of the next
// 64 rows while the products of these run: on Hopper as asynchronous wgmma, which the driver finds in the code for
// sm_90a; on all other architectures as mma.sync (on an H200 that takes half as long again: it keeps the ALU waiting).
#ifndef MASKLESS_SRC_SKETCH_SIGNS_DENSE_CUH_
#define MASKLESS_SRC_SKETCH_SIGNS_DENSE_CUH_

#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "common/float_types.h"
#include "cuda/launch.h"
#include "maskless/core/uniform.h"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {

// --- Tuning ---------------------------------------------------------------------------------------------------------
inline constexpr int kStage = 1024;    // columns with one scale
inline constexpr int kDenseWarps = 8;  // of a block: two warpgroups
inline constexpr int kDenseTiles = 4;  // of 64 rows of S, a warpgroup
inline constexpr int kDenseRows = kDenseWarps * 16 * kDenseTiles;
inline constexpr std::int64_t kDenseBlocks = 132;      // one a multiprocessor of an H100 or H200
inline constexpr std::int64_t kSlabRows = 1 << 16;     // rows of S at a time
inline constexpr std::int64_t kPlaneBytes = 20 << 20;  // at most, for planes

/// Bits of fixed point, with the sign.
template <typename T>
inline constexpr int kPlanes = sizeof(T) == 4 ? 24 : 16;

/// Of a vector's stage: its sum is (high * 2^(planes - 16) + low) * scale[0] * scale[1].
struct alignas(16) StageInfo {
  float scale[2];
  int high, low;
};

/// A stage of 8 * N vectors: infos, then planes as [n][plane][half of the stage][word of a Philox call][vector][block
/// of 128 columns], in words of 32 columns. Eight vectors by four words are a core matrix of wgmma.
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

/// Stages [first, first + stages) of `vectors` vectors, a multiple of 8 * N, to records[vectors / (8 * N)][stages]. A
/// warp has one stage of one vector, a lane 32 columns of it. `first` counts from column 0 of the whole.
template <typename T, int N>
__global__ __launch_bounds__(256) void planes_kernel(SketchArgs args, std::int64_t first, std::int64_t stages,
                                                     std::int64_t vectors, char* records) {
  constexpr int P = kPlanes<T>, kEach = 16 / static_cast<int>(sizeof(T));
  const std::int64_t id = blockIdx.x * std::int64_t{8} + threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  const std::int64_t stage = id / 8 % stages, vector = id / 8 / stages * 8 + id % 8;
  if (vector >= vectors) return;
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
             lane / 16 * 128 + lane % 4 * 32 + v % 8 * 4 + lane / 4 % 4;
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
}

/// Philox of (j >> 7, row, 1, tag), cut where it depends on one of column and row alone. Rounds 1 and 2 are free, round
/// 3 costs half.
struct SignPhilox {
  std::uint32_t keys[7][2];  // of rounds 4 to 10

  __device__ __forceinline__ explicit SignPhilox(Words2 key) {
#pragma unroll
    for (int round = 0; round < 7; ++round) {  // opaque: kept in registers, not made again for every call
      asm volatile("mov.b32 %0, %1;" : "=r"(keys[round][0]) : "r"(key.w[0] + (3 + round) * kPhiloxW0));
      asm volatile("mov.b32 %0, %1;" : "=r"(keys[round][1]) : "r"(key.w[1] + (3 + round) * kPhiloxW1));
    }
  }

  struct Row {
    std::uint32_t high, low;  // M0 * (row ^ k0)
  };
  static __device__ __forceinline__ Row row(std::uint32_t r, Words2 key) {
    const std::uint64_t a = std::uint64_t{kPhiloxM0} * (r ^ key.w[0]);
    return {static_cast<std::uint32_t>(a >> 32), static_cast<std::uint32_t>(a)};
  }
  /// Four words of a block of columns.
  static __device__ __forceinline__ uint4 column(std::uint32_t block, std::uint32_t tag, Words2 key) {
    std::uint32_t k0 = key.w[0], k1 = key.w[1];
    const std::uint64_t a1 = std::uint64_t{kPhiloxM0} * block;  // round 1; b1 = M1 * 1
    const std::uint32_t c2 = static_cast<std::uint32_t>(a1 >> 32) ^ tag ^ k1;
    const std::uint32_t c3 = static_cast<std::uint32_t>(a1);
    k0 += kPhiloxW0, k1 += kPhiloxW1;
    const std::uint64_t b2 = std::uint64_t{kPhiloxM1} * c2;  // round 2
    const std::uint32_t c0 = static_cast<std::uint32_t>(b2 >> 32) ^ kPhiloxM1 ^ k0;
    const std::uint32_t x = c3 ^ k1;
    k0 += kPhiloxW0, k1 += kPhiloxW1;
    const std::uint64_t a3 = std::uint64_t{kPhiloxM0} * c0;  // round 3
    return make_uint4(x, static_cast<std::uint32_t>(b2) ^ k0, static_cast<std::uint32_t>(a3 >> 32) ^ k1,
                      static_cast<std::uint32_t>(a3));
  }
  /// The words of a row and a block.
  __device__ __forceinline__ uint4 words(Row row, uint4 column) const {
    const std::uint64_t b3 = std::uint64_t{kPhiloxM1} * (row.high ^ column.x);
    std::uint32_t c0 = static_cast<std::uint32_t>(b3 >> 32) ^ column.y, c1 = static_cast<std::uint32_t>(b3);
    std::uint32_t c2 = column.z ^ row.low, c3 = column.w;
#pragma unroll
    for (int round = 0; round < 7; ++round) {
      const std::uint64_t a = std::uint64_t{kPhiloxM0} * c0, b = std::uint64_t{kPhiloxM1} * c2;
      c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ keys[round][0];
      c1 = static_cast<std::uint32_t>(b);
      c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ keys[round][1];
      c3 = static_cast<std::uint32_t>(a);
    }
    return make_uint4(c0, c1, c2, c3);
  }
};

// --- Products: c[4 * plane + i] of a warp's 16 rows and 8 vectors, over a stage
// ----------------------------------------- A lane holds rows lane / 4 (i = 0, 1) and lane / 4 + 8 (i = 2, 3), vectors
// lane % 4 * 2 + i % 2. a[4 * k] is its A operand of step k: its words 2 * (k % 2) and 2 * (k % 2) + 1 of half k / 2 of
// the stage, each for both rows.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MASKLESS_ACC8(c, i)                                                                                   \
  "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3]), "+r"(c[i + 4]), "+r"(c[i + 5]), "+r"(c[i + 6]), \
      "+r"(c[i + 7])
#define MASKLESS_ACC32(c, i) \
  MASKLESS_ACC8(c, i), MASKLESS_ACC8(c, i + 8), MASKLESS_ACC8(c, i + 16), MASKLESS_ACC8(c, i + 24)

/// c = (or c +=, with `more`) numbers of common bits of 64 rows, 16 a warp, and all planes.
__device__ __forceinline__ void wgmma_bits(int (&c)[64], const std::uint32_t* a, std::uint64_t b, int more) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p;\n}\n"
      : MASKLESS_ACC32(c, 0), MASKLESS_ACC32(c, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
__device__ __forceinline__ void wgmma_bits(int (&c)[96], const std::uint32_t* a, std::uint64_t b, int more) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %101, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k256.s32.b1.b1.and.popc {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
      "{%96, %97, %98, %99}, %100, p;\n}\n"
      : MASKLESS_ACC32(c, 0), MASKLESS_ACC32(c, 32), MASKLESS_ACC32(c, 64)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
}
#undef MASKLESS_ACC32
#undef MASKLESS_ACC8

template <int Size>
__device__ __forceinline__ void start_products(int (&c)[Size], std::uint32_t (&a)[16], const char* planes) {
  // Core matrices lie 128 bytes apart along the columns, 1,024 along the planes.
  const std::uint64_t b = static_cast<std::uint32_t>(__cvta_generic_to_shared(planes)) >> 4 |
                          std::uint64_t{128 >> 4} << 16 | std::uint64_t{1024 >> 4} << 32;
#pragma unroll
  for (int i = 0; i < 16; ++i) asm volatile("" : "+r"(a[i])::"memory");  // in their registers before the fence
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_bits(c, a + 4 * k, b + (k * 256 >> 4), k > 0);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int Size>
__device__ __forceinline__ void wait_for_products(int (&c)[Size]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < Size; ++i) asm volatile("" : "+r"(c[i])::"memory");
}

/// Shared memory that was written is visible to wgmma after the next barrier.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#else
template <int Size>
__device__ __forceinline__ void start_products(int (&c)[Size], std::uint32_t (&a)[16], const char* planes) {
  const auto* b = reinterpret_cast<const std::uint32_t*>(planes) + threadIdx.x % 32;
#pragma unroll
  for (int plane = 0; plane < Size / 4; ++plane) {
    int* d = c + 4 * plane;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k == 0) d[0] = d[1] = d[2] = d[3] = 0;
      asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
          : "r"(a[4 * k]), "r"(a[4 * k + 1]), "r"(a[4 * k + 2]), "r"(a[4 * k + 3]), "r"(b[plane * 256 + k * 64]),
            "r"(b[plane * 256 + k * 64 + 32]));
    }
  }
}
template <int Size>
__device__ __forceinline__ void wait_for_products(int (&)[Size]) {}
__device__ __forceinline__ void publish_shared() {}
#endif

/// 2 * v + c as one addition: the compiler would take the multiplier, which Philox needs.
__device__ __forceinline__ int twice_plus(int v, int c) {
  asm("{ .reg .s32 t; add.s32 t, %0, %0; add.s32 %0, t, %1; }" : "+r"(v) : "r"(c));
  return v;
}

/// 16 bytes from global to shared memory, without a register.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

/// A chunk of the columns: stages [first, first + stages) of the whole; split i has every splits-th from i on.
/// `begins`: the first of its chunks.
struct DenseChunk {
  std::int64_t first = 0, stages = 0;
  int splits = 1, row_groups = 1;
  bool begins = true;
};

/// kDenseRows rows of S, 8 * N vectors, one split of a chunk.
template <int P, int N>
__global__ __launch_bounds__(kDenseWarps * 32, 1) void dense_kernel(SketchArgs args, DenseChunk chunk,
                                                                    const char* records, float* partials) {
  constexpr int kBytes = kStageBytes<P, N>;
  extern __shared__ __align__(128) char shared[];
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const Words2 key = philox_key(seed);
  const std::uint32_t tag = counter_tag(Op::kSigns, m.stream);
  const SignPhilox philox(key);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, quad = lane & 3;
  std::int64_t id = blockIdx.x;
  // Rows first_row + 64 * tile, and 8 more.
  const std::int64_t first_row =
      id % chunk.row_groups * kDenseRows + warp / 4 * (64 * kDenseTiles) + warp % 4 * 16 + lane / 4;
  id /= chunk.row_groups;
  const std::int64_t split = id % chunk.splits, group = id / chunk.splits;
  const char* from = records + group * chunk.stages * kBytes;

  const auto fetch = [&](std::int64_t stage, char* to) {
    if (stage >= chunk.stages) return;
    for (int e = threadIdx.x * 16; e < kBytes; e += kDenseWarps * 32 * 16)
      copy_async(to + e, from + stage * kBytes + e);
  };
  // A lane makes the words of one of four blocks of 128 columns, in each half of a stage.
  struct Columns {
    uint4 half[2];
  };
  const auto columns_of = [&](std::int64_t stage) {
    const auto block = static_cast<std::uint32_t>((chunk.first + stage) * (kStage / 128) + quad);
    return Columns{{SignPhilox::column(block, tag, key), SignPhilox::column(block + 4, tag, key)}};
  };
  const auto make_words = [&](int tile, const Columns& columns, std::uint32_t(&a)[16]) {
    const std::uint32_t row = m.row_offset + static_cast<std::uint32_t>(first_row) + 64 * tile;
    const SignPhilox::Row r0 = SignPhilox::row(row, key), r1 = SignPhilox::row(row + 8, key);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 g = philox.words(r0, columns.half[half]), h = philox.words(r1, columns.half[half]);
      a[half * 8 + 0] = g.x, a[half * 8 + 1] = h.x, a[half * 8 + 2] = g.y, a[half * 8 + 3] = h.y;
      a[half * 8 + 4] = g.z, a[half * 8 + 5] = h.z, a[half * 8 + 6] = g.w, a[half * 8 + 7] = h.w;
    }
  };

  // Sums of a lane, in shared memory: [tile][n].
  float4* sums = reinterpret_cast<float4*>(shared + 2 * kBytes) + threadIdx.x;
  const auto for_sums = [&](auto f) {
#pragma unroll 1
    for (int u = 0; u < kDenseTiles * N; ++u) {
      float4 four = sums[u * kDenseWarps * 32];
      float* sum = &four.x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t row = first_row + u / N * 64 + i / 2 * 8,
                           vector = (group * N + u % N) * 8 + quad * 2 + i % 2;
        if (row < m.rows && vector < args.batch) f(sum[i], row, vector);
      }
      sums[u * kDenseWarps * 32] = four;
    }
  };
  const auto partial = [&](std::int64_t row, std::int64_t vector) -> float& {
    return partials[(split * args.batch + vector) * m.rows + row];
  };
#pragma unroll
  for (int u = 0; u < kDenseTiles * N; ++u) sums[u * kDenseWarps * 32] = make_float4(0, 0, 0, 0);
  if (!chunk.begins) for_sums([&](float& sum, std::int64_t row, std::int64_t vector) { sum = partial(row, vector); });

  std::uint32_t a[16];
  fetch(split, shared);
  Columns columns = columns_of(split);
  make_words(0, columns, a);
  int buffer = 0;
#pragma unroll 1
  for (std::int64_t stage = split; stage < chunk.stages; stage += chunk.splits, buffer ^= 1) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    publish_shared();
    __syncthreads();
    fetch(stage + chunk.splits, shared + (buffer ^ 1) * kBytes);
    const char* record = shared + buffer * kBytes;
    const auto* infos = reinterpret_cast<const StageInfo*>(record);
#pragma unroll 1
    for (int tile = 0; tile < kDenseTiles; ++tile) {
      std::uint32_t next[16];
#pragma unroll
      for (int n = 0; n < N; ++n) {
        int c[4 * P];
        start_products(c, a, record + 8 * N * sizeof(StageInfo) + n * P * kStage);
        if (n == 0) {  // the words of what comes next
          if (tile == kDenseTiles - 1) columns = columns_of(stage + chunk.splits);
          make_words((tile + 1) % kDenseTiles, columns, next);
        }
        wait_for_products(c);
        float4 four = sums[(tile * N + n) * kDenseWarps * 32];
        float* sum = &four.x;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const StageInfo info = infos[n * 8 + quad * 2 + i % 2];
          const auto weighted = [&](int top, int bottom,
                                    bool sign) {  // sum of 2^plane c[plane]; the top bit is the sign
            int v = sign ? -c[4 * top + i] : c[4 * top + i];
#pragma unroll
            for (int plane = top - 1; plane >= bottom; --plane) v = twice_plus(v, c[4 * plane + i]);
            return v;
          };
          const float high = static_cast<float>(info.high - 2 * weighted(P - 1, P - 16, true));
          if constexpr (P == 16) {
            sum[i] += high * info.scale[0] * info.scale[1];
          } else {
            const float low = static_cast<float>(info.low - 2 * weighted(P - 17, 0, false));
            sum[i] = fmaf(high * info.scale[0] * info.scale[1], static_cast<float>(1 << (P - 16)), sum[i]);
            sum[i] += low * info.scale[0] * fminf(info.scale[1], 0x1p64f);  // infinity and NaN count once
          }
        }
        sums[(tile * N + n) * kDenseWarps * 32] = four;
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) a[i] = next[i];
    }
  }
  for_sums([&](float sum, std::int64_t row, std::int64_t vector) {
    if (partials != nullptr) {
      partial(row, vector) = sum;
    } else {
      store_output(args, vector, row, sum);
    }
  });
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_SKETCH_SIGNS_DENSE_CUH_
