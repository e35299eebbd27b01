// Transposes of the sjlt on CUDA. Where blocks of rows are short, threads own rows and add them to the columns that
// they hit, in shared memory; else they own columns and look for their rows.
#ifndef MASKLESS_SRC_SKETCH_SJLT_TRANSPOSE_CUH_
#define MASKLESS_SRC_SKETCH_SJLT_TRANSPOSE_CUH_

#include <cstdint>

#include "common/float_types.h"
#include "maskless/core/sjlt.h"
#include "sketch/sjlt_tiles.cuh"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda::sjlt {

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
            add_column<float, V>(rows + row * P::kVector, plane_bytes, sign, acc[i]);
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

/// The transpose for blocks of 2^n rows, n = 6 ... 10, all of them there: project_kernel backwards. A thread keeps two
/// rows of each block for V vectors in registers and adds them to the columns that they hit, which lie in shared
/// memory: again eight neighbouring rows meet eight different 16-byte banks, where columns that look for their rows
/// meet by chance (kernel above). Blocks of rows take turns, so that each column has one order of sums, that of all
/// kernels. kOne: both rows of a thread are in one tile.
template <typename T, int V, int NB, bool kOne>
__global__ __launch_bounds__(kThreads, 1) void transpose_rows_kernel(SketchArgs args, Shape shape, std::int64_t groups,
                                                                     std::int64_t units) {
  extern __shared__ __align__(16) char shared[];
  using P = Packed<float, V>;
  using Load = typename Vector<P::kVector>::type;
  constexpr int kEach = V / P::kPlanes, kPass = 2 * kThreads, kUnit = kRowsPasses * kPass, kWarps = kThreads / 32;
  constexpr int kPlaneBytes = kUnit * P::kVector, kCalls = kUnit / 128;
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const std::uint64_t seed = m.seed_pointer != nullptr ? *m.seed_pointer : m.seed;
  const int tiles = kUnit >> g.tile_bits;
  uint4* keys = reinterpret_cast<uint4*>(shared + P::kPlanes * kPlaneBytes);  // [unit][tile][block]
  // [unit][block][warp][pass][row of the thread]
  std::uint32_t* signs = reinterpret_cast<std::uint32_t*>(keys + kRowsUnits * tiles * NB);

  const std::int64_t each = gridDim.x / groups, id = blockIdx.x / groups, lane = blockIdx.x % groups * V;
  const int vectors = static_cast<int>(min(static_cast<std::int64_t>(V), args.batch - lane));
  const T* in = static_cast<const T*>(args.in) + lane * args.in_strides[0];
  float y[NB][2][V];
  std::uint32_t row[2];
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    row[q] = (q * kThreads + threadIdx.x) & shape.width_mask;
#pragma unroll
    for (int b = 0; b < NB; ++b)
#pragma unroll
      for (int v = 0; v < V; ++v)
        y[b][q][v] =
            v < vectors
                ? raw_float(in[v * args.in_strides[0] + (b * (shape.width_mask + 1) + row[q]) * args.in_strides[1]])
                : 0.f;
  }

  const bool plain = vectors == V && args.out_strides[1] == 1 && !args.accumulate && args.out_dtype == args.in_dtype;
  const float scale = static_cast<float>(m.scale);
  const std::int64_t offset = static_cast<std::int64_t>(m.column_offset), first_unit = offset / kUnit;
  const std::int64_t begin = units * id / each, end = units * (id + 1) / each;
#pragma unroll 1
  for (std::int64_t unit = begin; unit < end; ++unit) {
    const int ahead = static_cast<int>((unit - begin) % kRowsUnits);
    const std::int64_t first = (first_unit + unit) * kUnit;
    if (ahead == 0) {  // everybody is done with the old keys: the last unit ended with a barrier
      const std::uint64_t tile = static_cast<std::uint64_t>(first) >> g.tile_bits;
      for (int i = threadIdx.x; i < kRowsUnits * tiles * NB; i += kThreads) {
        const SjltKey k = sjlt_key(seed, m.stream, g, i % NB, tile + i / NB);
        keys[i] = make_uint4(k.s0, k.s1, k.s2, k.s3);  // the words that all of it is made of
      }
      for (int i = threadIdx.x; i < kRowsUnits * NB * kCalls; i += kThreads) {
        const int call = i % kCalls, b = i / kCalls % NB, u = i / kCalls / NB;
        const Words4 w = sjlt_sign_words(seed, m.stream, b, (first >> 7) + u * kCalls + call);
        const int half = call * 4 / kWarps;  // pass * 2 + row of the thread
#pragma unroll
        for (int word = 0; word < 4; ++word)
          signs[((u * NB + b) * kWarps + call * 4 % kWarps + word) * 2 * kRowsPasses + half] = w.w[word];
      }
      __syncthreads();
    }
    const uint4* unit_keys = keys + ahead * tiles * NB;
#pragma unroll
    for (int b = 0; b < NB; ++b) {
      std::uint32_t sign_words[2 * kRowsPasses];
#pragma unroll
      for (int i = 0; i < 2 * kRowsPasses; i += 4)
        *reinterpret_cast<uint4*>(sign_words + i) = *reinterpret_cast<const uint4*>(
            signs + ((ahead * NB + b) * kWarps + threadIdx.x / 32) * 2 * kRowsPasses + i);
#pragma unroll
      for (int pass = 0; pass < kRowsPasses; ++pass) {
        Record k;
#pragma unroll
        for (int q = 0; q < 2; ++q) {
          const std::uint32_t place = pass * kPass + q * kThreads + threadIdx.x;
          if (!kOne || q == 0) {
            const uint4 w = unit_keys[(kOne ? static_cast<std::uint32_t>(pass) : place >> g.tile_bits) * NB + b];
            const SjltKey key = sjlt_key_of(Words4{{w.x, w.y, w.z, w.w}}, 1, 0);
            k = {key.m0, key.s0, key.m1, key.s1, key.m2, key.s2, key.m3, key.s3, key.m4, key.s4, 0, 0};
          }
          const std::uint32_t h = row[q] >> shape.low;
          const std::uint32_t column = column_of<P::kVector>(shape, k, h, row[q] & shape.low_mask,
                                                             h >> shape.b_shift << shape.low, row[q] & shape.b_mask) +
                                       (kOne ? pass * kPass : place & ~shape.width_mask) * P::kVector;
          const float sign = sign_of(sign_words[pass * 2 + q], threadIdx.x % 32);
#pragma unroll
          for (int p = 0; p < P::kPlanes; ++p) {
            auto* at = reinterpret_cast<Load*>(shared + p * kPlaneBytes + column);
            union {
              Load load;
              float values[kEach];
            } u;
            if (b > 0) u.load = *at;
#pragma unroll
            for (int i = 0; i < kEach; ++i) u.values[i] = fmaf(sign, y[b][q][p * kEach + i], b > 0 ? u.values[i] : 0.f);
            *at = u.load;
          }
        }
      }
      __syncthreads();
    }
    const auto columns = [&](int c, auto store) {
      float acc[V] = {};
      add_column<float, V>(shared + c * P::kVector, kPlaneBytes, 1.f, acc);
#pragma unroll
      for (int v = 0; v < V; ++v) store(v, acc[v]);
    };
    if (plain && first >= offset && first + kUnit <= offset + m.cols) {
      T* to = static_cast<T*>(args.out) + lane * args.out_strides[0] + (first - offset) + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kUnit; i += kThreads)
        columns(i + threadIdx.x,
                [&](int v, float sum) { to[v * args.out_strides[0] + i] = from_float<T>(sum * scale); });
    } else {
#pragma unroll 1
      for (int c = threadIdx.x; c < kUnit; c += kThreads)
        columns(c, [&](int v, float sum) {
          const std::int64_t column = first + c - offset;
          if (v < vectors && column >= 0 && column < m.cols) store_output(args, lane + v, column, sum);
        });
    }
    __syncthreads();
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

}  // namespace maskless::cuda::sjlt

#endif  // MASKLESS_SRC_SKETCH_SJLT_TRANSPOSE_CUH_
