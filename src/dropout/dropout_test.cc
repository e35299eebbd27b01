#include "maskless/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "dropout/dropout_cases.h"
#include "maskless/runtime.h"

namespace maskless {
namespace {

using cases::DropoutCase;

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr std::size_t kGuard = 128;  // bytes before and after a tensor's memory

std::string describe(const DropoutCase& c, DType dtype, Isa isa) {
  std::string s = c.name + ", shape (";
  for (std::int64_t extent : c.shape) s.append(std::to_string(extent)).append(",");
  return s + "), " + dtype_name(dtype) + ", " + isa_name(isa);
}

/// Runs one case and compares every byte of the output's memory, gaps and guards included. Returns the first fault.
std::string run_case(const DropoutCase& c, DType dtype, const Execution& execution, bool backward = false) {
  const std::size_t item = dtype_size(dtype);
  const auto px = cases::place(c.shape, c.x), py = cases::place(c.shape, c.y);
  const auto seeds = cases::row_seeds(c);
  std::vector<char> x = cases::random_memory(static_cast<std::size_t>(px.elements) * item + 2 * kGuard, 5);
  std::vector<char> y = cases::random_memory(static_cast<std::size_t>(py.elements) * item + 2 * kGuard, 6);
  if (c.in_place) y = x;
  std::vector<char> expected = y;
  const auto keep = cases::expected_keep(c, seeds);
  cases::for_each_element(c.shape, [&](std::int64_t e, const std::vector<std::int64_t>& coords) {
    std::int64_t from = px.origin, to = py.origin;
    for (std::size_t d = 0; d < coords.size(); ++d) {
      from += coords[d] * px.strides[d];
      to += coords[d] * py.strides[d];
    }
    std::uint64_t value = 0;
    if (keep[static_cast<std::size_t>(e)] != 0)
      value = cases::expected_value(dtype, cases::load_bits(x.data() + kGuard, from, dtype), c.p, c.scale);
    std::memcpy(expected.data() + kGuard + static_cast<std::size_t>(to) * item, &value, item);
  });
  const TensorView vx = cases::view((c.in_place ? y : x).data() + kGuard, dtype, c.shape, px);
  const TensorView vy = cases::view(y.data() + kGuard, dtype, c.shape, py);
  (backward ? dropout_backward : dropout)(vx, vy, cases::options(c, seeds.data()), execution);
  for (std::size_t i = 0; i < y.size(); ++i)
    if (y[i] != expected[i])
      return describe(c, dtype, execution.isa) + ": byte " + std::to_string(static_cast<std::int64_t>(i) - 128) +
             " of the output's memory differs";
  return "";
}

TEST(Dropout, EqualsTheOracleOnEveryInstructionSet) {
  for (Isa isa : instruction_sets())
    for (const DropoutCase& c : cases::dropout_cases())
      for (DType dtype : kFloats) {
        Execution execution;
        execution.threads = 1;
        execution.isa = isa;
        ASSERT_EQ(run_case(c, dtype, execution), "");
      }
}

TEST(Dropout, BackwardIsTheSameFunction) {
  for (const DropoutCase& c : cases::dropout_cases()) ASSERT_EQ(run_case(c, DType::kFloat32, {}, true), "");
}

TEST(Dropout, EveryLengthUpTo1025) {
  for (Isa isa : instruction_sets())
    for (std::int64_t n = 0; n <= 1025; ++n) {
      DropoutCase c{"length", {n}, cases::Arrangement::kOffByOne, cases::Arrangement::kContiguous, 0.25};
      c.first_index = static_cast<std::uint64_t>(n) % 11;
      Execution execution;
      execution.isa = isa;
      ASSERT_EQ(run_case(c, kFloats[n % 4], execution), "");
    }
}

TEST(Dropout, ThreadsDoNotMatter) {
  for (DType dtype : kFloats)
    for (int threads : {1, 2, 3, 5, 8}) {
      Execution execution;
      execution.threads = threads;
      ASSERT_EQ(run_case({"threads", {200003}}, dtype, execution), "") << threads;
      ASSERT_EQ(run_case({"threads", {515, 700}, cases::Arrangement::kFortran, cases::Arrangement::kFortran}, dtype,
                         execution),
                "")
          << threads;
    }
}

TEST(Dropout, KeepsWhatTheSpecificationKeeps) {
  std::vector<std::uint8_t> mask(1000, 0xCC);
  DropoutOptions options;
  options.p = 0.5;
  options.seed = 123;
  keep_mask(contiguous_view(mask.data(), DType::kBool, {1000}), options);
  int kept = 0;
  for (std::uint8_t keep : mask) kept += keep;
  EXPECT_EQ(kept, 509);
}

TEST(Dropout, RefusesAProbabilityAboveOne) {
  float x = 1, y = 0;
  DropoutOptions options;
  options.p = 1.5;
  try {
    dropout(contiguous_view(&x, DType::kFloat32, {1}), contiguous_view(&y, DType::kFloat32, {1}), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "dropout: p must be in [0, 1], got 1.5");
  }
}

}  // namespace
}  // namespace maskless
