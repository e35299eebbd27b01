// Dropout fused with what stands around it in a network: bias, activation, residual sum, normalisation. One pass over
// memory forward, one backward; no mask and no extra tensor is stored, for the mask is made again from its seed.
//
// All tensors are matrices (rows, features), or vectors (features,) for bias, weight and their gradients, or (rows,)
// for statistics. Features lie side by side; rows may be any distance apart. Dtypes: float16, bfloat16, float32,
// float64, one for all; statistics are float32 (float64 for float64 data). Arithmetic is in float32 (float64), each
// result rounded once to the dtype. The mask is that of dropout() on the matrix, with the same options (packed layout).
//
// Determinism: masks are bit-exact everywhere; values give the same bits run after run on one kind of device, and may
// differ between CPU and CUDA in the last digits where exp, erf, tanh or a sum over many elements takes part. Sums over
// rows (dbias, dweight) are taken in two stages in a fixed order, without atomics.
//
// A view with null data leaves an optional argument out. Outputs may be one of the inputs of their shape, not overlap
// them in part. Throws Error. On CUDA the work is queued on execution.cuda_stream; nothing is allocated: sums over rows
// work in memory that the caller passes.
#ifndef MASKLESS_FUSED_H_
#define MASKLESS_FUSED_H_

#include <cstdint>

#include "maskless/dropout.h"

namespace maskless {

enum class Activation : std::uint8_t {
  kIdentity,
  kRelu,
  kGelu,      ///< exact: v * Phi(v)
  kGeluTanh,  ///< Hendrycks and Gimpel's approximation by tanh
  kSilu,      ///< v * sigmoid(v)
};

enum class Norm : std::uint8_t {
  kLayer,  ///< Ba, Kiros, Hinton 2016: (s - mean) / sqrt(variance + eps) * weight + norm_bias
  kRms,    ///< Zhang, Sennrich 2019: s / sqrt(mean(s^2) + eps) * weight
};

/// Memory for sums over rows, on the tensors' device, 16-byte aligned; its contents before and after mean nothing.
struct Workspace {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// Bytes that a backward function needs in its workspace for x (or dy) of this shape, dtype and device, whichever of
/// the sums it is asked for.
std::int64_t fused_workspace_bytes(const ConstTensorView& x);

/// y = dropout(activation(x + bias)). bias is optional.
void bias_activation_dropout(const ConstTensorView& x, const ConstTensorView& bias, const TensorView& y,
                             Activation activation, const DropoutOptions& options, const Execution& execution = {});

/// From dy, and x and bias as they were forward: dx, and dbias = the sum of dx over rows (optional). With kIdentity x
/// and bias are not needed and may be left out.
void bias_activation_dropout_backward(const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& bias,
                                      const TensorView& dx, const TensorView& dbias, Activation activation,
                                      const DropoutOptions& options, Workspace workspace,
                                      const Execution& execution = {});

/// y = residual + dropout(x + bias). bias is optional. Backward: the gradient of residual is dy itself, and dx and
/// dbias are those of bias_activation_dropout_backward with kIdentity.
void bias_dropout_residual(const ConstTensorView& x, const ConstTensorView& bias, const ConstTensorView& residual,
                           const TensorView& y, const DropoutOptions& options, const Execution& execution = {});

/// sum = residual + dropout(x + bias), and y = norm(sum) * weight + norm_bias of each row. bias, residual, weight and
/// norm_bias are optional (norm_bias must be left out for kRms). mean (kLayer only) and rstd are kept for backward: one
/// number a row each. The normalisation is that of the sum as it is stored.
void bias_dropout_residual_norm(const ConstTensorView& x, const ConstTensorView& bias, const ConstTensorView& residual,
                                const ConstTensorView& weight, const ConstTensorView& norm_bias, const TensorView& sum,
                                const TensorView& y, const TensorView& mean, const TensorView& rstd, Norm norm,
                                double eps, const DropoutOptions& options, const Execution& execution = {});

/// From dy (of y), dsum (of the sum where it is used elsewhere; optional), and sum, weight, mean, rstd as forward left
/// them: dresidual = the gradient of the sum, dx = that where kept, and, each optional, dbias = the sum of dx over
/// rows, dweight and dnorm_bias. dresidual is optional, too.
void bias_dropout_residual_norm_backward(const ConstTensorView& dy, const ConstTensorView& dsum,
                                         const ConstTensorView& sum, const ConstTensorView& weight,
                                         const ConstTensorView& mean, const ConstTensorView& rstd,
                                         const TensorView& dresidual, const TensorView& dx, const TensorView& dbias,
                                         const TensorView& dweight, const TensorView& dnorm_bias, Norm norm,
                                         const DropoutOptions& options, Workspace workspace,
                                         const Execution& execution = {});

}  // namespace maskless

#endif  // MASKLESS_FUSED_H_
