// The sjlt on CUDA. A thread block walks through tiles of columns, V vectors side by side in shared memory, and each
// thread gathers the columns that hit its rows into registers: no atomics, one order of sums. Eight neighbouring rows
// read from eight different 16-byte banks (core/sjlt.h), so gathers do not conflict. The keys and signs of many tiles
// are made at a time.
//
// Work is cut into splits of the columns by shape alone, as if for kTargetBlocks thread blocks: the same bytes on every
// GPU. Partial sums go through a workspace and are added up in order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "common/float_types.h"
#include "cuda/launch.h"
#include "maskless/core/sjlt.h"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {
namespace {

// --- Tuning ---------------------------------------------------------------------------------------------------------
constexpr int kThreads = 512;
constexpr std::int64_t kTargetBlocks = 132;  // one a multiprocessor of an H100 or H200
constexpr std::int64_t kSplitPasses = 16;    // passes (or tiles) of a split, at least
constexpr int kKeyBytes = 40 << 10;          // shared memory for keys and signs
constexpr int kTransposeThreads = 512;
constexpr int kTransposeColumns = 8;          // of a thread at a time, where tiles are wide enough
constexpr std::int64_t kUnitColumns = 32768;  // whose keys are made at a time
constexpr int kTransposeBytes = 128 << 10;    // shared memory for y
constexpr int kTransposeKeyBytes = 32 << 10;  // and for keys

/// A tile's permutation in a block, with what depends on the block alone. 48 bytes: three 16-byte loads.
struct alignas(16) Record {
  std::uint32_t m0, s0, m1, s1;
  std::uint32_t m2, s2, m3, s3;
  std::uint32_t m4, s4, window, block_rows;
};

/// Masks and shifts of the permutation.
struct Shape {
  int low, b_shift, a_hash, b_hash;  // l; b_bits; right shifts of the hashes
  std::uint32_t low_mask, a_mask, b_mask, width_mask;

  explicit Shape(const SjltGeometry& g)
      : low(g.low_bits),
        b_shift(g.b_bits),
        a_hash(std::min(31, 32 - g.a_bits - g.low_bits)),
        b_hash(std::min(31, 32 - g.b_bits - g.low_bits)),
        low_mask((1u << g.low_bits) - 1),
        a_mask(((1u << g.a_bits) - 1) << g.low_bits),
        b_mask(((1u << g.b_bits) - 1) << g.low_bits),
        width_mask((1u << g.tile_bits) - 1) {}
};

__device__ __forceinline__ std::uint32_t column_of(const Shape& p, const Record& k, std::uint32_t h, std::uint32_t o0,
                                                   std::uint32_t a0, std::uint32_t b0) {
  const std::uint32_t v = h * k.m0 + k.s0;
  const std::uint32_t o = (o0 * (v | 1) + (v >> 29)) & p.low_mask;
  std::uint32_t a = a0 | o, b = b0 | o;
  b ^= ((a * k.m1 + k.s1) >> p.b_hash) & p.b_mask;
  a ^= ((b * k.m2 + k.s2) >> p.a_hash) & p.a_mask;
  b ^= ((a * k.m3 + k.s3) >> p.b_hash) & p.b_mask;
  a ^= ((b * k.m4 + k.s4) >> p.a_hash) & p.a_mask;
  return ((a & ~p.low_mask) << p.b_shift) | b;
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
  return __uint_as_float((word << (31 - place) & 0x80000000u) | 0x3F800000u);
}

// --- V values of a column as they lie in shared memory
// ----------------------------------------------------------------
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

/// acc[v] += sign * column's value v.
template <typename T, int V>
__device__ __forceinline__ void add_column(const char* tile, std::uint32_t column, int plane_bytes, float sign,
                                           float* acc) {
  using P = Packed<T, V>;
  using Load = typename Vector<P::kVector>::type;
  constexpr int kEach = V / P::kPlanes;
#pragma unroll
  for (int p = 0; p < P::kPlanes; ++p) {
    union {
      Load load;
      T values[kEach];
    } u;
    u.load = *reinterpret_cast<const Load*>(tile + p * plane_bytes + column * P::kVector);
#pragma unroll
    for (int i = 0; i < kEach; ++i) acc[p * kEach + i] = fmaf(sign, raw_float(u.values[i]), acc[p * kEach + i]);
  }
}

/// Bytes of a plane of `columns` columns and one of zeros, a multiple of 16.
template <typename T, int V>
__host__ __device__ constexpr int plane_size(int columns) {
  return ((columns + 1) * Packed<T, V>::kVector + 15) / 16 * 16;
}

struct ProjectPlan {
  std::int64_t passes = 0;      // in all: pieces of pass_tiles tiles, aligned to multiples of their width
  std::int64_t first_pass = 0;  // number of the first one
  std::int64_t splits = 1;
  int block_groups = 1;
  int pad_bits = 0;    // rows of a block, padded to 2^pad_bits
  int slots = 1;       // tiles that are worked on at the same time
  int key_passes = 1;  // passes whose keys are made at a time
};

/// A block: threads x (NB blocks of rows x R rows) of V vectors.
template <typename T, int NB, int R, int V, bool kWindow>
__global__ __launch_bounds__(kThreads, 1) void project_kernel(SketchArgs args, ProjectPlan plan, Shape shape,
                                                              float* partials) {
  extern __shared__ __align__(16) char shared[];
  using P = Packed<T, V>;
  using Store = typename Vector<P::kVector>::type;
  constexpr int kEach = V / P::kPlanes;
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const int pass_columns = plan.slots << g.tile_bits, words = pass_columns / 32;
  const int plane_bytes = plane_size<T, V>(pass_columns), buffer_bytes = plane_bytes * P::kPlanes;
  Record* records = reinterpret_cast<Record*>(shared + 2 * buffer_bytes);
  std::uint32_t* signs = reinterpret_cast<std::uint32_t*>(records + plan.key_passes * plan.slots * NB);

  std::int64_t id = blockIdx.x;
  const int first_block = static_cast<int>(id % plan.block_groups) * NB;
  id /= plan.block_groups;
  const std::int64_t split = id % plan.splits, lane = id / plan.splits * V;
  const std::int64_t begin = plan.passes * split / plan.splits, end = plan.passes * (split + 1) / plan.splits;

  const int per_slot = kThreads / plan.slots;
  const int slot = threadIdx.x / per_slot, thread_row = threadIdx.x % per_slot;
  const std::uint32_t tile_column = slot << g.tile_bits;

  // What this thread fetches: R columns of V vectors, kThreads apart.
  const int vectors = static_cast<int>(min(static_cast<std::int64_t>(V), args.batch - lane));
  const T* x = static_cast<const T*>(args.in) + lane * args.in_strides[0];
  T staged[R][V];
  const auto fetch = [&](std::int64_t pass) {
    const std::int64_t first = (plan.first_pass + pass) * pass_columns - static_cast<std::int64_t>(m.column_offset);
    if (first >= 0 && first + pass_columns <= m.cols && vectors == V && args.in_strides[1] == 1) {
      const T* row = x + first + threadIdx.x;
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int q = 0; q < R; ++q)
          if (q * kThreads + static_cast<int>(threadIdx.x) < pass_columns) staged[q][v] = row[q * kThreads];
        row += args.in_strides[0];
      }
      return;
    }
#pragma unroll
    for (int q = 0; q < R; ++q) {
      const int c = q * kThreads + threadIdx.x;
      const std::int64_t column = first + c;
      const bool inside = c < pass_columns && column >= 0 && column < m.cols;
#pragma unroll
      for (int v = 0; v < V; ++v)
        staged[q][v] = inside && v < vectors ? x[v * args.in_strides[0] + column * args.in_strides[1]] : T{};
    }
  };
  const auto put = [&](char* buffer) {
#pragma unroll
    for (int q = 0; q < R; ++q) {
      const int c = q * kThreads + threadIdx.x;
      if (c >= pass_columns) continue;
#pragma unroll
      for (int p = 0; p < P::kPlanes; ++p) {
        union {
          Store store;
          T values[kEach];
        } u;
#pragma unroll
        for (int i = 0; i < kEach; ++i) u.values[i] = staged[q][p * kEach + i];
        *reinterpret_cast<Store*>(buffer + p * plane_bytes + c * P::kVector) = u.store;
      }
    }
  };
  if (threadIdx.x < 2 * P::kPlanes)  // a column of zeros after the last one, for rows that no column hits
    *reinterpret_cast<Store*>(shared + threadIdx.x * plane_bytes + pass_columns * P::kVector) = Store{};

  float acc[NB][R][V] = {};
  if (begin < end) {
    fetch(begin);
    put(shared);
  }
  int ahead = plan.key_passes;  // passes since the last keys were made
  int buffer = 0;
#pragma unroll 1
  for (std::int64_t pass = begin; pass < end; ++pass) {
    if (ahead == plan.key_passes) {  // everybody is done with the old keys: the last pass ended with a barrier
      ahead = 0;
      const std::uint64_t tile = static_cast<std::uint64_t>(plan.first_pass + pass) * plan.slots;
      const int count = static_cast<int>(min(static_cast<std::int64_t>(plan.key_passes), end - pass));
      make_records<NB>(m, seed, tile, count * plan.slots, first_block, records);
      make_signs<NB>(m, seed, tile << g.tile_bits, count, words, first_block, signs);
      __syncthreads();
    }
    const bool more = pass + 1 < end;
    if (more) fetch(pass + 1);
    const char* tile = shared + buffer * buffer_bytes;
    const Record* record = records + (ahead * plan.slots + slot) * NB;
    const std::uint32_t* sign_words = signs + ahead * words * NB;
#pragma unroll
    for (int b = 0; b < NB; ++b) {
      const Record k = record[b];
#pragma unroll
      for (int i = 0; i < R; ++i) {
        const std::uint32_t row = thread_row + i * per_slot;
        std::uint32_t z = row;
        bool hit = true;
        if (kWindow) {
          z = row >= k.window ? row - k.window : row + k.block_rows - k.window;
          hit = row < k.block_rows && z <= shape.width_mask;
          z = min(z, shape.width_mask);
        }
        const std::uint32_t h = z >> shape.low;
        std::uint32_t column =
            tile_column + column_of(shape, k, h, z & shape.low_mask, h >> shape.b_shift << shape.low, z & shape.b_mask);
        const std::uint32_t f = tile_column + z;
        const float sign = sign_of(sign_words[b * words + (f >> 5)], f & 31);
        if (kWindow) column = hit ? column : pass_columns;
        add_column<T, V>(tile, column, plane_bytes, sign, acc[b][i]);
      }
    }
    ++ahead;
    buffer ^= 1;
    if (more) put(shared + buffer * buffer_bytes);
    __syncthreads();
  }

  // Sums of the slots, in order.
  float* exchange = reinterpret_cast<float*>(shared);
  for (int other = 1; other < plan.slots; ++other) {
    if (slot == other) {
#pragma unroll
      for (int b = 0; b < NB; ++b)
#pragma unroll
        for (int i = 0; i < R; ++i)
#pragma unroll
          for (int v = 0; v < V; ++v) exchange[((b * R + i) * V + v) * per_slot + thread_row] = acc[b][i][v];
    }
    __syncthreads();
    if (slot == 0) {
#pragma unroll
      for (int b = 0; b < NB; ++b)
#pragma unroll
        for (int i = 0; i < R; ++i)
#pragma unroll
          for (int v = 0; v < V; ++v) acc[b][i][v] += exchange[((b * R + i) * V + v) * per_slot + thread_row];
    }
    __syncthreads();
  }
  if (slot != 0) return;
#pragma unroll
  for (int b = 0; b < NB; ++b) {
    const std::uint32_t start = sjlt_block_start(g, first_block + b), rows = sjlt_block_rows(g, first_block + b);
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const std::uint32_t row = thread_row + i * per_slot;
      const std::int64_t r = static_cast<std::int64_t>(start) + row - m.row_offset;
      if (row >= rows || r < 0 || r >= m.rows) continue;
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (v < vectors) {
          if (partials != nullptr) {
            partials[(split * args.batch + lane + v) * m.rows + r] = acc[b][i][v];
          } else {
            store_output(args, lane + v, r, acc[b][i][v]);
          }
        }
    }
  }
}

/// Any shape, one row of S a thread: for what the kernel above is not made for (long blocks of rows, float64).
template <typename T, typename S>
__global__ void project_simple_kernel(SketchArgs args, std::int64_t splits, S* partials) {
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const std::int64_t id = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x;
  const std::int64_t r = id % m.rows, split = id / m.rows % splits, lane = id / m.rows / splits * 4;
  if (lane >= args.batch) return;
  const std::uint32_t row = m.row_offset + static_cast<std::uint32_t>(r);
  std::uint32_t block = 0;
  while (block + 1 < g.blocks && sjlt_block_start(g, block + 1) <= row) ++block;
  const std::uint32_t in_block = row - sjlt_block_start(g, block), block_rows = sjlt_block_rows(g, block);
  const std::int64_t offset = static_cast<std::int64_t>(m.column_offset);
  const std::int64_t first = offset >> g.tile_bits,
                     last = m.cols == 0 ? first : ((offset + m.cols - 1) >> g.tile_bits) + 1;
  const std::int64_t begin = first + (last - first) * split / splits,
                     end = first + (last - first) * (split + 1) / splits;
  const int vectors = static_cast<int>(min(std::int64_t{4}, args.batch - lane));
  const T* x = static_cast<const T*>(args.in) + lane * args.in_strides[0];
  S acc[4] = {};
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const SjltKey key = sjlt_key(seed, m.stream, g, block, static_cast<std::uint64_t>(tile));
    const std::uint32_t slot = sjlt_slot_of_row(key, block_rows, in_block);
    if (slot >> g.tile_bits != 0) continue;
    const std::uint64_t f = (static_cast<std::uint64_t>(tile) << g.tile_bits) + slot;
    const std::int64_t column = (tile << g.tile_bits) + sjlt_column(g, key, slot) - offset;
    if (column < 0 || column >= m.cols) continue;
    const Words4 words = sjlt_sign_words(seed, m.stream, block, f >> 7);
    const S sign = (words.w[(f >> 5) & 3] >> (f & 31) & 1) != 0 ? S(-1) : S(1);
    for (int v = 0; v < vectors; ++v)
      acc[v] += sign * load_sum<S>(x[v * args.in_strides[0] + column * args.in_strides[1]]);
  }
  for (int v = 0; v < vectors; ++v) {
    if (partials != nullptr) {
      partials[(split * args.batch + lane + v) * m.rows + r] = acc[v];
    } else {
      store_output(args, lane + v, r, acc[v]);
    }
  }
}

/// V vectors of y in shared memory (or not, if they do not fit), C columns of one tile a thread: the tile's keys are
/// read once for them, and their accesses to y, which meet in banks by chance, overlap. kBlocks is s, or 0 for any.
template <typename T, int V, bool kShared, int kBlocks, int C, bool kWhole>
__global__ __launch_bounds__(kTransposeThreads) void transpose_kernel(SketchArgs args, Shape shape, std::int64_t groups,
                                                                      std::int64_t units, int unit_tiles) {
  extern __shared__ __align__(16) char shared[];
  using P = Packed<float, V>;
  using Load = typename Vector<P::kVector>::type;
  constexpr int kEach = V / P::kPlanes;
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const std::int64_t lane = blockIdx.x % groups * V;
  const int vectors = static_cast<int>(min(static_cast<std::int64_t>(V), args.batch - lane));
  const T* y = static_cast<const T*>(args.in) + lane * args.in_strides[0];
  const int blocks = kBlocks > 0 ? kBlocks : static_cast<int>(g.blocks);
  const int unit_columns = unit_tiles << g.tile_bits;
  const int words = unit_columns / 32, plane_bytes = static_cast<int>(m.rows) * P::kVector;
  Record* records = reinterpret_cast<Record*>(shared);
  std::uint32_t* signs = reinterpret_cast<std::uint32_t*>(records + unit_tiles * blocks);
  char* rows = reinterpret_cast<char*>(signs + words * blocks);
  if (kShared) {
    for (int r = threadIdx.x; r < m.rows; r += kTransposeThreads)
#pragma unroll
      for (int p = 0; p < P::kPlanes; ++p) {
        union {
          Load load;
          float values[kEach];
        } u;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const int v = p * kEach + i;
          u.values[i] = v < vectors ? raw_float(y[v * args.in_strides[0] + r * args.in_strides[1]]) : 0.f;
        }
        *reinterpret_cast<Load*>(rows + p * plane_bytes + r * P::kVector) = u.load;
      }
  }
  const bool plain = vectors == V && args.out_strides[1] == 1 && !args.accumulate && args.out_dtype == args.in_dtype;
  const float scale = static_cast<float>(m.scale);
  const std::int64_t offset = static_cast<std::int64_t>(m.column_offset), first_unit = offset / unit_columns;
  for (std::int64_t unit = blockIdx.x / groups; unit < units; unit += gridDim.x / groups) {
    const std::int64_t first = (first_unit + unit) * unit_columns;
    const std::uint64_t tile = static_cast<std::uint64_t>(first) >> g.tile_bits;
    __syncthreads();
    make_records<kBlocks>(m, seed, tile, unit_tiles, 0, records);
    make_signs<kBlocks>(m, seed, static_cast<std::uint64_t>(first), 1, words, 0, signs);
    __syncthreads();
    // A warp takes 32 * C columns in a row, lanes side by side.
    for (int c = static_cast<int>(threadIdx.x / 32) * 32 * C + static_cast<int>(threadIdx.x % 32); c < unit_columns;
         c += kTransposeThreads * C) {
      float acc[C][V] = {};
      const Record* record = records + (c >> g.tile_bits) * blocks;
      const std::uint32_t tile_column = c & ~shape.width_mask;
      std::uint32_t start = 0u - m.row_offset;
#pragma unroll(kBlocks > 0 ? kBlocks : 1)
      for (int b = 0; b < blocks; ++b) {
        const Record k = record[b];
#pragma unroll
        for (int i = 0; i < C; ++i) {
          const std::uint32_t z = slot_of(shape, k, (c + 32 * i) & shape.width_mask);
          const std::uint32_t f = tile_column + z;
          std::uint32_t row = start + z;
          if (!kWhole) {
            row += z + k.window >= k.block_rows ? k.window - k.block_rows : k.window;
            if (row >= static_cast<std::uint64_t>(m.rows)) continue;
          }
          const float sign = sign_of(signs[b * words + (f >> 5)], f & 31);
          if (kShared) {
            add_column<float, V>(rows, row, plane_bytes, sign, acc[i]);
          } else {
#pragma unroll
            for (int v = 0; v < V; ++v)
              if (v < vectors)
                acc[i][v] = fmaf(sign, raw_float(y[v * args.in_strides[0] + row * args.in_strides[1]]), acc[i][v]);
          }
        }
        start += kWhole ? shape.width_mask + 1 : k.block_rows;
      }
      const std::int64_t column = first + c - offset;
      if (plain && column >= 0 && column + 32 * (C - 1) < m.cols) {
        T* to = static_cast<T*>(args.out) + lane * args.out_strides[0] + column;
#pragma unroll
        for (int v = 0; v < V; ++v, to += args.out_strides[0])
#pragma unroll
          for (int i = 0; i < C; ++i) to[32 * i] = from_float<T>(acc[i][v] * scale);
        continue;
      }
#pragma unroll
      for (int i = 0; i < C; ++i)
#pragma unroll
        for (int v = 0; v < V; ++v)
          if (v < vectors && column + 32 * i >= 0 && column + 32 * i < m.cols)
            store_output(args, lane + v, column + 32 * i, acc[i][v]);
    }
  }
}

template <typename T, typename S>
__global__ void transpose_simple_kernel(SketchArgs args) {
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t column = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; column < m.cols; column += step) {
    for (std::int64_t lane = 0; lane < args.batch; lane += 4) {
      const int vectors = static_cast<int>(min(std::int64_t{4}, args.batch - lane));
      const T* y = static_cast<const T*>(args.in) + lane * args.in_strides[0];
      S acc[4] = {};
      for (std::uint32_t block = 0; block < m.geometry.blocks; ++block) {
        const SjltEntry entry =
            sjlt_entry(seed, m.stream, m.geometry, block, m.column_offset + static_cast<std::uint64_t>(column));
        const std::int64_t row = static_cast<std::int64_t>(entry.row) - m.row_offset;
        if (row < 0 || row >= m.rows) continue;
        for (int v = 0; v < vectors; ++v)
          acc[v] += (entry.minus ? S(-1) : S(1)) * load_sum<S>(y[v * args.in_strides[0] + row * args.in_strides[1]]);
      }
      for (int v = 0; v < vectors; ++v) store_output(args, lane + v, column, acc[v]);
    }
  }
}

// --- Launching ------------------------------------------------------------------------------------------------------
int log2_ceil(std::uint32_t n) {
  int bits = 0;
  while ((1ull << bits) < n) ++bits;
  return bits;
}

/// Without a window, rows are slots; fewer than two of them would not fill a thread.
bool has_window(const SjltGeometry& g) {
  return g.longer != 0 || g.block_rows != 1u << g.tile_bits || g.tile_bits == 0;
}

template <typename T, int NB, int R, int V, bool kWindow>
void launch_project(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  ProjectPlan plan;
  plan.pad_bits = std::max(log2_ceil(sjlt_block_rows(g, 0)), log2_ceil(R));
  plan.slots = kThreads * R >> plan.pad_bits;
  plan.block_groups = static_cast<int>(g.blocks) / NB;
  const std::int64_t pass_columns = std::int64_t{plan.slots} << g.tile_bits;
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  plan.first_pass = offset / pass_columns;
  plan.passes = m.cols == 0 ? 0 : (offset + m.cols - 1) / pass_columns + 1 - plan.first_pass;
  const Splits splits(args, std::min(kTargetBlocks / plan.block_groups, plan.passes / kSplitPasses), 4);
  plan.splits = splits.count;
  const int pass_key_bytes = NB * (plan.slots * static_cast<int>(sizeof(Record)) + static_cast<int>(pass_columns) / 8);
  plan.key_passes = std::max(1, std::min(32, kKeyBytes / pass_key_bytes));
  const int exchange = plan.slots > 1 ? kThreads / plan.slots * NB * R * V * 4 : 0;
  const int buffers = 2 * plane_size<T, V>(static_cast<int>(pass_columns)) * Packed<T, V>::kPlanes;
  const int bytes = std::max(exchange, buffers + plan.key_passes * pass_key_bytes);
  const auto kernel = project_kernel<T, NB, R, V, kWindow>;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  Workspace<float> partials(op, plan.splits > 1 ? plan.splits * std::min(splits.vectors, args.batch) * m.rows : 0,
                            stream);
  for (std::int64_t vector = 0; vector < args.batch; vector += splits.vectors) {
    const SketchArgs some = some_vectors(args, vector, splits.vectors);
    const std::int64_t grid = ceil_div(some.batch, V) * plan.splits * plan.block_groups;
    kernel<<<static_cast<unsigned>(grid), kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(some, plan, Shape(g),
                                                                                                partials.data());
    check(op, cudaGetLastError());
    if (plan.splits > 1) add_partials(op, some, plan.splits, partials.data(), stream);
  }
}

template <typename T, typename S>
void launch_simple(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const std::int64_t tiles = (m.cols >> m.geometry.tile_bits) + 1;
  const Splits splits(args, std::min(kTargetBlocks * 1024 / m.rows, tiles / kSplitPasses), sizeof(S));
  Workspace<S> partials(op, splits.count > 1 ? splits.count * std::min(splits.vectors, args.batch) * m.rows : 0,
                        stream);
  for (std::int64_t vector = 0; vector < args.batch; vector += splits.vectors) {
    const SketchArgs some = some_vectors(args, vector, splits.vectors);
    const std::int64_t blocks = ceil_div(ceil_div(some.batch, 4) * splits.count * m.rows, 128);
    launch(op, project_simple_kernel<T, S>, static_cast<unsigned>(blocks), 128, stream, some, splits.count,
           partials.data());
    if (splits.count > 1) add_partials(op, some, splits.count, partials.data(), stream);
  }
}

template <typename T, bool kWindow>
void launch_short_blocks(const char* op, const SketchArgs& args, void* stream) {
  const std::uint32_t s = args.matrix.geometry.blocks;
  if (s % 4 == 0) {
    if (args.batch >= 5) return launch_project<T, 4, 2, 8, kWindow>(op, args, stream);
    if (args.batch >= 2) return launch_project<T, 4, 2, 4, kWindow>(op, args, stream);
    return launch_project<T, 4, 2, 1, kWindow>(op, args, stream);
  }
  if (s % 2 == 0) {
    args.batch >= 2 ? launch_project<T, 2, 2, 8, kWindow>(op, args, stream)
                    : launch_project<T, 2, 2, 1, kWindow>(op, args, stream);
    return;
  }
  args.batch >= 2 ? launch_project<T, 1, 2, 8, kWindow>(op, args, stream)
                  : launch_project<T, 1, 2, 1, kWindow>(op, args, stream);
}

template <typename T>
void choose_project(const char* op, const SketchArgs& args, void* stream) {
  const SjltGeometry& g = args.matrix.geometry;
  const int pad_bits = log2_ceil(sjlt_block_rows(g, 0));
  const bool window = has_window(g);
  if (pad_bits <= 10) {
    window ? launch_short_blocks<T, true>(op, args, stream) : launch_short_blocks<T, false>(op, args, stream);
  } else if (pad_bits <= 12) {
    args.batch >= 2 ? launch_project<T, 1, 8, 4, true>(op, args, stream)
                    : launch_project<T, 1, 8, 1, true>(op, args, stream);
  } else if (pad_bits <= 14) {
    launch_project<T, 1, 32, 1, true>(op, args, stream);
  } else {
    launch_simple<T, float>(op, args, stream);
  }
}

template <typename T, int V, bool kShared, int kBlocks, int C, bool kWhole>
void launch_transpose_blocks(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const int blocks = static_cast<int>(g.blocks);
  const std::int64_t groups = (args.batch + V - 1) / V;
  // A unit is a multiple of 128 columns: kUnitColumns where there are enough, fewer where tiles are small.
  const std::int64_t wanted = std::min(kUnitColumns, std::max<std::int64_t>(1024, m.cols / (2 * kTargetBlocks)));
  int unit_tiles = 1;
  while ((std::int64_t{unit_tiles} << g.tile_bits) < wanted) unit_tiles *= 2;
  const auto key_bytes = [&] {
    return blocks * (unit_tiles * static_cast<int>(sizeof(Record)) + (unit_tiles << g.tile_bits) / 8);
  };
  while (unit_tiles << g.tile_bits > 128 && unit_tiles > 1 && key_bytes() > kTransposeKeyBytes) unit_tiles /= 2;
  const std::int64_t unit_columns = std::int64_t{unit_tiles} << g.tile_bits;
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  const std::int64_t units = (offset + m.cols - 1) / unit_columns + 1 - offset / unit_columns;
  const int bytes = key_bytes() + (kShared ? static_cast<int>(m.rows) * V * 4 : 0);
  const auto kernel = transpose_kernel<T, V, kShared, kBlocks, C, kWhole>;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t resident = kTargetBlocks * std::max(1, std::min(2, (220 << 10) / std::max(1, bytes)));
  const std::int64_t each = std::max<std::int64_t>(1, std::min(units, resident / groups));
  kernel<<<static_cast<unsigned>(each * groups), kTransposeThreads, bytes, static_cast<cudaStream_t>(stream)>>>(
      args, Shape(g), groups, units, unit_tiles);
  check(op, cudaGetLastError());
}

template <typename T, int V, bool kShared>
void launch_transpose(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const std::int64_t width = std::int64_t{1} << m.geometry.tile_bits;
  if constexpr (kShared) {
    constexpr int C = kTransposeColumns;
    if (!has_window(m.geometry) && m.row_offset == 0 && m.rows == m.geometry.rows && width >= 32 * C) {
      if (m.geometry.blocks == 4) return launch_transpose_blocks<T, V, true, 4, C, true>(op, args, stream);
      if (m.geometry.blocks == 1) return launch_transpose_blocks<T, V, true, 1, C, true>(op, args, stream);
    }
    if (width >= 128) return launch_transpose_blocks<T, V, true, 0, 4, false>(op, args, stream);
  }
  launch_transpose_blocks<T, V, kShared, 0, 1, false>(op, args, stream);
}

template <typename T>
void choose_transpose(const char* op, const SketchArgs& args, void* stream) {
  const SjltGeometry& g = args.matrix.geometry;
  if (g.tile_bits > 14) {  // keys and signs of a tile would not fit
    transpose_simple_kernel<T, float><<<kTargetBlocks * 8, 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
    check(op, cudaGetLastError());
    return;
  }
  const auto fits = [&](int v) { return args.matrix.rows * v * 4 <= kTransposeBytes; };
  if (args.batch >= 5 && fits(8)) return launch_transpose<T, 8, true>(op, args, stream);
  if (args.batch >= 2 && fits(4)) return launch_transpose<T, 4, true>(op, args, stream);
  if (fits(1)) return launch_transpose<T, 1, true>(op, args, stream);
  launch_transpose<T, 4, false>(op, args, stream);
}

}  // namespace

void sjlt_project(const SketchArgs& args, void* stream) {
  const char* op = "project";
  switch (args.in_dtype) {
    case DType::kFloat16: return choose_project<Float16>(op, args, stream);
    case DType::kBFloat16: return choose_project<BFloat16>(op, args, stream);
    case DType::kFloat32: return choose_project<float>(op, args, stream);
    default: return launch_simple<double, double>(op, args, stream);
  }
}

void sjlt_transpose(const SketchArgs& args, void* stream) {
  const char* op = "project_transpose";
  switch (args.in_dtype) {
    case DType::kFloat16: return choose_transpose<Float16>(op, args, stream);
    case DType::kBFloat16: return choose_transpose<BFloat16>(op, args, stream);
    case DType::kFloat32: return choose_transpose<float>(op, args, stream);
    default:
      transpose_simple_kernel<double, double><<<kTargetBlocks * 8, 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
      check(op, cudaGetLastError());
  }
}

}  // namespace maskless::cuda
