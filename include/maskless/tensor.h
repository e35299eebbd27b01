// How data is handed over: a view names memory that the caller owns. Nothing is copied or kept.
#ifndef MASKLESS_TENSOR_H_
#define MASKLESS_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace maskless {

enum class DType : std::uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kBool,  // one byte, 0 or 1
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
};

constexpr std::size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kUint8: return 1;
    case DType::kFloat16:
    case DType::kBFloat16: return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUint32: return 4;
    default: return 8;
  }
}

constexpr const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return "float16";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kBool: return "bool";
    case DType::kUint8: return "uint8";
    case DType::kInt32: return "int32";
    case DType::kUint32: return "uint32";
    case DType::kInt64: return "int64";
    case DType::kUint64: return "uint64";
  }
  return "unknown";
}

enum class DeviceType : std::uint8_t { kCpu, kCuda };

struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
};
constexpr bool operator==(Device a, Device b) { return a.type == b.type && a.index == b.index; }
constexpr bool operator!=(Device a, Device b) { return !(a == b); }

inline constexpr int kMaxRank = 8;

/// A strided array of `rank` dimensions (0 is one element). Strides count elements, may be negative, and may be 0 for
/// input.
template <typename Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::kFloat32;
  Device device = {};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape = {};
  std::array<std::int64_t, kMaxRank> strides = {};

  /// Number of elements; shapes are validated (non-negative, product below 2^63) by the operations.
  constexpr std::int64_t size() const {
    std::int64_t n = 1;
    for (int d = 0; d < rank; ++d) n *= shape[d];
    return n;
  }
};

using ConstTensorView = BasicTensorView<const void*>;

struct TensorView : BasicTensorView<void*> {
  constexpr operator ConstTensorView() const { return {data, dtype, device, rank, shape, strides}; }
};

namespace detail {
template <typename View, typename Pointer>
constexpr View contiguous(Pointer data, DType dtype, std::initializer_list<std::int64_t> shape, Device device) {
  View view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  for (std::int64_t extent : shape) view.shape[view.rank++] = extent;
  std::int64_t stride = 1;
  for (int d = view.rank - 1; d >= 0; --d) {
    view.strides[d] = stride;
    stride *= view.shape[d];
  }
  return view;
}
}  // namespace detail

/// A row-major view of at most kMaxRank dimensions.
constexpr TensorView contiguous_view(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                                     Device device = {}) {
  return detail::contiguous<TensorView>(data, dtype, shape, device);
}
constexpr ConstTensorView contiguous_view(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                                          Device device = {}) {
  return detail::contiguous<ConstTensorView>(data, dtype, shape, device);
}

/// A seed by value, or by the address of one in the memory of the tensors' device, read when the work runs: a captured
/// CUDA graph draws a new mask after the value there has changed.
struct Seed {
  std::uint64_t value = 0;
  const std::uint64_t* pointer = nullptr;

  constexpr Seed(std::uint64_t v = 0) : value(v) {}
  static constexpr Seed at(const std::uint64_t* address) {
    Seed seed;
    seed.pointer = address;
    return seed;
  }
};

/// Where a tensor lies within a larger, global one: its element at coordinates c is the global element at offsets + c.
/// rank 0: the tensor is the whole.
struct Shard {
  int rank = 0;
  std::array<std::int64_t, kMaxRank> global_shape = {};
  std::array<std::int64_t, kMaxRank> offsets = {};
};

/// CPU instruction sets, in ascending order. Results never depend on the choice.
enum class Isa : std::uint8_t { kScalar, kSse4, kAvx2, kAvx512, kBest };

/// How to run: never what comes out.
struct Execution {
  int threads = 0;              ///< CPU threads; 0 uses all that OpenMP offers
  Isa isa = Isa::kBest;         ///< CPU instruction set at most (for tests and comparisons)
  void* cuda_stream = nullptr;  ///< cudaStream_t for CUDA tensors
};

}  // namespace maskless

#endif  // MASKLESS_TENSOR_H_
