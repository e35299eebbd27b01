#include "common/dropout_mask.h"

#include "common/validate.h"

namespace maskless {

DropoutMask make_dropout_mask(const char* op, const ConstTensorView& tensor, const DropoutOptions& options) {
  validate::probability(op, "p", options.p);
  validate::stream(op, options.stream);
  const bool triton = options.layout == Layout::kTriton;
  if (triton && options.stream != 0)
    validate::fail_value(op, "stream", "must be 0 in the Triton layout, which has none",
                         validate::text(std::uint64_t{options.stream}));
  if (options.row_seeds.data != nullptr && tensor.rank != 2)
    validate::fail_value(op, "row_seeds", "needs a tensor of 2 dimensions (rows, columns)",
                         validate::shape_text(tensor));
  DropoutMask mask;
  mask.layout = options.layout;
  mask.threshold = triton ? triton_threshold(options.p) : threshold(options.p);
  if (options.p == 0.0) mask.threshold = 0;  // p = 0 keeps everything, also where tl.rand gives 0
  mask.seed = options.seed.value;
  mask.seed_pointer = options.seed.pointer;
  mask.row_seeds = options.row_seeds.data;
  mask.row_seed_stride = options.row_seeds.stride;
  mask.stream = options.stream;
  return mask;
}

}  // namespace maskless
