// A C interface to what bench/dropout_cuda.py times, for ctypes. Each function returns 0, or 1 with the error's text in
// shim_error().
#include <cstdint>
#include <string>

#include "maskless/dropout.h"
#include "maskless/fused.h"

namespace {

using namespace maskless;

thread_local std::string error_text;
constexpr Device kCuda = {DeviceType::kCuda, 0};

template <typename F>
int guarded(F&& f) {
  try {
    f();
    return 0;
  } catch (const Error& error) {
    error_text = error.what();
    return 1;
  }
}

Execution on(void* stream) {
  Execution execution;
  execution.cuda_stream = stream;
  return execution;
}

TensorView view(void* data, int dtype, int rank, const std::int64_t* shape, const std::int64_t* strides) {
  TensorView v;
  v.data = data;
  v.dtype = static_cast<DType>(dtype);
  v.device = kCuda;
  v.rank = rank;
  for (int d = 0; d < rank; ++d) {
    v.shape[static_cast<std::size_t>(d)] = shape[d];
    v.strides[static_cast<std::size_t>(d)] = strides[d];
  }
  return v;
}

TensorView matrix(void* data, int dtype, std::int64_t rows, std::int64_t cols) {
  return data == nullptr ? TensorView{} : contiguous_view(data, static_cast<DType>(dtype), {rows, cols}, kCuda);
}
TensorView vector(void* data, DType dtype, std::int64_t size) {
  return data == nullptr ? TensorView{} : contiguous_view(data, dtype, {size}, kCuda);
}

DropoutOptions options(double p, std::uint64_t seed) {
  DropoutOptions o;
  o.p = p;
  o.seed = seed;
  return o;
}

}  // namespace

#define SHIM extern "C" __attribute__((visibility("default")))

SHIM const char* shim_error() { return error_text.c_str(); }

SHIM int shim_dropout(void* x, void* y, int dtype, int rank, const std::int64_t* shape, const std::int64_t* x_strides,
                      const std::int64_t* y_strides, double p, std::uint64_t seed, const void* seed_pointer,
                      const void* row_seeds, int triton, void* stream) {
  return guarded([&] {
    DropoutOptions o = options(p, seed);
    if (seed_pointer != nullptr) o.seed = Seed::at(static_cast<const std::uint64_t*>(seed_pointer));
    if (row_seeds != nullptr) o.row_seeds = {static_cast<const std::uint64_t*>(row_seeds), 1};
    o.layout = triton != 0 ? Layout::kTriton : Layout::kPacked;
    dropout(view(x, dtype, rank, shape, x_strides), view(y, dtype, rank, shape, y_strides), o, on(stream));
  });
}

SHIM std::int64_t shim_workspace(int dtype, std::int64_t rows, std::int64_t cols) {
  return fused_workspace_bytes(
      contiguous_view(static_cast<const void*>(nullptr), static_cast<DType>(dtype), {rows, cols}, kCuda));
}

/// With a residual (activation must be 0) bias_dropout_residual, else bias_activation_dropout.
SHIM int shim_forward(void* x, void* bias, void* residual, void* y, int dtype, std::int64_t rows, std::int64_t cols,
                      int activation, double p, std::uint64_t seed, void* stream) {
  return guarded([&] {
    const TensorView b = vector(bias, static_cast<DType>(dtype), cols);
    if (residual != nullptr) {
      bias_dropout_residual(matrix(x, dtype, rows, cols), b, matrix(residual, dtype, rows, cols),
                            matrix(y, dtype, rows, cols), options(p, seed), on(stream));
    } else {
      bias_activation_dropout(matrix(x, dtype, rows, cols), b, matrix(y, dtype, rows, cols),
                              static_cast<Activation>(activation), options(p, seed), on(stream));
    }
  });
}

SHIM int shim_backward(void* dy, void* x, void* bias, void* dx, void* dbias, int dtype, std::int64_t rows,
                       std::int64_t cols, int activation, double p, std::uint64_t seed, void* work, std::int64_t bytes,
                       void* stream) {
  return guarded([&] {
    bias_activation_dropout_backward(matrix(dy, dtype, rows, cols), matrix(x, dtype, rows, cols),
                                     vector(bias, static_cast<DType>(dtype), cols), matrix(dx, dtype, rows, cols),
                                     vector(dbias, static_cast<DType>(dtype), cols),
                                     static_cast<Activation>(activation), options(p, seed), {work, bytes}, on(stream));
  });
}

SHIM int shim_norm(void* x, void* bias, void* residual, void* weight, void* norm_bias, void* sum, void* y, void* mean,
                   void* rstd, int dtype, std::int64_t rows, std::int64_t cols, int rms, double p, std::uint64_t seed,
                   void* stream) {
  return guarded([&] {
    const DType type = static_cast<DType>(dtype);
    bias_dropout_residual_norm(
        matrix(x, dtype, rows, cols), vector(bias, type, cols), matrix(residual, dtype, rows, cols),
        vector(weight, type, cols), vector(norm_bias, type, cols), matrix(sum, dtype, rows, cols),
        matrix(y, dtype, rows, cols), vector(mean, DType::kFloat32, rows), vector(rstd, DType::kFloat32, rows),
        rms != 0 ? Norm::kRms : Norm::kLayer, 1e-5, options(p, seed), on(stream));
  });
}

SHIM int shim_norm_backward(void* dy, void* dsum, void* sum, void* weight, void* mean, void* rstd, void* dresidual,
                            void* dx, void* dbias, void* dweight, void* dnorm_bias, int dtype, std::int64_t rows,
                            std::int64_t cols, int rms, double p, std::uint64_t seed, void* work, std::int64_t bytes,
                            void* stream) {
  return guarded([&] {
    const DType type = static_cast<DType>(dtype);
    bias_dropout_residual_norm_backward(
        matrix(dy, dtype, rows, cols), matrix(dsum, dtype, rows, cols), matrix(sum, dtype, rows, cols),
        vector(weight, type, cols), vector(mean, DType::kFloat32, rows), vector(rstd, DType::kFloat32, rows),
        matrix(dresidual, dtype, rows, cols), matrix(dx, dtype, rows, cols), vector(dbias, type, cols),
        vector(dweight, type, cols), vector(dnorm_bias, type, cols), rms != 0 ? Norm::kRms : Norm::kLayer,
        options(p, seed), {work, bytes}, on(stream));
  });
}
