// What the launches of DropConnect share: workspace, sums in parts.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_LAUNCH_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_LAUNCH_CUH_

#include <algorithm>
#include <atomic>
#include <mutex>

#include "cuda/launch.h"
#include "dropconnect/dropconnect_forward.cuh"
#include "dropconnect/dropconnect_kernels.h"

namespace maskless::cuda {

inline constexpr std::int64_t kWorkspaceBytes = 32 << 20;  // for parts of sums, and as much for packed operands

inline int multiprocessors(const char* op, int device) {
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
      std::uint64_t keep = 2 * kWorkspaceBytes;  // parts of sums, packed operands
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
inline std::int64_t parts(std::int64_t tiles, std::int64_t steps, std::int64_t slots, std::int64_t bytes) {
  std::int64_t count =
      std::min({steps, slots / std::max<std::int64_t>(tiles, 1), kWorkspaceBytes / std::max<std::int64_t>(bytes, 1)});
  if (count <= 1) return 1;
  const std::int64_t per_part = (steps + count - 1) / count;
  return (steps + per_part - 1) / per_part;
}

inline unsigned grid_size(const char* op, std::int64_t blocks) {
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

template <typename T>
void add_forward_parts(const char* op, const DropconnectArgs& args, const Split& split, cudaStream_t stream) {
  const std::int64_t size = args.shape.passes * args.shape.rows * args.shape.outputs;
  add_parts_kernel<T><<<grid_size(op, ceil_div(size, 256)), 256, 0, stream>>>(
      static_cast<const SumOf<T>*>(split.partial), split.count, args.shape.rows, args.shape.outputs, size, args.scale,
      static_cast<const T*>(args.bias), args.bias_stride, static_cast<T*>(args.y.data), args.y_pass, args.y.row,
      args.y.col);
  check(op, cudaGetLastError());
}

template <typename T>
void add_gradient_parts(const char* op, const GradientArgs& args, const void* partial, std::int64_t count,
                        cudaStream_t stream) {
  const std::int64_t size = args.size_a * args.inputs;
  add_parts_kernel<T><<<grid_size(op, ceil_div(size, 256)), 256, 0, stream>>>(
      static_cast<const SumOf<T>*>(partial), count, args.size_a, args.inputs, size, args.scale, nullptr, 0,
      static_cast<T*>(args.out.data), 0, args.out.row, args.out.col);
  check(op, cudaGetLastError());
}

/// May a gradient, or the parts of one, be stored by four elements?
template <typename T>
bool wide_gradient(const GradientArgs& args, std::int64_t shift, bool in_parts) {
  return in_parts ? wide_rows<SumOf<T>>(nullptr, args.inputs, 1, shift)
                  : wide_rows<T>(args.out.data, args.out.row, args.out.col, shift);
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_LAUNCH_CUH_
