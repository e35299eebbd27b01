// The fused operations' public functions: validate, normalise, choose the backend.
#include "maskless/fused.h"

#include <initializer_list>

#include "common/backend.h"
#include "common/index_space.h"
#include "common/validate.h"
#include "fused/fused_kernels.h"
#include "maskless/core/threshold.h"

namespace maskless {
namespace {

/// One call's checks: every argument against the first matrix.
class Checker {
 public:
  Checker(const char* op, const char* name, const ConstTensorView& first) : op_(op), name_(name), first_(first) {
    validate::floating(op, name, first);
    if (first.rank != 2)
      validate::fail_value(op, name, "must have 2 dimensions (rows, features)", validate::shape_text(first));
    rows_of(name, first);
  }

  bool empty() const { return first_.shape[0] == 0 || first_.shape[1] == 0; }

  ConstRows input(const char* name, const ConstTensorView& v, bool optional = false) const {
    if (optional && v.data == nullptr && !empty()) return {};
    like_first(name, v);
    return {v.data, v.strides[0]};
  }

  Rows output(const char* name, const TensorView& v, std::initializer_list<std::pair<const char*, ConstTensorView>> in,
              bool optional = false) const {
    if (optional && v.data == nullptr && !empty()) return {};
    like_first(name, v);
    validate::writable(op_, name, v);
    for (const auto& [in_name, view] : in)
      if (view.data != nullptr) validate::no_partial_overlap(op_, in_name, view, name, v);
    return {v.data, v.strides[0]};
  }

  /// (features,) of the matrices' dtype.
  void* features(const char* name, const ConstTensorView& v) const {
    return vector(name, v, first_.shape[1], "(features,)", first_.dtype);
  }

  /// (rows,) of the arithmetic's dtype.
  void* statistics(const char* name, const ConstTensorView& v, bool needed) const {
    if (!needed && v.data == nullptr) return nullptr;
    if (v.data == nullptr && !empty()) validate::fail_value(op_, name, "must not be left out", "a null pointer");
    return vector(name, v, first_.shape[0], "(rows,)",
                  first_.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32);
  }

  /// No two outputs share memory.
  void apart(std::initializer_list<std::pair<const char*, ConstTensorView>> outputs) const {
    for (auto a = outputs.begin(); a != outputs.end(); ++a)
      for (auto b = outputs.begin(); b != a; ++b)
        if (a->second.data != nullptr && b->second.data != nullptr)
          validate::no_overlap(op_, b->first, b->second, a->first, a->second);
  }

  void mask(FusedArgs& args, const DropoutOptions& options) const {
    if (options.layout != Layout::kPacked) validate::fail_value(op_, "layout", "must be packed", "the Triton layout");
    args.dtype = first_.dtype;
    args.rows = first_.shape[0];
    args.cols = first_.shape[1];
    args.mask = make_dropout_mask(op_, first_, options);
    const ConstTensorView* views[] = {&first_};
    const bool row_seeds = options.row_seeds.data != nullptr;
    args.first_index = make_index_space(op_, views, 1, options.first_index, options.shard, row_seeds).first_index;
    if (!row_seeds)
      args.row_index = static_cast<std::uint64_t>(options.shard.rank != 0 ? options.shard.global_shape[1] : args.cols);
    args.scale = options.scale ? keep_scale(options.p) : 1.0;
  }

  void workspace(FusedArgs& args, const Workspace& workspace) const {
    const std::int64_t needed = fused_workspace_bytes(first_);
    if (workspace.bytes < needed || (needed > 0 && workspace.data == nullptr))
      validate::fail_value(op_, "workspace", "must have at least " + validate::text(needed) + " bytes",
                           validate::text(workspace.data == nullptr ? std::int64_t{0} : workspace.bytes));
    if (reinterpret_cast<std::uintptr_t>(workspace.data) % 16 != 0)
      validate::fail_value(op_, "workspace", "must be aligned to 16 bytes", "an address that is not");
    args.workspace = workspace.data;
  }

 private:
  void rows_of(const char* name, const ConstTensorView& v) const {
    if (v.shape[1] > 1 && v.strides[1] != 1)
      validate::fail_value(op_, name, "must have features side by side (stride 1)",
                           "stride " + validate::text(v.strides[1]));
  }

  void like_first(const char* name, const ConstTensorView& v) const {
    validate::view(op_, name, v);
    validate::same_shape(op_, name_, first_, name, v);
    validate::same_dtype(op_, name_, first_, name, v);
    validate::same_device(op_, name_, first_, name, v);
    rows_of(name, v);
  }

  void* vector(const char* name, const ConstTensorView& v, std::int64_t extent, const char* shape, DType dtype) const {
    if (v.data == nullptr) return nullptr;
    validate::view(op_, name, v);
    if (v.rank != 1 || v.shape[0] != extent || (extent > 1 && v.strides[0] != 1))
      validate::fail_value(op_, name,
                           std::string("must be contiguous, of shape ") + shape + ", (" + validate::text(extent) + ",)",
                           validate::shape_text(v));
    if (v.dtype != dtype)
      validate::fail_type(op_, name, std::string("must be ") + dtype_name(dtype), dtype_name(v.dtype));
    validate::same_device(op_, name_, first_, name, v);
    return const_cast<void*>(v.data);
  }

  const char* op_;
  const char* name_;
  const ConstTensorView& first_;
};

void forward(const char* op, const ConstTensorView& x, const ConstTensorView& bias, const ConstTensorView& residual,
             bool has_residual, const TensorView& y, Activation activation, const DropoutOptions& options,
             const Execution& execution) {
  const Checker check(op, "x", x);
  FusedForwardArgs args;
  check.mask(args, options);
  args.activation = activation;
  args.x = check.input("x", x);
  args.bias = check.features("bias", bias);
  if (has_residual) args.residual = check.input("residual", residual);
  args.y = check.output("y", y, {{"x", x}, {"residual", residual}, {"bias", bias}});
  if (check.empty()) return;
  run_on(op, x.device, args, execution, cpu::fused_forward, MASKLESS_CUDA_KERNEL(fused_forward));
}

void norm_arguments(const char* op, Norm norm, const ConstTensorView& mean, const ConstTensorView& norm_bias,
                    const char* norm_bias_name) {
  if (norm != Norm::kRms) return;
  if (mean.data != nullptr)
    validate::fail_value(op, "mean", "must be left out for RMSNorm, which has none", "a tensor");
  if (norm_bias.data != nullptr)
    validate::fail_value(op, norm_bias_name, "must be left out for RMSNorm, which has none", "a tensor");
}

}  // namespace

std::int64_t fused_workspace_bytes(const ConstTensorView& x) {
  const char* op = "fused_workspace_bytes";
  if (x.rank != 2) validate::fail_value(op, "x", "must have 2 dimensions (rows, features)", validate::shape_text(x));
  if (x.shape[0] <= 0 || x.shape[1] <= 0) return 0;
  if (x.device.type == DeviceType::kCpu) return cpu::fused_workspace_bytes(x.dtype, x.shape[0], x.shape[1]);
#if MASKLESS_HAS_CUDA
  return cuda::fused_workspace_bytes(x.dtype, x.shape[0], x.shape[1]);
#else
  validate::no_cuda(op);
#endif
}

void bias_activation_dropout(const ConstTensorView& x, const ConstTensorView& bias, const TensorView& y,
                             Activation activation, const DropoutOptions& options, const Execution& execution) {
  forward("bias_activation_dropout", x, bias, {}, false, y, activation, options, execution);
}

void bias_dropout_residual(const ConstTensorView& x, const ConstTensorView& bias, const ConstTensorView& residual,
                           const TensorView& y, const DropoutOptions& options, const Execution& execution) {
  forward("bias_dropout_residual", x, bias, residual, true, y, Activation::kIdentity, options, execution);
}

void bias_activation_dropout_backward(const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& bias,
                                      const TensorView& dx, const TensorView& dbias, Activation activation,
                                      const DropoutOptions& options, Workspace workspace, const Execution& execution) {
  const char* op = "bias_activation_dropout_backward";
  const Checker check(op, "dy", dy);
  FusedBackwardArgs args;
  check.mask(args, options);
  args.activation = activation;
  args.dy = check.input("dy", dy);
  if (activation != Activation::kIdentity) {
    args.x = check.input("x", x);
    args.bias = check.features("bias", bias);
  }
  args.dx = check.output("dx", dx, {{"dy", dy}, {"x", x}});
  args.dbias = check.features("dbias", dbias);
  check.apart({{"dx", dx}, {"dbias", dbias}});
  if (args.dbias != nullptr) check.workspace(args, workspace);
  if (dy.shape[1] == 0) return;  // without rows dbias is still a sum: 0
  run_on(op, dy.device, args, execution, cpu::fused_backward, MASKLESS_CUDA_KERNEL(fused_backward));
}

void bias_dropout_residual_norm(const ConstTensorView& x, const ConstTensorView& bias, const ConstTensorView& residual,
                                const ConstTensorView& weight, const ConstTensorView& norm_bias, const TensorView& sum,
                                const TensorView& y, const TensorView& mean, const TensorView& rstd, Norm norm,
                                double eps, const DropoutOptions& options, const Execution& execution) {
  const char* op = "bias_dropout_residual_norm";
  const Checker check(op, "x", x);
  FusedNormArgs args;
  check.mask(args, options);
  if (!(eps >= 0.0)) validate::fail_value(op, "eps", "must be at least 0", validate::text(eps));
  norm_arguments(op, norm, mean, norm_bias, "norm_bias");
  args.norm = norm;
  args.eps = eps;
  args.x = check.input("x", x);
  args.bias = check.features("bias", bias);
  args.residual = check.input("residual", residual, true);
  args.weight = check.features("weight", weight);
  args.norm_bias = check.features("norm_bias", norm_bias);
  args.sum = check.output("sum", sum, {{"x", x}, {"residual", residual}});
  args.y = check.output("y", y, {{"x", x}, {"residual", residual}});
  args.mean = check.statistics("mean", mean, norm == Norm::kLayer);
  args.rstd = check.statistics("rstd", rstd, true);
  check.apart({{"sum", sum}, {"y", y}, {"mean", mean}, {"rstd", rstd}});
  if (check.empty()) return;
  run_on(op, x.device, args, execution, cpu::fused_norm, MASKLESS_CUDA_KERNEL(fused_norm));
}

void bias_dropout_residual_norm_backward(const ConstTensorView& dy, const ConstTensorView& dsum,
                                         const ConstTensorView& sum, const ConstTensorView& weight,
                                         const ConstTensorView& mean, const ConstTensorView& rstd,
                                         const TensorView& dresidual, const TensorView& dx, const TensorView& dbias,
                                         const TensorView& dweight, const TensorView& dnorm_bias, Norm norm,
                                         const DropoutOptions& options, Workspace workspace,
                                         const Execution& execution) {
  const char* op = "bias_dropout_residual_norm_backward";
  const Checker check(op, "dy", dy);
  FusedNormBackwardArgs args;
  check.mask(args, options);
  norm_arguments(op, norm, mean, dnorm_bias, "dnorm_bias");
  args.norm = norm;
  args.dy = check.input("dy", dy);
  args.dsum = check.input("dsum", dsum, true);
  args.sum = check.input("sum", sum);
  args.weight = check.features("weight", weight);
  args.mean = check.statistics("mean", mean, norm == Norm::kLayer);
  args.rstd = check.statistics("rstd", rstd, true);
  args.dresidual = check.output("dresidual", dresidual, {{"dy", dy}, {"dsum", dsum}, {"sum", sum}}, true);
  args.dx = check.output("dx", dx, {{"dy", dy}, {"dsum", dsum}, {"sum", sum}});
  args.dbias = check.features("dbias", dbias);
  args.dweight = check.features("dweight", dweight);
  args.dnorm_bias = check.features("dnorm_bias", dnorm_bias);
  check.apart(
      {{"dresidual", dresidual}, {"dx", dx}, {"dbias", dbias}, {"dweight", dweight}, {"dnorm_bias", dnorm_bias}});
  check.workspace(args, workspace);
  if (dy.shape[1] == 0) return;
  run_on(op, dy.device, args, execution, cpu::fused_norm_backward, MASKLESS_CUDA_KERNEL(fused_norm_backward));
}

}  // namespace maskless
