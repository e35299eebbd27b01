#include "maskless/dropout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
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
std::string run_case(const DropoutCase& c, const std::vector<std::uint8_t>& keep, DType dtype,
                     const Execution& execution, bool backward = false) {
  const std::size_t item = dtype_size(dtype);
  const auto px = cases::place(c.shape, c.x), py = cases::place(c.shape, c.y);
  const auto seeds = cases::row_seeds(c);
  std::vector<char> x = cases::random_memory(static_cast<std::size_t>(px.elements) * item + 2 * kGuard, 5);
  std::vector<char> y = cases::random_memory(static_cast<std::size_t>(py.elements) * item + 2 * kGuard, 6);
  if (c.in_place) y = x;
  std::vector<char> expected = y;
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

std::string run_case(const DropoutCase& c, DType dtype, const Execution& execution, bool backward = false) {
  return run_case(c, cases::expected_keep(c, cases::row_seeds(c)), dtype, execution, backward);
}

TEST(Dropout, EqualsTheOracleOnEveryInstructionSet) {
  for (const DropoutCase& c : cases::dropout_cases()) {
    const auto keep = cases::expected_keep(c, cases::row_seeds(c));
    for (Isa isa : instruction_sets())
      for (DType dtype : kFloats) {
        Execution execution;
        execution.threads = 1;
        execution.isa = isa;
        ASSERT_EQ(run_case(c, keep, dtype, execution), "");
      }
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

TEST(Dropout, LargeOutputsThatBypassTheCachesAreTheSame) {
  const std::size_t bytes = std::size_t{17} << 20;
  const std::vector<char> x = cases::random_memory(bytes + 64, 7);
  for (DType dtype : kFloats)
    for (std::size_t shift : {std::size_t{0}, std::size_t{1}, std::size_t{5}}) {
      const std::size_t item = dtype_size(dtype);
      const auto n = static_cast<std::int64_t>(bytes / item) - 3;
      DropoutOptions options;
      options.first_index = 11 * shift;
      if (shift == 1) options.first_index = (std::uint64_t{1} << 35) - 1000003;  // the block number's low half wraps
      Execution execution;
      execution.threads = 2;
      const auto part = [&](char* y, std::int64_t at, std::int64_t count) {
        DropoutOptions of_part = options;
        of_part.first_index += static_cast<std::uint64_t>(at);
        dropout(
            contiguous_view(static_cast<const void*>(x.data() + static_cast<std::size_t>(at) * item), dtype, {count}),
            contiguous_view(static_cast<void*>(y + (static_cast<std::size_t>(at) + shift) * item), dtype, {count}),
            of_part, execution);
      };
      std::vector<char> parts = cases::random_memory(bytes + 128, 8);
      for (std::int64_t at = 0; at < n; at += 1000003) part(parts.data(), at, std::min<std::int64_t>(1000003, n - at));
      for (Isa isa : instruction_sets()) {
        if (isa == Isa::kScalar) continue;
        execution.isa = isa;
        std::vector<char> whole = cases::random_memory(bytes + 128, 8);
        part(whole.data(), 0, n);
        ASSERT_TRUE(whole == parts) << dtype_name(dtype) << ", " << isa_name(isa) << ", " << shift
                                    << " elements past alignment";
      }
    }
}

TEST(KeepMask, EqualsTheOracleOnEveryInstructionSet) {
  for (const DropoutCase& c : cases::dropout_cases()) {
    const auto seeds = cases::row_seeds(c);
    const auto keep = cases::expected_keep(c, seeds);
    for (Isa isa : instruction_sets()) {
      Execution execution;
      execution.isa = isa;
      const auto place = cases::place(c.shape, c.y);
      std::vector<char> mask(static_cast<std::size_t>(place.elements) + 2 * kGuard, 0x55), expected = mask;
      cases::for_each_element(c.shape, [&](std::int64_t e, const std::vector<std::int64_t>& coords) {
        std::int64_t to = place.origin;
        for (std::size_t d = 0; d < coords.size(); ++d) to += coords[d] * place.strides[d];
        expected[kGuard + static_cast<std::size_t>(to)] = static_cast<char>(keep[static_cast<std::size_t>(e)]);
      });
      keep_mask(cases::view(mask.data() + kGuard, DType::kBool, c.shape, place), cases::options(c, seeds.data()),
                execution);
      ASSERT_TRUE(mask == expected) << describe(c, DType::kBool, isa);

      const std::size_t bytes = (keep.size() + 7) / 8;
      std::vector<char> bits(bytes + 2 * kGuard, 0x55), packed = bits;
      std::fill_n(packed.begin() + kGuard, bytes, char{0});
      for (std::size_t e = 0; e < keep.size(); ++e)
        packed[kGuard + e / 8] = static_cast<char>(packed[kGuard + e / 8] | keep[e] << (e % 8));
      const auto logical = cases::place(c.shape, cases::Arrangement::kContiguous);
      keep_mask_packed(
          cases::view(nullptr, DType::kBool, c.shape, logical),
          contiguous_view(static_cast<void*>(bits.data() + kGuard), DType::kUint8, {static_cast<std::int64_t>(bytes)}),
          cases::options(c, seeds.data()), execution);
      ASSERT_TRUE(bits == packed) << describe(c, DType::kUint8, isa) << ", packed";
    }
  }
}

/// All 2^16 values of a 16-bit type, and as many random ones of the others, under several scales.
TEST(MaskedDropout, RoundsEveryValueAsTheScalarFunctions) {
  const std::int64_t n = 65536;
  for (Isa isa : instruction_sets())
    for (DType dtype : kFloats)
      for (double p : {0.0, 0.1, 0.3, 0.5, 0.75, 0.9, 0.999, 1 - 1e-7}) {
        const std::size_t item = dtype_size(dtype);
        std::vector<char> x = cases::random_memory(static_cast<std::size_t>(n) * item, 3), y = x;
        for (std::uint32_t i = 0; item == 2 && i < n; ++i) std::memcpy(x.data() + 2 * i, &i, 2);
        const std::vector<std::uint8_t> keep(static_cast<std::size_t>(n), 1);
        Execution execution;
        execution.isa = isa;
        masked_dropout(contiguous_view(static_cast<const void*>(x.data()), dtype, {n}),
                       contiguous_view(static_cast<const void*>(keep.data()), DType::kBool, {n}),
                       contiguous_view(static_cast<void*>(y.data()), dtype, {n}), p, true, execution);
        for (std::int64_t i = 0; i < n; ++i) {
          const std::uint64_t bits = cases::load_bits(x.data(), i, dtype);
          ASSERT_EQ(cases::load_bits(y.data(), i, dtype), cases::expected_value(dtype, bits, p, true))
              << dtype_name(dtype) << ", " << isa_name(isa) << ", p " << p << ", bits " << bits;
        }
      }
}

TEST(MaskedDropout, EqualsTheOracleOnEveryInstructionSet) {
  using A = cases::Arrangement;
  for (Isa isa : instruction_sets())
    for (DType dtype : kFloats)
      for (DType keep_dtype : {DType::kBool, DType::kUint8, DType::kInt32})
        for (const auto& shape : std::vector<std::vector<std::int64_t>>{{}, {0}, {1}, {1029}, {33, 65}, {5, 3, 70}})
          for (A arrangement : {A::kContiguous, A::kOffByOne, A::kFortran, A::kReversed, A::kEveryOther})
            for (bool scale : {true, false}) {
              const std::size_t item = dtype_size(dtype), keep_item = dtype_size(keep_dtype);
              const auto place = cases::place(shape, arrangement), plain = cases::place(shape, A::kContiguous);
              const auto elements = static_cast<std::size_t>(place.elements);
              const std::vector<char> x = cases::random_memory(elements * item, 1);
              std::vector<char> keep = cases::random_memory(elements * keep_item, 2);
              for (std::size_t i = 0; i < keep.size(); i += 3) keep[i / keep_item * keep_item] = 0;
              for (std::size_t i = 0; i < elements; i += 3) std::memset(keep.data() + i * keep_item, 0, keep_item);
              std::vector<char> y =
                  cases::random_memory(static_cast<std::size_t>(plain.elements) * item + 2 * kGuard, 3);
              std::vector<char> expected = y;
              cases::for_each_element(shape, [&](std::int64_t e, const std::vector<std::int64_t>& coords) {
                std::int64_t at = place.origin;
                for (std::size_t d = 0; d < coords.size(); ++d) at += coords[d] * place.strides[d];
                std::uint64_t value = 0;
                if (cases::load_bits(keep.data(), at, keep_dtype) != 0)
                  value = cases::expected_value(dtype, cases::load_bits(x.data(), at, dtype), 0.3, scale);
                std::memcpy(expected.data() + kGuard + static_cast<std::size_t>(e) * item, &value, item);
              });
              Execution execution;
              execution.isa = isa;
              masked_dropout(cases::view(const_cast<char*>(x.data()), dtype, shape, place),
                             cases::view(keep.data(), keep_dtype, shape, place),
                             cases::view(y.data() + kGuard, dtype, shape, plain), 0.3, scale, execution);
              ASSERT_TRUE(y == expected) << dtype_name(dtype) << ", " << dtype_name(keep_dtype) << ", " << isa_name(isa)
                                         << ", arrangement " << static_cast<int>(arrangement);
            }
}

}  // namespace
}  // namespace maskless
