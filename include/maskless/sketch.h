// Johnson-Lindenstrauss projections y = S x whose matrix S is a pure function of (seed, stream, row, column) and is
// never stored: the sparse transform sjlt (Kane and Nelson, JACM 2014) and iid signs (Achlioptas, JCSS 2003; Li, Hastie
// and Church, KDD 2006). Distances between the projections of n points are kept to a factor 1 +- eps with
// min_components(n, eps) rows, whatever the dimension.
#ifndef MASKLESS_SKETCH_H_
#define MASKLESS_SKETCH_H_

#include <cstdint>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless {

enum class SketchKind : std::uint8_t {
  kSjlt,   ///< exactly `nonzeros` entries +-1/sqrt(nonzeros) in each column, one in each block of rows
  kSigns,  ///< independent entries, nonzero with probability `density`: +-1/sqrt(density * n_components)
};

struct ProjectionOptions {
  SketchKind kind = SketchKind::kSjlt;
  std::int64_t n_components = 0;  ///< k, the rows of S: nonzeros <= k < 2^31
  int nonzeros = 4;               ///< sjlt: 1 ... 16
  double density = 1.0;           ///< signs: in (0, 1]
  Seed seed = {};
  std::uint32_t stream = 0;         ///< below 2^24: an ensemble is one seed and several streams
  std::uint64_t column_offset = 0;  ///< number of the first column: columns < 2^39 (2^34 for signs of density below 1)
  std::int64_t row_offset = 0;      ///< number of the first row
  bool accumulate = false;          ///< add to the output: sum of shards and chunks along the columns
};

/// y = S x for each row x of a batch. x: (batch, columns), y: (batch, rows), both of any strides; S is the piece of
/// `rows` rows from row_offset and `columns` columns from column_offset on.
///
/// dtypes: float16, bfloat16, float32, float64; y has x's, or float32 where x has 16 bits. Sums are taken in float32
/// (float64 for float64), in an order that is fixed on a device and does not depend on the number of threads: equal
/// bytes run after run. The matrix is the same everywhere. Throws Error.
void project(const ConstTensorView& x, const TensorView& y, const ProjectionOptions& options,
             const Execution& execution = {});

/// x = S^T y for each row y of a batch. y: (batch, rows), x: (batch, columns); otherwise as project.
void project_transpose(const ConstTensorView& y, const TensorView& x, const ProjectionOptions& options,
                       const Execution& execution = {});

/// A sparse matrix of `rows` vectors in compressed rows: row i has the entries indptr[i] ... indptr[i + 1] - 1.
struct CsrView {
  std::int64_t rows = 0, cols = 0;
  ConstTensorView values;  ///< (nonzeros,), floating, contiguous
  ConstTensorView
      indices;             ///< (nonzeros,), int32 or int64, contiguous: columns in [0, cols), any order, repeats add up
  ConstTensorView indptr;  ///< (rows + 1,), of the dtype of indices, contiguous
};

/// y = S x for each row of a sparse matrix, on the CPU. y: (x.rows, rows).
void project_csr(const CsrView& x, const TensorView& y, const ProjectionOptions& options,
                 const Execution& execution = {});

/// S itself on the CPU: matrix (rows, columns), floating.
void projection_matrix(const TensorView& matrix, const ProjectionOptions& options, const Execution& execution = {});

/// Some columns of S on the CPU. columns: (n,), int64, contiguous, numbers counted from column_offset; out: (rows, n).
void projection_columns(const ConstTensorView& columns, const TensorView& out, const ProjectionOptions& options,
                        const Execution& execution = {});

/// The number of rows that keeps all distances between `samples` points to a factor 1 +- eps with the usual bound,
/// floor(4 ln(samples) / (eps^2 / 2 - eps^3 / 3)) (Dasgupta and Gupta, 2003), as scikit-learn gives it; at least 1.
std::int64_t min_components(std::int64_t samples, double eps);

/// The scale of S's nonzeros.
double projection_scale(const ProjectionOptions& options);

}  // namespace maskless

#endif  // MASKLESS_SKETCH_H_
