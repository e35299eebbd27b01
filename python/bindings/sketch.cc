#include "maskless/sketch.h"

#include "common.h"

// After common.h, which brings nanobind itself.
#include <nanobind/stl/tuple.h>

#include <tuple>

namespace maskless::python {
namespace {

/// The matrix as Python's Projection holds it: (signs, n_components, nonzeros, density, seed, stream).
using Matrix = std::tuple<bool, std::int64_t, int, double, std::uint64_t, std::uint32_t>;

ProjectionOptions to_options(const Matrix& matrix, std::uint64_t column_offset, std::int64_t row_offset,
                             bool accumulate) {
  ProjectionOptions options;
  bool signs = false;
  std::uint64_t seed = 0;
  std::tie(signs, options.n_components, options.nonzeros, options.density, seed, options.stream) = matrix;
  options.kind = signs ? SketchKind::kSigns : SketchKind::kSjlt;
  options.seed = seed;
  options.column_offset = column_offset;
  options.row_offset = row_offset;
  options.accumulate = accumulate;
  return options;
}

void bound_project(const Input& x, const Output& out, const Matrix& matrix, std::uint64_t column_offset,
                   std::int64_t row_offset, bool accumulate, int threads) {
  const char* op = "project";
  const ConstTensorView in = to_view(op, "x", x);
  const TensorView to = to_view(op, "out", out);
  const ProjectionOptions options = to_options(matrix, column_offset, row_offset, accumulate);
  run(op, "y", [&] { project(in, to, options, with_threads(threads)); });
}

void bound_project_transpose(const Input& y, const Output& out, const Matrix& matrix, std::uint64_t column_offset,
                             std::int64_t row_offset, bool accumulate, int threads) {
  const char* op = "project_transpose";
  const ConstTensorView in = to_view(op, "y", y);
  const TensorView to = to_view(op, "out", out);
  const ProjectionOptions options = to_options(matrix, column_offset, row_offset, accumulate);
  run(op, "x", [&] { project_transpose(in, to, options, with_threads(threads)); });
}

void bound_project_csr(std::int64_t rows, std::int64_t cols, const Input& values, const Input& indices,
                       const Input& indptr, const Output& out, const Matrix& matrix, std::uint64_t column_offset,
                       std::int64_t row_offset, bool accumulate, int threads) {
  const char* op = "project";
  const CsrView x{rows, cols, to_view(op, "values", values), to_view(op, "indices", indices),
                  to_view(op, "indptr", indptr)};
  const TensorView to = to_view(op, "out", out);
  const ProjectionOptions options = to_options(matrix, column_offset, row_offset, accumulate);
  run(op, "y", [&] { project_csr(x, to, options, with_threads(threads)); });
}

void bound_projection_matrix(const Output& out, const Matrix& matrix, std::uint64_t column_offset,
                             std::int64_t row_offset, int threads) {
  const char* op = "projection_matrix";
  const TensorView to = to_view(op, "out", out);
  const ProjectionOptions options = to_options(matrix, column_offset, row_offset, false);
  run(op, "matrix", [&] { projection_matrix(to, options, with_threads(threads)); });
}

void bound_projection_columns(const Input& columns, const Output& out, const Matrix& matrix, int threads) {
  const char* op = "projection_columns";
  const ConstTensorView which = to_view(op, "columns", columns);
  const TensorView to = to_view(op, "out", out);
  const ProjectionOptions options = to_options(matrix, 0, 0, false);
  run(op, "out", [&] { projection_columns(which, to, options, with_threads(threads)); });
}

}  // namespace

void bind_sketch(nb::module_& m) {
  m.def("project", &bound_project, "x"_a.noconvert(), "out"_a.noconvert(), "matrix"_a, "column_offset"_a,
        "row_offset"_a, "accumulate"_a, "threads"_a);
  m.def("project_transpose", &bound_project_transpose, "y"_a.noconvert(), "out"_a.noconvert(), "matrix"_a,
        "column_offset"_a, "row_offset"_a, "accumulate"_a, "threads"_a);
  m.def("project_csr", &bound_project_csr, "rows"_a, "cols"_a, "values"_a.noconvert(), "indices"_a.noconvert(),
        "indptr"_a.noconvert(), "out"_a.noconvert(), "matrix"_a, "column_offset"_a, "row_offset"_a, "accumulate"_a,
        "threads"_a);
  m.def("projection_matrix", &bound_projection_matrix, "out"_a.noconvert(), "matrix"_a, "column_offset"_a,
        "row_offset"_a, "threads"_a);
  m.def("projection_columns", &bound_projection_columns, "columns"_a.noconvert(), "out"_a.noconvert(), "matrix"_a,
        "threads"_a);
  m.def("min_components", &min_components, "samples"_a, "eps"_a);
}

}  // namespace maskless::python
