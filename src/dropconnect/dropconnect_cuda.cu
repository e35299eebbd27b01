// Launches of DropConnect's kernels. A product whose output has too few tiles for the GPU is split along its sum; the
// parts go to a bounded workspace and are added in a fixed order, so that runs repeat bit for bit.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "common/visit.h"
#include "cuda/launch.h"
#include "dropconnect/dropconnect_backward.cuh"
#include "dropconnect/dropconnect_forward.cuh"
#include "dropconnect/dropconnect_kernels.h"
#include "dropconnect/dropconnect_small.cuh"

namespace maskless::cuda {
namespace {

// --- Tuning ---------------------------------------------------------------------------------------------------------
constexpr std::int64_t kWorkspaceBytes = 32 << 20;
using WideTile = ForwardTile<4, 4, 2, 4, 2>;    // 64 rows x 64 outputs, 256 threads
using MiddleTile = ForwardTile<2, 2, 2, 2, 8>;  // 32 x 16, 128 threads: layers with few wide tiles
using TinyTile = ForwardTile<1, 1, 1, 1, 16>;   // 8 x 4, 32 threads: one output a thread, the shortest way through
using ThinTile = ForwardTile<1, 4, 1, 8, 2>;    // 8 x 128, 256 threads: at most 8 rows of a large layer
constexpr std::int64_t kWideTiles = 200;        // from so many on, the wide tile
constexpr double kTinyProducts = 1 << 23;       // up to so many, the tiny tiles
constexpr std::int64_t kSmallBlocks = 1 << 20;
constexpr double kSmallProducts = 1 << 18;      // up to so many, gradients without tiles
using WideGradient = GradientTile<4, 4, 1, 4>;  // 64 a x 128 inputs, 128 threads
using ThinGradient = GradientTile<4, 1, 4, 4>;  // 16 a x 128 inputs, 128 threads that share out b: few rows
using TinyGradient = GradientTile<1, 1, 4, 8>;  // 4 a x 128 inputs, likewise: small layers

int multiprocessors(const char* op, int device) {
  int count = 0;
  check(op, cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

/// Stream-ordered memory from a pool of our own, which keeps what it has between calls.
class Workspace {
 public:
  Workspace(const char* op, int device, std::size_t bytes, cudaStream_t stream) : stream_(stream) {
    if (bytes == 0) return;
    check(op, cudaMallocFromPoolAsync(&data_, bytes, pool(op, device), stream));
  }
  ~Workspace() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  void* data() const { return data_; }

 private:
  static cudaMemPool_t pool(const char* op, int device) {
    static std::mutex mutex;
    static cudaMemPool_t pools[64] = {};
    const std::lock_guard<std::mutex> lock(mutex);
    cudaMemPool_t& p = pools[device & 63];
    if (p == nullptr) {
      cudaMemPoolProps props = {};
      props.allocType = cudaMemAllocationTypePinned;
      props.location.type = cudaMemLocationTypeDevice;
      props.location.id = device;
      check(op, cudaMemPoolCreate(&p, &props));
      std::uint64_t keep = kWorkspaceBytes;
      check(op, cudaMemPoolSetAttribute(p, cudaMemPoolAttrReleaseThreshold, &keep));
    }
    return p;
  }

  void* data_ = nullptr;
  cudaStream_t stream_;
};

/// Lets a kernel use `bytes` of shared memory; once a kernel and device.
template <typename Kernel>
void allow_shared(const char* op, Kernel kernel, int device, std::size_t bytes, std::atomic<std::uint64_t>& done) {
  const std::uint64_t bit = std::uint64_t{1} << (device & 63);
  if ((done.load(std::memory_order_relaxed) & bit) != 0) return;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  done.fetch_or(bit, std::memory_order_relaxed);
}

/// How many parts to cut a sum of `steps` into, so that `tiles` x parts fill `slots`, with `bytes` of output a part.
std::int64_t parts(std::int64_t tiles, std::int64_t steps, std::int64_t slots, std::int64_t bytes) {
  std::int64_t count =
      std::min({steps, slots / std::max<std::int64_t>(tiles, 1), kWorkspaceBytes / std::max<std::int64_t>(bytes, 1)});
  if (count <= 1) return 1;
  const std::int64_t per_part = (steps + count - 1) / count;
  return (steps + per_part - 1) / per_part;
}

unsigned grid_size(const char* op, std::int64_t blocks) {
  if (blocks > 0x7FFFFFFF)
    throw Error(ErrorKind::kValue, op, "x", "must be smaller: too many tiles", std::to_string(blocks));
  return static_cast<unsigned>(blocks);
}

/// out[p, r, c] = scale * sum_z partial[z, p, r, c] + bias[c].
template <typename T>
__global__ void add_parts_kernel(const SumOf<T>* partial, std::int64_t parts, std::int64_t rows, std::int64_t cols,
                                 std::int64_t size, double scale, const T* bias, std::int64_t bias_stride, T* out,
                                 std::int64_t out_pass, std::int64_t out_row, std::int64_t out_col) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  SumOf<T> sum = partial[i];
  for (std::int64_t z = 1; z < parts; ++z) sum += partial[z * size + i];
  sum *= static_cast<SumOf<T>>(scale);
  const std::int64_t row = i / cols, c = i - row * cols, pass = row / rows;
  if (bias != nullptr) sum += load_sum(bias + c * bias_stride);
  store_sum(out + pass * out_pass + (row - pass * rows) * out_row + c * out_col, sum);
}

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
  if (split.count > 1) {
    add_parts_kernel<T><<<grid_size(op, (size + 255) / 256), 256, 0, stream>>>(
        static_cast<const SumOf<T>*>(split.partial), split.count, shape.rows, shape.outputs, size, args.scale,
        static_cast<const T*>(args.bias), args.bias_stride, static_cast<T*>(args.y.data), args.y_pass, args.y.row,
        args.y.col);
    check(op, cudaGetLastError());
  }
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
          args, wide, workspace.data(), per_split);
  check(op, cudaGetLastError());
  if (count > 1) {
    add_parts_kernel<T><<<grid_size(op, (size + 255) / 256), 256, 0, stream>>>(
        static_cast<const SumOf<T>*>(workspace.data()), count, args.size_a, args.inputs, size, args.scale, nullptr, 0,
        static_cast<T*>(args.out.data), 0, args.out.row, args.out.col);
    check(op, cudaGetLastError());
  }
}

template <typename T>
void gradient(const char* op, const GradientArgs& args, int device, cudaStream_t stream) {
  if (args.size_a == 0 || args.inputs == 0) return;
  const double products = static_cast<double>(args.size_a) * static_cast<double>(args.size_b * args.passes) *
                          static_cast<double>(args.inputs);
  const std::int64_t tiles = (args.mask.first_input % kBlockInputs + args.inputs + 31) / 32;
  if (products <= kSmallProducts && args.size_a * tiles <= kSmallBlocks && args.size_b <= kSmallBlocks) {
    gradient_small_kernel<T><<<static_cast<unsigned>(args.size_a * tiles), 32, 0, stream>>>(args);
    check(op, cudaGetLastError());
  } else if (products <= kTinyProducts) {
    launch_gradient<T, TinyGradient>(op, args, device, stream);
  } else if (args.size_a <= ThinGradient::kA) {
    launch_gradient<T, ThinGradient>(op, args, device, stream);
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
    if (products <= kTinyProducts) {
      launch_forward<T, TinyTile>(op, args, device.index, stream);
    } else if (rows <= ThinTile::kM) {
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
