// What all bindings share: NumPy arrays as views, the lock of the interpreter, names in errors.
#ifndef MASKLESS_PYTHON_BINDINGS_COMMON_H_
#define MASKLESS_PYTHON_BINDINGS_COMMON_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless::python {

namespace nb = nanobind;
using namespace nb::literals;

/// Any strides, any dtype, read-only allowed. Bind with "x"_a.noconvert(): nothing is ever copied.
using Input = nb::ndarray<nb::ro, nb::device::cpu>;
/// As Input, but read-only arrays are refused.
using Output = nb::ndarray<nb::device::cpu>;

/// uint16 stands for the bits of bfloat16: NumPy has no such dtype, and the package passes x.view(np.uint16).
inline DType to_dtype(const char* op, const char* argument, nb::dlpack::dtype dtype) {
  if (dtype == nb::dtype<float>()) return DType::kFloat32;
  if (dtype == nb::dtype<double>()) return DType::kFloat64;
  if (dtype == nb::dtype<std::uint16_t>()) return DType::kBFloat16;
  if (dtype == nb::dtype<bool>()) return DType::kBool;
  if (dtype == nb::dtype<std::uint8_t>()) return DType::kUint8;
  if (dtype == nb::dtype<std::int32_t>()) return DType::kInt32;
  if (dtype == nb::dtype<std::uint32_t>()) return DType::kUint32;
  if (dtype == nb::dtype<std::int64_t>()) return DType::kInt64;
  if (dtype == nb::dtype<std::uint64_t>()) return DType::kUint64;
  if (dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && dtype.bits == 16 && dtype.lanes == 1)
    return DType::kFloat16;
  throw Error(ErrorKind::kType, op, argument, "must have a dtype that this function knows", "another one");
}

namespace detail {
template <typename View, typename Array>
View to_view(const char* op, const char* argument, const Array& array) {
  View view;
  if (array.ndim() > kMaxRank)
    throw Error(ErrorKind::kValue, op, argument, "must have at most 8 dimensions", std::to_string(array.ndim()));
  view.data = array.data();
  view.dtype = to_dtype(op, argument, array.dtype());
  view.rank = static_cast<int>(array.ndim());
  for (int d = 0; d < view.rank; ++d) {
    view.shape[d] = static_cast<std::int64_t>(array.shape(d));
    view.strides[d] = array.stride(d);
  }
  return view;
}
}  // namespace detail

inline ConstTensorView to_view(const char* op, const char* argument, const Input& array) {
  return detail::to_view<ConstTensorView>(op, argument, array);
}
inline TensorView to_view(const char* op, const char* argument, const Output& array) {
  return detail::to_view<TensorView>(op, argument, array);
}

/// (global shape, offsets), or None for the whole.
using ShardArgument = std::optional<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>;

inline Shard to_shard(const char* op, const ConstTensorView& tensor, const ShardArgument& argument) {
  Shard shard;
  if (!argument) return shard;
  const auto& [global_shape, offsets] = *argument;
  if (global_shape.empty() && tensor.rank != 0)  // to the library, a shard of rank 0 is none
    throw Error(ErrorKind::kValue, op, "shard",
                "must have as many dimensions as the tensor, " + std::to_string(tensor.rank), "0");
  if (global_shape.size() != offsets.size() || global_shape.size() > kMaxRank)
    throw Error(ErrorKind::kValue, op, "shard", "must have one offset for each of at most 8 global extents",
                std::to_string(global_shape.size()) + " extents, " + std::to_string(offsets.size()) + " offsets");
  shard.rank = static_cast<int>(global_shape.size());
  for (int d = 0; d < shard.rank; ++d) {
    shard.global_shape[d] = global_shape[d];
    shard.offsets[d] = offsets[d];
  }
  return shard;
}

/// Runs f without the interpreter's lock. Errors name the Python function, and call the C++ argument `output` "out".
template <typename F>
void run(const char* op, const char* output, F&& f) {
  try {
    nb::gil_scoped_release release;
    f();
  } catch (const Error& error) {
    const bool about_output = error.argument() == output;
    throw Error(error.kind(), op, about_output ? "out" : error.argument(), error.rule(), error.value());
  }
}

inline Execution with_threads(int threads) {
  Execution execution;
  execution.threads = threads;
  return execution;
}

}  // namespace maskless::python

#endif  // MASKLESS_PYTHON_BINDINGS_COMMON_H_
