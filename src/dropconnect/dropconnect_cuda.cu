// Launches of DropConnect's kernels. A product whose output has too few tiles for the GPU is split along its sum; the
// parts go to a bounded workspace and are added in a fixed order, so that runs repeat bit for bit.
#include <algorithm>
#include <atomic>

#include "common/visit.h"
#include "cuda/launch.h"
#include "dropconnect/dropconnect_backward.cuh"
#include "dropconnect/dropconnect_forward.cuh"
#include "dropconnect/dropconnect_kernels.h"
#include "dropconnect/dropconnect_launch.cuh"
#include "dropconnect/dropconnect_small.cuh"
#include "dropconnect/dropconnect_tensor.cuh"

namespace maskless::cuda {
namespace {

// --- Tuning ---------------------------------------------------------------------------------------------------------
using WideTile = ForwardTile<4, 4, 2, 4, 2>;    // 64 rows x 64 outputs, 256 threads
using MiddleTile = ForwardTile<2, 2, 2, 2, 8>;  // 32 x 16, 128 threads: layers with few wide tiles
using TinyTile = ForwardTile<1, 1, 1, 1, 16>;   // 8 x 4, 32 threads: one output a thread, the shortest way through
using ThinTile = ForwardTile<1, 4, 1, 8, 2>;    // 8 x 128, 256 threads: few rows of a large layer
using TensorTile = MmaTile<2, 4, 2, ForwardTile<1, 4, 4, 2, 3>>;            // 32 x 32, 256 threads: bfloat16
using TensorGradient = GradientMmaTile<4, 2, 2, GradientTile<2, 4, 2, 2>>;  // 32 a x 128 inputs, 256 threads
constexpr double kTensorProducts = 1 << 25;  // from so many on, tensor cores for bfloat16
constexpr int kTensorPlanes = 2;             // of forward: drawing more, multiply-adds catch up
constexpr std::int64_t kTensorRows = 48;     // and from so many rows and outputs on: weights are packed for them
constexpr std::int64_t kThinRows = 24;       // up to so many rows, the thin tile
constexpr std::int64_t kWideTiles = 200;     // from so many on, the wide tile
constexpr double kTinyProducts = 3 << 22;    // up to so many, the tiny tiles
constexpr std::int64_t kTinyTiles = 32;      // of gradients, if they are at most so many wide tiles
constexpr std::int64_t kSmallBlocks = 1 << 20;
constexpr double kSmallProducts = 1 << 21;      // up to so many, kernels without tiles
using WideGradient = GradientTile<4, 4, 1, 4>;  // 64 a x 128 inputs, 128 threads
using HalfGradient = GradientTile<4, 2, 2, 4>;  // 32 a x 128 inputs, likewise
using ThinGradient = GradientTile<4, 1, 4, 4>;  // 16 a x 128 inputs, 128 threads that share out b: few rows
using SlimGradient = GradientTile<2, 1, 4, 6>;  // 8 a x 128 inputs, likewise
using TinyGradient = GradientTile<1, 1, 4, 8>;  // 4 a x 128 inputs, likewise: small layers

template <typename T, typename Tile>
void launch_forward(const char* op, const DropconnectArgs& args, int device, cudaStream_t stream) {
  const DropconnectShape& shape = args.shape;
  const std::int64_t rows = shape.passes * shape.rows, shift = args.mask.first_input % kBlockInputs;
  const std::int64_t tiles = ((rows + Tile::kM - 1) / Tile::kM) * ((shape.outputs + Tile::kN - 1) / Tile::kN);
  const std::int64_t blocks = shape.inputs == 0 ? 0 : (shift + shape.inputs + kBlockInputs - 1) / kBlockInputs;
  const std::int64_t size = rows * shape.outputs, bytes = size * static_cast<std::int64_t>(sizeof(SumOf<T>));
  const std::int64_t slots =
      static_cast<std::int64_t>(multiprocessors(op, device)) * (sizeof(T) == 8 ? 1 : Tile::kBlocksPerSm);
  Split split;
  split.count = static_cast<int>(parts(tiles, blocks, slots, bytes));
  split.per_split = static_cast<int>((blocks + split.count - 1) / split.count);
  Workspace workspace(op, device, split.count > 1 ? static_cast<std::size_t>(split.count * bytes) : 0, stream);
  split.partial = workspace.data();

  static std::atomic<std::uint64_t> done{0};
  constexpr std::size_t kShared = sizeof(ForwardShared<SumOf<T>, Tile>);
  allow_shared(op, forward_kernel<T, Tile>, device, kShared, done);
  const bool wide_x = wide_rows<T>(args.x.data, args.x.row, args.x.col, shift);
  const bool wide_w = wide_rows<T>(args.w.data, args.w.row, args.w.col, shift);
  forward_kernel<T, Tile>
      <<<dim3(grid_size(op, tiles), static_cast<unsigned>(split.count)), Tile::kThreads, kShared, stream>>>(
          args, wide_x, wide_w, split);
  check(op, cudaGetLastError());
  if (split.count > 1) add_forward_parts<T>(op, args, split, stream);
}

template <typename T, typename Tile>
void launch_gradient(const char* op, const GradientArgs& args, int device, cudaStream_t stream) {
  const std::int64_t shift = args.mask.first_input % kBlockInputs;
  const std::int64_t blocks = (shift + args.inputs + kBlockInputs - 1) / kBlockInputs;
  const std::int64_t tiles = (args.size_a + Tile::kA - 1) / Tile::kA * blocks;
  const std::int64_t chunks = (args.size_b + kChunkB - 1) / kChunkB * args.passes;
  const std::int64_t size = args.size_a * args.inputs, bytes = size * static_cast<std::int64_t>(sizeof(SumOf<T>));
  const std::int64_t slots = static_cast<std::int64_t>(multiprocessors(op, device)) * Tile::kBlocksPerSm;
  const std::int64_t count = parts(tiles, chunks, slots, bytes);
  const std::int64_t per_split = std::max<std::int64_t>((chunks + count - 1) / count, 1);
  const Workspace workspace(op, device, count > 1 ? static_cast<std::size_t>(count * bytes) : 0, stream);

  static std::atomic<std::uint64_t> done{0};
  constexpr std::size_t kShared = sizeof(BackwardShared<SumOf<T>, Tile>);
  allow_shared(op, gradient_kernel<T, Tile>, device, kShared, done);
  const bool wide = wide_rows<T>(args.v.data, args.v.row, args.v.col, shift) &&
                    wide_rows<T>(args.v.data, args.v_pass, args.v.col, shift);
  gradient_kernel<T, Tile>
      <<<dim3(grid_size(op, tiles), static_cast<unsigned>(count)), Tile::kThreads, kShared, stream>>>(
          args, wide, wide_gradient<T>(args, shift, count > 1), workspace.data(), per_split);
  check(op, cudaGetLastError());
  if (count > 1) add_gradient_parts<T>(op, args, workspace.data(), count, stream);
}

template <typename T>
void gradient(const char* op, const GradientArgs& args, int device, cudaStream_t stream) {
  if (args.size_a == 0 || args.inputs == 0) return;
  const double products = static_cast<double>(args.size_a) * static_cast<double>(args.size_b * args.passes) *
                          static_cast<double>(args.inputs);
  const std::int64_t tiles = (args.mask.first_input % kBlockInputs + args.inputs + 31) / 32;
  const std::int64_t wide_tiles = ceil_div(args.size_a, WideGradient::kA) * ceil_div(tiles, 4);
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (products >= kTensorProducts && planes_needed(args.mask.threshold) <= kLockstepPlanes && args.passes == 1 &&
        args.size_b < kMaxPackedSum && args.size_a >= TensorGradient::kA && args.size_b >= kTensorRows &&
        launch_gradient_mma<TensorGradient>(op, args, device, stream))
      return;
  }
  if (products <= kSmallProducts && args.size_a * tiles <= kSmallBlocks && args.size_b <= kSmallBlocks) {
    const std::int64_t warps = std::min<std::int64_t>(ceil_div(args.size_b, kSmallB) * args.passes, kSmallWarps);
    launch_early<gradient_small_kernel<T>>(op, {DeviceType::kCuda, device}, static_cast<unsigned>(args.size_a * tiles),
                                           static_cast<unsigned>(32 * std::max<std::int64_t>(warps, 1)), stream, args);
  } else if (args.size_a <= TinyGradient::kA || (products <= kTinyProducts && wide_tiles <= kTinyTiles)) {
    launch_gradient<T, TinyGradient>(op, args, device, stream);
  } else if (args.size_a <= SlimGradient::kA) {
    launch_gradient<T, SlimGradient>(op, args, device, stream);
  } else if (args.size_a <= ThinGradient::kA) {
    launch_gradient<T, ThinGradient>(op, args, device, stream);
  } else if (args.size_a <= HalfGradient::kA) {
    launch_gradient<T, HalfGradient>(op, args, device, stream);
  } else {
    launch_gradient<T, WideGradient>(op, args, device, stream);
  }
}

/// dbias[n] = sum over passes and rows of dy: 32 outputs a block, 8 partial sums each, added in order.
template <typename T>
__global__ void bias_gradient_kernel(const T* dy, std::int64_t passes, std::int64_t rows, std::int64_t outputs,
                                     std::int64_t dy_pass, std::int64_t dy_row, std::int64_t dy_col, T* dbias,
                                     std::int64_t stride) {
  using S = SumOf<T>;
  __shared__ S sums[8][32];
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  S sum = 0;
  if (n < outputs)
    for (std::int64_t pass = 0; pass < passes; ++pass)
      for (std::int64_t m = threadIdx.y; m < rows; m += 8)
        sum += load_sum(dy + pass * dy_pass + m * dy_row + n * dy_col);
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || n >= outputs) return;
  for (int i = 1; i < 8; ++i) sum += sums[i][threadIdx.x];
  store_sum(dbias + n * stride, sum);
}

__global__ void mask_kernel(DropconnectMaskArgs args, std::int64_t size) {
  const std::uint64_t seed = args.mask.seed_pointer != nullptr ? *args.mask.seed_pointer : args.mask.seed;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += step) {
    const std::int64_t k = i % args.shape.inputs, row = i / args.shape.inputs;
    const std::int64_t n = row % args.shape.outputs, m = row / args.shape.outputs;
    const bool drop =
        plane_less(seed, args.mask.threshold, args.mask.first_input + static_cast<std::uint64_t>(k),
                   args.mask.first_output + static_cast<std::uint32_t>(n), args.mask.sample(0, m), args.mask.tag);
    args.keep[m * args.strides[0] + n * args.strides[1] + k * args.strides[2]] = drop ? 0 : 1;
  }
}

}  // namespace

void dropconnect(const DropconnectArgs& args, Device device, void* stream_handle) {
  const char* op = "dropconnect";
  DeviceGuard guard(op, device);
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  visit_floating(args.shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const std::int64_t rows = args.shape.passes * args.shape.rows, outputs = args.shape.outputs;
    const double products =
        static_cast<double>(rows) * static_cast<double>(outputs) * static_cast<double>(args.shape.inputs);
    if constexpr (std::is_same_v<T, BFloat16>) {
      if (products >= kTensorProducts && planes_needed(args.mask.threshold) <= kTensorPlanes &&
          args.shape.inputs < kMaxPackedSum && std::min(rows, outputs) >= kTensorRows) {
        launch_forward_mma<TensorTile>(op, args, device.index, stream);
        return;
      }
    }
    const std::int64_t shift = args.mask.first_input % kBlockInputs;
    if (products <= kSmallProducts && args.shape.passes == 1 && shift + args.shape.inputs <= kBlockInputs &&
        rows * outputs <= kSmallBlocks) {
      if (rows * outputs == 0) return;
      const auto blocks = static_cast<unsigned>(ceil_div(4 * rows * outputs, 128));
      if (wide_rows<T>(args.x.data, args.x.row, args.x.col, shift) &&
          wide_rows<T>(args.w.data, args.w.row, args.w.col, shift)) {
        launch_early<forward_small_kernel<T, true>>(op, device, blocks, 128, stream, args);
      } else {
        launch_early<forward_small_kernel<T, false>>(op, device, blocks, 128, stream, args);
      }
    } else if (products <= kTinyProducts) {
      launch_forward<T, TinyTile>(op, args, device.index, stream);
    } else if (rows <= kThinRows) {
      launch_forward<T, ThinTile>(op, args, device.index, stream);
    } else if (((rows + 63) / 64) * ((outputs + 63) / 64) < kWideTiles) {
      launch_forward<T, MiddleTile>(op, args, device.index, stream);
    } else {
      launch_forward<T, WideTile>(op, args, device.index, stream);
    }
  });
}

void dropconnect_backward(const DropconnectBackwardArgs& args, Device device, void* stream_handle) {
  const char* op = "dropconnect_backward";
  DeviceGuard guard(op, device);
  const auto stream = static_cast<cudaStream_t>(stream_handle);
  const DropconnectShape& shape = args.shape;
  visit_floating(shape.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.dx.data != nullptr) gradient<T>(op, dx_gradient(args), device.index, stream);
    if (args.dw.data != nullptr) gradient<T>(op, dw_gradient(args), device.index, stream);
    if (args.dbias != nullptr && shape.outputs > 0) {
      bias_gradient_kernel<T><<<grid_size(op, (shape.outputs + 31) / 32), dim3(32, 8), 0, stream>>>(
          static_cast<const T*>(args.dy.data), shape.passes, shape.rows, shape.outputs, args.dy_pass, args.dy.row,
          args.dy.col, static_cast<T*>(args.dbias), args.dbias_stride);
      check(op, cudaGetLastError());
    }
  });
}

void dropconnect_mask(const DropconnectMaskArgs& args, Device device, void* stream_handle) {
  const char* op = "dropconnect_mask";
  DeviceGuard guard(op, device);
  const std::int64_t size = args.shape.rows * args.shape.outputs * args.shape.inputs;
  const std::int64_t blocks = std::min<std::int64_t>((size + 255) / 256, 1 << 20);
  mask_kernel<<<static_cast<unsigned>(blocks), 256, 0, static_cast<cudaStream_t>(stream_handle)>>>(args, size);
  check(op, cudaGetLastError());
}

}  // namespace maskless::cuda
