// torch.ops.maskless.project, project_transpose.
#include "maskless/sketch.h"

#include "glue.h"

namespace maskless::torch_ops {
namespace {

using Optional = std::optional<Tensor>;

ProjectionOptions options_of(const char* op, const Tensor& x, std::int64_t n_components, bool signs,
                             std::int64_t nonzeros, double density, std::int64_t seed, std::int64_t stream,
                             const Optional& seed_tensor, std::int64_t column_offset, std::int64_t row_offset) {
  ProjectionOptions options;
  options.kind = signs ? SketchKind::kSigns : SketchKind::kSjlt;
  options.n_components = n_components;
  options.nonzeros = static_cast<int>(nonzeros);
  options.density = density;
  options.seed = seed_of(op, x, seed, seed_tensor);
  options.stream = stream_of(op, stream);
  options.column_offset = static_cast<std::uint64_t>(column_offset);
  options.row_offset = row_offset;
  return options;
}

/// float32 where the input has 16 bits.
Tensor wide_matrix(const Tensor& x, std::int64_t cols) {
  std::int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(x.get(), &dtype));
  if (dtype == aoti_torch_dtype_float16() || dtype == aoti_torch_dtype_bfloat16()) dtype = aoti_torch_dtype_float32();
  return empty(x, {x.size(0), cols}, dtype);
}

Tensor project_op(const Tensor& x, std::int64_t n_components, std::int64_t rows, bool signs, std::int64_t nonzeros,
                  double density, std::int64_t seed, std::int64_t stream, Optional seed_tensor,
                  std::int64_t column_offset, std::int64_t row_offset) {
  const char* op = "project";
  if (x.dim() != 2) fail(op, "x", "must be a matrix", std::to_string(x.dim()) + " dimensions");
  const ProjectionOptions options =
      options_of(op, x, n_components, signs, nonzeros, density, seed, stream, seed_tensor, column_offset, row_offset);
  Tensor y = wide_matrix(x, rows);
  project(read_view(op, "x", x), write_view(op, "y", y), options, execution_for(op, x));
  return y;
}

Tensor project_transpose_op(const Tensor& y, std::int64_t n_components, std::int64_t columns, bool signs,
                            std::int64_t nonzeros, double density, std::int64_t seed, std::int64_t stream,
                            Optional seed_tensor, std::int64_t column_offset, std::int64_t row_offset) {
  const char* op = "project_transpose";
  if (y.dim() != 2) fail(op, "y", "must be a matrix", std::to_string(y.dim()) + " dimensions");
  const ProjectionOptions options =
      options_of(op, y, n_components, signs, nonzeros, density, seed, stream, seed_tensor, column_offset, row_offset);
  Tensor x = wide_matrix(y, columns);
  project_transpose(read_view(op, "y", y), write_view(op, "x", x), options, execution_for(op, y));
  return x;
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(maskless, m) {
  m.def(
      "project(Tensor x, SymInt n_components, SymInt rows, bool signs, int nonzeros, float density, SymInt seed, "
      "SymInt stream=0, Tensor? seed_tensor=None, SymInt column_offset=0, SymInt row_offset=0) -> Tensor");
  m.def(
      "project_transpose(Tensor y, SymInt n_components, SymInt columns, bool signs, int nonzeros, float density, "
      "SymInt seed, SymInt stream=0, Tensor? seed_tensor=None, SymInt column_offset=0, SymInt row_offset=0) -> "
      "Tensor");
}

void implement_sketch(torch::stable::detail::StableLibrary& m) {
  m.impl("project", TORCH_BOX(&project_op));
  m.impl("project_transpose", TORCH_BOX(&project_transpose_op));
}

STABLE_TORCH_LIBRARY_IMPL(maskless, CPU, m) { implement_sketch(m); }
STABLE_TORCH_LIBRARY_IMPL(maskless, CUDA, m) { implement_sketch(m); }

}  // namespace maskless::torch_ops
