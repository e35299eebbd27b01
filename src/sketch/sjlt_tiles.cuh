// The sjlt on CUDA: what projections and transposes share. Keys and signs of tiles, vectors in shared memory.
#ifndef MASKLESS_SRC_SKETCH_SJLT_TILES_CUH_
#define MASKLESS_SRC_SKETCH_SJLT_TILES_CUH_

#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "common/float_types.h"
#include "maskless/core/sjlt.h"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda::sjlt {

// --- Tuning ---------------------------------------------------------------------------------------------------------
inline constexpr int kThreads = 512;
inline constexpr std::int64_t kTargetBlocks = 132;  // one a multiprocessor of an H100 or H200
inline constexpr std::int64_t kSplitPasses = 16;    // passes (or tiles) of a split, at least
inline constexpr int kKeyBytes = 40 << 10;          // shared memory for keys and signs
inline constexpr int kTransposeThreads = 512;
inline constexpr int kTransposeColumns = 8;          // of a thread at a time, where tiles are wide enough
inline constexpr std::int64_t kUnitColumns = 32768;  // whose keys are made at a time
inline constexpr int kTransposeBytes = 128 << 10;    // shared memory for y
inline constexpr int kTransposeKeyBytes = 32 << 10;  // and for keys
inline constexpr int kRowsPasses = 4;  // passes of 2 * kThreads columns between barriers (transposes by rows)
inline constexpr std::int64_t kRowsLeast = 1 << 19;  // columns, at least: a unit for each thread block
inline constexpr int kRowsUnits = 8;                 // units of that many passes whose keys are made at a time

/// A tile's permutation in a block, with what depends on the block alone. 48 bytes: three 16-byte loads.
struct alignas(16) Record {
  std::uint32_t m0, s0, m1, s1;
  std::uint32_t m2, s2, m3, s3;
  std::uint32_t m4, s4, window, block_rows;
};

/// Masks and shifts of the permutation.
struct Shape {
  int low, b_shift, a_hash, b_hash;  // l; b_bits; right shifts of the hashes
  std::uint32_t low_mask, a_mask, b_mask, width_mask, a_scale;

  explicit Shape(const SjltGeometry& g)
      : low(g.low_bits),
        b_shift(g.b_bits),
        a_hash(std::min(31, 32 - g.a_bits - g.low_bits)),
        b_hash(std::min(31, 32 - g.b_bits - g.low_bits)),
        low_mask((1u << g.low_bits) - 1),
        a_mask(((1u << g.a_bits) - 1) << g.low_bits),
        b_mask(((1u << g.b_bits) - 1) << g.low_bits),
        width_mask((1u << g.tile_bits) - 1),
        a_scale(1u << g.b_bits) {}
};

/// Times Scale.
template <int Scale>
__device__ __forceinline__ std::uint32_t column_of(const Shape& p, const Record& k, std::uint32_t h, std::uint32_t o0,
                                                   std::uint32_t a0, std::uint32_t b0) {
  const std::uint32_t v = h * k.m0 + k.s0;
  const std::uint32_t o = (o0 * (v | 1) + (v >> 29)) & p.low_mask;
  std::uint32_t a = a0 | o, b = b0 | o;
  b ^= ((a * k.m1 + k.s1) >> p.b_hash) & p.b_mask;
  a ^= ((b * k.m2 + k.s2) >> p.a_hash) & p.a_mask;
  b ^= ((a * k.m3 + k.s3) >> p.b_hash) & p.b_mask;
  a ^= ((b * k.m4 + k.s4) >> p.a_hash) & p.a_mask;
  return (a & ~p.low_mask) * (p.a_scale * Scale) + b * Scale;  // a multiplier has time where shifts have not
}

__device__ __forceinline__ std::uint32_t slot_of(const Shape& p, const Record& k, std::uint32_t column) {
  const std::uint32_t o = column & p.low_mask;
  std::uint32_t a = (column >> p.b_shift & p.a_mask) | o, b = (column & p.b_mask) | o;
  a ^= ((b * k.m4 + k.s4) >> p.a_hash) & p.a_mask;
  b ^= ((a * k.m3 + k.s3) >> p.b_hash) & p.b_mask;
  a ^= ((b * k.m2 + k.s2) >> p.a_hash) & p.a_mask;
  b ^= ((a * k.m1 + k.s1) >> p.b_hash) & p.b_mask;
  const std::uint32_t high = ((a & ~p.low_mask) << p.b_shift) | (b & ~p.low_mask);  // h << l
  const std::uint32_t v = (high >> p.low) * k.m0 + k.s0;
  return high | (((o - (v >> 29)) * (v | 1)) & p.low_mask);
}

/// Keys of `tiles` tiles in NB blocks from (tile, block) on: records[tile * NB + block]. NB is 0 for all s blocks.
template <int NB>
__device__ void make_records(const SketchMatrix& m, std::uint64_t seed, std::uint64_t tile, int tiles,
                             std::uint32_t block, Record* records) {
  const unsigned blocks = NB > 0 ? NB : m.geometry.blocks;
  for (unsigned i = threadIdx.x; i < tiles * blocks; i += blockDim.x) {
    const std::uint32_t b = block + i % blocks;
    const std::uint32_t rows = sjlt_block_rows(m.geometry, b);
    const SjltKey k = sjlt_key(seed, m.stream, m.geometry, b, tile + i / blocks);
    records[i] = {k.m0, k.s0, k.m1, k.s1, k.m2, k.s2, k.m3, k.s3, k.m4, k.s4, k.window, rows};
  }
}

/// Sign words of slots f (a multiple of 128) on, `words` a pass: signs[(pass * NB + block) * words + word].
template <int NB>
__device__ void make_signs(const SketchMatrix& m, std::uint64_t seed, std::uint64_t f, int passes, int words,
                           std::uint32_t block, std::uint32_t* signs) {
  const unsigned blocks = NB > 0 ? NB : m.geometry.blocks, calls = words / 4;
  for (unsigned i = threadIdx.x; i < passes * calls * blocks; i += blockDim.x) {
    const unsigned call = i % calls, rest = i / calls, b = rest % blocks, pass = rest / blocks;
    const Words4 w = sjlt_sign_words(seed, m.stream, block + b, (f >> 7) + pass * calls + call);
    *reinterpret_cast<uint4*>(signs + 4 * i) = make_uint4(w.w[0], w.w[1], w.w[2], w.w[3]);
  }
}

/// +-1 from bit `place` of a word.
__device__ __forceinline__ float sign_of(std::uint32_t word, std::uint32_t place) {
  float sign;  // one operation after the shift; the compiler takes two
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=f"(sign) : "r"(word << (31 - place)), "r"(0x80000000u), "r"(0x3F800000u));
  return sign;
}

/// V values of a column as they lie in shared memory.
template <typename T, int V>
struct Packed {
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * V;
  static constexpr int kVector = kBytes < 16 ? kBytes : 16;  // bytes a load
  static constexpr int kPlanes = kBytes / kVector;           // arrays of such vectors, indexed by column
};

__device__ __forceinline__ float raw_float(float x) { return x; }
__device__ __forceinline__ float raw_float(BFloat16 x) { return __uint_as_float(std::uint32_t{x.bits} << 16); }
__device__ __forceinline__ float raw_float(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <int Bytes>
struct Vector;
template <>
struct Vector<2> {
  using type = unsigned short;
};
template <>
struct Vector<4> {
  using type = unsigned;
};
template <>
struct Vector<8> {
  using type = uint2;
};
template <>
struct Vector<16> {
  using type = uint4;
};

/// acc[v] += sign * value v of the column whose first plane's vector is at `column`.
template <typename T, int V>
__device__ __forceinline__ void add_column(const char* column, int plane_bytes, float sign, float* acc) {
  using P = Packed<T, V>;
  using Load = typename Vector<P::kVector>::type;
  constexpr int kEach = V / P::kPlanes;
#pragma unroll
  for (int p = 0; p < P::kPlanes; ++p) {
    union {
      Load load;
      T values[kEach];
    } u;
    u.load = *reinterpret_cast<const Load*>(column + p * plane_bytes);
#pragma unroll
    for (int i = 0; i < kEach; ++i) acc[p * kEach + i] = fmaf(sign, raw_float(u.values[i]), acc[p * kEach + i]);
  }
}

/// Bytes of a plane of `columns` columns and one of zeros, a multiple of 16.
template <typename T, int V>
__host__ __device__ constexpr int plane_size(int columns) {
  return ((columns + 1) * Packed<T, V>::kVector + 15) / 16 * 16;
}

}  // namespace maskless::cuda::sjlt

#endif  // MASKLESS_SRC_SKETCH_SJLT_TILES_CUH_
