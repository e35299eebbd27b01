// iid signs on CUDA. Dense signs of 16- and 32-bit inputs run on tensor cores (signs_dense.cuh); all else (density
// below 1, float64, transposes) takes plain kernels.
#include <algorithm>
#include <cstdint>

#include "common/float_types.h"
#include "cuda/launch.h"
#include "maskless/core/threshold.h"
#include "maskless/core/uniform.h"
#include "sketch/signs_dense.cuh"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {
namespace {

// --- Tuning ---------------------------------------------------------------------------------------------------------
constexpr std::int64_t kTargetBlocks = 8 * 264;  // of plain kernels
constexpr int kPlain = 128;                      // threads of plain kernels
constexpr std::int64_t kPlainBlocks = 16;        // blocks of 128 columns a split, at least
// Of dense signs:
constexpr int kDenseWarps = 16;                 // of a thread block, where shared memory suffices; else half of them
constexpr int kDenseTiles = 4;                  // of 64 rows of S, a warpgroup, where there are enough rows
constexpr std::int64_t kDenseBlocks = 132;      // one a multiprocessor of an H100 or H200
constexpr std::int64_t kSlabRows = 1 << 16;     // rows of S at a time
constexpr std::int64_t kDenseBytes = 31 << 20;  // workspace, at most (the pool takes pieces of 32 MiB)
constexpr std::int64_t kPlaneBytes = 11 << 20;  // of it for the planes of a chunk; two are there at a time

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
/// Vectors of one chunk of the columns after the other. All chunks of a split are added to its partial sums in order.
template <typename T, int N, int kWarps, int kTiles>
void launch_dense_rows(const char* op, const SketchArgs& args, Device device, void* stream) {
  constexpr int P = kPlanes<T>, kShared = kDenseShared<P, N, kWarps, kTiles>;
  constexpr auto kernel = dense_kernel<P, N, kWarps, kTiles>;
  const SketchMatrix& m = args.matrix;
  const auto offset = static_cast<std::int64_t>(m.column_offset), first = offset / kStage;
  const std::int64_t stages = m.cols == 0 ? 0 : (offset + m.cols - 1) / kStage + 1 - first;
  DenseChunk chunk;
  chunk.row_groups = static_cast<int>(ceil_div(m.rows, kWarps * 16 * kTiles));
  // Splits depend on rows and columns alone, and a split's stages are added in order whatever the chunks: a vector's
  // sums are the same bits in any batch.
  const std::int64_t wanted = kDenseBlocks / ceil_div(m.rows, kDenseWarps * 16 * kTiles);
  chunk.splits = static_cast<int>(std::max<std::int64_t>(1, std::min(stages, wanted)));
  const std::int64_t most =
      std::max<std::int64_t>(1, std::min(stages, kPlaneBytes / kStageBytes<P, N> / chunk.splits * chunk.splits));
  const bool direct = chunk.splits == 1 && most >= stages;
  const std::int64_t planes = most * kStageBytes<P, N>,  // of 8 * N vectors, in bytes
      sums = direct ? 0 : chunk.splits * 8 * N * m.rows * static_cast<int>(sizeof(float));
  const std::int64_t groups = std::max<std::int64_t>(1, kDenseBytes / (2 * planes + sums));
  const std::int64_t together = std::min(groups, ceil_div(args.batch, 8 * N));
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  Workspace<char> workspace(op, together * (2 * planes + sums), stream);  // planes of two chunks, then sums
  float* partials = direct ? nullptr : reinterpret_cast<float*>(workspace.data() + together * 2 * planes);
  for (std::int64_t vector = 0; vector < args.batch; vector += groups * 8 * N) {
    const SketchArgs some = some_vectors(args, vector, groups * 8 * N);
    const std::int64_t these = ceil_div(some.batch, 8 * N);
    const auto records = [&](std::int64_t stage) { return workspace.data() + stage / most % 2 * together * planes; };
    const auto make_planes = [&](std::int64_t stage) {
      const std::int64_t count = std::min(most, stages - stage);
      if (count <= 0) return;
      const auto blocks = static_cast<unsigned>(these * N * count * 8 / kPlaneWarps);
      if (stage == 0) {
        launch(op, planes_kernel<T, N>, blocks, kPlaneWarps * 32, stream, some, first, count, records(0));
      } else {
        launch_early<planes_kernel<T, N>>(op, device, blocks, kPlaneWarps * 32, stream, some, first + stage, count,
                                          records(stage));
      }
    };
    make_planes(0);
    for (std::int64_t stage = 0; stage == 0 || stage < stages; stage += most) {
      chunk.first = first + stage;
      chunk.stages = std::min(most, stages - stage);
      chunk.begins = stage == 0;
      const auto blocks = static_cast<unsigned>(chunk.row_groups * chunk.splits * these);
      launch_early_shared<kernel>(op, device, blocks, kWarps * 32, kShared, stream, some, chunk,
                                  static_cast<const char*>(records(stage)), partials);
      make_planes(stage + most);  // while the products run
    }
    if (!direct) add_partials(op, some, chunk.splits, partials, stream);
  }
}

/// Rows of one slab after the other. The order of sums depends on rows and columns alone.
template <typename T, int N, int kWarps>
void launch_dense(const char* op, const SketchArgs& args, Device device, void* stream) {
  for (std::int64_t row = 0; row < args.matrix.rows; row += kSlabRows) {
    SketchArgs some = args;
    some.matrix.row_offset += static_cast<std::uint32_t>(row);
    some.matrix.rows = std::min(kSlabRows, args.matrix.rows - row);
    some.out = static_cast<char*>(args.out) +
               row * args.out_strides[1] * static_cast<std::int64_t>(dtype_size(args.out_dtype));
    some.matrix.rows > 3 * kDenseWarps * 16 ? launch_dense_rows<T, N, kWarps, kDenseTiles>(op, some, device, stream)
                                            : launch_dense_rows<T, N, kWarps, 1>(op, some, device, stream);
  }
}

template <typename T, typename S, int V>
void launch_plain(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const int row_groups = static_cast<int>(ceil_div(m.rows, kPlain));
  const Splits splits(args, std::min(kTargetBlocks / row_groups, m.cols / 128 / kPlainBlocks), sizeof(S));
  const std::int64_t together = std::min(splits.vectors, args.batch);
  Workspace<S> partials(op, splits.count > 1 ? splits.count * together * m.rows : 0, stream);
  for (std::int64_t vector = 0; vector < args.batch; vector += splits.vectors) {
    const SketchArgs some = some_vectors(args, vector, splits.vectors);
    launch(op, project_plain_kernel<T, S, V>,
           static_cast<unsigned>(row_groups * ceil_div(some.batch, V) * splits.count), kPlain, stream, some,
           splits.count, row_groups, partials.data());
    if (splits.count > 1) add_partials(op, some, splits.count, partials.data(), stream);
  }
}

template <typename T>
void choose_project(const char* op, const SketchArgs& args, void* stream) {
  if (args.matrix.threshold >> 32 == 0) return launch_plain<T, float, 8>(op, args, stream);
  Device device{DeviceType::kCuda, 0};
  int shared = 0;
  check(op, cudaGetDevice(&device.index));
  check(op, cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index));
  if (shared < kDenseShared<kPlanes<T>, 2, kDenseWarps, kDenseTiles>)
    return launch_dense<T, 1, kDenseWarps / 2>(op, args, device, stream);
  args.batch <= 8 ? launch_dense<T, 1, kDenseWarps>(op, args, device, stream)
                  : launch_dense<T, 2, kDenseWarps>(op, args, device, stream);
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
