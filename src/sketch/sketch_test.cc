#include "maskless/sketch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/float_types.h"
#include "maskless/core/sjlt.h"
#include "maskless/core/threshold.h"
#include "maskless/core/uniform.h"
#include "maskless/runtime.h"

namespace maskless {
namespace {

struct Case {
  const char* name;
  SketchKind kind;
  std::int64_t k;
  int nonzeros;
  double density;
  std::int64_t batch, cols;
  std::uint64_t column_offset = 0;
  std::int64_t row_offset = 0, rows = -1;  // -1: to the end
};

constexpr SketchKind kSjlt = SketchKind::kSjlt, kSigns = SketchKind::kSigns;
const Case kCases[] = {
    {"sjlt", kSjlt, 1024, 4, 1, 8, 5000},
    {"one row", kSjlt, 1, 1, 1, 3, 70},
    {"k = s", kSjlt, 16, 16, 1, 2, 33},
    {"uneven blocks", kSjlt, 1000, 3, 1, 17, 3001},
    {"block rows above a power of two", kSjlt, 530, 2, 1, 9, 1025, 3},
    {"many small blocks", kSjlt, 70, 16, 1, 33, 1003, 129},
    {"one block", kSjlt, 300, 1, 1, 1, 3000},
    {"far columns", kSjlt, 256, 4, 1, 5, 700, (std::uint64_t{1} << 32) - 350},
    {"last columns", kSjlt, 256, 4, 1, 4, 100, (std::uint64_t{1} << 39) - 100},
    {"rows of a shard", kSjlt, 1000, 4, 1, 7, 2000, 77, 130, 400},
    {"one column", kSjlt, 64, 2, 1, 16, 1, 12345},
    {"no columns", kSjlt, 64, 2, 1, 3, 0},
    {"no vectors", kSjlt, 64, 2, 1, 0, 10},
    {"chunks", kSjlt, 24, 4, 1, 2, 50000, 11},
    {"dense signs", kSigns, 65, 1, 1.0, 9, 1300},
    {"dense signs, far", kSigns, 64, 1, 1.0, 1, 257, (std::uint64_t{1} << 39) - 257},
    {"thirds", kSigns, 130, 1, 1.0 / 3, 3, 2049, 1000, 5, 100},
    {"sparse signs", kSigns, 100, 1, 0.01, 8, 3000, (std::uint64_t{1} << 32) - 5},
    {"half", kSigns, 7, 1, 0.5, 2, 127},
};

ProjectionOptions options_of(const Case& c) {
  ProjectionOptions o;
  o.kind = c.kind;
  o.n_components = c.k;
  o.nonzeros = c.nonzeros;
  o.density = c.density;
  o.seed = 0x123456789ABCDEFull;
  o.stream = 5;
  o.column_offset = c.column_offset;
  o.row_offset = c.row_offset;
  return o;
}
std::int64_t rows_of(const Case& c) { return c.rows < 0 ? c.k - c.row_offset : c.rows; }

/// S in float64, straight from the core headers.
std::vector<double> matrix_of(const Case& c) {
  const ProjectionOptions o = options_of(c);
  const std::int64_t rows = rows_of(c);
  std::vector<double> s(static_cast<std::size_t>(rows * c.cols));
  const double scale = projection_scale(o);
  if (c.kind == kSigns) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < c.cols; ++j)
        s[r * c.cols + j] =
            scale * iid_sign(o.seed.value, static_cast<std::uint32_t>(c.row_offset + r),
                             c.column_offset + static_cast<std::uint64_t>(j), threshold(c.density), o.stream);
    return s;
  }
  const SjltGeometry g = sjlt_geometry(static_cast<std::uint32_t>(c.k), static_cast<std::uint32_t>(c.nonzeros));
  for (std::int64_t j = 0; j < c.cols; ++j)
    for (std::uint32_t b = 0; b < g.blocks; ++b) {
      const SjltEntry e = sjlt_entry(o.seed.value, o.stream, g, b, c.column_offset + static_cast<std::uint64_t>(j));
      const std::int64_t r = std::int64_t{e.row} - c.row_offset;
      if (r >= 0 && r < rows) s[r * c.cols + j] = e.minus ? -scale : scale;
    }
  return s;
}

struct Entry {
  std::int64_t row, column;
  double value;
};

/// The nonzeros of S.
std::vector<Entry> entries_of(const Case& c) {
  const std::vector<double> s = matrix_of(c);
  std::vector<Entry> entries;
  for (std::size_t e = 0; e < s.size(); ++e)
    if (s[e] != 0)
      entries.push_back({static_cast<std::int64_t>(e) / c.cols, static_cast<std::int64_t>(e) % c.cols, s[e]});
  return entries;
}

double load(const std::vector<char>& memory, std::int64_t at, DType dtype) {
  const char* p = memory.data() + at * static_cast<std::int64_t>(dtype_size(dtype));
  const auto as = [&](auto value) {
    std::memcpy(&value, p, sizeof value);
    return value;
  };
  switch (dtype) {
    case DType::kFloat16: return to_float(as(Float16{}));
    case DType::kBFloat16: return to_float(as(BFloat16{}));
    case DType::kFloat32: return as(float{});
    default: return as(double{});
  }
}
void store(std::vector<char>& memory, std::int64_t at, DType dtype, double v) {
  char* p = memory.data() + at * static_cast<std::int64_t>(dtype_size(dtype));
  const auto as = [&](auto value) { std::memcpy(p, &value, sizeof value); };
  switch (dtype) {
    case DType::kFloat16: return as(from_float<Float16>(static_cast<float>(v)));
    case DType::kBFloat16: return as(from_float<BFloat16>(static_cast<float>(v)));
    case DType::kFloat32: return as(static_cast<float>(v));
    default: return as(v);
  }
}

/// A matrix in memory: padded rows (0), columns first (1), rows and columns backwards (2), every second column (3).
struct Matrix {
  std::vector<char> memory;
  DType dtype;
  std::int64_t rows, cols, origin = 0, row_stride, col_stride;

  Matrix(std::int64_t r, std::int64_t c, DType type, int layout) : dtype(type), rows(r), cols(c) {
    row_stride = layout == 1 ? 1 : layout == 3 ? 2 * c + 1 : c + 3;
    col_stride = layout == 1 ? r + 1 : layout == 3 ? 2 : 1;
    const std::int64_t span = (r > 0 ? (r - 1) * row_stride : 0) + (c > 0 ? (c - 1) * col_stride : 0) + 1;
    memory.resize(static_cast<std::size_t>(span + 2) * dtype_size(type), '\x7B');
    origin = 1;
    if (layout == 2 && r > 0 && c > 0) {
      origin = span;
      row_stride = -row_stride;
      col_stride = -col_stride;
    }
  }
  std::int64_t at(std::int64_t r, std::int64_t c) const { return origin + r * row_stride + c * col_stride; }
  TensorView view() {
    TensorView v;
    v.data = memory.data() + origin * static_cast<std::int64_t>(dtype_size(dtype));
    v.dtype = dtype;
    v.rank = 2;
    v.shape = {rows, cols};
    v.strides = {row_stride, col_stride};
    return v;
  }
  void fill(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) store(memory, at(r, c), dtype, normal(random));
  }
  double get(std::int64_t r, std::int64_t c) const { return load(memory, at(r, c), dtype); }
};

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return 1e-3;
    case DType::kBFloat16: return 8e-3;
    case DType::kFloat32: return 1e-6;
    default: return 1e-14;
  }
}

/// Runs one case both ways and compares with products in float64; "" or the first fault.
std::string run_case(const Case& c, const std::vector<Entry>& entries, DType dtype, DType out_dtype, int layout,
                     Isa isa, bool accumulate) {
  const std::int64_t rows = rows_of(c);
  ProjectionOptions o = options_of(c);
  o.accumulate = accumulate;
  Execution execution;
  execution.isa = isa;
  execution.threads = 2;
  for (bool transpose : {false, true}) {
    Matrix in(c.batch, transpose ? rows : c.cols, dtype, layout);
    Matrix out(c.batch, transpose ? c.cols : rows, out_dtype, (layout + 1) % 4);
    in.fill(7);
    if (accumulate) out.fill(8);
    const Matrix before = out;
    const std::vector<char> input = in.memory;
    transpose ? project_transpose(in.view(), out.view(), o, execution) : project(in.view(), out.view(), o, execution);
    if (in.memory != input) return std::string(c.name) + ": the input was written";
    std::vector<bool> written(out.memory.size());
    std::vector<double> sums(static_cast<std::size_t>(c.batch * out.cols)), norms(sums.size());
    for (std::int64_t i = 0; i < c.batch; ++i)
      for (const Entry& e : entries) {
        const double p = e.value * in.get(i, transpose ? e.row : e.column);
        const auto at = static_cast<std::size_t>(i * out.cols + (transpose ? e.column : e.row));
        sums[at] += p;
        norms[at] += p * p;
      }
    for (std::int64_t i = 0; i < c.batch; ++i)
      for (std::int64_t n = 0; n < out.cols; ++n) {
        double sum = sums[static_cast<std::size_t>(i * out.cols + n)];
        const double norm = norms[static_cast<std::size_t>(i * out.cols + n)];
        if (accumulate) sum += before.get(i, n);
        const double got = out.get(i, n);
        const double rounding = dtype == DType::kFloat64 ? 1e-14 : 2e-6;
        if (!(std::abs(got - sum) <=
              epsilon(out_dtype) * (std::abs(sum) + 1e-9) + rounding * (std::sqrt(norm) + 1e-9) * 8))
          return std::string(c.name) + (transpose ? ", transpose" : "") + ", " + dtype_name(dtype) + ", " +
                 isa_name(isa) + ", layout " + std::to_string(layout) + ": (" + std::to_string(i) + ", " +
                 std::to_string(n) + ") is " + std::to_string(got) + ", not " + std::to_string(sum);
        const std::size_t size = dtype_size(out_dtype);
        for (std::size_t b = 0; b < size; ++b) written[static_cast<std::size_t>(out.at(i, n)) * size + b] = true;
      }
    for (std::size_t b = 0; b < out.memory.size(); ++b)
      if (!written[b] && out.memory[b] != before.memory[b]) return std::string(c.name) + ": wrote outside the output";
  }
  return "";
}

TEST(Sketch, EqualsTheProductWithTheMatrix) {
  int layout = 0;
  for (const Case& c : kCases) {
    const std::vector<Entry> s = entries_of(c);
    for (Isa isa : instruction_sets())
      for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
        EXPECT_EQ(run_case(c, s, dtype, dtype, layout, isa, false), "");
        layout = (layout + 1) % 4;
      }
  }
}

TEST(Sketch, HalfInputsMayGiveFloat32AndOutputsAddUp) {
  for (const Case& c : kCases) {
    const std::vector<Entry> s = entries_of(c);
    EXPECT_EQ(run_case(c, s, DType::kBFloat16, DType::kFloat32, 0, Isa::kBest, false), "");
    EXPECT_EQ(run_case(c, s, DType::kFloat16, DType::kFloat32, 1, Isa::kBest, true), "");
    EXPECT_EQ(run_case(c, s, DType::kFloat32, DType::kFloat32, 2, Isa::kBest, true), "");
  }
}

TEST(Sketch, MatrixAndColumnsAreTheSpecification) {
  for (const Case& c : kCases) {
    const std::vector<double> s = matrix_of(c);
    const std::int64_t rows = rows_of(c);
    Matrix m(rows, c.cols, DType::kFloat64, 1);
    projection_matrix(m.view(), options_of(c));
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < c.cols; ++j) ASSERT_EQ(m.get(r, j), s[r * c.cols + j]) << c.name;
    if (c.cols < 2) continue;
    const std::vector<std::int64_t> columns = {c.cols - 1, 0, c.cols / 2, 0};
    Matrix some(rows, 4, DType::kFloat64, 0);
    projection_columns(contiguous_view(columns.data(), DType::kInt64, {4}), some.view(), options_of(c));
    for (std::int64_t r = 0; r < rows; ++r)
      for (int n = 0; n < 4; ++n) ASSERT_EQ(some.get(r, n), s[r * c.cols + columns[n]]) << c.name;
  }
}

template <typename Index>
void check_csr(const Case& c, Isa isa, DType index) {
  std::mt19937_64 random(3);
  Matrix dense(c.batch, c.cols, DType::kFloat64, 0);
  std::vector<double> values;
  std::vector<Index> indices, indptr = {0};
  for (std::int64_t i = 0; i < c.batch; ++i) {
    for (std::int64_t j = 0; j < c.cols; ++j) {
      const double v = random() % 8 == 0 ? static_cast<double>(random() % 17) - 8 : 0;
      store(dense.memory, dense.at(i, j), DType::kFloat64, v);
      if (v != 0) values.push_back(v), indices.push_back(static_cast<Index>(j));
    }
    std::reverse(indices.begin() + indptr.back(), indices.end());  // any order
    std::reverse(values.begin() + indptr.back(), values.end());
    indptr.push_back(static_cast<Index>(values.size()));
  }
  const std::int64_t n = static_cast<std::int64_t>(values.size());
  const double nothing = 0;
  const Index none = 0;
  CsrView x{c.batch, c.cols, contiguous_view(n > 0 ? values.data() : &nothing, DType::kFloat64, {n}),
            contiguous_view(n > 0 ? indices.data() : &none, index, {n}),
            contiguous_view(indptr.data(), index, {c.batch + 1})};
  Matrix a(c.batch, rows_of(c), DType::kFloat64, 0), b(c.batch, rows_of(c), DType::kFloat64, 1);
  Execution execution;
  execution.isa = isa;
  project(dense.view(), a.view(), options_of(c), execution);
  project_csr(x, b.view(), options_of(c), execution);
  for (std::int64_t i = 0; i < c.batch; ++i)
    for (std::int64_t r = 0; r < rows_of(c); ++r) ASSERT_NEAR(a.get(i, r), b.get(i, r), 1e-11) << c.name;
}

TEST(Sketch, CsrEqualsDense) {
  for (const Case& c : kCases)
    if (c.cols <= 5000) {
      for (Isa isa : instruction_sets()) check_csr<std::int64_t>(c, isa, DType::kInt64);
      check_csr<std::int32_t>(c, Isa::kBest, DType::kInt32);
    }
}

TEST(Sketch, ThreadsAndRunsGiveEqualBytes) {
  for (const Case& c : kCases) {
    Matrix x(c.batch, c.cols, DType::kFloat32, 0);
    x.fill(1);
    Matrix first(c.batch, rows_of(c), DType::kFloat32, 0);
    project(x.view(), first.view(), options_of(c));
    for (int threads : {1, 2, 3, 8}) {
      Matrix y(c.batch, rows_of(c), DType::kFloat32, 0);
      Execution execution;
      execution.threads = threads;
      project(x.view(), y.view(), options_of(c), execution);
      EXPECT_EQ(y.memory, first.memory) << c.name << ", threads " << threads;
    }
  }
}

TEST(Sketch, ASumOfPartsIsTheWhole) {
  for (const Case& c : kCases) {
    if (c.cols < 2 || c.batch == 0) continue;
    Matrix x(c.batch, c.cols, DType::kFloat64, 0);
    x.fill(2);
    Matrix whole(c.batch, rows_of(c), DType::kFloat64, 0);
    project(x.view(), whole.view(), options_of(c));
    for (std::int64_t cut : {std::int64_t{0}, std::int64_t{1}, c.cols / 3, c.cols - 1, c.cols}) {
      Matrix parts(c.batch, rows_of(c), DType::kFloat64, 0);
      TensorView a = x.view(), b = x.view();
      a.shape[1] = cut;
      b.shape[1] = c.cols - cut;
      b.data = static_cast<double*>(b.data) + cut;
      ProjectionOptions o = options_of(c);
      project(a, parts.view(), o);
      o.accumulate = true;
      o.column_offset += static_cast<std::uint64_t>(cut);
      project(b, parts.view(), o);
      for (std::int64_t i = 0; i < c.batch; ++i)
        for (std::int64_t r = 0; r < rows_of(c); ++r)
          ASSERT_NEAR(whole.get(i, r), parts.get(i, r), 1e-11 * std::sqrt(static_cast<double>(c.cols))) << c.name;
    }
  }
}

TEST(Sketch, RowsOfABatchDoNotDependOnIt) {  // row 0 the same for any batch, to the last bit
  ProjectionOptions o;
  o.n_components = 32768;
  o.seed = 4;
  Matrix x(65, 30000, DType::kFloat32, 0);
  x.fill(5);
  std::vector<float> first;
  for (std::int64_t batch : {1, 7, 8, 9, 31, 32, 33, 65}) {
    std::vector<float> y(static_cast<std::size_t>(batch * o.n_components));
    TensorView in = x.view();
    in.shape[0] = batch;
    project(in, contiguous_view(y.data(), DType::kFloat32, {batch, o.n_components}), o);
    y.resize(static_cast<std::size_t>(o.n_components));
    if (first.empty()) first = y;
    for (std::size_t r = 0; r < y.size(); ++r) ASSERT_NEAR(y[r], first[r], 1e-5) << batch;
  }
}

TEST(Sketch, KeepsNormsOfOneColumnAndPowersOfTwo) {
  for (int s : {1, 4, 16}) {
    ProjectionOptions o;
    o.n_components = 1000;
    o.nonzeros = s;
    o.seed = 9;
    std::vector<float> x(3000), y(1000), z(1000);
    for (float value : {1e-8f, 1e5f}) {
      x[0] = value;
      project(contiguous_view(x.data(), DType::kFloat32, {1, 3000}),
              contiguous_view(y.data(), DType::kFloat32, {1, 1000}), o);
      double norm = 0;
      for (float v : y) norm += static_cast<double>(v) * v;
      EXPECT_NEAR(std::sqrt(norm) / value, 1.0, 1e-6);
      EXPECT_EQ(std::count_if(y.begin(), y.end(), [](float v) { return v != 0; }), s);
    }
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& v : x) v = normal(random);
    project(contiguous_view(x.data(), DType::kFloat32, {1, 3000}),
            contiguous_view(y.data(), DType::kFloat32, {1, 1000}), o);
    for (float& v : x) v *= 0x1p-30f;
    project(contiguous_view(x.data(), DType::kFloat32, {1, 3000}),
            contiguous_view(z.data(), DType::kFloat32, {1, 1000}), o);
    for (std::size_t r = 0; r < 1000; ++r) EXPECT_EQ(z[r], y[r] * 0x1p-30f);
  }
}

TEST(Sketch, SeedsAndStreamsDiffer) {
  const std::uint64_t seeds[] = {1, 1 + (1ull << 32), (1ull << 33) + 1, 1 + (1ull << 40), 1ull << 63, ~0ull};
  for (SketchKind kind : {kSjlt, kSigns}) {
    std::set<std::vector<double>> all;
    for (std::uint64_t seed : seeds)
      for (std::uint32_t stream : {0u, 1u, (1u << 24) - 1}) {
        ProjectionOptions o;
        o.kind = kind;
        o.n_components = 64;
        o.seed = seed;
        o.stream = stream;
        std::vector<double> s(64 * 64);
        projection_matrix(contiguous_view(s.data(), DType::kFloat64, {64, 64}), o);
        all.insert(s);
        o.seed = Seed::at(&seed);
        std::vector<double> by_pointer(64 * 64);
        projection_matrix(contiguous_view(by_pointer.data(), DType::kFloat64, {64, 64}), o);
        EXPECT_EQ(s, by_pointer);
      }
    EXPECT_EQ(all.size(), 18u);
  }
}

template <typename F>
std::string message(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Sketch, BadInputIsNamed) {
  std::vector<float> memory(4096);
  const TensorView x = contiguous_view(memory.data(), DType::kFloat32, {2, 100});
  const TensorView y = contiguous_view(memory.data() + 1000, DType::kFloat32, {2, 64});
  ProjectionOptions good;
  good.n_components = 64;
  const auto with = [&](auto change) {
    ProjectionOptions o = good;
    change(o);
    return message([&] { project(x, y, o); });
  };
  EXPECT_EQ(with([](auto&) {}), "no error");
  EXPECT_EQ(with([](auto& o) { o.n_components = 0; }), "project: n_components must be in [1, 2^31 - 1], got 0");
  EXPECT_EQ(with([](auto& o) { o.nonzeros = 17; }), "project: nonzeros must be in [1, 16], got 17");
  EXPECT_EQ(with([](auto& o) { o.n_components = 3; }), "project: n_components must be at least nonzeros, 4, got 3");
  EXPECT_EQ(with([](auto& o) { o.stream = 1u << 24; }), "project: stream must be below 2^24, got 16777216");
  EXPECT_EQ(with([](auto& o) { o.row_offset = 1; }),
            "project: row_offset and the rows must lie within n_components, 64, got offset 1, rows 64");
  EXPECT_EQ(with([](auto& o) { o.column_offset = (std::uint64_t{1} << 39) - 99; }),
            "project: column_offset and the columns must lie below 2^39, got offset 549755813789, columns 100");
  for (double q : {0.0, -1.0, 1.5, std::nan(""), HUGE_VAL})
    EXPECT_EQ(with([q](auto& o) { o.kind = kSigns, o.density = q; }).substr(0, 40),
              "project: density must be in (0, 1], got ");
  EXPECT_EQ(with([](auto& o) { o.kind = kSigns, o.density = 0.5, o.column_offset = std::uint64_t{1} << 34; }),
            "project: column_offset and the columns must lie below 2^34 (signs of density below 1), got offset "
            "17179869184, columns 100");
  EXPECT_EQ(message([&] {
              project(x, contiguous_view(memory.data() + 1000, DType::kFloat32, {3, 64}), good);
            }),
            "project: y must have a row for each row of x, 2, got (3, 64)");
  EXPECT_EQ(message([&] {
              project(x, contiguous_view(memory.data(), DType::kFloat32, {2, 64}), good);
            }),
            "project: y must be x itself or not overlap it, got memory that overlaps");
  EXPECT_EQ(message([&] {
              project(contiguous_view(memory.data(), DType::kInt64, {2, 100}), y, good);
            }),
            "project: x must be float16, bfloat16, float32 or float64, got int64");
  EXPECT_EQ(message([&] {
              project(x, contiguous_view(memory.data() + 1000, DType::kFloat64, {2, 64}), good);
            }),
            "project: y must have the dtype of x, float32, got float64");
  const std::int32_t indices[] = {0, 100}, indptr[] = {0, 1, 2}, falling[] = {0, 3, 2};
  const auto csr = [&](const std::int32_t* p) {
    CsrView view{2, 100, contiguous_view(memory.data(), DType::kFloat32, {2}),
                 contiguous_view(indices, DType::kInt32, {2}), contiguous_view(p, DType::kInt32, {3})};
    return message([&] { project_csr(view, y, good); });
  };
  EXPECT_EQ(csr(indptr), "project: indices must be in [0, columns), columns = 100, got 100");
  EXPECT_EQ(csr(falling), "project: indptr must not decrease, got 3 before 2");
  const std::int32_t inside[] = {0, 99};
  CsrView sparse{2, 100, contiguous_view(memory.data(), DType::kFloat32, {2}),
                 contiguous_view(inside, DType::kInt32, {2}), contiguous_view(indptr, DType::kInt32, {3})};
  EXPECT_EQ(message([&] { project_csr(sparse, y, good); }), "no error");
  EXPECT_EQ(message([&] {
              project_csr(sparse, contiguous_view(memory.data(), DType::kFloat32, {2, 64}), good);
            }),
            "project: y must not overlap values, got memory that overlaps");
  sparse.rows = INT64_MAX;
  EXPECT_EQ(message([&] { project_csr(sparse, y, good); }),
            "project: x must have fewer than 2^59 rows, got 9223372036854775807");
  EXPECT_EQ(message([] { min_components(10, 1.0); }), "min_components: eps must be in (0, 1), got 1");
  EXPECT_EQ(message([] { min_components(0, 0.5); }), "min_components: samples must be at least 1, got 0");
}

TEST(Sketch, MinComponents) {  // the values of sklearn.random_projection.johnson_lindenstrauss_min_dim
  EXPECT_EQ(min_components(1000000, 0.5), 663);
  EXPECT_EQ(min_components(1000000, 0.1), 11841);
  EXPECT_EQ(min_components(1000000, 0.01), 1112658);
  EXPECT_EQ(min_components(1000, 0.1), 5920);
}

}  // namespace
}  // namespace maskless
