// Projections with the sjlt on CUDA. A thread block walks through tiles of columns, V vectors side by side in shared
// memory, and each thread gathers the columns that hit its rows into registers: no atomics, one order of sums. Eight
// neighbouring rows read from eight different 16-byte banks (core/sjlt.h), so gathers do not conflict. The keys and
// signs of many tiles are made at a time.
#ifndef MASKLESS_SRC_SKETCH_SJLT_PROJECT_CUH_
#define MASKLESS_SRC_SKETCH_SJLT_PROJECT_CUH_

#include <cstdint>

#include "maskless/core/sjlt.h"
#include "sketch/sjlt_tiles.cuh"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda::sjlt {

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
            tile_column * P::kVector +
            column_of<P::kVector>(shape, k, h, z & shape.low_mask, h >> shape.b_shift << shape.low, z & shape.b_mask);
        const std::uint32_t f = tile_column + z;
        const float sign = sign_of(sign_words[b * words + (f >> 5)], f & 31);
        if (kWindow) column = hit ? column : pass_columns * P::kVector;
        add_column<T, V>(tile + column, plane_bytes, sign, acc[b][i]);
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

}  // namespace maskless::cuda::sjlt

#endif  // MASKLESS_SRC_SKETCH_SJLT_PROJECT_CUH_
