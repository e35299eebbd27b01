// The public functions of projections: validate, normalise, choose the backend.
#include "maskless/sketch.h"

#include <cmath>
#include <limits>

#include "common/backend.h"
#include "common/validate.h"
#include "maskless/core/threshold.h"
#include "sketch/sketch_kernels.h"

namespace maskless {
namespace {

using validate::fail_type;
using validate::fail_value;
using validate::text;

void check_options(const char* op, const ProjectionOptions& o) {
  constexpr std::int64_t kRowLimit = std::int64_t{1} << 31;
  if (o.n_components < 1 || o.n_components >= kRowLimit)
    fail_value(op, "n_components", "must be in [1, 2^31 - 1]", text(o.n_components));
  if (o.kind == SketchKind::kSjlt) {
    if (o.nonzeros < 1 || o.nonzeros > kSjltMaxNonzeros)
      fail_value(op, "nonzeros", "must be in [1, 16]", text(std::int64_t{o.nonzeros}));
    if (o.n_components < o.nonzeros)
      fail_value(op, "n_components", "must be at least nonzeros, " + text(std::int64_t{o.nonzeros}),
                 text(o.n_components));
  } else if (!(o.density > 0.0 && o.density <= 1.0)) {
    fail_value(op, "density", "must be in (0, 1]", text(o.density));
  } else if (threshold(o.density) == 0) {
    fail_value(op, "density", "must be at least 2^-32", text(o.density));
  }
  validate::stream(op, o.stream);
}

SketchMatrix make_matrix(const char* op, const ProjectionOptions& o, std::int64_t rows, std::int64_t cols) {
  check_options(op, o);
  if (o.row_offset < 0 || rows > o.n_components - o.row_offset)
    fail_value(op, "row_offset", "and the rows must lie within n_components, " + text(o.n_components),
               "offset " + text(o.row_offset) + ", rows " + text(rows));
  SketchMatrix m;
  m.signs = o.kind == SketchKind::kSigns;
  if (m.signs) {
    m.threshold = threshold(o.density);
  } else {
    m.geometry = sjlt_geometry(static_cast<std::uint32_t>(o.n_components), static_cast<std::uint32_t>(o.nonzeros));
  }
  const bool planes = m.signs && m.threshold >> 32 == 0;
  const std::uint64_t limit = std::uint64_t{1} << (planes ? 34 : 39);
  if (o.column_offset > limit || static_cast<std::uint64_t>(cols) > limit - o.column_offset)
    fail_value(op, "column_offset",
               planes ? "and the columns must lie below 2^34 (signs of density below 1)"
                      : "and the columns must lie below 2^39",
               "offset " + text(o.column_offset) + ", columns " + text(cols));
  m.seed = o.seed.value;
  m.seed_pointer = o.seed.pointer;
  m.stream = o.stream;
  m.row_offset = static_cast<std::uint32_t>(o.row_offset);
  m.column_offset = o.column_offset;
  m.rows = rows;
  m.cols = cols;
  m.scale = projection_scale(o);
  return m;
}

void check_matrix(const char* op, const char* name, const ConstTensorView& v, const char* shape) {
  validate::floating(op, name, v);
  if (v.rank != 2) fail_value(op, name, std::string("must be a matrix of shape ") + shape, validate::shape_text(v));
}

void check_output(const char* op, const char* in_name, const ConstTensorView& in, const char* out_name,
                  const TensorView& out, const char* shape, std::int64_t batch) {
  check_matrix(op, out_name, out, shape);
  if (out.shape[0] != batch)
    fail_value(op, out_name, "must have a row for each row of " + std::string(in_name) + ", " + text(batch),
               validate::shape_text(out));
  const bool half = in.dtype == DType::kFloat16 || in.dtype == DType::kBFloat16;
  if (out.dtype != in.dtype && !(half && out.dtype == DType::kFloat32))
    fail_type(
        op, out_name,
        std::string("must have the dtype of ") + in_name + ", " + dtype_name(in.dtype) + (half ? ", or float32" : ""),
        dtype_name(out.dtype));
  validate::same_device(op, in_name, in, out_name, out);
  validate::writable(op, out_name, out);
}

void no_overlap(const char* op, const char* in_name, const ConstTensorView& in, const char* out_name,
                const ConstTensorView& out) {
  validate::no_partial_overlap(op, in_name, in, out_name, out);
  if (in.data == out.data && in.size() > 0 && out.size() > 0)
    fail_value(op, out_name, std::string("must not overlap ") + in_name, "memory that overlaps");
}

SketchArgs make_args(const char* op, const char* in_name, const ConstTensorView& in, const char* out_name,
                     const TensorView& out, const ProjectionOptions& options, bool transpose) {
  const char* x_shape = "(batch, columns)";
  const char* y_shape = "(batch, rows)";
  check_matrix(op, in_name, in, transpose ? y_shape : x_shape);
  check_output(op, in_name, in, out_name, out, transpose ? x_shape : y_shape, in.shape[0]);
  no_overlap(op, in_name, in, out_name, out);
  SketchArgs args;
  args.matrix =
      make_matrix(op, options, transpose ? in.shape[1] : out.shape[1], transpose ? out.shape[1] : in.shape[1]);
  args.batch = in.shape[0];
  args.in_dtype = in.dtype;
  args.out_dtype = out.dtype;
  args.in = in.data;
  args.out = out.data;
  for (int d = 0; d < 2; ++d) args.in_strides[d] = in.strides[d], args.out_strides[d] = out.strides[d];
  args.accumulate = options.accumulate;
  return args;
}

void check_cpu(const char* op, const char* name, const ConstTensorView& v) {
  if (v.device.type != DeviceType::kCpu) fail_value(op, name, "must be on the cpu", text(v.device));
}

void check_vector(const char* op, const char* name, const ConstTensorView& v, std::int64_t size) {
  validate::view(op, name, v);
  if (v.rank != 1 || v.shape[0] != size || (size > 1 && v.strides[0] != 1))
    fail_value(op, name, "must be contiguous, of shape (" + text(size) + ",)", validate::shape_text(v));
  check_cpu(op, name, v);
}

template <typename Index>
void check_csr(const char* op, const CsrView& x) {
  const auto* indptr = static_cast<const Index*>(x.indptr.data);
  const auto* indices = static_cast<const Index*>(x.indices.data);
  const std::int64_t nonzeros = x.values.shape[0];
  if (indptr[0] != 0 || indptr[x.rows] != nonzeros)
    fail_value(op, "indptr", "must begin at 0 and end at the number of nonzeros, " + text(nonzeros),
               text(std::int64_t{indptr[0]}) + " and " + text(std::int64_t{indptr[x.rows]}));
  for (std::int64_t i = 0; i < x.rows; ++i)
    if (indptr[i] > indptr[i + 1])
      fail_value(op, "indptr", "must not decrease",
                 text(std::int64_t{indptr[i]}) + " before " + text(std::int64_t{indptr[i + 1]}));
  for (std::int64_t e = 0; e < nonzeros; ++e)
    if (indices[e] < 0 || indices[e] >= x.cols)
      fail_value(op, "indices", "must be in [0, columns), columns = " + text(x.cols), text(std::int64_t{indices[e]}));
}

}  // namespace

double projection_scale(const ProjectionOptions& o) {
  return o.kind == SketchKind::kSjlt ? 1.0 / std::sqrt(static_cast<double>(o.nonzeros))
                                     : 1.0 / std::sqrt(static_cast<double>(threshold(o.density)) / 4294967296.0 *
                                                       static_cast<double>(o.n_components));
}

void project(const ConstTensorView& x, const TensorView& y, const ProjectionOptions& options,
             const Execution& execution) {
  const char* op = "project";
  const SketchArgs args = make_args(op, "x", x, "y", y, options, false);
  if (y.size() == 0) return;
  run_on(op, x.device, args, execution, cpu::project, MASKLESS_CUDA_KERNEL(project));
}

void project_transpose(const ConstTensorView& y, const TensorView& x, const ProjectionOptions& options,
                       const Execution& execution) {
  const char* op = "project_transpose";
  const SketchArgs args = make_args(op, "y", y, "x", x, options, true);
  if (x.size() == 0) return;
  run_on(op, y.device, args, execution, cpu::project_transpose, MASKLESS_CUDA_KERNEL(project_transpose));
}

void project_csr(const CsrView& x, const TensorView& y, const ProjectionOptions& options, const Execution& execution) {
  const char* op = "project";
  validate::floating(op, "values", x.values);
  if (x.rows < 0 || x.cols < 0)
    fail_value(op, "x", "must not have a negative extent", text(x.rows) + ", " + text(x.cols));
  if (x.rows >= std::int64_t{1} << 59) fail_value(op, "x", "must have fewer than 2^59 rows", text(x.rows));
  check_vector(op, "values", x.values, x.values.rank == 1 ? x.values.shape[0] : 0);
  check_vector(op, "indices", x.indices, x.values.shape[0]);
  check_vector(op, "indptr", x.indptr, x.rows + 1);
  if (x.indices.dtype != DType::kInt32 && x.indices.dtype != DType::kInt64)
    fail_type(op, "indices", "must be int32 or int64", dtype_name(x.indices.dtype));
  validate::same_dtype(op, "indices", x.indices, "indptr", x.indptr);
  check_output(op, "values", x.values, "y", y, "(batch, rows)", x.rows);
  validate::no_overlap(op, "values", x.values, "y", y);
  validate::no_overlap(op, "indices", x.indices, "y", y);
  validate::no_overlap(op, "indptr", x.indptr, "y", y);
  SketchCsrArgs args;
  args.base.matrix = make_matrix(op, options, y.shape[1], x.cols);
  args.base.batch = x.rows;
  args.base.in_dtype = x.values.dtype;
  args.base.out_dtype = y.dtype;
  args.base.in = x.values.data;
  args.base.out = y.data;
  for (int d = 0; d < 2; ++d) args.base.out_strides[d] = y.strides[d];
  args.base.accumulate = options.accumulate;
  args.wide = x.indices.dtype == DType::kInt64;
  args.indices = x.indices.data;
  args.indptr = x.indptr.data;
  args.wide ? check_csr<std::int64_t>(op, x) : check_csr<std::int32_t>(op, x);
  if (y.size() == 0) return;
  cpu::project_csr(args, execution);
}

void projection_matrix(const TensorView& matrix, const ProjectionOptions& options, const Execution& execution) {
  const char* op = "projection_matrix";
  check_matrix(op, "matrix", matrix, "(rows, columns)");
  check_cpu(op, "matrix", matrix);
  validate::writable(op, "matrix", matrix);
  SketchMatrixArgs args;
  args.matrix = make_matrix(op, options, matrix.shape[0], matrix.shape[1]);
  args.dtype = matrix.dtype;
  args.out = matrix.data;
  for (int d = 0; d < 2; ++d) args.out_strides[d] = matrix.strides[d];
  if (matrix.size() == 0) return;
  cpu::projection_matrix(args, execution);
}

void projection_columns(const ConstTensorView& columns, const TensorView& out, const ProjectionOptions& options,
                        const Execution& execution) {
  const char* op = "projection_columns";
  check_matrix(op, "out", out, "(rows, columns)");
  check_cpu(op, "out", out);
  validate::writable(op, "out", out);
  check_vector(op, "columns", columns, out.shape[1]);
  if (columns.dtype != DType::kInt64) fail_type(op, "columns", "must be int64", dtype_name(columns.dtype));
  SketchMatrixArgs args;
  args.columns = static_cast<const std::int64_t*>(columns.data);
  std::int64_t last = -1;
  for (std::int64_t c = 0; c < out.shape[1]; ++c) {
    const std::int64_t column = args.columns[c];
    if (column < 0 || column >= std::int64_t{1} << 39)
      fail_value(op, "columns", "must be in [0, 2^39 - 1]", text(column));
    if (column > last) last = column;
  }
  args.matrix = make_matrix(op, options, out.shape[0], last + 1);
  args.matrix.cols = out.shape[1];
  args.dtype = out.dtype;
  args.out = out.data;
  for (int d = 0; d < 2; ++d) args.out_strides[d] = out.strides[d];
  if (out.size() == 0) return;
  cpu::projection_matrix(args, execution);
}

std::int64_t min_components(std::int64_t samples, double eps) {
  const char* op = "min_components";
  if (samples < 1) fail_value(op, "samples", "must be at least 1", text(samples));
  if (!(eps > 0.0 && eps < 1.0)) fail_value(op, "eps", "must be in (0, 1)", text(eps));
  const double k = 4.0 * std::log(static_cast<double>(samples)) / (eps * eps / 2 - eps * eps * eps / 3);
  if (!(k < 9e18)) fail_value(op, "eps", "must not ask for more than 2^63 components", text(eps));
  return k < 1.0 ? 1 : static_cast<std::int64_t>(k);
}

}  // namespace maskless
