// Dropout's public functions: validate, normalise, choose the backend.
#include "maskless/dropout.h"

#include "common/backend.h"
#include "common/validate.h"
#include "dropout/dropout_kernels.h"

namespace maskless {
namespace {

void dropout_as(const char* op, const char* in_name, const char* out_name, const ConstTensorView& x,
                const TensorView& y, const DropoutOptions& options, const Execution& execution) {
  validate::floating(op, in_name, x);
  validate::view(op, out_name, y);
  validate::same_shape(op, in_name, x, out_name, y);
  validate::same_dtype(op, in_name, x, out_name, y);
  validate::same_device(op, in_name, x, out_name, y);
  validate::writable(op, out_name, y);
  validate::no_partial_overlap(op, in_name, x, out_name, y);
  DropoutArgs args;
  args.mask = make_dropout_mask(op, x, options);
  const ConstTensorView out = y;
  const ConstTensorView* views[] = {&x, &out};
  args.space = make_index_space(op, views, 2, options.first_index, options.shard, options.row_seeds.data != nullptr);
  args.dtype = x.dtype;
  args.scale = options.scale ? keep_scale(options.p) : 1.0;
  args.copy = args.scale == 1.0;
  args.x = x.data;
  args.y = y.data;
  if (args.space.size == 0) return;
  run_on(op, x.device, args, execution, cpu::dropout, MASKLESS_CUDA_KERNEL(dropout));
}

}  // namespace

void dropout(const ConstTensorView& x, const TensorView& y, const DropoutOptions& options, const Execution& execution) {
  dropout_as("dropout", "x", "y", x, y, options, execution);
}

void dropout_backward(const ConstTensorView& dy, const TensorView& dx, const DropoutOptions& options,
                      const Execution& execution) {
  dropout_as("dropout_backward", "dy", "dx", dy, dx, options, execution);
}

void keep_mask(const TensorView& mask, const DropoutOptions& options, const Execution& execution) {
  const char* op = "keep_mask";
  validate::view(op, "mask", mask);
  if (mask.dtype != DType::kBool && mask.dtype != DType::kUint8)
    validate::fail_type(op, "mask", "must be bool or uint8", dtype_name(mask.dtype));
  validate::writable(op, "mask", mask);
  KeepMaskArgs args;
  args.mask = make_dropout_mask(op, mask, options);
  const ConstTensorView out = mask;
  const ConstTensorView* views[] = {&out};
  args.space = make_index_space(op, views, 1, options.first_index, options.shard, options.row_seeds.data != nullptr);
  args.keep = static_cast<std::uint8_t*>(mask.data);
  if (args.space.size == 0) return;
  run_on(op, mask.device, args, execution, cpu::keep_mask, MASKLESS_CUDA_KERNEL(keep_mask));
}

void keep_mask_packed(const ConstTensorView& shape, const TensorView& bits, const DropoutOptions& options,
                      const Execution& execution) {
  const char* op = "keep_mask_packed";
  validate::view(op, "bits", bits);
  ConstTensorView tensor = shape;
  tensor.data = bits.data != nullptr ? bits.data : &shape;  // only its shape counts
  tensor.strides = {};
  validate::view(op, "shape", tensor);
  if (bits.dtype != DType::kUint8) validate::fail_type(op, "bits", "must be uint8", dtype_name(bits.dtype));
  const std::int64_t bytes = (tensor.size() + 7) / 8;
  if (bits.rank != 1 || bits.shape[0] != bytes || (bytes > 1 && bits.strides[0] != 1))
    validate::fail_value(op, "bits", "must be contiguous, of shape (" + validate::text(bytes) + ",)",
                         validate::shape_text(bits));
  KeepMaskPackedArgs args;
  args.mask = make_dropout_mask(op, tensor, options);
  const ConstTensorView* views[] = {&tensor};
  args.space = make_index_space(op, views, 0, options.first_index, options.shard, options.row_seeds.data != nullptr);
  args.bits = static_cast<std::uint8_t*>(bits.data);
  if (args.space.size == 0) return;
  run_on(op, bits.device, args, execution, cpu::keep_mask_packed, MASKLESS_CUDA_KERNEL(keep_mask_packed));
}

void masked_dropout(const ConstTensorView& x, const ConstTensorView& keep, const TensorView& y, double p, bool scale,
                    const Execution& execution) {
  const char* op = "masked_dropout";
  validate::floating(op, "x", x);
  validate::view(op, "keep", keep);
  validate::view(op, "y", y);
  validate::same_shape(op, "x", x, "keep", keep);
  validate::same_shape(op, "x", x, "y", y);
  validate::same_dtype(op, "x", x, "y", y);
  validate::same_device(op, "x", x, "keep", keep);
  validate::same_device(op, "x", x, "y", y);
  validate::writable(op, "y", y);
  validate::no_partial_overlap(op, "x", x, "y", y);
  validate::no_partial_overlap(op, "keep", keep, "y", y);
  validate::probability(op, "p", p);
  if (keep.dtype != DType::kBool && keep.dtype != DType::kUint8 && keep.dtype != DType::kInt32)
    validate::fail_type(op, "keep", "must be bool, uint8 or int32", dtype_name(keep.dtype));
  MaskedDropoutArgs args;
  const ConstTensorView out = y;
  const ConstTensorView* views[] = {&x, &keep, &out};
  args.space = make_index_space(op, views, 3, 0, {});
  args.dtype = x.dtype;
  args.keep_dtype = keep.dtype;
  args.scale = scale ? keep_scale(p) : 1.0;
  args.copy = args.scale == 1.0;
  args.x = x.data;
  args.keep = keep.data;
  args.y = y.data;
  if (args.space.size == 0) return;
  run_on(op, x.device, args, execution, cpu::masked_dropout, MASKLESS_CUDA_KERNEL(masked_dropout));
}

}  // namespace maskless
