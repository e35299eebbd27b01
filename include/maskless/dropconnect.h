// DropConnect: a linear layer that drops weights, with an independent mask for every sample of the batch.
//
// L. Wan, M. Zeiler, S. Zhang, Y. LeCun, R. Fergus, "Regularization of neural networks using DropConnect", ICML 2013.
// The mask D[m, n, k] is a pure function of (seed, stream, sample m, output n, input k), drawn inside the product and
// never stored. Its bits are those of docs/spec.md: equal on every device, instruction set, thread count, dtype, tile
// and sharding.
#ifndef MASKLESS_DROPCONNECT_H_
#define MASKLESS_DROPCONNECT_H_

#include <cstdint>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless {

struct DropconnectOptions {
  double p = 0.5;  ///< probability to drop a weight, in [0, 1]
  Seed seed = {};
  std::uint32_t stream = 0;  ///< call site (layer), below 2^24
  bool scale = true;         ///< multiply the product by 1 / (1 - p)
  bool shared = false;       ///< one mask for the whole batch, that of sample 0; this is not DropConnect

  /// Monte-Carlo passes over the same x, each with its own masks; 0: none, y has the shape (*, out_features). With S
  /// passes y and dy have the shape (S, *, out_features) and pass s of row m has the position
  /// first_sample + s * sample_stride + m.
  std::int64_t samples = 0;
  std::int64_t sample_stride = 0;  ///< positions from one pass to the next; 0: the number of rows of x

  // Where this piece of a larger layer lies; positions of samples and outputs are below 2^32, those of inputs 2^34.
  std::uint64_t first_sample = 0;  ///< position of the first row of x, rows counted row-major over its leading dims
  std::uint64_t first_output = 0;  ///< position of the first row of weight
  std::uint64_t first_input = 0;   ///< position of the first column of x and weight
};

/// y[m, n] = scale * sum_k x[m, k] weight[n, k] D[m, n, k] + bias[n], scale = 1 / (1 - p) (1 if options.scale is
/// false).
///
/// x: (*, in_features); weight: (out_features, in_features); bias: (out_features,) or null; y: (*, out_features), or
/// (S, *, out_features) with options.samples = S. One dtype (float16, bfloat16, float32, float64) and device, any
/// strides; y must not overlap another tensor, nor itself. Sums are taken in float32 (float64 for float64) and rounded
/// once. A dropped weight takes no part, whatever it and its input are (inf, NaN). p = 1 gives the bias; empty sums are
/// 0. Masks are bit-exact everywhere; sums are the same bits run after run on one device and version, but their order
/// differs between backends. On the CPU no memory is used besides y and a small buffer a thread; on CUDA at most 32 MiB
/// of workspace, queued on execution.cuda_stream like the work. Throws Error.
void dropconnect(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView* bias,
                 const TensorView& y, const DropconnectOptions& options, const Execution& execution = {});

/// Gradients of dropconnect with the same options, each left out where its pointer is null:
/// dx[m, k] = scale * sum_n dy[m, n] weight[n, k] D[m, n, k], dweight[n, k] = scale * sum_m dy[m, n] x[m, k] D[m, n,
/// k], dbias[n] = sum_m dy[m, n]; with options.samples = S, the sums run over the passes too.
///
/// dy: y's shape; dx: x's; dweight: weight's; dbias: (out_features,). Dtypes, strides, memory and determinism as above,
/// but for dweight and dbias two strides must walk the rows and passes (of x and dy alike); else an Error asks for
/// contiguous ones.
void dropconnect_backward(const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& weight,
                          const TensorView* dx, const TensorView* dweight, const TensorView* dbias,
                          const DropconnectOptions& options, const Execution& execution = {});

/// The mask itself, for small sizes: keep[m, n, k] = 1 where D keeps. keep: bool or uint8, (samples, outputs, inputs),
/// any strides. options.samples must be 0. Bit-exact everywhere.
void dropconnect_mask(const TensorView& keep, const DropconnectOptions& options, const Execution& execution = {});

/// Mean and variance of y over the masks, for y with options.scale = true: mean = x weight^T + bias and
/// variance = p / (1 - p) (x * x) (weight * weight)^T (Wan et al. 2013, section 5). p < 1. on the CPU.
///
/// mean, variance: (*, out_features), x's dtype; the sums are taken in float64.
void dropconnect_moments(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView* bias, double p,
                         const TensorView& mean, const TensorView& variance, const Execution& execution = {});

}  // namespace maskless

#endif  // MASKLESS_DROPCONNECT_H_
