// What the CUDA kernels of projections share: outputs, sums of parts, memory of a stream. For .cu files.
#ifndef MASKLESS_SRC_SKETCH_SKETCH_CUDA_CUH_
#define MASKLESS_SRC_SKETCH_SKETCH_CUDA_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <type_traits>

#include "common/float_types.h"
#include "cuda/launch.h"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {

template <typename S, typename T>
__device__ __forceinline__ S load_sum(T x) {
  if constexpr (sizeof(T) == 8) {
    return static_cast<S>(x);
  } else {
    return static_cast<S>(to_float(x));
  }
}

/// out[i, n] = sum * scale (+ out[i, n] where the call accumulates), rounded once.
template <typename S>
__device__ __forceinline__ void store_output(const SketchArgs& args, std::int64_t i, std::int64_t n, S sum) {
  const std::int64_t at = i * args.out_strides[0] + n * args.out_strides[1];
  const S y = sum * static_cast<S>(args.matrix.scale);
  const auto put = [&](auto* out) {
    using Out = typename std::remove_reference<decltype(*out)>::type;
    const S value = args.accumulate ? load_sum<S>(out[at]) + y : y;
    if constexpr (sizeof(Out) == 8) {
      out[at] = static_cast<double>(value);
    } else {
      out[at] = from_float<Out>(static_cast<float>(value));
    }
  };
  switch (args.out_dtype) {
    case DType::kFloat16: return put(static_cast<Float16*>(args.out));
    case DType::kBFloat16: return put(static_cast<BFloat16*>(args.out));
    case DType::kFloat32: return put(static_cast<float*>(args.out));
    default: return put(static_cast<double*>(args.out));
  }
}

/// The library's own pool of a device's memory: what partial sums take is kept for the next call, instead of being
/// taken from the system each time.
inline cudaMemPool_t workspace_pool(const char* op) {
  constexpr int kDevices = 64;
  static cudaMemPool_t pools[kDevices] = {};
  static std::mutex mutex;
  int device = 0;
  check(op, cudaGetDevice(&device));
  const std::lock_guard<std::mutex> lock(mutex);
  cudaMemPool_t& pool = pools[device % kDevices];
  if (pool == nullptr) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    check(op, cudaMemPoolCreate(&pool, &properties));
    std::uint64_t keep = std::uint64_t{64} << 20;
    check(op, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
  }
  return pool;
}

/// Memory that is taken and given back in the order of a stream; none for a size of 0.
template <typename T>
class Workspace {
 public:
  Workspace(const char* op, std::int64_t size, void* stream) : stream_(static_cast<cudaStream_t>(stream)) {
    if (size > 0)
      check(op, cudaMallocFromPoolAsync(reinterpret_cast<void**>(&data_), static_cast<std::size_t>(size) * sizeof(T),
                                        workspace_pool(op), stream_));
  }
  ~Workspace() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  cudaStream_t stream_;
};

/// The same call for some of the vectors.
inline SketchArgs some_vectors(SketchArgs args, std::int64_t first, std::int64_t count) {
  const auto item = [](DType dtype) { return static_cast<std::int64_t>(dtype_size(dtype)); };
  args.in = static_cast<const char*>(args.in) + first * args.in_strides[0] * item(args.in_dtype);
  args.out = static_cast<char*>(args.out) + first * args.out_strides[0] * item(args.out_dtype);
  args.batch = std::min(count, args.batch - first);
  return args;
}

/// How the columns are cut. It depends on the matrix alone: a vector's sums are the same bits in any batch. Partial
/// sums take kWorkspaceBytes at most, so many vectors go `vectors` at a time.
struct Splits {
  static constexpr std::int64_t kWorkspaceBytes = std::int64_t{31} << 20;  // the pool takes pieces of 32 MiB
  static constexpr std::int64_t kVectors = 8;                              // at least this many at a time

  std::int64_t count, vectors;

  Splits(const SketchArgs& args, std::int64_t wanted, std::int64_t item) {
    const std::int64_t bytes = kVectors * args.matrix.rows * item;
    count = std::max<std::int64_t>(1, std::min(wanted, kWorkspaceBytes / bytes));
    vectors = count == 1 ? args.batch : kWorkspaceBytes / (count * bytes) * kVectors;
  }
};

template <typename S>
__global__ void add_partials_kernel(SketchArgs args, std::int64_t splits, std::int64_t width, const S* partials) {
  const std::int64_t size = args.batch * width, step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t e = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; e < size; e += step) {
    S sum = 0;
    for (std::int64_t split = 0; split < splits; ++split) sum += partials[split * size + e];
    store_output(args, e / width, e % width, sum);
  }
}

/// out = sum over splits, in order, of partials[split][batch][rows].
template <typename S>
void add_partials(const char* op, const SketchArgs& args, std::int64_t splits, const S* partials, void* stream) {
  const std::int64_t size = args.batch * args.matrix.rows;
  const std::int64_t blocks = size < 128 * 4096 ? (size + 127) / 128 : 4096;
  add_partials_kernel<<<static_cast<unsigned>(blocks), 128, 0, static_cast<cudaStream_t>(stream)>>>(
      args, splits, args.matrix.rows, partials);
  check(op, cudaGetLastError());
}

void sjlt_project(const SketchArgs& args, void* stream);
void sjlt_transpose(const SketchArgs& args, void* stream);
void signs_project(const SketchArgs& args, void* stream);
void signs_transpose(const SketchArgs& args, void* stream);

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_SKETCH_SKETCH_CUDA_CUH_
