// What the backends implement for projections: plain arguments, validated and normalised, no more questions asked.
#ifndef MASKLESS_SRC_SKETCH_SKETCH_KERNELS_H_
#define MASKLESS_SRC_SKETCH_SKETCH_KERNELS_H_

#include <cstdint>

#include "maskless/core/sjlt.h"
#include "maskless/core/uniform.h"
#include "maskless/tensor.h"

namespace maskless {

/// S: rows [row_offset, row_offset + rows) and columns [column_offset, column_offset + cols) of the whole.
struct SketchMatrix {
  bool signs = false;  // iid signs; else sjlt
  SjltGeometry geometry;
  std::uint64_t threshold = std::uint64_t{1} << 32;  // of the density of signs
  std::uint64_t seed = 0;
  const std::uint64_t* seed_pointer = nullptr;
  std::uint32_t stream = 0;
  std::uint32_t row_offset = 0;
  std::uint64_t column_offset = 0;
  std::int64_t rows = 0, cols = 0;
  double scale = 1.0;
};

/// project: in (batch, cols), out (batch, rows). project_transpose: in (batch, rows), out (batch, cols).
struct SketchArgs {
  SketchMatrix matrix;
  std::int64_t batch = 0;
  DType in_dtype = DType::kFloat32, out_dtype = DType::kFloat32;
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t in_strides[2] = {}, out_strides[2] = {};
  bool accumulate = false;
};

/// y = S x for rows in CSR: batch rows, out (batch, rows).
struct SketchCsrArgs {
  SketchArgs base;    // in: the values
  bool wide = false;  // int64 indices, else int32
  const void* indices = nullptr;
  const void* indptr = nullptr;
};

/// Entries of S: column c is columns[c], or c where that is null.
struct SketchMatrixArgs {
  SketchMatrix matrix;
  const std::int64_t* columns = nullptr;
  DType dtype = DType::kFloat32;
  void* out = nullptr;
  std::int64_t out_strides[2] = {};
};

namespace cpu {
void project(const SketchArgs& args, const Execution& execution);
void project_transpose(const SketchArgs& args, const Execution& execution);
void project_csr(const SketchCsrArgs& args, const Execution& execution);
void projection_matrix(const SketchMatrixArgs& args, const Execution& execution);
}  // namespace cpu

namespace cuda {  // defined where the library is built with CUDA
void project(const SketchArgs& args, Device device, void* stream);
void project_transpose(const SketchArgs& args, Device device, void* stream);
}  // namespace cuda

}  // namespace maskless

#endif  // MASKLESS_SRC_SKETCH_SKETCH_KERNELS_H_
