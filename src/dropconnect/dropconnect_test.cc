#include "maskless/dropconnect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dropconnect/dropconnect_cases.h"
#include "maskless/runtime.h"

#if MASKLESS_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace maskless {

namespace cases {
#if MASKLESS_HAS_CUDA
void* device_allocate(std::size_t bytes) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
  return data;
}
void device_free(void* data) { cudaFree(data); }
void device_copy(void* to, const void* from, std::size_t bytes) {
  EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), cudaSuccess);
}
#else
void* device_allocate(std::size_t) { return nullptr; }
void device_free(void*) {}
void device_copy(void*, const void*, std::size_t) {}
#endif
}  // namespace cases

namespace {

using cases::Layer;
using cases::Trial;

struct Backend {
  Device device;
  Execution execution;
  std::string name;
};

/// Every instruction set of this machine, three threads, and the first GPU if there is one.
std::vector<Backend> backends() {
  std::vector<Backend> list;
  for (Isa isa : {Isa::kScalar, Isa::kSse4, Isa::kAvx2, Isa::kAvx512}) {
    Backend b;
    b.execution.isa = isa;
    b.execution.threads = isa == Isa::kAvx2 ? 3 : 1;
    b.name = isa_name(isa);
    list.push_back(b);
  }
  if (!cuda_devices().empty()) list.push_back({{DeviceType::kCuda, 0}, {}, "cuda"});
  return list;
}

/// One rounding to the dtype, and the rounding of a sum of `terms` products of at most `scale`.
template <typename T>
double tolerance(double expected, std::int64_t terms, double scale) {
  const double output = std::is_same_v<T, BFloat16> ? 0x1p-8 : std::is_same_v<T, Float16> ? 0x1p-11 : 0.0;
  const double sum = std::is_same_v<T, double> ? 0x1p-52 : 0x1p-23;
  return output * std::fabs(expected) + sum * static_cast<double>(terms + 2) * scale + 1e-300 +
         (std::is_same_v<T, Float16> ? 0x1p-24 : 0.0);
}

template <typename T>
double number(T v) {
  return static_cast<double>(reference::to_sum(v));
}

template <typename T>
void expect_close(T got, double expected, std::int64_t terms, double scale, const std::string& where) {
  ASSERT_LE(std::fabs(number(got) - expected), tolerance<T>(expected, terms, scale)) << where << ", want " << expected;
}

template <typename T>
void check_layer(const Layer& layer, const Backend& backend) {
  Trial<T> r(layer);
  r.run(backend.device, backend.execution, cases::options(layer));
  const std::string where = layer.name + ", " + dtype_name(Trial<T>::dtype()) + ", " + backend.name;
  const double scale = std::max(r.scale(), 1.0);
  for (std::int64_t row = 0; row < r.count; ++row)
    for (std::int64_t n = 0; n < layer.outputs; ++n)
      expect_close(r.y.at(row, n), r.expected_y(row, n), layer.inputs, scale, where + ", y");
  const GradientArgs gx = r.gradient(true), gw = r.gradient(false);
  for (std::int64_t k = 0; k < layer.inputs; ++k) {
    for (std::int64_t m = 0; m < layer.rows; ++m)
      expect_close(r.dx.at(m, k), reference::gradient_sum<T, double>(gx, cases::kSeed, m, k) * r.scale(),
                   layer.outputs * r.passes, scale, where + ", dx");
    for (std::int64_t n = 0; n < layer.outputs; ++n)
      expect_close(r.dw.at(n, k), reference::gradient_sum<T, double>(gw, cases::kSeed, n, k) * r.scale(), r.count,
                   scale, where + ", dw");
  }
  for (std::int64_t n = 0; n < layer.outputs; ++n) {
    double sum = 0;
    for (std::int64_t row = 0; row < r.count; ++row) sum += number(r.dy.at(row, n));
    expect_close(r.dbias[static_cast<std::size_t>(n)], sum, r.count, 1.0, where + ", dbias");
  }
}

class DropconnectConformance : public testing::TestWithParam<Layer> {};

TEST_P(DropconnectConformance, EqualsTheReference) {
  for (const Backend& backend : backends()) {
    check_layer<float>(GetParam(), backend);
    if (backend.name == "scalar") continue;  // that is the reference with other sums; other dtypes show nothing more
    check_layer<double>(GetParam(), backend);
    check_layer<BFloat16>(GetParam(), backend);
    check_layer<Float16>(GetParam(), backend);
  }
}

std::string test_name(const testing::TestParamInfo<Layer>& info) {
  std::string name = info.param.name;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Layers, DropconnectConformance, testing::ValuesIn(cases::layers()), test_name);

/// Sums that spell mask bits: weights 2^i in a window of 20 inputs make y the bits of that window.
TEST(Dropconnect, EveryMaskBitOfForward) {
  for (const Backend& backend : backends())
    for (double p : {0.5, 0.1})
      for (std::int64_t first = 0; first < 300; first += 20) {
        Layer layer{"window", 37, 35, 300, 0, p, 5, 6, 40};
        layer.scale = layer.bias = false;
        Trial<float> r(layer);
        for (std::int64_t n = 0; n < layer.outputs; ++n)
          for (std::int64_t k = 0; k < layer.inputs; ++k)
            r.w.at(n, k) = k >= first && k < first + 20 ? std::ldexp(1.0f, static_cast<int>(k - first)) : 0.0f;
        std::fill(r.x.values.begin(), r.x.values.end(), 1.0f);
        r.run(backend.device, backend.execution, cases::options(layer));
        for (std::int64_t m = 0; m < layer.rows; ++m)
          for (std::int64_t n = 0; n < layer.outputs; ++n)
            ASSERT_EQ(r.y.at(m, n), r.expected_y(m, n)) << backend.name << " p " << p << " m " << m << " n " << n;
      }
}

/// With weight[n, k] = 2^n, dx spells the mask of 20 outputs at once; with x[m, k] = 2^m, dweight that of 20 rows.
TEST(Dropconnect, EveryMaskBitOfBackward) {
  for (const Backend& backend : backends())
    for (double p : {0.5, 0.25, 0.1, 0.7}) {
      Layer layer{"bits", 20, 20, 300, 0, p, 5, 6, 40};
      layer.scale = false;
      Trial<float> r(layer);
      for (std::int64_t i = 0; i < 20; ++i)
        for (std::int64_t k = 0; k < layer.inputs; ++k)
          r.w.at(i, k) = r.x.at(i, k) = std::ldexp(1.0f, static_cast<int>(i));
      std::fill(r.dy.values.begin(), r.dy.values.end(), 1.0f);
      r.run(backend.device, backend.execution, cases::options(layer));
      const GradientArgs gx = r.gradient(true), gw = r.gradient(false);
      for (std::int64_t i = 0; i < 20; ++i)
        for (std::int64_t k = 0; k < layer.inputs; ++k) {
          ASSERT_EQ(r.dx.at(i, k), (reference::gradient_sum<float, double>(gx, cases::kSeed, i, k))) << backend.name;
          ASSERT_EQ(r.dw.at(i, k), (reference::gradient_sum<float, double>(gw, cases::kSeed, i, k))) << backend.name;
        }
    }
}

TEST(Dropconnect, TheMaskIsThatOfTheSpecification) {
  for (const Backend& backend : backends()) {
    cases::Array<std::uint8_t> keep(std::vector<std::uint8_t>(3 * 5 * 130, 0xCC), backend.device);
    DropconnectOptions o;
    o.seed = 42;
    dropconnect_mask(contiguous_view(static_cast<void*>(keep.data()), DType::kBool, {3, 5, 130}, backend.device), o,
                     backend.execution);
    for (std::int64_t i = 0; i < 3 * 5 * 130; ++i)
      ASSERT_EQ(keep.fetch()[static_cast<std::size_t>(i)] != 0,
                dropconnect_keep(42, static_cast<std::uint32_t>(i / 650), static_cast<std::uint32_t>(i / 130 % 5),
                                 static_cast<std::uint64_t>(i % 130), threshold(0.5)));
  }
}

/// sum dy.y = sum dx.x = sum dweight.weight without a bias, in float64.
TEST(Dropconnect, GradientIdentity) {
  for (const Backend& backend : backends())
    for (double p : {0.0, 0.5, 0.3}) {
      Layer layer{"identity", 23, 37, 141, 2, p};
      layer.bias = false;
      Trial<double> r(layer);
      r.run(backend.device, backend.execution, cases::options(layer));
      const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
        return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
      };
      const double by_y = dot(r.dy.values, r.y.values);
      EXPECT_NEAR(dot(r.dx.values, r.x.values), by_y, 1e-12 * 23 * 37 * 141) << backend.name;
      EXPECT_NEAR(dot(r.dw.values, r.w.values), by_y, 1e-12 * 23 * 37 * 141) << backend.name;
    }
}

TEST(Dropconnect, GradientsByFiniteDifferences) {
  Layer layer{"differences", 4, 5, 133, 0, 0.4};
  const auto loss = [&](Trial<double>& r, const Backend& backend) {
    r.run(backend.device, backend.execution, cases::options(layer));
    return std::inner_product(r.dy.values.begin(), r.dy.values.end(), r.y.values.begin(), 0.0);
  };
  for (const Backend& backend : backends()) {
    Trial<double> r(layer);
    loss(r, backend);
    const auto dx = r.dx.values, dw = r.dw.values;
    constexpr double kStep = 1e-3;  // the loss is bilinear: central differences are exact but for rounding
    for (auto [values, gradient] : {std::pair{&r.x.values, &dx}, std::pair{&r.w.values, &dw}})
      for (std::size_t i = 0; i < values->size(); i += 61) {
        const double old = (*values)[i];
        (*values)[i] = old + kStep;
        const double up = loss(r, backend);
        (*values)[i] = old - kStep;
        const double down = loss(r, backend);
        (*values)[i] = old;
        ASSERT_NEAR((up - down) / (2 * kStep), (*gradient)[i], 1e-9) << backend.name;
      }
  }
}

/// Means and variances over 4,096 passes lie within 5 standard errors (of 2 x 40 numbers: false alarm below 1e-4).
TEST(Dropconnect, MomentsOverManySeeds) {
  constexpr std::int64_t kPasses = 4096;
  for (double p : {0.5, 0.1}) {
    Layer layer{"moments", 4, 10, 150, kPasses, p};
    Trial<double> r(layer);
    std::vector<double> mean(40), variance(40);
    const ConstTensorView x = contiguous_view(static_cast<const void*>(r.x.values.data()), DType::kFloat64, {4, 150});
    const ConstTensorView w = contiguous_view(static_cast<const void*>(r.w.values.data()), DType::kFloat64, {10, 150});
    const ConstTensorView b = contiguous_view(static_cast<const void*>(r.bias.data()), DType::kFloat64, {10});
    dropconnect_moments(x, w, &b, p, contiguous_view(static_cast<void*>(mean.data()), DType::kFloat64, {4, 10}),
                        contiguous_view(static_cast<void*>(variance.data()), DType::kFloat64, {4, 10}));
    dropconnect(x, w, &b, contiguous_view(static_cast<void*>(r.y.values.data()), DType::kFloat64, {kPasses, 4, 10}),
                cases::options(layer));
    for (std::size_t i = 0; i < 40; ++i) {
      double sum = 0, squares = 0;
      for (std::int64_t s = 0; s < kPasses; ++s) sum += r.y.values[static_cast<std::size_t>(s) * 40 + i];
      const double average = sum / kPasses;
      for (std::int64_t s = 0; s < kPasses; ++s)
        squares += std::pow(r.y.values[static_cast<std::size_t>(s) * 40 + i] - average, 2);
      EXPECT_NEAR(average, mean[i], 5 * std::sqrt(variance[i] / kPasses));
      EXPECT_NEAR(squares / (kPasses - 1), variance[i], 5 * variance[i] * std::sqrt(2.2 / kPasses));
    }
  }
}

/// W = 1, x = 1, p = 0.5: rows differ, outputs differ, each y has mean 1,024 and standard deviation 32.
TEST(Dropconnect, WeightsAreDroppedIndependently) {
  for (const Backend& backend : backends()) {
    for (bool shared : {false, true}) {
      Layer layer{"ones", 2, 256, 1024};
      layer.shared = shared;
      layer.bias = false;
      Trial<float> r(layer);
      for (auto* values : {&r.x.values, &r.w.values}) std::fill(values->begin(), values->end(), 1.0f);
      r.run(backend.device, backend.execution, cases::options(layer));
      const std::vector<float> first(r.y.values.begin(), r.y.values.begin() + 256);
      const std::vector<float> second(r.y.values.begin() + 256, r.y.values.end());
      EXPECT_EQ(first == second, shared) << backend.name;
      double sum = 0, squares = 0;
      for (float v : first) {
        EXPECT_LT(std::fabs(v - 1024.0f), 5.5f * 32.0f);
        sum += v - 1024.0;
        squares += (v - 1024.0) * (v - 1024.0);
      }
      EXPECT_LT(std::fabs(sum / 256), 4 * 32.0 / 16);
      EXPECT_NEAR(std::sqrt(squares / 256), 32.0, 4 * 32.0 / std::sqrt(512.0));
    }
  }
}

/// Pieces of the batch, of the outputs and of the inputs (partial sums), and of the passes, make up the whole.
TEST(Dropconnect, ShardsMakeUpTheWhole) {
  for (const Backend& backend : backends()) {
    Layer layer{"whole", 12, 10, 300, 0, 0.3};
    layer.bias = false;
    Trial<double> whole(layer);
    whole.run(backend.device, backend.execution, cases::options(layer));
    for (std::int64_t parts : {2, 3, 4, 5})
      for (int way = 0; way < 3; ++way) {
        const std::int64_t extent = way == 0 ? 12 : way == 1 ? 10 : 300;
        std::vector<double> y(120, 0.0);
        for (std::int64_t part = 0; part < parts; ++part) {
          const std::int64_t begin = extent * part / parts, end = extent * (part + 1) / parts;
          const std::int64_t m0 = way == 0 ? begin : 0, n0 = way == 1 ? begin : 0, k0 = way == 2 ? begin : 0;
          Layer piece{
              "piece", way == 0 ? end - begin : 12,    way == 1 ? end - begin : 10,    way == 2 ? end - begin : 300,  0,
              0.3,     static_cast<std::uint64_t>(m0), static_cast<std::uint64_t>(n0), static_cast<std::uint64_t>(k0)};
          piece.bias = false;
          Trial<double> r(piece);
          for (std::int64_t k = 0; k < piece.inputs; ++k) {
            for (std::int64_t m = 0; m < piece.rows; ++m) r.x.at(m, k) = whole.x.at(m0 + m, k0 + k);
            for (std::int64_t n = 0; n < piece.outputs; ++n) r.w.at(n, k) = whole.w.at(n0 + n, k0 + k);
          }
          r.run(backend.device, backend.execution, cases::options(piece));
          for (std::int64_t m = 0; m < piece.rows; ++m)
            for (std::int64_t n = 0; n < piece.outputs; ++n)
              y[static_cast<std::size_t>((m0 + m) * 10 + n0 + n)] += r.y.at(m, n);
        }
        for (std::size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], whole.y.values[i], 1e-12) << backend.name << way;
      }
  }
}

TEST(Dropconnect, PassesAreRowsAtTheirPositions) {
  Layer layer{"passes", 5, 9, 140, 4, 0.5};
  Trial<float> passes(layer);
  DropconnectOptions o = cases::options(layer);
  o.sample_stride = 0;  // the number of rows
  passes.run({}, {}, o);
  for (std::uint64_t s = 0; s < 4; ++s) {
    Layer one{"one", 5, 9, 140, 0, 0.5, s * 5};
    Trial<float> r(one);
    r.run({}, {}, cases::options(one));
    for (std::int64_t m = 0; m < 5; ++m)
      for (std::int64_t n = 0; n < 9; ++n)
        ASSERT_EQ(r.y.at(m, n), passes.y.at(static_cast<std::int64_t>(s) * 5 + m, n));
  }
}

TEST(Dropconnect, RunsRepeatBitForBit) {
  for (Backend backend : backends()) {
    Layer layer{"again", 130, 140, 700, 0, 0.3};
    Trial<float> a(layer), b(layer);
    a.run(backend.device, backend.execution, cases::options(layer));
    backend.execution.threads = 8;
    b.run(backend.device, backend.execution, cases::options(layer));
    EXPECT_EQ(std::memcmp(a.y.values.data(), b.y.values.data(), a.y.values.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(a.dx.values.data(), b.dx.values.data(), a.dx.values.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(a.dw.values.data(), b.dw.values.data(), a.dw.values.size() * sizeof(float)), 0);
  }
}

/// What is dropped takes no part, whatever it and its partner are; what is kept passes through.
TEST(Dropconnect, DroppedInfinityIsNothing) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Backend& backend : backends())
    for (bool in_x : {true, false}) {
      Layer layer{"infinity", 6, 40, 130};
      Trial<float> r(layer);
      for (std::int64_t i = 0; i < (in_x ? 6 : 40); ++i) (in_x ? r.x : r.w).at(i, 77) = i % 2 == 0 ? kInfinity : NAN;
      r.run(backend.device, backend.execution, cases::options(layer));
      for (std::int64_t m = 0; m < 6; ++m)
        for (std::int64_t n = 0; n < 40; ++n) {
          const bool kept = dropconnect_keep(cases::kSeed, static_cast<std::uint32_t>(m), static_cast<std::uint32_t>(n),
                                             77, threshold(0.5), cases::kStream);
          ASSERT_EQ(std::isfinite(r.y.at(m, n)), !kept) << backend.name;
          if (!kept) {
            ASSERT_NEAR(r.y.at(m, n), r.expected_y(m, n), 1e-4);
          }
        }
    }
}

TEST(Dropconnect, AllDroppedGivesTheBias) {
  for (const Backend& backend : backends()) {
    Layer layer{"none", 3, 3, 5, 0, 1.0};
    Trial<float> r(layer);
    std::fill(r.x.values.begin(), r.x.values.end(), NAN);
    r.bias = {1, 2, 3};
    r.run(backend.device, backend.execution, cases::options(layer));
    EXPECT_EQ(r.y.values, (std::vector<float>{1, 2, 3, 1, 2, 3, 1, 2, 3}));
    EXPECT_TRUE(std::all_of(r.dx.values.begin(), r.dx.values.end(), [](float v) { return v == 0.0f; }));
    EXPECT_TRUE(std::all_of(r.dw.values.begin(), r.dw.values.end(), [](float v) { return v == 0.0f; }));
  }
}

TEST(Dropconnect, LeadingDimensionsOfAnyStrides) {
  // x (3, 2, 4, 7) as a slice of (3, 5, 4, 7): two strides walk its rows. Equal to its contiguous copy.
  std::vector<float> wide(3 * 5 * 4 * 7), packed, w(6 * 7), dy(24 * 6), y(24 * 6), y2(24 * 6), dw(6 * 7), dw2(6 * 7),
      dx(24 * 7), dx2(24 * 7);
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = cases::value<float>(9, static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = cases::value<float>(8, static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < dy.size(); ++i) dy[i] = cases::value<float>(7, static_cast<std::int64_t>(i));
  for (std::size_t a = 0; a < 3; ++a)
    for (std::size_t i = 0; i < 56; ++i) packed.push_back(wide[a * 140 + 28 + i]);
  ConstTensorView x = contiguous_view(static_cast<const void*>(wide.data() + 28), DType::kFloat32, {3, 2, 4, 7});
  x.strides[0] = 140;
  const ConstTensorView x2 = contiguous_view(static_cast<const void*>(packed.data()), DType::kFloat32, {3, 2, 4, 7});
  const ConstTensorView vw = contiguous_view(static_cast<const void*>(w.data()), DType::kFloat32, {6, 7});
  const ConstTensorView vdy = contiguous_view(static_cast<const void*>(dy.data()), DType::kFloat32, {3, 2, 4, 6});
  const auto out = [](std::vector<float>& v, std::initializer_list<std::int64_t> shape) {
    return contiguous_view(static_cast<void*>(v.data()), DType::kFloat32, shape);
  };
  DropconnectOptions o;
  o.seed = 3;
  dropconnect(x, vw, nullptr, out(y, {3, 2, 4, 6}), o);
  dropconnect(x2, vw, nullptr, out(y2, {3, 2, 4, 6}), o);
  EXPECT_EQ(y, y2);
  const TensorView a = out(dx, {3, 2, 4, 7}), b = out(dw, {6, 7}), a2 = out(dx2, {3, 2, 4, 7}), b2 = out(dw2, {6, 7});
  dropconnect_backward(vdy, x, vw, &a, &b, nullptr, o);
  dropconnect_backward(vdy, x2, vw, &a2, &b2, nullptr, o);
  EXPECT_EQ(dx, dx2);
  for (std::size_t i = 0; i < dw.size(); ++i) EXPECT_NEAR(dw[i], dw2[i], 1e-5);
}

template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Dropconnect, RefusesWhatItCannotDo) {
  std::vector<float> x(6), w(12), y(8);
  const auto in = [](std::vector<float>& v, std::initializer_list<std::int64_t> shape) {
    return contiguous_view(static_cast<const void*>(v.data()), DType::kFloat32, shape);
  };
  const TensorView out = contiguous_view(static_cast<void*>(y.data()), DType::kFloat32, {2, 4});
  const auto with = [&](auto&& change) {
    DropconnectOptions o;
    change(o);
    return error_of([&] { dropconnect(in(x, {2, 3}), in(w, {4, 3}), nullptr, out, o); });
  };
  EXPECT_EQ(with([](auto& o) { o.p = 1.5; }), "dropconnect: p must be in [0, 1], got 1.5");
  EXPECT_EQ(with([](auto& o) { o.p = NAN; }), "dropconnect: p must be in [0, 1], got nan");
  EXPECT_EQ(with([](auto& o) { o.stream = 1u << 24; }), "dropconnect: stream must be below 2^24, got 16777216");
  EXPECT_EQ(with([](auto& o) { o.samples = -1; }), "dropconnect: samples must not be negative, got -1");
  EXPECT_EQ(with([](auto& o) { o.first_sample = (1ull << 32) - 1; }),
            "dropconnect: first_sample must leave every position below 2^32, got 4294967295");
  EXPECT_EQ(with([](auto& o) { o.first_output = 1ull << 32; }),
            "dropconnect: first_output must leave every position below 2^32, got 4294967296");
  EXPECT_EQ(with([](auto& o) { o.first_input = ~0ull; }),
            "dropconnect: first_input must leave every position below 2^34, got 18446744073709551615");
  EXPECT_EQ(with([](auto& o) { o.samples = 2; }),
            "dropconnect: y must have the shape (samples, *, out_features) = (2, 2, 4), got (2, 4)");
  EXPECT_EQ(error_of([&] {
              dropconnect(in(x, {3, 2}), in(w, {4, 3}), nullptr, out, {});
            }),
            "dropconnect: weight must have as many columns as x, 2, got (4, 3)");
  ConstTensorView bias = in(x, {3});
  EXPECT_EQ(error_of([&] {
              dropconnect(in(x, {2, 3}), in(w, {4, 3}), &bias, out, {});
            }),
            "dropconnect: bias must have the shape (out_features,) = (4,), got (3,)");
  ConstTensorView integers = in(x, {2, 3});
  integers.dtype = DType::kInt64;
  EXPECT_EQ(error_of([&] {
              dropconnect(integers, in(w, {4, 3}), nullptr, out, {});
            }),
            "dropconnect: x must be float16, bfloat16, float32 or float64, got int64");
  EXPECT_EQ(error_of([&] {
              dropconnect(in(y, {2, 3}), in(w, {4, 3}), nullptr, out, {});
            }),
            "dropconnect: y must not overlap x, got memory that overlaps");
}

#if MASKLESS_HAS_CUDA
/// At M = 512, N = K = 4096 forward and both gradients take at most 64 MiB besides their tensors.
TEST(Dropconnect, CudaMemoryIsBounded) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  const Device device{DeviceType::kCuda, 0};
  constexpr std::int64_t kM = 512, kN = 4096;
  float* memory = nullptr;
  const std::size_t elements = 2 * kM * kN * 2 + 2 * kN * kN;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&memory), elements * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMemset(memory, 0x3C, elements * sizeof(float)), cudaSuccess);
  float *x = memory, *dx = x + kM * kN, *y = dx + kM * kN, *dy = y + kM * kN, *w = dy + kM * kN, *dw = w + kN * kN;
  const auto view = [&](float* p, std::int64_t rows) {
    return contiguous_view(static_cast<void*>(p), DType::kFloat32, {rows, kN}, device);
  };
  const auto run = [&](double p) {
    DropconnectOptions o;
    o.p = p;
    const TensorView vdx = view(dx, kM), vdw = view(dw, kN);
    dropconnect(view(x, kM), view(w, kN), nullptr, view(y, kM), o);
    dropconnect_backward(view(dy, kM), view(x, kM), view(w, kN), &vdx, &vdw, nullptr, o);
  };
  std::size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  for (double p : {0.5, 0.1}) run(p);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);  // the workspace's pool keeps its memory
  std::printf("memory besides the tensors: %.1f MiB\n", static_cast<double>(before - after) / (1 << 20));
  EXPECT_LE(before - after, std::size_t{64} << 20);
  cudaFree(memory);
}

/// A captured graph draws the mask of the seed that lies in memory when it is replayed.
TEST(Dropconnect, CudaGraphFollowsTheSeed) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  const Device device{DeviceType::kCuda, 0};
  std::vector<float> ones(64 * 64, 1.0f);
  cases::Array<float> x(ones, device), w(ones, device), y(ones, device);
  cases::Array<std::uint64_t> seed({7}, device);
  const auto view = [&](float* p) { return contiguous_view(static_cast<void*>(p), DType::kFloat32, {64, 64}, device); };
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  Execution on_stream;
  on_stream.cuda_stream = stream;
  const auto run = [&](Seed s) {
    DropconnectOptions o;
    o.seed = s;
    dropconnect(view(x.data()), view(w.data()), nullptr, view(y.data()), o, on_stream);
  };
  run(Seed::at(seed.data()));
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  run(Seed::at(seed.data()));
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  std::vector<std::vector<float>> results;
  for (std::uint64_t value : {7, 8}) {
    ASSERT_EQ(cudaMemcpy(seed.data(), &value, sizeof value, cudaMemcpyHostToDevice), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<float> replayed = y.fetch();
    run(Seed(value));
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(y.fetch(), replayed);
    results.push_back(replayed);
  }
  EXPECT_NE(results[0], results[1]);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}
#endif

}  // namespace
}  // namespace maskless
