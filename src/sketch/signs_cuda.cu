// iid signs on CUDA.
//
// Dense signs of 16- and 32-bit inputs run on tensor cores: signs are expanded from Philox words to the A operand of
// mma.m16n8k16, two of them with one shift and one three-way logic operation; vectors are the B operand, 8 or 16 side
// by side. float32 is split into two bfloat16 terms (what is lost is below 2^-17 of each element). The columns' order
// within a block of 128 is chosen so that one Philox word feeds sixteen A registers of a lane: register i holds columns
// i and i + 16 of the word's 32. Tensor cores truncate, so their sums are moved to rounded float32 ones every kStage
// columns. Philox's first rounds depend on the row or on the column alone, and are made once for many (see Philox).
//
// All else (density below 1, float64, transposes) takes plain kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "common/float_types.h"
#include "cuda/launch.h"
#include "maskless/core/threshold.h"
#include "maskless/core/uniform.h"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {
namespace {

// --- Tuning ---------------------------------------------------------------------------------------------------------
constexpr int kWarps = 8;      // of a block
constexpr int kWarpRows = 64;  // rows of S a warp
constexpr int kBlockRows = kWarps * kWarpRows;
constexpr int kStageBlocks = 8;  // blocks of 128 columns in shared memory at a time
constexpr int kStage = kStageBlocks * 128;
constexpr std::int64_t kTargetBlocks = 264;                       // two a multiprocessor of an H100 or H200
constexpr std::int64_t kWorkspaceBytes = std::int64_t{48} << 20;  // at most, for partial sums
constexpr int kPlain = 128;                                       // threads of the plain kernels

/// Philox of (j >> 7, row, 1, tag), cut where it depends on one of column and row alone. Rounds 1 and 2 are free, round
/// 3 costs half.
struct Philox {
  struct Row {
    std::uint32_t high, low;  // M0 * (row ^ k0)
  };

  static __device__ __forceinline__ Row row(std::uint32_t r, std::uint32_t k0) {
    const std::uint64_t a = std::uint64_t{kPhiloxM0} * (r ^ k0);
    return {static_cast<std::uint32_t>(a >> 32), static_cast<std::uint32_t>(a)};
  }
  /// Four words of a block of columns.
  static __device__ uint4 column(std::uint32_t block, std::uint32_t tag, Words2 key) {
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
  /// The words of a row and a block. `key` is that of round 4.
  static __device__ __forceinline__ uint4 words(Row row, uint4 column, std::uint32_t k0, std::uint32_t k1) {
    const std::uint64_t b3 = std::uint64_t{kPhiloxM1} * (row.high ^ column.x);
    std::uint32_t c0 = static_cast<std::uint32_t>(b3 >> 32) ^ column.y, c1 = static_cast<std::uint32_t>(b3);
    std::uint32_t c2 = column.z ^ row.low, c3 = column.w;
#pragma unroll
    for (int round = 3; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{kPhiloxM0} * c0, b = std::uint64_t{kPhiloxM1} * c2;
      c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(b);
      c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(a);
      k0 += kPhiloxW0, k1 += kPhiloxW1;
    }
    return make_uint4(c0, c1, c2, c3);
  }
};

template <typename T>
struct Terms {  // bfloat16 terms of an input
  static constexpr int kCount = sizeof(T) == 4 ? 2 : 1;
  static constexpr bool kHalf = false;
};
template <>
struct Terms<Float16> {
  static constexpr int kCount = 1;
  static constexpr bool kHalf = true;
};

template <bool kHalf>
__device__ __forceinline__ void mma(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (kHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

/// Bits i and i + 16 of a word as two signs of 1: a shift and one three-way logic operation. `mask` is 0x80008000, in a
/// register that the compiler does not know the value of (an instruction holds one constant, and the other is `ones`).
template <bool kHalf>
__device__ __forceinline__ std::uint32_t expand(std::uint32_t word, int i, std::uint32_t mask) {
  constexpr std::uint32_t kOnes = kHalf ? 0x3C003C00u : 0x3F803F80u;
  return (word << (15 - i) & mask) | kOnes;
}

/// Terms of an element, as 16 bits each.
__device__ __forceinline__ void split(Float16 x, std::uint32_t (&t)[1]) { t[0] = x.bits; }
__device__ __forceinline__ void split(BFloat16 x, std::uint32_t (&t)[1]) { t[0] = x.bits; }
__device__ __forceinline__ void split(float x, std::uint32_t (&t)[2]) {
  const __nv_bfloat16 high = __float2bfloat16_rn(x);
  const float value = __bfloat162float(high);
  const __nv_bfloat16 low = __float2bfloat16_rn(isfinite(value) ? x - value : 0.f);
  t[0] = __bfloat16_as_ushort(high);
  t[1] = __bfloat16_as_ushort(low);
}

/// 16 bytes from global to shared memory, or zeros, without a register.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes) : "memory");
}

/// kBlockRows rows of S, 8 * N vectors, one split of the columns.
template <typename T, int N>
__global__ __launch_bounds__(kWarps * 32, 2) void dense_kernel(SketchArgs args, std::int64_t splits, int row_groups,
                                                               float* partials) {
  constexpr int kTerms = Terms<T>::kCount;
  constexpr bool kHalf = Terms<T>::kHalf;
  constexpr int kMTiles = kWarpRows / 16;
  constexpr int kEach = 16 / sizeof(T);  // elements of a copy
  constexpr int kRaw = kStage + kEach;   // a vector's place in shared memory, in another bank than the one before
  extern __shared__ __align__(16) char shared[];
  // Fragments of B: [stage parity][block][term][n][four registers][lane]; Philox columns; each warp's sign words,
  // twice; and one stage of x as it is.
  constexpr int kBlockVectors = kTerms * N * 4 * 32;
  uint4* fragments = reinterpret_cast<uint4*>(shared);
  uint4* columns = fragments + 2 * kStageBlocks * kBlockVectors;
  uint4* warp_words = columns + 2 * kStageBlocks + threadIdx.x / 32 * 2 * kWarpRows;
  T* raw = reinterpret_cast<T*>(columns + 2 * kStageBlocks + kWarps * 2 * kWarpRows);

  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const Words2 key = philox_key(seed);
  const std::uint32_t tag = counter_tag(Op::kSigns, m.stream);
  const std::uint32_t k0 = key.w[0] + 3 * kPhiloxW0, k1 = key.w[1] + 3 * kPhiloxW1;
  std::int64_t id = blockIdx.x;
  const std::int64_t first_row = id % row_groups * kBlockRows + threadIdx.x / 32 * kWarpRows;
  id /= row_groups;
  const std::int64_t part = id % splits, lane_vector = id / splits * (8 * N);
  const int vectors = static_cast<int>(min(std::int64_t{8 * N}, args.batch - lane_vector));
  const std::int64_t offset = static_cast<std::int64_t>(m.column_offset);
  const std::int64_t first_stage = offset / kStage;
  const std::int64_t stages = m.cols == 0 ? 0 : (offset + m.cols - 1) / kStage + 1 - first_stage;
  const std::int64_t begin = stages * part / splits, end = stages * (part + 1) / splits;
  const T* x = static_cast<const T*>(args.in) + lane_vector * args.in_strides[0];
  const int lane = threadIdx.x & 31;
  const bool aligned = args.in_strides[1] == 1 && reinterpret_cast<std::uintptr_t>(x) % 16 == 0 &&
                       args.in_strides[0] % kEach == 0 && offset % kEach == 0;

  // One stage of x into shared memory as it is, zeros where there is nothing.
  const auto fetch = [&](std::int64_t stage) {
    const std::int64_t base = (first_stage + stage) * kStage - offset;
    if (aligned && base >= 0 && base + kStage <= m.cols) {
      for (int e = threadIdx.x; e < 8 * N * kStage / kEach; e += kWarps * 32) {
        const int vector = e / (kStage / kEach), c = e % (kStage / kEach) * kEach;
        const bool there = vector < vectors;
        copy_async(raw + vector * kRaw + c, x + (there ? vector : 0) * args.in_strides[0] + base + c, there);
      }
    } else {
      for (int e = threadIdx.x; e < 8 * N * kStage; e += kWarps * 32) {
        const int vector = e / kStage;
        const std::int64_t column = base + e % kStage;
        raw[vector * kRaw + e % kStage] = vector < vectors && column >= 0 && column < m.cols
                                              ? x[vector * args.in_strides[0] + column * args.in_strides[1]]
                                              : T{};
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  // From there into fragments: four registers of pairs (i, i + 16) at a time.
  const auto convert = [&](std::int64_t stage) {
    uint4* to = fragments + (stage & 1) * kStageBlocks * kBlockVectors;
#pragma unroll 2
    for (int e = threadIdx.x; e < kStageBlocks * N * 4 * 32; e += kWarps * 32) {
      const int l = e & 31, four = e >> 5 & 3, n = (e >> 7) % N, block = (e >> 7) / N;
      const T* from = raw + (n * 8 + (l >> 2)) * kRaw + block * 128 + (l & 3) * 32 + four * 4;
      std::uint32_t r[kTerms][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t a[kTerms], b[kTerms];
        split(from[i], a);
        split(from[i + 16], b);
#pragma unroll
        for (int t = 0; t < kTerms; ++t) r[t][i] = a[t] | b[t] << 16;
      }
#pragma unroll
      for (int t = 0; t < kTerms; ++t)
        to[((block * kTerms + t) * N + n) * 128 + four * 32 + l] = make_uint4(r[t][0], r[t][1], r[t][2], r[t][3]);
    }
    if (threadIdx.x < kStageBlocks)
      columns[(stage & 1) * kStageBlocks + threadIdx.x] =
          Philox::column(static_cast<std::uint32_t>(((first_stage + stage) * kStage >> 7) + threadIdx.x), tag, key);
  };

  Philox::Row rows[kWarpRows / 32];
#pragma unroll
  for (int i = 0; i < kWarpRows / 32; ++i)
    rows[i] = Philox::row(m.row_offset + static_cast<std::uint32_t>(first_row + 32 * i + lane), key.w[0]);
  std::uint32_t mask;
  asm volatile("mov.b32 %0, 0x80008000;" : "=r"(mask));
  float sums[kMTiles][N][4] = {};
  if (begin < end) {
    fetch(begin);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    convert(begin);
    __syncthreads();
    if (begin + 1 < end) fetch(begin + 1);
#pragma unroll
    for (int i = 0; i < kWarpRows / 32; ++i)
      warp_words[32 * i + lane] = Philox::words(rows[i], columns[(begin & 1) * kStageBlocks], k0, k1);
  }
  for (std::int64_t stage = begin; stage < end; ++stage) {
    float acc[kMTiles][N][4] = {};
    const uint4* from = fragments + (stage & 1) * kStageBlocks * kBlockVectors;
    const uint4* column = columns + (stage & 1) * kStageBlocks;
    if (stage + 1 < end) {  // the next stage's x has been on its way for a whole stage
      asm volatile("cp.async.wait_all;" ::: "memory");
      __syncthreads();
      convert(stage + 1);
      __syncthreads();
      if (stage + 2 < end) fetch(stage + 2);
    }
#pragma unroll 1
    for (int block = 0; block < kStageBlocks; ++block) {
      __syncwarp();
      std::uint32_t words[kMTiles][2];  // of rows lane / 4 and lane / 4 + 8 of each tile: word lane % 4
#pragma unroll
      for (int tile = 0; tile < kMTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          words[tile][half] = reinterpret_cast<const std::uint32_t*>(
              warp_words + (block & 1) * kWarpRows)[(tile * 16 + half * 8) * 4 + lane];
      // The words of the next block, between the products of this one. After the last block of a stage that is the
      // first of the next stage.
      const uint4 next = block + 1 < kStageBlocks ? column[block + 1] : columns[((stage + 1) & 1) * kStageBlocks];
#pragma unroll
      for (int i = 0; i < kWarpRows / 32; ++i)
        warp_words[((block + 1) & 1) * kWarpRows + 32 * i + lane] = Philox::words(rows[i], next, k0, k1);
#pragma unroll
      for (int four = 0; four < 4; ++four) {
        uint4 b[kTerms][N];
#pragma unroll
        for (int t = 0; t < kTerms; ++t)
#pragma unroll
          for (int n = 0; n < N; ++n) b[t][n] = from[((block * kTerms + t) * N + n) * 128 + four * 32 + lane];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          const int i = four * 4 + step * 2;
#pragma unroll
          for (int tile = 0; tile < kMTiles; ++tile) {
            const std::uint32_t a0 = expand<kHalf>(words[tile][0], i, mask);
            const std::uint32_t a1 = expand<kHalf>(words[tile][1], i, mask);
            const std::uint32_t a2 = expand<kHalf>(words[tile][0], i + 1, mask);
            const std::uint32_t a3 = expand<kHalf>(words[tile][1], i + 1, mask);
#pragma unroll
            for (int t = 0; t < kTerms; ++t)
#pragma unroll
              for (int n = 0; n < N; ++n)
                mma<kHalf>(acc[tile][n], a0, a1, a2, a3, step == 0 ? b[t][n].x : b[t][n].z,
                           step == 0 ? b[t][n].y : b[t][n].w);
          }
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[tile][n][i] += acc[tile][n][i];
  }
#pragma unroll
  for (int tile = 0; tile < kMTiles; ++tile)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t row = first_row + tile * 16 + lane / 4 + i / 2 * 8;
        const int vector = n * 8 + lane % 4 * 2 + i % 2;
        if (row >= m.rows || vector >= vectors) continue;
        if (partials != nullptr) {
          partials[(part * args.batch + lane_vector + vector) * m.rows + row] = sums[tile][n][i];
        } else {
          store_output(args, lane_vector + vector, row, sums[tile][n][i]);
        }
      }
}

// --- Plain kernels
// ----------------------------------------------------------------------------------------------------
/// Nonzeros and signs of 128 columns of a row.
struct SignBits {
  Words4 nonzero, minus;
};

__device__ SignBits sign_bits(const SketchMatrix& m, std::uint64_t seed, std::uint32_t row, std::uint32_t block) {
  const std::uint32_t tag = counter_tag(Op::kSigns, m.stream);
  SignBits bits;
  bits.minus = philox4x32(Words4{{block, row, 1, tag}}, philox_key(seed));
  if (m.threshold >> 32 != 0) {
    bits.nonzero = {{~0u, ~0u, ~0u, ~0u}};
    return bits;
  }
  std::uint32_t equal[4] = {~0u, ~0u, ~0u, ~0u};
  bits.nonzero = {{0, 0, 0, 0}};
  const int planes = planes_needed(m.threshold);
  for (int q = 0; q < planes && (equal[0] | equal[1] | equal[2] | equal[3]) != 0; ++q) {
    const Words4 plane = plane_words(seed, static_cast<std::uint32_t>(q), block, row, 0, tag);
    const bool one = (m.threshold >> (31 - q) & 1) != 0;
    for (int w = 0; w < 4; ++w) {
      if (one) bits.nonzero.w[w] |= equal[w] & ~plane.w[w];
      equal[w] &= one ? plane.w[w] : ~plane.w[w];
    }
  }
  return bits;
}

template <typename S>
__device__ __forceinline__ S with_sign(S x, std::uint32_t minus) {
  return minus != 0 ? -x : x;
}

/// One row of S a thread, V vectors; 128 columns at a time in shared memory.
template <typename T, typename S, int V>
__global__ __launch_bounds__(kPlain) void project_plain_kernel(SketchArgs args, std::int64_t splits, int row_groups,
                                                               S* partials) {
  __shared__ S tile[128][V];
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  std::int64_t id = blockIdx.x;
  const std::int64_t row = id % row_groups * kPlain + threadIdx.x;
  id /= row_groups;
  const std::int64_t part = id % splits, lane = id / splits * V;
  const int vectors = static_cast<int>(min(std::int64_t{V}, args.batch - lane));
  const std::int64_t offset = static_cast<std::int64_t>(m.column_offset), first = offset >> 7;
  const std::int64_t blocks = m.cols == 0 ? 0 : ((offset + m.cols - 1) >> 7) + 1 - first;
  const T* x = static_cast<const T*>(args.in) + lane * args.in_strides[0];
  S acc[V] = {};
  for (std::int64_t b = blocks * part / splits; b < blocks * (part + 1) / splits; ++b) {
    const std::int64_t column = ((first + b) << 7) + threadIdx.x - offset;
    __syncthreads();
#pragma unroll
    for (int v = 0; v < V; ++v)
      tile[threadIdx.x][v] = v < vectors && column >= 0 && column < m.cols
                                 ? load_sum<S>(x[v * args.in_strides[0] + column * args.in_strides[1]])
                                 : S(0);
    __syncthreads();
    if (row >= m.rows) continue;
    const SignBits bits =
        sign_bits(m, seed, m.row_offset + static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(first + b));
#pragma unroll
    for (int w = 0; w < 4; ++w)
      for (std::uint32_t rest = bits.nonzero.w[w]; rest != 0; rest &= rest - 1) {
        const int bit = __ffs(static_cast<int>(rest)) - 1;
#pragma unroll
        for (int v = 0; v < V; ++v) acc[v] += with_sign(tile[32 * w + bit][v], bits.minus.w[w] >> bit & 1);
      }
  }
  if (row >= m.rows) return;
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (v < vectors) {
      if (partials != nullptr) {
        partials[(part * args.batch + lane + v) * m.rows + row] = acc[v];
      } else {
        store_output(args, lane + v, row, acc[v]);
      }
    }
}

/// One column of S a thread, V vectors; the signs of 128 rows at a time in shared memory.
template <typename T, typename S, int V>
__global__ __launch_bounds__(kPlain) void transpose_plain_kernel(SketchArgs args, std::int64_t groups) {
  __shared__ SignBits bits[kPlain];
  __shared__ S tile[kPlain][V];
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const std::int64_t lane = blockIdx.x % groups * V, offset = static_cast<std::int64_t>(m.column_offset);
  const int vectors = static_cast<int>(min(std::int64_t{V}, args.batch - lane));
  const std::int64_t block = (offset >> 7) + blockIdx.x / groups;
  const std::int64_t column = (block << 7) + threadIdx.x - offset;
  const T* y = static_cast<const T*>(args.in) + lane * args.in_strides[0];
  S acc[V] = {};
  for (std::int64_t first = 0; first < m.rows; first += kPlain) {
    const std::int64_t row = first + threadIdx.x;
    __syncthreads();
    if (row < m.rows) {
      bits[threadIdx.x] =
          sign_bits(m, seed, m.row_offset + static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(block));
#pragma unroll
      for (int v = 0; v < V; ++v)
        tile[threadIdx.x][v] = v < vectors ? load_sum<S>(y[v * args.in_strides[0] + row * args.in_strides[1]]) : S(0);
    }
    __syncthreads();
    const int count = static_cast<int>(min(std::int64_t{kPlain}, m.rows - first));
    for (int r = 0; r < count; ++r) {
      const int w = threadIdx.x >> 5, bit = threadIdx.x & 31;
      if ((bits[r].nonzero.w[w] >> bit & 1) == 0) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) acc[v] += with_sign(tile[r][v], bits[r].minus.w[w] >> bit & 1);
    }
  }
  if (column < 0 || column >= m.cols) return;
#pragma unroll
  for (int v = 0; v < V; ++v)
    if (v < vectors) store_output(args, lane + v, column, acc[v]);
}

// --- Launching ------------------------------------------------------------------------------------------------------
/// Splits of `units` units of columns for `blocks` thread blocks a split, by shape alone.
std::int64_t choose_splits(const SketchArgs& args, std::int64_t units, std::int64_t blocks, std::int64_t target,
                           std::int64_t item) {
  const std::int64_t size = args.batch * args.matrix.rows * item;
  return std::max<std::int64_t>(1, std::min({target / blocks, units, kWorkspaceBytes / size}));
}

template <typename T, int N>
void launch_dense(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const int row_groups = static_cast<int>((m.rows + kBlockRows - 1) / kBlockRows);
  const std::int64_t groups = (args.batch + 8 * N - 1) / (8 * N);
  const std::int64_t splits = choose_splits(args, m.cols / kStage + 1, row_groups * groups, kTargetBlocks, 4);
  const int bytes = 2 * kStageBlocks * Terms<T>::kCount * N * 2048 + 2 * kStageBlocks * 16 + 2 * kBlockRows * 16 +
                    8 * N * (kStage * static_cast<int>(sizeof(T)) + 16);
  const auto kernel = dense_kernel<T, N>;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  Workspace<float> partials(op, splits > 1 ? splits * args.batch * m.rows : 0, stream);
  kernel<<<static_cast<unsigned>(row_groups * groups * splits), kWarps * 32, bytes,
           static_cast<cudaStream_t>(stream)>>>(args, splits, row_groups, partials.data());
  check(op, cudaGetLastError());
  if (splits > 1) add_partials(op, args, splits, partials.data(), stream);
}

template <typename T, typename S, int V>
void launch_plain(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const int row_groups = static_cast<int>((m.rows + kPlain - 1) / kPlain);
  const std::int64_t groups = (args.batch + V - 1) / V;
  const std::int64_t splits = choose_splits(args, m.cols / 128 + 1, row_groups * groups, 8 * kTargetBlocks, sizeof(S));
  Workspace<S> partials(op, splits > 1 ? splits * args.batch * m.rows : 0, stream);
  project_plain_kernel<T, S, V>
      <<<static_cast<unsigned>(row_groups * groups * splits), kPlain, 0, static_cast<cudaStream_t>(stream)>>>(
          args, splits, row_groups, partials.data());
  check(op, cudaGetLastError());
  if (splits > 1) add_partials(op, args, splits, partials.data(), stream);
}

template <typename T>
void choose_project(const char* op, const SketchArgs& args, void* stream) {
  if (args.matrix.threshold >> 32 == 0) return launch_plain<T, float, 8>(op, args, stream);
  args.batch <= 8 ? launch_dense<T, 1>(op, args, stream) : launch_dense<T, 2>(op, args, stream);
}

template <typename T, typename S, int V>
void launch_transpose(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  const std::int64_t blocks = ((offset + m.cols - 1) >> 7) + 1 - (offset >> 7), groups = (args.batch + V - 1) / V;
  transpose_plain_kernel<T, S, V>
      <<<static_cast<unsigned>(blocks * groups), kPlain, 0, static_cast<cudaStream_t>(stream)>>>(args, groups);
  check(op, cudaGetLastError());
}

}  // namespace

void signs_project(const SketchArgs& args, void* stream) {
  const char* op = "project";
  switch (args.in_dtype) {
    case DType::kFloat16: return choose_project<Float16>(op, args, stream);
    case DType::kBFloat16: return choose_project<BFloat16>(op, args, stream);
    case DType::kFloat32: return choose_project<float>(op, args, stream);
    default: return launch_plain<double, double, 4>(op, args, stream);
  }
}

void signs_transpose(const SketchArgs& args, void* stream) {
  const char* op = "project_transpose";
  switch (args.in_dtype) {
    case DType::kFloat16: return launch_transpose<Float16, float, 8>(op, args, stream);
    case DType::kBFloat16: return launch_transpose<BFloat16, float, 8>(op, args, stream);
    case DType::kFloat32: return launch_transpose<float, float, 8>(op, args, stream);
    default: return launch_transpose<double, double, 4>(op, args, stream);
  }
}

void project(const SketchArgs& args, Device device, void* stream) {
  const DeviceGuard guard("project", device);
  args.matrix.signs ? signs_project(args, stream) : sjlt_project(args, stream);
}

void project_transpose(const SketchArgs& args, Device device, void* stream) {
  const DeviceGuard guard("project_transpose", device);
  args.matrix.signs ? signs_transpose(args, stream) : sjlt_transpose(args, stream);
}

}  // namespace maskless::cuda
