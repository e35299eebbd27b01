// torch.ops.maskless.dropout, _dropout, keep_mask, draw_seed.
#include "maskless/dropout.h"

#include "options.h"

namespace maskless::torch_ops {
namespace {

Tensor dropout_op(const Tensor& x, double p, std::int64_t seed, std::int64_t stream, std::optional<Tensor> seed_tensor,
                  std::optional<Tensor> p_tensor, std::optional<Tensor> row_seeds, std::int64_t first_index, bool scale,
                  bool triton, std::vector<std::int64_t> global_shape, std::vector<std::int64_t> offsets) {
  const char* op = "dropout";
  const DropoutOptions options = make_options(op, x, p, seed, stream, seed_tensor, p_tensor, row_seeds, first_index,
                                              scale, triton, global_shape, offsets);
  const ConstTensorView input = read_view(op, "x", x);
  Tensor y = new_like(x);
  dropout(input, write_view(op, "y", y), options, execution_for(op, x));
  return y;
}

/// The common case with as few arguments as it needs: each costs time in a call.
Tensor dropout_short(const Tensor& x, double p, std::int64_t seed, std::int64_t stream) {
  const char* op = "dropout";
  DropoutOptions options;
  options.p = p;
  options.seed = Seed(static_cast<std::uint64_t>(seed));
  options.stream = stream_of(op, stream);
  const ConstTensorView input = read_view(op, "x", x);
  Tensor y = new_like(x);
  dropout(input, write_view(op, "y", y), options, execution_for(op, x));
  return y;
}

Tensor dropout_short_tensor(const Tensor& x, double p, const Tensor& seed, std::int64_t stream) {
  return dropout_op(x, p, 0, stream, seed, std::nullopt, std::nullopt, 0, true, false, {}, {});
}

Tensor keep_mask_op(const Tensor& like, double p, std::int64_t seed, std::int64_t stream,
                    std::optional<Tensor> seed_tensor, std::optional<Tensor> p_tensor, std::optional<Tensor> row_seeds,
                    std::int64_t first_index, bool triton, std::vector<std::int64_t> global_shape,
                    std::vector<std::int64_t> offsets) {
  const char* op = "keep_mask";
  const DropoutOptions options = make_options(op, like, p, seed, stream, seed_tensor, p_tensor, row_seeds, first_index,
                                              true, triton, global_shape, offsets);
  Tensor mask = empty(like, {like.sizes().begin(), like.sizes().end()}, aoti_torch_dtype_bool());
  keep_mask(write_view(op, "mask", mask), options, execution_for(op, like));
  return mask;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(maskless, m) {
  m.def(
      "dropout(Tensor x, float p, SymInt seed, SymInt stream=0, Tensor? seed_tensor=None, Tensor? p_tensor=None, "
      "Tensor? row_seeds=None, SymInt first_index=0, bool scale=True, bool triton=False, SymInt[] global_shape=[], "
      "SymInt[] offsets=[]) -> Tensor");
  for (const char* name : {"_dropout", "_traced_dropout"}) {  // the second has a derivative, for torch.compile
    const std::string op = name;
    m.def((op + "(Tensor x, float p, SymInt seed, SymInt stream) -> Tensor").c_str());
    m.def((op + ".tensor(Tensor x, float p, Tensor seed, SymInt stream) -> Tensor").c_str());
  }
  m.def(
      "keep_mask(Tensor like, float p, SymInt seed, SymInt stream=0, Tensor? seed_tensor=None, Tensor? p_tensor=None, "
      "Tensor? row_seeds=None, SymInt first_index=0, bool triton=False, SymInt[] global_shape=[], SymInt[] offsets=[])"
      " -> Tensor");
}

void implement_dropout(torch::stable::detail::StableLibrary& m) {
  m.impl("dropout", TORCH_BOX(&dropout_op));
  m.impl("_dropout", TORCH_BOX(&dropout_short));
  m.impl("_dropout.tensor", TORCH_BOX(&dropout_short_tensor));
  m.impl("_traced_dropout", TORCH_BOX(&dropout_short));
  m.impl("_traced_dropout.tensor", TORCH_BOX(&dropout_short_tensor));
  m.impl("keep_mask", TORCH_BOX(&keep_mask_op));
}

STABLE_TORCH_LIBRARY_IMPL(maskless, CPU, m) { implement_dropout(m); }
STABLE_TORCH_LIBRARY_IMPL(maskless, CUDA, m) { implement_dropout(m); }  // without the backend: an error that says so

}  // namespace maskless::torch_ops
