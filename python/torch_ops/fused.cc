// torch.ops.maskless.bias_activation_dropout, bias_dropout_residual, bias_dropout_residual_norm and their backwards,
// for matrices.
#include "maskless/fused.h"

#include <array>
#include <tuple>

#include "options.h"

namespace maskless::torch_ops {
namespace {

using Optional = std::optional<Tensor>;
using Sizes = std::vector<std::int64_t>;

ConstTensorView read_optional(const char* op, const char* argument, const Optional& tensor) {
  return tensor.has_value() ? read_view(op, argument, *tensor) : ConstTensorView{};
}

/// An output that may be left out: a tensor of no elements stands for it.
TensorView write_optional(const char* op, const char* argument, const Tensor& tensor, bool wanted) {
  return wanted ? write_view(op, argument, tensor) : TensorView{};
}

Tensor vector_like(const Tensor& x, std::int64_t size) {
  std::int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  return empty(x, {size}, dtype);
}

/// Row statistics: float32, or float64 for float64.
Tensor statistics_like(const Tensor& x) {
  const bool wide = x.scalar_type() == ScalarType::Double;
  return empty(x, {x.size(0)}, wide ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32());
}

DropoutOptions options_of(const char* op, const Tensor& x, double p, std::int64_t seed, std::int64_t stream,
                          const Optional& seed_tensor, const Optional& p_tensor, const Sizes& shape,
                          const Sizes& offsets) {
  if (x.dim() != 2) fail(op, "x", "must be a matrix", std::to_string(x.dim()) + " dimensions");
  return make_options(op, x, p, seed, stream, seed_tensor, p_tensor, std::nullopt, 0, true, false, shape, offsets);
}

/// Memory for sums over rows: kept alive by the tensor.
struct Scratch {
  Tensor memory;
  Workspace view;
};
Scratch scratch_for(const Tensor& x, const ConstTensorView& view) {
  const std::int64_t bytes = fused_workspace_bytes(view);
  Tensor memory = empty(x, {bytes}, aoti_torch_dtype_uint8());
  Workspace workspace;
  workspace.data = memory.mutable_data_ptr();
  workspace.bytes = bytes;
  return {memory, workspace};
}

Tensor bias_activation_dropout_op(const Tensor& x, Optional bias, std::int64_t activation, double p, std::int64_t seed,
                                  std::int64_t stream, Optional seed_tensor, Optional p_tensor, Sizes shape,
                                  Sizes offsets) {
  const char* op = "bias_activation_dropout";
  const DropoutOptions options = options_of(op, x, p, seed, stream, seed_tensor, p_tensor, shape, offsets);
  Tensor y = new_like(x);
  bias_activation_dropout(read_view(op, "x", x), read_optional(op, "bias", bias), write_view(op, "y", y),
                          static_cast<Activation>(activation), options, execution_for(op, x));
  return y;
}

std::tuple<Tensor, Tensor> bias_activation_dropout_backward_op(const Tensor& dy, Optional x, Optional bias,
                                                               bool with_dbias, std::int64_t activation, double p,
                                                               std::int64_t seed, std::int64_t stream,
                                                               Optional seed_tensor, Optional p_tensor, Sizes shape,
                                                               Sizes offsets) {
  const char* op = "bias_activation_dropout_backward";
  const DropoutOptions options = options_of(op, dy, p, seed, stream, seed_tensor, p_tensor, shape, offsets);
  Tensor dx = new_like(dy), dbias = vector_like(dy, with_dbias ? dy.size(1) : 0);
  const ConstTensorView gradient = read_view(op, "dy", dy);
  const Scratch scratch = scratch_for(dy, gradient);
  bias_activation_dropout_backward(gradient, read_optional(op, "x", x), read_optional(op, "bias", bias),
                                   write_view(op, "dx", dx), write_optional(op, "dbias", dbias, with_dbias),
                                   static_cast<Activation>(activation), options, scratch.view, execution_for(op, dy));
  return {dx, dbias};
}

Tensor bias_dropout_residual_op(const Tensor& x, Optional bias, const Tensor& residual, double p, std::int64_t seed,
                                std::int64_t stream, Optional seed_tensor, Optional p_tensor, Sizes shape,
                                Sizes offsets) {
  const char* op = "bias_dropout_residual";
  const DropoutOptions options = options_of(op, x, p, seed, stream, seed_tensor, p_tensor, shape, offsets);
  Tensor y = new_like(x);
  bias_dropout_residual(read_view(op, "x", x), read_optional(op, "bias", bias), read_view(op, "residual", residual),
                        write_view(op, "y", y), options, execution_for(op, x));
  return y;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> bias_dropout_residual_norm_op(
    const Tensor& x, Optional bias, Optional residual, Optional weight, Optional norm_bias, bool rms, double eps,
    double p, std::int64_t seed, std::int64_t stream, Optional seed_tensor, Optional p_tensor, Sizes shape,
    Sizes offsets) {
  const char* op = "bias_dropout_residual_norm";
  const DropoutOptions options = options_of(op, x, p, seed, stream, seed_tensor, p_tensor, shape, offsets);
  Tensor sum = new_like(x), y = new_like(x);
  Tensor mean = rms ? empty(x, {0}, aoti_torch_dtype_float32()) : statistics_like(x);
  Tensor rstd = statistics_like(x);
  bias_dropout_residual_norm(
      read_view(op, "x", x), read_optional(op, "bias", bias), read_optional(op, "residual", residual),
      read_optional(op, "weight", weight), read_optional(op, "norm_bias", norm_bias), write_view(op, "sum", sum),
      write_view(op, "y", y), write_optional(op, "mean", mean, !rms), write_view(op, "rstd", rstd),
      rms ? Norm::kRms : Norm::kLayer, eps, options, execution_for(op, x));
  return {y, sum, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> bias_dropout_residual_norm_backward_op(
    const Tensor& dy, Optional dsum, const Tensor& sum, Optional weight, const Tensor& mean, const Tensor& rstd,
    bool rms, bool with_dbias, bool with_dweight, bool with_dnorm_bias, double p, std::int64_t seed,
    std::int64_t stream, Optional seed_tensor, Optional p_tensor, Sizes shape, Sizes offsets) {
  const char* op = "bias_dropout_residual_norm_backward";
  const DropoutOptions options = options_of(op, dy, p, seed, stream, seed_tensor, p_tensor, shape, offsets);
  const std::int64_t features = dy.size(1);
  Tensor dresidual = new_like(dy), dx = new_like(dy), dbias = vector_like(dy, with_dbias ? features : 0);
  Tensor dweight = vector_like(dy, with_dweight ? features : 0);
  Tensor dnorm_bias = vector_like(dy, with_dnorm_bias ? features : 0);
  const ConstTensorView gradient = read_view(op, "dy", dy);
  const Scratch scratch = scratch_for(dy, gradient);
  bias_dropout_residual_norm_backward(
      gradient, read_optional(op, "dsum", dsum), read_view(op, "sum", sum), read_optional(op, "weight", weight),
      rms ? ConstTensorView{} : read_view(op, "mean", mean), read_view(op, "rstd", rstd),
      write_view(op, "dresidual", dresidual), write_view(op, "dx", dx), write_optional(op, "dbias", dbias, with_dbias),
      write_optional(op, "dweight", dweight, with_dweight),
      write_optional(op, "dnorm_bias", dnorm_bias, with_dnorm_bias), rms ? Norm::kRms : Norm::kLayer, options,
      scratch.view, execution_for(op, dy));
  return {dresidual, dx, dbias, dweight, dnorm_bias};
}

}  // namespace

#define MASKLESS_MASK_SCHEMA                                                                 \
  "float p, SymInt seed, SymInt stream=0, Tensor? seed_tensor=None, Tensor? p_tensor=None, " \
  "SymInt[] global_shape=[], SymInt[] offsets=[]"

STABLE_TORCH_LIBRARY_FRAGMENT(maskless, m) {
  m.def("bias_activation_dropout(Tensor x, Tensor? bias, int activation, " MASKLESS_MASK_SCHEMA ") -> Tensor");
  m.def(
      "bias_activation_dropout_backward(Tensor dy, Tensor? x, Tensor? bias, bool with_dbias, int "
      "activation, " MASKLESS_MASK_SCHEMA ") -> (Tensor, Tensor)");
  m.def("bias_dropout_residual(Tensor x, Tensor? bias, Tensor residual, " MASKLESS_MASK_SCHEMA ") -> Tensor");
  m.def(
      "bias_dropout_residual_norm(Tensor x, Tensor? bias, Tensor? residual, Tensor? weight, Tensor? norm_bias, bool "
      "rms, float eps, " MASKLESS_MASK_SCHEMA ") -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "bias_dropout_residual_norm_backward(Tensor dy, Tensor? dsum, Tensor sum, Tensor? weight, Tensor mean, Tensor "
      "rstd, bool rms, bool with_dbias, bool with_dweight, bool with_dnorm_bias, " MASKLESS_MASK_SCHEMA
      ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
}

void implement_fused(torch::stable::detail::StableLibrary& m) {
  m.impl("bias_activation_dropout", TORCH_BOX(&bias_activation_dropout_op));
  m.impl("bias_activation_dropout_backward", TORCH_BOX(&bias_activation_dropout_backward_op));
  m.impl("bias_dropout_residual", TORCH_BOX(&bias_dropout_residual_op));
  m.impl("bias_dropout_residual_norm", TORCH_BOX(&bias_dropout_residual_norm_op));
  m.impl("bias_dropout_residual_norm_backward", TORCH_BOX(&bias_dropout_residual_norm_backward_op));
}

STABLE_TORCH_LIBRARY_IMPL(maskless, CPU, m) { implement_fused(m); }
STABLE_TORCH_LIBRARY_IMPL(maskless, CUDA, m) { implement_fused(m); }

}  // namespace maskless::torch_ops
