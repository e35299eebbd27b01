// Dense signs (density 1) of 16- and 32-bit inputs on CUDA: y = sum_j s_j x_j = sum_j x_j - 2 sum_j D_j x_j, where D_j
// is the bit of column j. The words of Philox are the A operand of mma.m16n8k256 of single bits as they are: 256
// columns an instruction and nothing to expand. The other operand are the bits of x, plane by plane: every kStage
// columns of a vector are rounded to fixed point, 16 bits with the sign (float32: 24), relative to the largest of them.
// So sums over a stage are exact integers, and their order does not matter; the sums of stages are added in float32, in
// order.
//
// What is rounded is at most 2^-16 of the stage's largest element (float32: 2^-24), as a random error of each element.
//
// Two kernels in turns, a chunk of the columns each: planes_kernel writes the planes of x in the order in which the
// lanes of dense_kernel read them. There a lane makes the Philox calls whose words it needs: those of the next stage,
// between the products of this one.
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
inline constexpr int kStage = 1024;                    // columns with one scale
inline constexpr int kDenseWarps = 8;                  // of a block
inline constexpr std::int64_t kDenseBlocks = 132;      // one a multiprocessor of an H100 or H200
inline constexpr std::int64_t kSlabRows = 1 << 16;     // rows of S at a time
inline constexpr std::int64_t kPlaneBytes = 36 << 20;  // at most, for planes

/// Bits of fixed point, with the sign.
template <typename T>
inline constexpr int kPlanes = sizeof(T) == 4 ? 24 : 16;

/// Rows of S a warp: 16 * kTiles<N>, for 8 * N vectors.
template <int N>
inline constexpr int kTiles = 4 / N;

/// Of a vector's stage: its sum is (high * 2^(planes - 16) + low) * scale[0] * scale[1].
struct alignas(16) StageInfo {
  float scale[2];
  int high, low;
};

/// A stage of 8 * N vectors: infos, then planes as [n][plane][half of the stage][vector][16 words].
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
             lane / 16 * 128 + v % 8 * 16 + lane % 16;
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

/// c[i, j] += number of common bits of row i of A and column j of B, 16 x 256 and 256 x 8 bits.
__device__ __forceinline__ void mma_bits(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// 16 bytes from global to shared memory, without a register.
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

/// A chunk of the columns: stages [first, first + stages) of the whole, cut into splits; `begins`: the first of its
/// chunks.
struct DenseChunk {
  std::int64_t first = 0, stages = 0, splits = 1;
  int row_groups = 1;
  bool begins = true;
};

/// kDenseWarps * 16 * kTiles<N> rows of S, 8 * N vectors, one split of a chunk.
template <int P, int N>
__global__ __launch_bounds__(kDenseWarps * 32, 1) void dense_kernel(SketchArgs args, DenseChunk chunk,
                                                                    const char* records, float* partials) {
  constexpr int kRowTiles = kTiles<N>, kBytes = kStageBytes<P, N>;
  extern __shared__ __align__(16) char shared[];
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const Words2 key = philox_key(seed);
  const std::uint32_t tag = counter_tag(Op::kSigns, m.stream);
  const SignPhilox philox(key);
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, quad = lane & 3;
  // A lane's own words of the next stage: A operands of [tile][half][pair].
  uint4* words = reinterpret_cast<uint4*>(shared + 2 * kBytes) + warp * kRowTiles * 4 * 32 + lane;
  std::int64_t id = blockIdx.x;
  const std::int64_t first_row = (id % chunk.row_groups * kDenseWarps + warp) * (16 * kRowTiles) + lane / 4;
  id /= chunk.row_groups;
  const std::int64_t split = id % chunk.splits, group = id / chunk.splits;
  const std::int64_t begin = chunk.stages * split / chunk.splits, end = chunk.stages * (split + 1) / chunk.splits;
  const char* from = records + group * chunk.stages * kBytes;

  const auto fetch = [&](std::int64_t stage) {
    if (stage < end) {
      char* to = shared + (stage - begin) % 2 * kBytes;
      const char* source = from + stage * kBytes;
      for (int e = threadIdx.x * 16; e < kBytes; e += kDenseWarps * 32 * 16) copy_async(to + e, source + e);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };

  SignPhilox::Row rows[2 * kRowTiles];  // lane / 4 and lane / 4 + 8 of each tile
#pragma unroll
  for (int i = 0; i < 2 * kRowTiles; ++i)
    rows[i] = SignPhilox::row(m.row_offset + static_cast<std::uint32_t>(first_row + 8 * i), key);
  const auto column = [&](std::int64_t stage, int half) {
    return SignPhilox::column(static_cast<std::uint32_t>((chunk.first + stage) * (kStage / 128) + half * 4 + quad), tag,
                              key);
  };
  // Of lane / 4 and lane / 4 + 8 of a tile, in half a stage.
  const auto make_words = [&](int tile, int half, uint4 c) {
    const uint4 g = philox.words(rows[2 * tile], c), h = philox.words(rows[2 * tile + 1], c);
    words[(tile * 4 + half * 2) * 32] = make_uint4(g.x, h.x, g.y, h.y);
    words[(tile * 4 + half * 2 + 1) * 32] = make_uint4(g.z, h.z, g.w, h.w);
  };

  float sums[kRowTiles][N][4] = {};
  const auto partial_at = [&](int tile, int n, int i, std::int64_t& row, std::int64_t& vector) {
    row = first_row + tile * 16 + i / 2 * 8;
    vector = (group * N + n) * 8 + quad * 2 + i % 2;
    return row < m.rows && vector < args.batch;
  };
  const auto for_sums = [&](auto f) {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          std::int64_t row, vector;
          if (partial_at(tile, n, i, row, vector)) f(sums[tile][n][i], row, vector);
        }
  };
  const auto partial = [&](std::int64_t row, std::int64_t vector) -> float& {
    return partials[(split * args.batch + vector) * m.rows + row];
  };
  if (!chunk.begins) for_sums([&](float& sum, std::int64_t row, std::int64_t vector) { sum = partial(row, vector); });

  // The products of a stage; between them the words of the next one.
  const auto run = [&](std::int64_t stage) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    fetch(stage + 1);
    uint4 a[kRowTiles][4];
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i) a[tile][i] = words[(tile * 4 + i) * 32];
    const char* record = shared + (stage - begin) % 2 * kBytes;
    const auto* infos = reinterpret_cast<const StageInfo*>(record);
    const auto* planes = reinterpret_cast<const uint4*>(infos + 8 * N) + lane;
    const uint4 columns[2] = {column(stage + 1, 0), column(stage + 1, 1)};
#pragma unroll
    for (int part = 0; part < (P > 16 ? 2 : 1); ++part) {
      const int top = part == 0 ? P - 1 : P - 17, bottom = part == 0 ? P - 16 : 0;
      int acc[kRowTiles][N][4] = {};
#pragma unroll
      for (int plane = top; plane >= bottom; --plane) {
        uint4 b[N][2];
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) b[n][half] = planes[((n * P + plane) * 2 + half) * 32];
        if (plane != top) {
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i) acc[tile][n][i] *= plane == P - 2 ? -2 : 2;  // the top bit is the sign
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int pair = 0; pair < 2; ++pair)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
              for (int tile = 0; tile < kRowTiles; ++tile) {
                const uint4 &v = a[tile][half * 2 + pair], &w = b[n][half];
                mma_bits(acc[tile][n], v.x, v.y, v.z, v.w, pair == 0 ? w.x : w.z, pair == 0 ? w.y : w.w);
              }
        const int call = P - 1 - plane;
        if (call % 2 == 0 && call / 2 < 2 * kRowTiles) make_words(call / 4, call / 2 % 2, columns[call / 2 % 2]);
      }
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          StageInfo info = infos[n * 8 + quad * 2 + j];
          if (part == 1) info.scale[1] = fminf(info.scale[1], 0x1p64f);  // infinity and NaN count once
#pragma unroll
          for (int tile = 0; tile < kRowTiles; ++tile)
#pragma unroll
            for (int i = j; i < 4; i += 2) {
              const float sum = static_cast<float>((part == 0 ? info.high : info.low) - 2 * acc[tile][n][i]);
              const float value = sum * info.scale[0] * info.scale[1];
              sums[tile][n][i] = part == 0 && P > 16 ? fmaf(value, static_cast<float>(1 << (P - 16)), sums[tile][n][i])
                                                     : sums[tile][n][i] + value;
            }
        }
    }
  };
  if (begin < end) {
    fetch(begin);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int tile = 0; tile < kRowTiles; ++tile) make_words(tile, half, column(begin, half));
  }
#pragma unroll 1
  for (std::int64_t stage = begin; stage < end; ++stage) run(stage);
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
