// Dense signs (density 1) of 16- and 32-bit inputs on CUDA: y = sum_j s_j x_j = sum_j x_j - 2 sum_j D_j x_j, where D_j
// is the bit of column j. The words of Philox are the A operand of products of single bits as they are: 256 columns an
// instruction and nothing to expand. The other operand are the bits of x, plane by plane (signs_planes.cuh). So sums
// over a stage are exact integers, and their order does not matter; the sums of stages are added in float32, in order.
//
// A warpgroup makes the words of its next 64 rows while the products of the last ones run: on Hopper as asynchronous
// wgmma, which the driver finds in the code for sm_90a; on all other architectures as mma.sync.
#ifndef MASKLESS_SRC_SKETCH_SIGNS_DENSE_CUH_
#define MASKLESS_SRC_SKETCH_SIGNS_DENSE_CUH_

#include <cstdint>

#include "cuda/launch.h"
#include "maskless/core/uniform.h"
#include "sketch/signs_planes.cuh"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {

inline constexpr int kTileBytes = 64 * kStage / 8;  // of words: 64 rows of S by a stage

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
  /// The words of a row and a block, as 1, 0, 3, 2: products and what is made of them, in neighbouring registers.
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
    return make_uint4(c1, c0, c3, c2);
  }
};

// --- Products: c[4 * plane + i] of a warp's 16 rows and 8 vectors, over a stage -------------------------------------
// A lane holds rows lane / 4 (i = 0, 1) and lane / 4 + 8 (i = 2, 3), vectors lane % 4 * 2 + i % 2. Both operands are in
// shared memory. (A in registers would need them unchanged until products end: the compiler waits for each product.)
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define MASKLESS_ACC8(c, i)                                                                                   \
  "+r"(c[i]), "+r"(c[i + 1]), "+r"(c[i + 2]), "+r"(c[i + 3]), "+r"(c[i + 4]), "+r"(c[i + 5]), "+r"(c[i + 6]), \
      "+r"(c[i + 7])
#define MASKLESS_ACC32(c, i) \
  MASKLESS_ACC8(c, i), MASKLESS_ACC8(c, i + 8), MASKLESS_ACC8(c, i + 16), MASKLESS_ACC8(c, i + 24)

/// c = (or c +=, with `more`) numbers of common bits of 64 rows, 16 a warp, and all planes of 8 vectors or half of
/// them.
__device__ __forceinline__ void wgmma_bits(int (&c)[32], std::uint32_t a, std::uint32_t b, int more) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\nmov.b64 a, {%32, %35};\nmov.b64 b, {%33, %35};\n"
      "wgmma.mma_async.sync.aligned.m64n64k256.s32.b1.b1.and.popc {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, a, b, p;\n}\n"
      : MASKLESS_ACC32(c, 0)
      : "r"(a), "r"(b), "r"(more), "r"(1024 >> 4));
}
__device__ __forceinline__ void wgmma_bits(int (&c)[64], std::uint32_t a, std::uint32_t b, int more) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\nmov.b64 a, {%64, %67};\nmov.b64 b, {%65, %67};\n"
      "wgmma.mma_async.sync.aligned.m64n128k256.s32.b1.b1.and.popc {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, a, b, p;\n}\n"
      : MASKLESS_ACC32(c, 0), MASKLESS_ACC32(c, 32)
      : "r"(a), "r"(b), "r"(more), "r"(1024 >> 4));
}
__device__ __forceinline__ void wgmma_bits(int (&c)[48], std::uint32_t a, std::uint32_t b, int more) {
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %50, 0;\nmov.b64 a, {%48, %51};\nmov.b64 b, {%49, %51};\n"
      "wgmma.mma_async.sync.aligned.m64n96k256.s32.b1.b1.and.popc {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, a, b, p;\n}\n"
      : MASKLESS_ACC32(c, 0), MASKLESS_ACC8(c, 32), MASKLESS_ACC8(c, 40)
      : "r"(a), "r"(b), "r"(more), "r"(1024 >> 4));
}
#undef MASKLESS_ACC32
#undef MASKLESS_ACC8

/// The lower half of a matrix's descriptor. Core matrices of 8 rows of S (or vectors) by 128 columns lie 128 bytes
/// apart along the columns, 1,024 along the rows (or planes).
__device__ __forceinline__ std::uint32_t matrix_descriptor(const char* p) {
  return (static_cast<std::uint32_t>(__cvta_generic_to_shared(p)) >> 4) + (128 >> 4 << 16);
}

template <int Size>
__device__ __forceinline__ void start_products(int (&c)[Size], const char* words, const char* planes) {
  const std::uint32_t a = matrix_descriptor(words), b = matrix_descriptor(planes);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_bits(c, a + (k * 256 >> 4), b + (k * 256 >> 4), k > 0);
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
__device__ __forceinline__ void start_products(int (&c)[Size], const char* words, const char* planes) {
  const auto* a = reinterpret_cast<const std::uint32_t*>(words) + threadIdx.x / 32 % 4 * 512 + threadIdx.x % 32;
  const auto* b = reinterpret_cast<const std::uint32_t*>(planes) + threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const std::uint32_t a0 = a[k * 64], a1 = a[k * 64 + 256], a2 = a[k * 64 + 32], a3 = a[k * 64 + 288];
#pragma unroll
    for (int plane = 0; plane < Size / 4; ++plane) {
      int* d = c + 4 * plane;
      if (k == 0) d[0] = d[1] = d[2] = d[3] = 0;
      asm("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
          "{%0, %1, %2, %3};"
          : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
          : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b[plane * 256 + k * 64]), "r"(b[plane * 256 + k * 64 + 32]));
    }
  }
}
template <int Size>
__device__ __forceinline__ void wait_for_products(int (&)[Size]) {}
__device__ __forceinline__ void publish_shared() {}
#endif

/// 2 * v + c for 0 <= v, c and a result below 2^23, as numbers below the smallest normal float32: their bits are
/// integers, and their sums are exact. A fused multiply-add takes half the time of an integer operation.
__device__ __forceinline__ int twice_plus(int v, int c) {
  float sum;
  asm("fma.rn.f32 %0, %1, 0f40000000, %2;" : "=f"(sum) : "f"(__int_as_float(v)), "f"(__int_as_float(c)));
  return __float_as_int(sum);
}

/// A barrier of the four warps of a warpgroup.
__device__ __forceinline__ void sync_warpgroup(int barrier) {
  asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory");
}

/// Bytes from global to shared memory, without a register.
template <int Bytes>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(Bytes) : "memory");
  }
}

/// A chunk of the columns: stages [first, first + stages) of the whole; split i has every splits-th from i on.
/// `begins`: the first of its chunks.
struct DenseChunk {
  std::int64_t first = 0, stages = 0;
  int splits = 1, row_groups = 1;
  bool begins = true;
};

/// Shared memory of a block: two stages, two tiles of words a warpgroup, and sums.
template <int P, int N, int kWarps, int kTiles>
inline constexpr int kDenseShared = 2 * kStageBytes<P, N> + kWarps / 4 * 2 * kTileBytes + kTiles* N* kWarps * 32 * 16;

/// kWarps / 4 * kTiles * 64 rows of S, 8 * N vectors, one split of a chunk. A warpgroup multiplies its words of 64 rows
/// with the planes of 8 vectors, all or half of them, and makes the words of its next 64 rows meanwhile. With 112
/// registers a thread, planes_kernel has room beside four warpgroups.
template <int P, int N, int kWarps, int kTiles>
__global__ __maxnreg__(kWarps < 16 ? 240 : 112) void dense_kernel(SketchArgs args, DenseChunk chunk,
                                                                  const char* records, float* partials) {
  constexpr int kBytes = kStageBytes<P, N>;
  extern __shared__ __align__(128) char shared[];
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const Words2 key = philox_key(seed);
  const std::uint32_t tag = counter_tag(Op::kSigns, m.stream);
  const SignPhilox philox(key);
  const int lane = threadIdx.x & 31, quad = lane & 3;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so that the compiler knows it is one for all lanes
  std::int64_t id = blockIdx.x;
  const std::int64_t warpgroup_row = (id % chunk.row_groups * (kWarps / 4) + warp / 4) * 64 * kTiles;
  // Sums of rows first_row + 64 * tile, and 8 more.
  const std::int64_t first_row = warpgroup_row + warp % 4 * 16 + lane / 4;
  id /= chunk.row_groups;
  const std::int64_t split = id % chunk.splits, group = id / chunk.splits;
  const char* from = records + group * chunk.stages * kBytes;

  const auto fetch = [&](std::int64_t stage, char* to) {
    if (stage >= chunk.stages) return;
    for (int e = threadIdx.x * 16; e < kBytes; e += kWarps * 32 * 16) copy_async<16>(to + e, from + stage * kBytes + e);
  };
  // A lane makes the words of two rows, 8 apart, and two blocks of 128 columns, 4 apart. Words of a warpgroup's tile
  // lie as [group of 8 rows][block][row][word]; there are two tiles: one is read, one is written.
  struct Columns {
    uint4 half[2];
  };
  const auto columns_of = [&](std::int64_t stage) {
    const auto block = static_cast<std::uint32_t>((chunk.first + stage) * (kStage / 128) + lane / 8);
    return Columns{{SignPhilox::column(block, tag, key), SignPhilox::column(block + 4, tag, key)}};
  };
  Columns columns = columns_of(split);
  char* words = shared + 2 * kBytes + warp / 4 * 2 * kTileBytes;
  const auto make_words = [&](int next, int half, char* to) {
    const std::uint32_t row =
        m.row_offset + static_cast<std::uint32_t>(warpgroup_row) + 64 * next + warp % 4 * 16 + lane % 8;
    to += warp % 4 * 2048 + half * 512 + lane * 16;
    *reinterpret_cast<uint4*>(to) = philox.words(SignPhilox::row(row, key), columns.half[half]);
    *reinterpret_cast<uint4*>(to + 1024) = philox.words(SignPhilox::row(row + 8, key), columns.half[half]);
  };

  // Sums of a lane, in shared memory: [tile][n].
  float4* sums = reinterpret_cast<float4*>(shared + 2 * kBytes + kWarps / 4 * 2 * kTileBytes) + threadIdx.x;
  const auto for_sums = [&](auto f) {
#pragma unroll 1
    for (int u = 0; u < kTiles * N; ++u) {
      float* sum = &sums[u * kWarps * 32].x;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int64_t row = first_row + u / N * 64 + i / 2 * 8,
                           vector = (group * N + u % N) * 8 + quad * 2 + i % 2;
        f(sum + i, row, vector, row < m.rows && vector < args.batch);
      }
    }
  };
  const auto partial = [&](std::int64_t row, std::int64_t vector) {
    return partials + (split * args.batch + vector) * m.rows + row;
  };
  wait_for_earlier_work();
  let_later_work_start();  // the next chunk's planes
  for_sums([&](float* sum, std::int64_t row, std::int64_t vector, bool inside) {
    if (inside && !chunk.begins) {
      copy_async<4>(sum, partial(row, vector));  // waited for with the first stage
    } else {
      *sum = 0;
    }
  });

  // Planes of 8 vectors in one part, or in two, the upper ones first: what was faster.
  constexpr int kParts = P == 16 && N == 2 ? 1 : 2, kPart = P / kParts;
  int c[4 * kPart] = {}, v[4] = {};
  const auto add_products = [&](int part, const StageInfo* infos, float4& tile_sums) {
    // The sum of 2^(plane - bottom) times products of planes bottom ... top.
    const auto weigh = [&](int i, int top, int bottom) {
      int sum = c[4 * (top % kPart) + i];
#pragma unroll
      for (int plane = top - 1; plane >= bottom; --plane) sum = twice_plus(sum, c[4 * (plane % kPart) + i]);
      return sum;
    };
    if (part % kParts == 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i)  // the top plane is the sign
        v[i] = weigh(i, P - 2, P / 2) - (1 << (P / 2 - 1)) * c[4 * kPart - 4 + i];
    }
    if (part % kParts != kParts - 1) return;
    float4 four = tile_sums;
    float* sum = &four.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const StageInfo info = infos[part / kParts * 8 + quad * 2 + i % 2];
      v[i] = (v[i] << (16 - P / 2)) + weigh(i, P / 2 - 1, P - 16);
      const float high = static_cast<float>(info.high - 2 * v[i]);
      if constexpr (P == 16) {
        sum[i] += high * info.scale[0] * info.scale[1];
      } else {
        const float low = static_cast<float>(info.low - 2 * weigh(i, P - 17, 0));
        sum[i] = fmaf(high * info.scale[0] * info.scale[1], static_cast<float>(1 << (P - 16)), sum[i]);
        sum[i] += low * info.scale[0] * fminf(info.scale[1], 0x1p64f);  // infinity and NaN count once
      }
    }
    tile_sums = four;
  };

  fetch(split, shared);
  make_words(0, 0, words);
  make_words(0, 1, words);
  __syncthreads();
  constexpr int kUnrolled = P == 16 && N == 1 ? kTiles : 1;  // others have no registers left for it
  int buffer = 0, at = 0;                                    // of stages and words
#pragma unroll 1
  for (std::int64_t stage = split; stage < chunk.stages; stage += chunk.splits) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    publish_shared();
    __syncthreads();
    const char* now = shared + buffer * kBytes;
    buffer ^= 1;
    fetch(stage + chunk.splits, shared + buffer * kBytes);
#pragma unroll(kUnrolled)
    for (int tile = 0; tile < kTiles; ++tile) {
      if (kTiles % 2 == 0) at = tile % 2;  // known to the compiler
      if (tile > 0) {
        publish_shared();
        sync_warpgroup(1 + warp / 4);
      }
      const char* these = words + at * kTileBytes;
      at ^= 1;
      const int next = (tile + 1) % kTiles;
      if (next == 0) columns = columns_of(stage + chunk.splits);
#pragma unroll
      for (int part = 0; part < kParts * N; ++part) {
        const int first_plane = part / kParts * P + (kParts - 1 - part % kParts) * kPart;
        start_products(c, these, now + 8 * N * sizeof(StageInfo) + first_plane * kStage);
        if (part < 2) make_words(next, part, words + at * kTileBytes);
        wait_for_products(c);
        add_products(part, reinterpret_cast<const StageInfo*>(now), sums[(tile * N + part / kParts) * kWarps * 32]);
      }
    }
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  for_sums([&](const float* sum, std::int64_t row, std::int64_t vector, bool inside) {
    if (!inside) return;
    if (partials != nullptr) {
      *partial(row, vector) = *sum;
    } else {
      store_output(args, vector, row, *sum);
    }
  });
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_SKETCH_SIGNS_DENSE_CUH_
