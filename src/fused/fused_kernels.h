// What the backends implement for the fused operations: plain arguments, validated. Null pointers leave things out.
#ifndef MASKLESS_SRC_FUSED_FUSED_KERNELS_H_
#define MASKLESS_SRC_FUSED_FUSED_KERNELS_H_

#include <cstdint>

#include "common/dropout_mask.h"
#include "maskless/fused.h"

namespace maskless {

/// Rows of a matrix: row r starts stride elements after row r - 1.
struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

struct FusedArgs {
  DType dtype = DType::kFloat32;
  std::int64_t rows = 0, cols = 0;
  DropoutMask mask;
  std::uint64_t first_index = 0, row_index = 0;  // position of (r, c): first_index + r * row_index + c
  double scale = 1.0;
  void* workspace = nullptr;
};

/// y = residual + dropout(activation(x + bias)).
struct FusedForwardArgs : FusedArgs {
  Activation activation = Activation::kIdentity;
  ConstRows x, residual;
  const void* bias = nullptr;
  Rows y;
};

/// dx = activation'(x + bias) * dropout(dy), dbias = its sum over rows.
struct FusedBackwardArgs : FusedArgs {
  Activation activation = Activation::kIdentity;
  ConstRows dy, x;
  const void* bias = nullptr;
  Rows dx;
  void* dbias = nullptr;
};

struct FusedNormArgs : FusedArgs {
  Norm norm = Norm::kLayer;
  double eps = 0.0;
  ConstRows x, residual;
  const void *bias = nullptr, *weight = nullptr, *norm_bias = nullptr;
  Rows sum, y;
  void *mean = nullptr, *rstd = nullptr;
};

struct FusedNormBackwardArgs : FusedArgs {
  Norm norm = Norm::kLayer;
  ConstRows dy, dsum, sum;
  const void *weight = nullptr, *mean = nullptr, *rstd = nullptr;
  Rows dresidual, dx;
  void *dbias = nullptr, *dweight = nullptr, *dnorm_bias = nullptr;
};

namespace cpu {
std::int64_t fused_workspace_bytes(DType dtype, std::int64_t rows, std::int64_t cols);
void fused_forward(const FusedForwardArgs& args, const Execution& execution);
void fused_backward(const FusedBackwardArgs& args, const Execution& execution);
void fused_norm(const FusedNormArgs& args, const Execution& execution);
void fused_norm_backward(const FusedNormBackwardArgs& args, const Execution& execution);
}  // namespace cpu

namespace cuda {  // defined where the library is built with CUDA
std::int64_t fused_workspace_bytes(DType dtype, std::int64_t rows, std::int64_t cols);
void fused_forward(const FusedForwardArgs& args, Device device, void* stream);
void fused_backward(const FusedBackwardArgs& args, Device device, void* stream);
void fused_norm(const FusedNormArgs& args, Device device, void* stream);
void fused_norm_backward(const FusedNormBackwardArgs& args, Device device, void* stream);
}  // namespace cuda

}  // namespace maskless

#endif  // MASKLESS_SRC_FUSED_FUSED_KERNELS_H_
