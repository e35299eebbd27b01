// DropConnect's public functions: validate, normalise, choose the backend.
#include "maskless/dropconnect.h"

#include <algorithm>
#include <vector>

#include "common/backend.h"
#include "common/validate.h"
#include "common/visit.h"
#include "dropconnect/dropconnect_kernels.h"
#include "maskless/core/uniform.h"

namespace maskless {
namespace {

constexpr std::uint64_t kPositions = std::uint64_t{1} << 32;  // of samples and of outputs
constexpr std::uint64_t kInputs = std::uint64_t{1} << 34;

/// x (*, in), y or dy ([S,] *, out): the leading dimensions, those that can be walked in one step merged.
struct Rows {
  int rank = 0;
  std::int64_t shape[kMaxRank] = {}, x[kMaxRank] = {}, y[kMaxRank] = {};
  std::int64_t count = 1;
};

Rows merge_rows(const ConstTensorView& x, const ConstTensorView& y, bool passes) {
  Rows rows;
  for (int d = 0; d + 1 < x.rank; ++d) {
    const std::int64_t extent = x.shape[d], sx = x.strides[d], sy = y.strides[d + (passes ? 1 : 0)];
    rows.count *= extent;
    if (extent == 1) continue;
    const int last = rows.rank - 1;
    if (last >= 0 && rows.x[last] == sx * extent && rows.y[last] == sy * extent) {
      rows.shape[last] *= extent;
      rows.x[last] = sx;
      rows.y[last] = sy;
      continue;
    }
    rows.shape[rows.rank] = extent;
    rows.x[rows.rank] = sx;
    rows.y[rows.rank++] = sy;
  }
  return rows;
}

/// Calls f(first row, x offset, y offset, rows, x stride, y stride) for every run of rows that one stride walks.
template <typename F>
void for_each_run(const Rows& rows, F&& f) {
  if (rows.rank == 0)
    return f(std::int64_t{0}, std::int64_t{0}, std::int64_t{0}, rows.count, std::int64_t{0}, std::int64_t{0});
  const int inner = rows.rank - 1;
  const std::int64_t length = rows.shape[inner], runs = length == 0 ? 0 : rows.count / length;
  for (std::int64_t run = 0; run < runs; ++run) {
    std::int64_t rest = run, x = 0, y = 0;
    for (int d = inner - 1; d >= 0; --d) {
      const std::int64_t coord = rest % rows.shape[d];
      rest /= rows.shape[d];
      x += coord * rows.x[d];
      y += coord * rows.y[d];
    }
    f(run * length, x, y, length, rows.x[inner], rows.y[inner]);
  }
}

struct Layer {
  DropconnectShape shape;
  DropconnectMask mask;
  double scale = 1.0;
  Rows rows;
};

/// The mask of `passes` passes over `rows` rows; p = 1 is left to the caller.
DropconnectMask make_mask(const char* op, const DropconnectOptions& options, std::int64_t passes, std::int64_t rows,
                          std::int64_t outputs, std::int64_t inputs) {
  validate::probability(op, "p", options.p);
  validate::stream(op, options.stream);
  const auto fits = [&](const char* name, std::uint64_t first, std::int64_t extent, std::uint64_t limit,
                        const char* text) {
    if (first > limit || static_cast<std::uint64_t>(extent) > limit - first)
      validate::fail_value(op, name, std::string("must leave every position below ") + text, validate::text(first));
  };
  fits("first_output", options.first_output, outputs, kPositions, "2^32");
  fits("first_input", options.first_input, inputs, kInputs, "2^34");
  if (options.sample_stride < 0)
    validate::fail_value(op, "sample_stride", "must not be negative", validate::text(options.sample_stride));
  DropconnectMask mask;
  mask.threshold = threshold(options.p);
  mask.seed = options.seed.value;
  mask.seed_pointer = options.seed.pointer;
  mask.tag = counter_tag(Op::kDropconnect, options.stream);
  mask.first_output = static_cast<std::uint32_t>(options.first_output);
  mask.first_input = options.first_input;
  if (options.shared) {
    mask.row_stride = 0;
    return mask;
  }
  const std::int64_t stride = options.sample_stride != 0 ? options.sample_stride : rows;
  if (passes > 0 && rows > 0) {
    const auto limit = static_cast<std::int64_t>(kPositions);
    if (passes > 1 && stride > limit / (passes - 1))
      validate::fail_value(op, "sample_stride", "must leave every position below 2^32", validate::text(stride));
    fits("first_sample", options.first_sample, (passes - 1) * stride + rows, kPositions, "2^32");
  }
  mask.first_sample = static_cast<std::uint32_t>(options.first_sample);
  mask.sample_stride = static_cast<std::uint32_t>(stride);
  return mask;
}

void require_shape(const char* op, const char* name, const ConstTensorView& view,
                   const std::vector<std::int64_t>& shape, const char* rule) {
  bool same = view.rank == static_cast<int>(shape.size());
  for (int d = 0; same && d < view.rank; ++d) same = view.shape[d] == shape[static_cast<std::size_t>(d)];
  if (same) return;
  std::string wanted = "(";
  for (std::size_t d = 0; d < shape.size(); ++d) wanted += (d == 0 ? "" : ", ") + validate::text(shape[d]);
  validate::fail_value(op, name,
                       std::string("must have the shape ") + rule + " = " + wanted + (shape.size() == 1 ? ",)" : ")"),
                       validate::shape_text(view));
}

void require_like(const char* op, const ConstTensorView& x, const char* name, const ConstTensorView& view) {
  validate::view(op, name, view);
  validate::same_dtype(op, "x", x, name, view);
  validate::same_device(op, "x", x, name, view);
}

/// Checks x, weight and y (or dy, named y_name) against each other.
Layer make_layer(const char* op, const ConstTensorView& x, const ConstTensorView& weight, const char* y_name,
                 const ConstTensorView& y, const DropconnectOptions& options) {
  validate::floating(op, "x", x);
  require_like(op, x, "weight", weight);
  require_like(op, x, y_name, y);
  if (x.rank < 1)
    validate::fail_value(op, "x", "must have at least 1 dimension, (*, in_features)", validate::shape_text(x));
  if (weight.rank != 2)
    validate::fail_value(op, "weight", "must have 2 dimensions (out_features, in_features)",
                         validate::shape_text(weight));
  if (weight.shape[1] != x.shape[x.rank - 1])
    validate::fail_value(op, "weight", "must have as many columns as x, " + validate::text(x.shape[x.rank - 1]),
                         validate::shape_text(weight));
  if (options.samples < 0) validate::fail_value(op, "samples", "must not be negative", validate::text(options.samples));
  const bool passes = options.samples > 0;
  std::vector<std::int64_t> shape(x.shape.begin(), x.shape.begin() + x.rank);
  shape.back() = weight.shape[0];
  if (passes) shape.insert(shape.begin(), options.samples);
  require_shape(op, y_name, y, shape, passes ? "(samples, *, out_features)" : "(*, out_features)");

  Layer layer;
  layer.rows = merge_rows(x, y, passes);
  layer.shape.dtype = x.dtype;
  layer.shape.passes = passes ? options.samples : 1;
  layer.shape.rows = layer.rows.count;
  layer.shape.outputs = weight.shape[0];
  layer.shape.inputs = weight.shape[1];
  layer.mask = make_mask(op, options, layer.shape.passes, layer.shape.rows, layer.shape.outputs, layer.shape.inputs);
  layer.scale = options.scale ? keep_scale(options.p) : 1.0;
  return layer;
}

bool drops_all(const DropconnectMask& mask) { return mask.threshold >> 32 != 0; }

/// A view's address `elements` further.
const void* at(const ConstTensorView& view, std::int64_t elements) {
  return static_cast<const char*>(view.data) + elements * static_cast<std::int64_t>(dtype_size(view.dtype));
}
void* at(const TensorView& view, std::int64_t elements) {
  return static_cast<char*>(view.data) + elements * static_cast<std::int64_t>(dtype_size(view.dtype));
}

/// The mask of rows from `first` on.
DropconnectMask rows_from(DropconnectMask mask, std::int64_t first) {
  mask.first_sample = mask.sample(0, first);
  return mask;
}

}  // namespace

void dropconnect(const ConstTensorView& x, const ConstTensorView& weight, const ConstTensorView* bias,
                 const TensorView& y, const DropconnectOptions& options, const Execution& execution) {
  const char* op = "dropconnect";
  Layer layer = make_layer(op, x, weight, "y", y, options);
  if (bias != nullptr) {
    require_like(op, x, "bias", *bias);
    require_shape(op, "bias", *bias, {weight.shape[0]}, "(out_features,)");
    validate::no_overlap(op, "bias", *bias, "y", y);
  }
  validate::writable(op, "y", y);
  validate::no_overlap(op, "x", x, "y", y);
  validate::no_overlap(op, "weight", weight, "y", y);
  if (layer.shape.rows == 0 || layer.shape.outputs == 0) return;
  if (drops_all(layer.mask)) layer.shape.inputs = 0;  // an empty sum, whatever x and weight hold

  DropconnectArgs args;
  args.shape = layer.shape;
  args.scale = layer.scale;
  args.w = {weight.data, weight.strides[0], weight.strides[1]};
  if (bias != nullptr) {
    args.bias = bias->data;
    args.bias_stride = bias->strides[0];
  }
  if (options.samples > 0) args.y_pass = y.strides[0];
  for_each_run(layer.rows, [&](std::int64_t first, std::int64_t x_offset, std::int64_t y_offset, std::int64_t rows,
                               std::int64_t x_row, std::int64_t y_row) {
    args.shape.rows = rows;
    args.mask = rows_from(layer.mask, first);
    args.x = {at(x, x_offset), x_row, x.strides[x.rank - 1]};
    args.y = {at(y, y_offset), y_row, y.strides[y.rank - 1]};
    run_on(op, x.device, args, execution, cpu::dropconnect, MASKLESS_CUDA_KERNEL(dropconnect));
  });
}

void dropconnect_backward(const ConstTensorView& dy, const ConstTensorView& x, const ConstTensorView& weight,
                          const TensorView* dx, const TensorView* dweight, const TensorView* dbias,
                          const DropconnectOptions& options, const Execution& execution) {
  const char* op = "dropconnect_backward";
  Layer layer = make_layer(op, x, weight, "dy", dy, options);
  const ConstTensorView* inputs[] = {&dy, &x, &weight};
  const char* input_names[] = {"dy", "x", "weight"};
  const TensorView* outputs[] = {dx, dweight, dbias};
  const char* output_names[] = {"dx", "dweight", "dbias"};
  for (int o = 0; o < 3; ++o) {
    if (outputs[o] == nullptr) continue;
    require_like(op, x, output_names[o], *outputs[o]);
    if (o == 0) validate::same_shape(op, "x", x, "dx", *dx);
    if (o == 1) validate::same_shape(op, "weight", weight, "dweight", *dweight);
    if (o == 2) require_shape(op, "dbias", *dbias, {weight.shape[0]}, "(out_features,)");
    validate::writable(op, output_names[o], *outputs[o]);
    for (int i = 0; i < 3; ++i) validate::no_overlap(op, input_names[i], *inputs[i], output_names[o], *outputs[o]);
    for (int other = 0; other < o; ++other)
      if (outputs[other] != nullptr)
        validate::no_overlap(op, output_names[other], *outputs[other], output_names[o], *outputs[o]);
  }

  DropconnectBackwardArgs args;
  args.shape = layer.shape;
  args.scale = layer.scale;
  args.w = {weight.data, weight.strides[0], weight.strides[1]};
  if (options.samples > 0) args.dy_pass = dy.strides[0];
  if (drops_all(layer.mask)) args.shape.passes = 0;  // empty sums, whatever the tensors hold
  const auto run = [&](const DropconnectBackwardArgs& part) {
    run_on(op, x.device, part, execution, cpu::dropconnect_backward, MASKLESS_CUDA_KERNEL(dropconnect_backward));
  };
  if (dx != nullptr && dx->size() > 0) {
    const Rows by_dx = merge_rows(*dx, dy, options.samples > 0);
    for_each_run(by_dx, [&](std::int64_t first, std::int64_t dx_offset, std::int64_t dy_offset, std::int64_t count,
                            std::int64_t dx_row, std::int64_t dy_row) {
      DropconnectBackwardArgs part = args;
      part.shape.rows = count;
      part.mask = rows_from(layer.mask, first);
      part.dy = {at(dy, dy_offset), dy_row, dy.strides[dy.rank - 1]};
      part.dx = {at(*dx, dx_offset), dx_row, dx->strides[dx->rank - 1]};
      run(part);
    });
  }
  if (dweight == nullptr && dbias == nullptr) return;
  // Sums over all rows and passes: two strides walk them, one for the rows and one for the passes.
  DropconnectBackwardArgs part = args;
  part.mask = layer.mask;
  const Rows& rows = layer.rows;
  const int inner = rows.rank - 1;
  if (rows.rank > 2 || (rows.rank == 2 && layer.shape.passes > 1))
    validate::fail_value(op, "x", "and dy must have leading dimensions that fewer strides walk (make them contiguous)",
                         validate::shape_text(x));
  part.x = {x.data, inner >= 0 ? rows.x[inner] : 0, x.strides[x.rank - 1]};
  part.dy = {dy.data, inner >= 0 ? rows.y[inner] : 0, dy.strides[dy.rank - 1]};
  std::int64_t passes = layer.shape.passes;
  if (rows.rank == 2) {
    passes = rows.shape[0];
    part.shape.rows = rows.shape[1];
    part.x_pass = rows.x[0];
    part.dy_pass = rows.y[0];
    part.mask.sample_stride = static_cast<std::uint32_t>(rows.shape[1]) * part.mask.row_stride;
  }
  if (dweight != nullptr && dweight->size() > 0) {
    part.shape.passes = drops_all(layer.mask) ? 0 : passes;
    part.dw = {dweight->data, dweight->strides[0], dweight->strides[1]};
    run(part);
    part.dw = {};
  }
  if (dbias != nullptr && dbias->size() > 0) {
    part.shape.passes = passes;
    part.dbias = dbias->data;
    part.dbias_stride = dbias->strides[0];
    run(part);
  }
}

void dropconnect_mask(const TensorView& keep, const DropconnectOptions& options, const Execution& execution) {
  const char* op = "dropconnect_mask";
  validate::view(op, "keep", keep);
  if (keep.dtype != DType::kBool && keep.dtype != DType::kUint8)
    validate::fail_type(op, "keep", "must be bool or uint8", dtype_name(keep.dtype));
  if (keep.rank != 3)
    validate::fail_value(op, "keep", "must have 3 dimensions (samples, outputs, inputs)", validate::shape_text(keep));
  validate::writable(op, "keep", keep);
  if (options.samples != 0) validate::fail_value(op, "samples", "must be 0", validate::text(options.samples));
  DropconnectMaskArgs args;
  args.shape = {keep.dtype, 1, keep.shape[0], keep.shape[1], keep.shape[2]};
  args.mask = make_mask(op, options, 1, keep.shape[0], keep.shape[1], keep.shape[2]);
  args.keep = static_cast<std::uint8_t*>(keep.data);
  std::copy_n(keep.strides.begin(), 3, args.strides);
  if (keep.size() == 0) return;
  run_on(op, keep.device, args, execution, cpu::dropconnect_mask, MASKLESS_CUDA_KERNEL(dropconnect_mask));
}

}  // namespace maskless
