// Random numbers on the device against the CPU's: the same bits.
#if MASKLESS_HAS_CUDA
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "cuda/test_device.h"
#include "maskless/random.h"

namespace maskless {
namespace {

using testing::DeviceMemory;
using testing::kCuda;

constexpr int kKinds = 8;

DType dtype_of(int kind) {
  return kind == 0 ? DType::kUint32 : kind < 4 ? DType::kFloat32 : kind < 6 ? DType::kInt32 : DType::kInt64;
}

void draw(int kind, const TensorView& out, const RandomOptions& options) {
  switch (kind) {
    case 0: return random_bits(out, options);
    case 1: return random_uniform(out, options);
    case 2: return random_uniform_triton(out, options);
    case 3: return random_normal(out, options);
    case 4: return random_integers(out, 1, 7, options);
    case 5: return random_integers(out, -(std::int64_t{1} << 31), std::int64_t{1} << 31, options);
    case 6: return random_integers(out, -5, 3'000'000'000, options);                       // redraws three times in ten
    default: return random_integers(out, -1'000'000, 7'000'000'000'000'000'000, options);  // 64-bit draws
  }
}

/// `transposed`: the first dimension is the contiguous one. `offset`: elements before the tensor.
TensorView view(void* memory, DType dtype, std::int64_t rows, std::int64_t cols, bool transposed, std::int64_t offset,
                Device device) {
  TensorView v = contiguous_view(
      static_cast<void*>(static_cast<char*>(memory) + offset * static_cast<std::int64_t>(dtype_size(dtype))), dtype,
      {rows, cols}, device);
  if (transposed) {
    v.strides[0] = 1;
    v.strides[1] = rows;
  }
  return v;
}

TEST(RandomCuda, EqualsTheCpuBitForBit) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::uint64_t seed = std::random_device{}() | std::uint64_t{1} << 40;
  for (int kind = 0; kind < kKinds; ++kind)
    for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{3}, (std::uint64_t{1} << 34) - 500})
      for (bool transposed : {false, true})
        for (std::int64_t offset : {0, 1})
          for (std::int64_t cols : {0, 1, 5, 64, 1023}) {
            constexpr std::int64_t kRows = 37;
            const DType dtype = dtype_of(kind);
            const std::size_t bytes = static_cast<std::size_t>(kRows * cols + 8) * dtype_size(dtype);
            std::vector<char> expected(bytes, static_cast<char>(0xA5));
            const DeviceMemory memory(expected), device_seed(std::vector<std::uint64_t>{seed});
            RandomOptions options;
            options.seed = seed;
            options.stream = kind == 2 ? 0 : 12345;
            options.first_index = first;
            draw(kind, view(expected.data(), dtype, kRows, cols, transposed, offset, {}), options);
            if (cols % 2 == 0) options.seed = Seed::at(device_seed.as<std::uint64_t>());
            draw(kind, view(memory.data(), dtype, kRows, cols, transposed, offset, kCuda), options);
            ASSERT_EQ(memory.host(), expected) << "kind " << kind << ", seed " << seed << ", first index " << first
                                               << ", columns " << cols << ", offset " << offset;
          }
}

/// For checkers that slow each access down.
TEST(RandomCuda, Reduced) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (int kind = 0; kind < kKinds; ++kind)
    for (bool transposed : {false, true}) {
      const DType dtype = dtype_of(kind);
      std::vector<char> expected(5 * 33 * dtype_size(dtype));
      const DeviceMemory memory(expected);
      draw(kind, view(expected.data(), dtype, 5, 33, transposed, 0, {}), {});
      draw(kind, view(memory.data(), dtype, 5, 33, transposed, 0, kCuda), {});
      ASSERT_EQ(memory.host(), expected) << "kind " << kind;
    }
}

TEST(RandomCuda, AMillionNormalsEqualTheCpuBitForBit) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::int64_t n = 1'000'003;
  for (int kind : {1, 3, 6}) {
    const DType dtype = dtype_of(kind);
    std::vector<char> expected(static_cast<std::size_t>(n) * dtype_size(dtype));
    const DeviceMemory memory(expected.size());
    RandomOptions options;
    options.seed = std::random_device{}();
    draw(kind, contiguous_view(static_cast<void*>(expected.data()), dtype, {n}), options);
    draw(kind, contiguous_view(memory.data(), dtype, {n}, kCuda), options);
    ASSERT_EQ(memory.host(), expected) << "kind " << kind << ", seed " << options.seed.value;
  }
}

}  // namespace
}  // namespace maskless
#endif  // MASKLESS_HAS_CUDA
