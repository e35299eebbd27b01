// Between LibTorch's stable C++ interface and maskless: views of tensors, outputs, the current stream.
#ifndef MASKLESS_PYTHON_TORCH_OPS_GLUE_H_
#define MASKLESS_PYTHON_TORCH_OPS_GLUE_H_

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "maskless/error.h"
#include "maskless/tensor.h"

// Lives in libtorch_cuda: weak, so that the library also loads where torch has no CUDA.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace maskless::torch_ops {

[[noreturn]] inline void fail(const char* op, const char* argument, const std::string& rule,
                              const std::string& value = {}) {
  throw Error(ErrorKind::kValue, op, argument, rule, value);
}

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline DType dtype_of(const char* op, const char* argument, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Half: return DType::kFloat16;
    case ScalarType::BFloat16: return DType::kBFloat16;
    case ScalarType::Float: return DType::kFloat32;
    case ScalarType::Double: return DType::kFloat64;
    case ScalarType::Bool: return DType::kBool;
    case ScalarType::Byte: return DType::kUint8;
    case ScalarType::Int: return DType::kInt32;
    case ScalarType::UInt32: return DType::kUint32;
    case ScalarType::Long: return DType::kInt64;
    case ScalarType::UInt64: return DType::kUint64;
    default: break;
  }
  fail(op, argument, "must be of dtype float16, bfloat16, float32 or float64",
       torch::headeronly::toString(tensor.scalar_type()));
}

template <typename View>
View make_view(const char* op, const char* argument, const Tensor& tensor) {
  View view;
  view.dtype = dtype_of(op, argument, tensor);
  if (tensor.is_cuda()) view.device = {DeviceType::kCuda, tensor.get_device_index()};
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  view.rank = static_cast<int>(sizes.size());
  if (view.rank > kMaxRank) fail(op, argument, "must have at most 8 dimensions", std::to_string(view.rank));
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = sizes[d];
    view.strides[d] = strides[d];
  }
  return view;
}

inline ConstTensorView read_view(const char* op, const char* argument, const Tensor& tensor) {
  auto view = make_view<ConstTensorView>(op, argument, tensor);
  view.data = tensor.const_data_ptr();
  return view;
}

inline TensorView write_view(const char* op, const char* argument, const Tensor& tensor) {
  auto view = make_view<TensorView>(op, argument, tensor);
  view.data = tensor.mutable_data_ptr();
  return view;
}

/// As torch.empty_like: the strides of x where it is dense.
inline Tensor new_like(const Tensor& x) {
  if (!x.is_contiguous()) return torch::stable::empty_like(x);
  std::int32_t dtype, device_type, device_index;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(x.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(x.get(), &device_index));
  AtenTensorHandle handle;  // a direct call: half the time of the dispatcher's
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(x.dim(), x.sizes().data(), x.strides().data(), dtype, device_type,
                                                  device_index, &handle));
  return Tensor(handle);
}

inline Tensor empty(const Tensor& like, const std::vector<std::int64_t>& sizes, std::int32_t dtype) {
  std::vector<std::int64_t> strides(sizes.size());
  std::int64_t stride = 1;
  for (std::size_t d = sizes.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= sizes[d] > 0 ? sizes[d] : 1;
  }
  std::int32_t device_type, device_index;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<std::int64_t>(sizes.size()), sizes.data(), strides.data(),
                                                  dtype, device_type, device_index, &handle));
  return Tensor(handle);
}

/// The stream or the number of threads that torch uses now.
inline Execution execution_for(const char* op, const Tensor& tensor) {
  Execution execution;
  if (tensor.is_cuda()) {
    if (aoti_torch_get_current_cuda_stream == nullptr) fail(op, "device", "is cuda, but this torch has no CUDA");
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &execution.cuda_stream));
  } else {
    execution.threads = static_cast<int>(torch::stable::get_num_threads());
  }
  return execution;
}

inline std::uint32_t stream_of(const char* op, std::int64_t stream) {
  if (stream < 0 || stream >= (std::int64_t{1} << 24))
    fail(op, "stream", "must be in [0, 2^24 - 1]", std::to_string(stream));
  return static_cast<std::uint32_t>(stream);
}

/// A 64-bit integer tensor, as unsigned words.
inline const std::uint64_t* words(const char* op, const char* argument, const Tensor& tensor) {
  const auto type = tensor.scalar_type();
  if (type != ScalarType::Long && type != ScalarType::UInt64)
    fail(op, argument, "must be of dtype int64 or uint64", torch::headeronly::toString(type));
  return static_cast<const std::uint64_t*>(tensor.const_data_ptr());
}

/// A seed by value, or in a tensor of one element: on x's device read when the work runs, on the CPU read at once.
inline Seed seed_of(const char* op, const Tensor& x, std::int64_t value, const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return Seed(static_cast<std::uint64_t>(value));
  const std::uint64_t* data = words(op, "seed", *tensor);
  if (tensor->numel() != 1) fail(op, "seed", "must have one element", std::to_string(tensor->numel()));
  if (tensor->is_cpu()) return Seed(*data);
  if (!x.is_cuda() || tensor->get_device_index() != x.get_device_index())
    fail(op, "seed", "must be on the tensor's device or on the CPU");
  return Seed::at(data);
}

/// A probability by value, or in a float64 tensor of one element on the CPU.
inline double probability_of(const char* op, double value, const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return value;
  if (!tensor->is_cpu() || tensor->scalar_type() != ScalarType::Double || tensor->numel() != 1)
    fail(op, "p", "as a tensor must be one float64 on the CPU");
  return *static_cast<const double*>(tensor->const_data_ptr());
}

inline Shard shard_of(const char* op, const std::vector<std::int64_t>& global_shape,
                      const std::vector<std::int64_t>& offsets) {
  Shard shard;
  if (global_shape.size() != offsets.size() || global_shape.size() > static_cast<std::size_t>(kMaxRank))
    fail(op, "shard", "must have a global shape and offsets of one length, at most 8",
         std::to_string(global_shape.size()) + " and " + std::to_string(offsets.size()));
  shard.rank = static_cast<int>(global_shape.size());
  for (int d = 0; d < shard.rank; ++d) {
    shard.global_shape[d] = global_shape[d];
    shard.offsets[d] = offsets[d];
  }
  return shard;
}

}  // namespace maskless::torch_ops

#endif  // MASKLESS_PYTHON_TORCH_OPS_GLUE_H_
