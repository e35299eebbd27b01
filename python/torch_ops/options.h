// What the operations with dropout's mask share: their options from the arguments of a call.
#ifndef MASKLESS_PYTHON_TORCH_OPS_OPTIONS_H_
#define MASKLESS_PYTHON_TORCH_OPS_OPTIONS_H_

#include "glue.h"
#include "maskless/dropout.h"

namespace maskless::torch_ops {

inline DropoutOptions make_options(const char* op, const Tensor& x, double p, std::int64_t seed, std::int64_t stream,
                                   const std::optional<Tensor>& seed_tensor, const std::optional<Tensor>& p_tensor,
                                   const std::optional<Tensor>& row_seeds, std::int64_t first_index, bool scale,
                                   bool triton, const std::vector<std::int64_t>& global_shape,
                                   const std::vector<std::int64_t>& offsets) {
  DropoutOptions options;
  options.p = probability_of(op, p, p_tensor);
  options.seed = seed_of(op, x, seed, seed_tensor);
  options.stream = stream_of(op, stream);
  options.first_index = static_cast<std::uint64_t>(first_index);
  options.layout = triton ? Layout::kTriton : Layout::kPacked;
  options.scale = scale;
  options.shard = shard_of(op, global_shape, offsets);
  if (row_seeds.has_value()) {
    if (row_seeds->dim() != 1 || x.dim() != 2 || row_seeds->size(0) != x.size(0) || row_seeds->is_cuda() != x.is_cuda())
      fail(op, "row_seeds", "must have one element for each row of a matrix, on its device");
    options.row_seeds = {words(op, "row_seeds", *row_seeds), row_seeds->stride(0)};
    static const std::uint64_t kNone = 0;
    if (options.row_seeds.data == nullptr) options.row_seeds.data = &kNone;  // no rows: never read
  }
  return options;
}

}  // namespace maskless::torch_ops

#endif  // MASKLESS_PYTHON_TORCH_OPS_OPTIONS_H_
