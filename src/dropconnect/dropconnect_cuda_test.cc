// Layers too large for the scalar reference: each kind of tile beside the CPU, and 16-bit layers large enough for
// tensor cores beside the same layers in float32.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dropconnect/dropconnect_cases.h"
#include "maskless/dropconnect.h"
#include "maskless/runtime.h"

#if MASKLESS_HAS_CUDA

namespace maskless {
namespace {

using cases::Layer;
using cases::Plane;
using cases::Trial;

constexpr Device kCuda{DeviceType::kCuda, 0};

template <typename T>
void expect_the_cpu(std::initializer_list<Layer> layers) {
  for (const Layer& layer : layers) {
    Trial<T> cpu(layer), gpu(layer);
    for (Plane<T>* out : {&gpu.y, &gpu.dx, &gpu.dw}) std::fill(out->values.begin(), out->values.end(), Plane<T>::nan());
    cpu.run({}, {}, cases::options(layer));
    gpu.run(kCuda, {}, cases::options(layer));
    const auto close = [&](const std::vector<T>& got, const std::vector<T>& want, std::int64_t terms) {
      const double bound = (std::is_same_v<T, double> ? 0x1p-50 : 0x1p-21) * static_cast<double>(terms) * cpu.scale();
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (std::isnan(want[i]) && std::isnan(got[i])) continue;  // between the rows of strided matrices
        ASSERT_LE(std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i])), bound)
            << layer.name << ", " << i;
      }
    };
    close(gpu.y.values, cpu.y.values, layer.inputs);
    close(gpu.dx.values, cpu.dx.values, layer.outputs * cpu.passes);
    close(gpu.dw.values, cpu.dw.values, cpu.count);
  }
}

/// Sums of several rounds of loads, in every kind of tile.
TEST(DropconnectCuda, EqualsTheCpu) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  const std::initializer_list<Layer> layers = {
      {"tiny tiles", 80, 261, 450, 0, 0.5, 5, 6, 93},
      {"tiny tiles, exact p", 150, 140, 700, 0, 0.1},
      {"middle tiles", 130, 300, 520, 0, 0.25},
      {"wide tiles", 910, 900, 130},
      {"wide tiles, strided", 400, 350, 390, 0, 0.5, 0, 0, 0, false, true, true, true},
      {"at most eight rows", 8, 700, 1300},
      {"at most eight rows, more sums", 7, 1500, 1300, 0, 0.25},
      {"at most four rows", 3, 900, 1300, 0, 0.1},
      {"at most sixteen rows", 15, 900, 1300},
      {"at most thirty-two rows", 29, 900, 1300, 0, 0.5, 4, 7, 90},
      {"at most thirty-two rows, exact p", 32, 520, 1290, 0, 0.1, 0, 0, 0, false, true, true, true},
      {"few outputs", 900, 5, 1300},
      {"thirty outputs", 620, 30, 1300},
      {"passes", 70, 260, 450, 3},
  };
  expect_the_cpu<float>(layers);
  expect_the_cpu<double>(layers);
}

/// One layer for every kernel, as small as the choice of kernels lets it be: short enough for compute-sanitizer.
TEST(DropconnectCuda, Reduced) {
  if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  expect_the_cpu<float>({
      {"without tiles", 9, 17, 120, 0, 0.1, 1, 2, 3},
      {"without tiles, strided", 9, 17, 120, 0, 0.5, 0, 0, 0, false, true, true, true},
      {"tiny tiles", 40, 70, 800, 0, 0.5, 5, 6, 93},
      {"eight rows", 7, 1100, 1700},
      {"sixteen rows", 15, 650, 1300, 0, 0.1},
      {"thirty-two rows", 29, 340, 1300, 0, 0.25, 0, 0, 90},
      {"thirty-two rows, strided", 32, 310, 1300, 0, 0.1, 0, 0, 0, false, true, true, true},
      {"wide gradients", 140, 150, 610, 0, 0.5, 3, 1, 4},
      {"wide tiles", 870, 950, 16},
      {"passes", 33, 70, 2000, 3},
  });
  expect_the_cpu<double>({{"thirty-two rows", 29, 340, 1300}});
}

template <typename T>
class DropconnectTensorCores : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices().empty()) GTEST_SKIP() << "no CUDA device";
  }
  static float number(T v) { return reference::to_sum(v); }
  static T rounded(double v) { return reference::from_sum<T>(static_cast<float>(v)); }

  /// Runs the layer in T and in float with equal values, poisoned outputs.
  static void run(const Layer& layer, Trial<T>& trial, Trial<float>& wide) {
    for (auto [from, to] : {std::pair{&trial.x, &wide.x}, {&trial.w, &wide.w}, {&trial.dy, &wide.dy}})
      for (std::int64_t r = 0; r < from->rows; ++r)
        for (std::int64_t c = 0; c < from->cols; ++c) to->at(r, c) = number(from->at(r, c));
    for (std::size_t i = 0; i < trial.bias.size(); ++i) wide.bias[i] = number(trial.bias[i]);
    for (Plane<T>* out : {&trial.y, &trial.dx, &trial.dw})
      for (T& v : out->values) v = Plane<T>::nan();
    trial.run(kCuda, {}, cases::options(layer));
    wide.run(kCuda, {}, cases::options(layer));
  }

  /// Equal but for the order of the sum (2^-22 of a sum of magnitudes below `terms`) and rounding to T.
  static void expect_equal(Plane<T>& got, Plane<float>& want, double terms, const std::string& where) {
    const double output = std::is_same_v<T, BFloat16> ? 0x1p-7 : 0x1p-10;  // a last place at most
    for (std::int64_t r = 0; r < got.rows; ++r)
      for (std::int64_t c = 0; c < got.cols; ++c) {
        const double a = number(got.at(r, c)), b = number(rounded(want.at(r, c)));
        if (std::isnan(a) && std::isnan(b)) continue;
        if (a == b) continue;
        ASSERT_LE(std::fabs(a - b), output * std::fabs(b) + 0x1p-22 * terms) << where << " at " << r << ", " << c;
      }
  }
  static void check(const Layer& layer, Trial<T>& trial, double size = 1.0) {
    Trial<float> wide(layer);
    run(layer, trial, wide);
    const double scale = size * std::max(trial.scale(), 1.0);
    expect_equal(trial.y, wide.y, static_cast<double>(layer.inputs) * scale, layer.name + ", y");
    expect_equal(trial.dx, wide.dx, static_cast<double>(layer.outputs) * scale, layer.name + ", dx");
    expect_equal(trial.dw, wide.dw, static_cast<double>(trial.count) * scale, layer.name + ", dweight");
  }
};
using Types = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(DropconnectTensorCores, Types);

TYPED_TEST(DropconnectTensorCores, EqualTheOtherKernels) {
  for (Layer layer : {
           Layer{"whole tiles", 256, 256, 512},
           Layer{"odd", 517, 261, 300, 0, 0.25, 5, 6, 93},
           Layer{"exact p", 259, 517, 300, 0, 0.1, 7, 5, 4},
           Layer{"split sums", 40, 48, 18000, 0, 0.125},
           Layer{"long sums of gradients", 3000, 33, 350},
           Layer{"long sums of gradients, wide", 33, 3000, 350, 0, 0.7},
           Layer{"strided", 301, 403, 299, 0, 0.5, 0, 0, 0, false, true, true, true},
           Layer{"shared", 259, 300, 500, 0, 0.5, 3, 0, 0, true},
           Layer{"passes", 91, 160, 900, 3, 0.5, 10},
           Layer{"no scale, no bias", 260, 300, 500, 0, 0.5, 0, 0, 0, false, false, false},
           Layer{"seed in memory", 260, 300, 500, 0, 0.5, 0, 0, 0, false, true, true, false, true},
           Layer{"keeps all", 260, 300, 500, 0, 0.0},
           Layer{"drops all", 260, 300, 500, 0, 1.0},
           Layer{"hardly keeps", 260, 300, 500, 0, 0.999},
       }) {
    Trial<TypeParam> trial(layer);
    this->check(layer, trial);
  }
}

/// Short enough for compute-sanitizer: tensor cores, and the tiles that take their place.
TYPED_TEST(DropconnectTensorCores, Reduced) {
  for (Layer layer :
       {Layer{"odd", 261, 259, 500, 0, 0.5, 5, 6, 93}, Layer{"three planes", 261, 259, 500, 0, 0.125},
        Layer{"split sums", 49, 50, 13800, 0, 0.25}, Layer{"hardly keeps", 261, 259, 500, 0, 1 - 0x1p-10}}) {
    Trial<TypeParam> trial(layer), special(layer);
    this->check(layer, trial);
    special.x.at(30, 133) = special.w.at(31, 134) = special.dy.at(32, 35) = this->rounded(std::nan(""));
    this->check(layer, special);
  }
}

/// Operands that do not fit in the workspace once packed: the product comes in pieces.
TYPED_TEST(DropconnectTensorCores, InPieces) {
  if (!std::is_same_v<TypeParam, BFloat16>) return;
  for (Layer layer : {Layer{"of outputs and inputs", 64, 256, 70000}, Layer{"of rows", 1024, 48, 20000},
                      Layer{"of passes", 256, 64, 36000, 2}}) {
    Trial<TypeParam> trial(layer);
    this->check(layer, trial);
  }
}

/// Infinities, NaN and values for which the packed form is not exact, at places dropped and kept.
TYPED_TEST(DropconnectTensorCores, UnusualValues) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (double special : {infinity, -infinity, nan, 3e4, 0x1p-20, 1e-20, 3e38, 1e-40})
    for (int place = 0; place < 4; ++place) {
      Layer layer{"special " + std::to_string(special) + " " + std::to_string(place), 258, 300, 500};
      Trial<TypeParam> trial(layer);
      Plane<TypeParam>* planes[] = {&trial.x, &trial.w, &trial.dy};
      for (int i = 0; i < 3; ++i)
        if (place == i || place == 3) planes[i]->at(70 + i, 133 + i) = this->rounded(special);
      const double magnitude = std::fabs(static_cast<double>(this->number(this->rounded(special))));
      this->check(layer, trial, std::isfinite(magnitude) ? std::max(magnitude, 1.0) : 1.0);
    }
}

/// Eight powers of two spell eight mask bits in a number of eight bits: sums are exact, and so is every bit.
TYPED_TEST(DropconnectTensorCores, EveryMaskBit) {
  for (double p : {0.5, 0.1}) {
    Layer layer{"bits", 261, 293, 450, 0, p, 5, 6, 40};
    layer.scale = layer.bias = false;
    for (std::int64_t first = 0; first < 450; first += 8) {
      Trial<TypeParam> trial(layer);
      Trial<float> wide(layer);
      const auto spell = [&](Plane<TypeParam>& plane, bool by_col) {
        for (std::int64_t r = 0; r < plane.rows; ++r)
          for (std::int64_t c = 0; c < plane.cols; ++c) {
            const std::int64_t i = (by_col ? c : r) - first;
            plane.at(r, c) = this->rounded(i >= 0 && i < 8 ? std::ldexp(1.0, static_cast<int>(i)) : 0.0);
          }
      };
      const auto ones = [&](Plane<TypeParam>& plane) {
        for (TypeParam& v : plane.values) v = this->rounded(1.0);
      };
      const auto equal = [&](Plane<TypeParam>& got, Plane<float>& want, const char* what) {
        for (std::int64_t r = 0; r < got.rows; ++r)
          for (std::int64_t c = 0; c < got.cols; ++c)
            ASSERT_NEAR(this->number(got.at(r, c)), want.at(r, c), 0x1p-40)  // bfloat16: 2^-64 of what is dropped
                << what << ", p " << p << ", from " << first << ", at " << r << ", " << c;
      };
      spell(trial.w, true);  // forward: y spells inputs
      ones(trial.x);
      this->run(layer, trial, wide);
      equal(trial.y, wide.y, "y");
      if (first >= 293) continue;
      spell(trial.w, false);  // dx spells outputs, dweight rows
      spell(trial.x, false);
      ones(trial.dy);
      this->run(layer, trial, wide);
      equal(trial.dx, wide.dx, "dx");
      equal(trial.dw, wide.dw, "dweight");
    }
  }
}

}  // namespace
}  // namespace maskless

#endif
