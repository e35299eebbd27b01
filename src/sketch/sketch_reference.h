// Projections, one entry of the matrix at a time: the oracle of the tests, and the code for machines without vectors.
// C++17.
#ifndef MASKLESS_SRC_SKETCH_SKETCH_REFERENCE_H_
#define MASKLESS_SRC_SKETCH_SKETCH_REFERENCE_H_

#include <cstdint>
#include <type_traits>
#include <vector>

#include "common/visit.h"
#include "sketch/sketch_kernels.h"

namespace maskless {

/// The type of sums: float64 for float64, float32 for all else.
template <typename T>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};
template <typename T>
using Sum = typename SumOf<T>::type;

template <typename T>
Sum<T> to_sum(T x) {
  return to_float(x);
}
template <>
inline double to_sum<double>(double x) {
  return x;
}
template <typename T>
T from_sum(float x) {
  return from_float<T>(x);
}
template <typename T>
T from_sum(double x) {
  return static_cast<T>(x);
}

/// Calls f(Type<In>, Type<Out>) for the dtypes that projections take: equal ones, and 16 bits to float32.
template <typename F>
void visit_sketch(DType in, DType out, F&& f) {
  visit_floating(in, [&](auto type) {
    using In = typename decltype(type)::type;
    if (out == in) {
      f(Type<In>{}, Type<In>{});
    } else if constexpr (sizeof(In) == 2) {
      f(Type<In>{}, Type<float>{});
    }
  });
}

namespace reference {

inline std::uint64_t seed_of(const SketchMatrix& m) { return m.seed_pointer != nullptr ? *m.seed_pointer : m.seed; }

/// Calls f(row, sign) for the nonzeros of column number c (from column_offset on) within the rows of the piece.
template <typename F>
void for_column(const SketchMatrix& m, std::uint64_t seed, std::uint64_t c, F&& f) {
  const std::uint64_t column = m.column_offset + c;
  if (m.signs) {
    for (std::int64_t r = 0; r < m.rows; ++r) {
      const int sign = iid_sign(seed, m.row_offset + static_cast<std::uint32_t>(r), column, m.threshold, m.stream);
      if (sign != 0) f(r, sign);
    }
    return;
  }
  for (std::uint32_t block = 0; block < m.geometry.blocks; ++block) {
    const SjltEntry entry = sjlt_entry(seed, m.stream, m.geometry, block, column);
    const std::int64_t row = std::int64_t{entry.row} - m.row_offset;
    if (row >= 0 && row < m.rows) f(row, entry.minus ? -1 : 1);
  }
}

/// One output from its sum.
template <typename Out, typename S>
void store_sum(Out* out, S sum, double scale, bool accumulate) {
  const S scaled = sum * static_cast<S>(scale);
  *out = from_sum<Out>(accumulate ? to_sum(*out) + scaled : scaled);
}

template <typename In, typename Out>
void project(const SketchArgs& args) {
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = seed_of(m);
  const In* x = static_cast<const In*>(args.in);
  Out* y = static_cast<Out*>(args.out);
  std::vector<Sum<In>> sums(static_cast<std::size_t>(args.batch * m.rows));
  for (std::int64_t c = 0; c < m.cols; ++c)
    for_column(m, seed, static_cast<std::uint64_t>(c), [&](std::int64_t r, int sign) {
      for (std::int64_t i = 0; i < args.batch; ++i)
        sums[static_cast<std::size_t>(i * m.rows + r)] +=
            static_cast<Sum<In>>(sign) * to_sum(x[i * args.in_strides[0] + c * args.in_strides[1]]);
    });
  for (std::int64_t i = 0; i < args.batch; ++i)
    for (std::int64_t r = 0; r < m.rows; ++r)
      store_sum(y + i * args.out_strides[0] + r * args.out_strides[1], sums[static_cast<std::size_t>(i * m.rows + r)],
                m.scale, args.accumulate);
}

template <typename In, typename Out>
void project_transpose(const SketchArgs& args) {
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = seed_of(m);
  const In* y = static_cast<const In*>(args.in);
  Out* x = static_cast<Out*>(args.out);
  std::vector<Sum<In>> sums(static_cast<std::size_t>(args.batch));
  for (std::int64_t c = 0; c < m.cols; ++c) {
    sums.assign(sums.size(), 0);
    for_column(m, seed, static_cast<std::uint64_t>(c), [&](std::int64_t r, int sign) {
      for (std::int64_t i = 0; i < args.batch; ++i)
        sums[static_cast<std::size_t>(i)] +=
            static_cast<Sum<In>>(sign) * to_sum(y[i * args.in_strides[0] + r * args.in_strides[1]]);
    });
    for (std::int64_t i = 0; i < args.batch; ++i)
      store_sum(x + i * args.out_strides[0] + c * args.out_strides[1], sums[static_cast<std::size_t>(i)], m.scale,
                args.accumulate);
  }
}

template <typename Out>
void projection_matrix(const SketchMatrixArgs& args, std::int64_t begin, std::int64_t end) {
  const SketchMatrix& m = args.matrix;
  const std::uint64_t seed = seed_of(m);
  for (std::int64_t c = begin; c < end; ++c) {
    Out* out = static_cast<Out*>(args.out) + c * args.out_strides[1];
    for (std::int64_t r = 0; r < m.rows; ++r) out[r * args.out_strides[0]] = Out{};
    const std::int64_t column = args.columns != nullptr ? args.columns[c] : c;
    for_column(m, seed, static_cast<std::uint64_t>(column), [&](std::int64_t r, int sign) {
      out[r * args.out_strides[0]] = from_sum<Out>(static_cast<Sum<Out>>(sign * m.scale));
    });
  }
}

/// Row i of a sparse batch: add(values, columns, begin, end, sums) adds its nonzeros [begin, end) to the sums of all
/// rows.
template <typename F>
void csr_row(const SketchCsrArgs& args, std::int64_t i, F&& add) {
  const SketchArgs& base = args.base;
  const std::int64_t rows = base.matrix.rows;
  visit_sketch(base.in_dtype, base.out_dtype, [&](auto in, auto out) {
    using T = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    std::vector<Sum<T>> sums(static_cast<std::size_t>(rows));
    const auto run = [&](auto index) {
      using Index = decltype(index);
      const auto* indptr = static_cast<const Index*>(args.indptr);
      add(static_cast<const T*>(base.in), static_cast<const Index*>(args.indices), std::int64_t{indptr[i]},
          std::int64_t{indptr[i + 1]}, sums.data());
    };
    args.wide ? run(std::int64_t{}) : run(std::int32_t{});
    for (std::int64_t r = 0; r < rows; ++r)
      store_sum(static_cast<Out*>(base.out) + i * base.out_strides[0] + r * base.out_strides[1],
                sums[static_cast<std::size_t>(r)], base.matrix.scale, base.accumulate);
  });
}

inline void project_csr(const SketchCsrArgs& args, std::int64_t i) {
  const SketchMatrix& m = args.base.matrix;
  const std::uint64_t seed = seed_of(m);
  csr_row(args, i, [&](const auto* values, const auto* columns, std::int64_t begin, std::int64_t end, auto* sums) {
    for (std::int64_t e = begin; e < end; ++e)
      for_column(m, seed, static_cast<std::uint64_t>(columns[e]), [&](std::int64_t r, int sign) {
        sums[r] += static_cast<std::remove_reference_t<decltype(*sums)>>(sign) * to_sum(values[e]);
      });
  });
}

}  // namespace reference

}  // namespace maskless

#endif  // MASKLESS_SRC_SKETCH_SKETCH_REFERENCE_H_
