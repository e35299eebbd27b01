// torch.ops.maskless.dropconnect, dropconnect_backward, dropconnect_mask.
#include "maskless/dropconnect.h"

#include <tuple>

#include "glue.h"

namespace maskless::torch_ops {
namespace {

using Optional = std::optional<Tensor>;

DropconnectOptions options_of(const char* op, const Tensor& x, double p, std::int64_t seed, std::int64_t stream,
                              const Optional& seed_tensor, const Optional& p_tensor, bool scale, bool shared,
                              std::int64_t samples, std::int64_t sample_stride,
                              const std::vector<std::int64_t>& first) {
  DropconnectOptions options;
  options.p = probability_of(op, p, p_tensor);
  options.seed = seed_of(op, x, seed, seed_tensor);
  options.stream = stream_of(op, stream);
  options.scale = scale;
  options.shared = shared;
  options.samples = samples;
  options.sample_stride = sample_stride;
  if (!first.empty() && first.size() != 3) fail(op, "first", "must hold a sample, an output and an input");
  if (first.size() == 3) {
    options.first_sample = static_cast<std::uint64_t>(first[0]);
    options.first_output = static_cast<std::uint64_t>(first[1]);
    options.first_input = static_cast<std::uint64_t>(first[2]);
  }
  return options;
}

Tensor dropconnect_op(const Tensor& x, const Tensor& weight, Optional bias, double p, std::int64_t seed,
                      std::int64_t stream, Optional seed_tensor, Optional p_tensor, bool scale, bool shared,
                      std::int64_t samples, std::int64_t sample_stride, std::vector<std::int64_t> first) {
  const char* op = "dropconnect";
  const DropconnectOptions options =
      options_of(op, x, p, seed, stream, seed_tensor, p_tensor, scale, shared, samples, sample_stride, first);
  if (weight.dim() != 2 || x.dim() < 1) fail(op, "weight", "must be a matrix and x have at least one dimension");
  std::vector<std::int64_t> shape(x.sizes().begin(), x.sizes().end());
  shape.back() = weight.size(0);
  if (samples > 0) shape.insert(shape.begin(), samples);
  std::int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  Tensor y = empty(x, shape, dtype);
  ConstTensorView bias_view;
  if (bias.has_value()) bias_view = read_view(op, "bias", *bias);
  dropconnect(read_view(op, "x", x), read_view(op, "weight", weight), bias.has_value() ? &bias_view : nullptr,
              write_view(op, "y", y), options, execution_for(op, x));
  return y;
}

std::tuple<Tensor, Tensor, Tensor> dropconnect_backward_op(const Tensor& dy, const Tensor& x, const Tensor& weight,
                                                           bool with_dx, bool with_dweight, bool with_dbias, double p,
                                                           std::int64_t seed, std::int64_t stream, Optional seed_tensor,
                                                           Optional p_tensor, bool scale, bool shared,
                                                           std::int64_t samples, std::int64_t sample_stride,
                                                           std::vector<std::int64_t> first) {
  const char* op = "dropconnect_backward";
  const DropconnectOptions options =
      options_of(op, x, p, seed, stream, seed_tensor, p_tensor, scale, shared, samples, sample_stride, first);
  std::int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  const auto gradient = [&](bool wanted, const Tensor& of) {  // left out: no elements
    return wanted ? empty(of, {of.sizes().begin(), of.sizes().end()}, dtype) : empty(of, {0}, dtype);
  };
  Tensor dx = gradient(with_dx, x), dweight = gradient(with_dweight, weight);
  Tensor dbias = empty(x, {with_dbias ? weight.size(0) : 0}, dtype);
  const TensorView dx_view = write_view(op, "dx", dx), dweight_view = write_view(op, "dweight", dweight);
  const TensorView dbias_view = write_view(op, "dbias", dbias);
  dropconnect_backward(read_view(op, "dy", dy), read_view(op, "x", x), read_view(op, "weight", weight),
                       with_dx ? &dx_view : nullptr, with_dweight ? &dweight_view : nullptr,
                       with_dbias ? &dbias_view : nullptr, options, execution_for(op, x));
  return {dx, dweight, dbias};
}

Tensor dropconnect_mask_op(const Tensor& like, double p, std::int64_t seed, std::int64_t stream, Optional seed_tensor,
                           Optional p_tensor, bool shared, std::vector<std::int64_t> first) {
  const char* op = "dropconnect_mask";
  const DropconnectOptions options =
      options_of(op, like, p, seed, stream, seed_tensor, p_tensor, true, shared, 0, 0, first);
  Tensor keep = empty(like, {like.sizes().begin(), like.sizes().end()}, aoti_torch_dtype_bool());
  dropconnect_mask(write_view(op, "keep", keep), options, execution_for(op, like));
  return keep;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(maskless, m) {
  m.def(
      "dropconnect(Tensor x, Tensor weight, Tensor? bias, float p, SymInt seed, SymInt stream=0, Tensor? "
      "seed_tensor=None, Tensor? p_tensor=None, bool scale=True, bool shared=False, SymInt samples=0, SymInt "
      "sample_stride=0, SymInt[] first=[]) -> Tensor");
  m.def(
      "dropconnect_backward(Tensor dy, Tensor x, Tensor weight, bool with_dx, bool with_dweight, bool with_dbias, "
      "float p, SymInt seed, SymInt stream=0, Tensor? seed_tensor=None, Tensor? p_tensor=None, bool scale=True, bool "
      "shared=False, SymInt samples=0, SymInt sample_stride=0, SymInt[] first=[]) -> (Tensor, Tensor, Tensor)");
  m.def(
      "dropconnect_mask(Tensor like, float p, SymInt seed, SymInt stream=0, Tensor? seed_tensor=None, Tensor? "
      "p_tensor=None, bool shared=False, SymInt[] first=[]) -> Tensor");
}

void implement_dropconnect(torch::stable::detail::StableLibrary& m) {
  m.impl("dropconnect", TORCH_BOX(&dropconnect_op));
  m.impl("dropconnect_backward", TORCH_BOX(&dropconnect_backward_op));
  m.impl("dropconnect_mask", TORCH_BOX(&dropconnect_mask_op));
}

STABLE_TORCH_LIBRARY_IMPL(maskless, CPU, m) { implement_dropconnect(m); }
STABLE_TORCH_LIBRARY_IMPL(maskless, CUDA, m) { implement_dropconnect(m); }

}  // namespace maskless::torch_ops
