// torch.ops.maskless.dropout_linear: dropout before a linear layer, neither mask nor dropped input left behind.
#include "options.h"

namespace maskless::torch_ops {
namespace {

using Optional = std::optional<Tensor>;

Tensor linear(const Tensor& x, const Tensor& weight, const Optional& bias) {
  std::array<StableIValue, 3> stack{torch::stable::detail::from(x), torch::stable::detail::from(weight),
                                    torch::stable::detail::from(bias)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::linear", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

Tensor dropout_linear_op(const Tensor& x, const Tensor& weight, Optional bias, double p, std::int64_t seed,
                         std::int64_t stream, Optional seed_tensor, Optional p_tensor,
                         std::vector<std::int64_t> global_shape, std::vector<std::int64_t> offsets) {
  const char* op = "dropout_linear";
  const DropoutOptions options =
      make_options(op, x, p, seed, stream, seed_tensor, p_tensor, std::nullopt, 0, true, false, global_shape, offsets);
  Tensor dropped = new_like(x);
  dropout(read_view(op, "x", x), write_view(op, "y", dropped), options, execution_for(op, x));
  return linear(dropped, weight, bias);
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(maskless, m) {
  m.def(
      "dropout_linear(Tensor x, Tensor weight, Tensor? bias, float p, SymInt seed, SymInt stream=0, Tensor? "
      "seed_tensor=None, Tensor? p_tensor=None, SymInt[] global_shape=[], SymInt[] offsets=[]) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(maskless, CPU, m) { m.impl("dropout_linear", TORCH_BOX(&dropout_linear_op)); }
STABLE_TORCH_LIBRARY_IMPL(maskless, CUDA, m) { m.impl("dropout_linear", TORCH_BOX(&dropout_linear_op)); }

}  // namespace maskless::torch_ops
