// Dropout on the device against the oracle of dropout_cases.h and, at sizes that are slow for it, against the CPU.
#if MASKLESS_HAS_CUDA
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/test_device.h"
#include "dropout/dropout_cases.h"
#include "maskless/dropout.h"

namespace maskless {
namespace {

using cases::Arrangement;
using cases::DropoutCase;
using testing::check;
using testing::DeviceMemory;
using testing::kCuda;

constexpr DType kFloats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
constexpr std::size_t kGuard = 128;  // bytes before and after a tensor's memory

std::uint64_t fresh_seed() {
  static const std::uint64_t seed = [] {
    const std::uint64_t drawn = std::random_device{}();
    ::testing::Test::RecordProperty("input_seed", std::to_string(drawn));
    return drawn;
  }();
  return seed;
}

/// As the CPU's answer, or NaN where that is NaN: which of them a product gives differs between processors.
bool same(DType dtype, std::uint64_t a, std::uint64_t b) {
  return a == b || (cases::is_nan_bits(dtype, a) && cases::is_nan_bits(dtype, b));
}

/// Runs one case on the device and compares the output's whole memory, gaps and guards included, with the oracle's.
std::string run_case(const DropoutCase& c, DType dtype, bool seed_on_device = false, bool backward = false) {
  const std::size_t item = dtype_size(dtype);
  const auto px = cases::place(c.shape, c.x), py = cases::place(c.shape, c.y);
  const auto seeds = cases::row_seeds(c);
  const auto memory = [&](const cases::Placement& p, std::uint64_t seed) {
    return cases::random_memory(static_cast<std::size_t>(p.elements) * item + 2 * kGuard, seed);
  };
  const std::vector<char> x = memory(px, fresh_seed()), y = c.in_place ? x : memory(py, fresh_seed() + 1);
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

  const DeviceMemory dx(x), dy(y), device_seeds(seeds), one_seed(std::vector<std::uint64_t>{c.seed});
  TensorView vx = cases::view((c.in_place ? dy : dx).as() + kGuard, dtype, c.shape, px);
  TensorView vy = cases::view(dy.as() + kGuard, dtype, c.shape, py);
  vx.device = vy.device = kCuda;
  DropoutOptions options = cases::options(c, device_seeds.as<std::uint64_t>());
  if (seed_on_device) options.seed = Seed::at(one_seed.as<std::uint64_t>());
  (backward ? dropout_backward : dropout)(vx, vy, options, {});
  const std::vector<char> got = dy.host();
  const auto fault = [&](std::int64_t byte) {
    std::string shape;
    for (std::int64_t extent : c.shape) shape += std::to_string(extent) + ",";
    return c.name + ", shape (" + shape + "), " + dtype_name(dtype) + ", input seed " + std::to_string(fresh_seed()) +
           ": byte " + std::to_string(byte) + " of the output's memory differs";
  };
  for (std::size_t i = 0; i < got.size(); i += item) {
    const auto e = static_cast<std::int64_t>(i / item);
    if (!same(dtype, cases::load_bits(got.data(), e, dtype), cases::load_bits(expected.data(), e, dtype)))
      return fault(static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kGuard));
  }
  if (!c.in_place && dx.host() != x) return c.name + ": the input changed";
  return "";
}

TEST(DropoutCuda, EqualsTheOracle) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (const DropoutCase& c : cases::dropout_cases())
    for (DType dtype : kFloats) ASSERT_EQ(run_case(c, dtype), "");
}

/// A few cases that reach every kernel, for checkers that slow each access down.
TEST(DropoutCuda, Reduced) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  using A = Arrangement;
  std::vector<DropoutCase> list = {{"vectors", {5003}, A::kContiguous, A::kContiguous, 1.0 / 65536},
                                   {"misaligned", {1031}, A::kOffByOne, A::kContiguous, 0.1},
                                   {"rows", {3, 1024}, A::kPadded, A::kContiguous, 0.1},
                                   {"short rows", {30, 9}, A::kPadded, A::kContiguous, 0.1},
                                   {"lines", {3, 301}, A::kEveryOther, A::kContiguous, 0.1},
                                   {"transposed in", {66, 70}, A::kFortran, A::kContiguous, 0.1},
                                   {"transposed out", {70, 66}, A::kContiguous, A::kFortran, 0.1},
                                   {"transposed in, aligned", {64, 72}, A::kFortran, A::kContiguous, 0.1},
                                   {"channels last", {2, 40, 5, 7}, A::kChannelsLast, A::kChannelsLast, 0.1},
                                   {"channels last, aligned", {2, 40, 8, 16}, A::kChannelsLast, A::kChannelsLast, 0.1},
                                   {"shard", {300, 1}, A::kContiguous, A::kContiguous, 0.5}};
  list.back().shard = cases::make_shard({300, 10}, {0, 7});
  for (Layout layout : {Layout::kPacked, Layout::kTriton})
    for (DropoutCase c : list)
      for (DType dtype : kFloats) {
        c.layout = layout;
        ASSERT_EQ(run_case(c, dtype), "");
      }
  DropoutCase rows{"row seeds", {7, 512}, A::kContiguous, A::kContiguous, 0.3};
  rows.row_seed_stride = 2;
  ASSERT_EQ(run_case(rows, DType::kBFloat16), "");
  ASSERT_EQ(run_case(list[0], DType::kBFloat16, true, true), "");
}

TEST(DropoutCuda, SeedInDeviceMemoryAndBackward) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (const DropoutCase& c : cases::dropout_cases()) {
    if (c.row_seed_stride != 0) continue;
    ASSERT_EQ(run_case(c, DType::kBFloat16, true, true), "");
  }
}

TEST(DropoutCuda, EveryLengthAndPhase) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (std::int64_t n = 0; n <= 1025; n += n < 70 ? 1 : 13)
    for (std::uint64_t first = 0; first < 8; ++first) {
      DropoutCase c{"length", {n}, Arrangement::kContiguous, Arrangement::kContiguous, 0.25};
      c.first_index = first;
      if (n % 3 == 0) c.x = Arrangement::kOffByOne;
      if (n % 2 == 0) c.y = Arrangement::kOffByOne;
      ASSERT_EQ(run_case(c, kFloats[(n + static_cast<std::int64_t>(first)) % 4]), "");
    }
}

/// Shapes that reach every kernel with more than one block, at edges of its tiles.
TEST(DropoutCuda, EqualsTheOracleAcrossTiles) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  using A = Arrangement;
  for (DType dtype : kFloats)
    for (const DropoutCase& c : std::vector<DropoutCase>{
             {"vectors", {1000003}, A::kContiguous, A::kContiguous, 1.0 / 65536},
             {"ties", {1000003}, A::kContiguous, A::kContiguous, 0.1},
             {"rows", {37, 4096}, A::kPadded, A::kContiguous, 0.1},
             {"transposed in", {130, 193}, A::kFortran, A::kContiguous, 0.1},
             {"transposed out", {193, 130}, A::kContiguous, A::kFortran, 0.1},
             {"transposed in, aligned", {3, 128, 256}, A::kFortran, A::kContiguous, 0.1},
             {"channels last", {3, 70, 9, 15}, A::kChannelsLast, A::kChannelsLast, 0.1},
             {"channels last, aligned", {2, 64, 8, 16}, A::kChannelsLast, A::kChannelsLast, 0.1},
             {"channels last, a part of a warp", {2, 40, 8, 88}, A::kChannelsLast, A::kChannelsLast, 1.0 / 65536},
             {"channels last, tiles", {2, 264, 8, 40}, A::kChannelsLast, A::kChannelsLast, 0.1},
             {"transposed both, aligned", {16, 4096}, A::kFortran, A::kFortran, 0.1},
             {"channels last in", {2, 40, 16, 16}, A::kChannelsLast, A::kContiguous, 0.1},
         })
      ASSERT_EQ(run_case(c, dtype), "");
}

/// Across position 2^32, scaled and not.
TEST(DropoutCuda, TritonLayoutEqualsTheOracle) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (DType dtype : kFloats)
    for (bool scale : {true, false})
      for (std::int64_t n : {40000, 3000001}) {
        DropoutCase c{"Triton layout", {n}, Arrangement::kContiguous, Arrangement::kContiguous, 0.1, fresh_seed()};
        c.layout = Layout::kTriton;
        c.scale = scale;
        c.first_index = (std::uint64_t{1} << 32) - 20003;
        ASSERT_EQ(run_case(c, dtype), "");
        ASSERT_EQ(run_case(c, dtype, true), "");
      }
}

/// Every distance of x from a vector's start, under a y that is aligned with the positions.
TEST(DropoutCuda, ShiftedInputEqualsTheCpu) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (DType dtype : kFloats)
    for (std::size_t shift = 0; shift < 16 / dtype_size(dtype); ++shift)
      for (std::int64_t n : {7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 33, 1027, 100003})
        for (std::uint64_t first : {std::uint64_t{0}, std::uint64_t{8} << 30}) {
          const std::size_t item = dtype_size(dtype), bytes = static_cast<std::size_t>(n) * item;
          const std::vector<char> x = cases::random_memory(bytes + 32, fresh_seed());
          std::vector<char> y(bytes + kGuard, 0x55);
          const DeviceMemory dx(x), dy(y);
          DropoutOptions options;
          options.p = 0.3;
          options.first_index = first;
          options.layout = n % 2 == 0 ? Layout::kTriton : Layout::kPacked;
          const auto run = [&](const void* from, void* to, Device device) {
            dropout(contiguous_view(static_cast<const char*>(from) + shift * item, dtype, {n}, device),
                    contiguous_view(to, dtype, {n}, device), options);
          };
          run(x.data(), y.data(), {});
          run(dx.data(), dy.data(), kCuda);
          const std::vector<char> got = dy.host();
          for (std::int64_t e = 0; e < static_cast<std::int64_t>(got.size() / item); ++e)
            ASSERT_TRUE(same(dtype, cases::load_bits(got.data(), e, dtype), cases::load_bits(y.data(), e, dtype)))
                << dtype_name(dtype) << ", shift " << shift << ", n " << n << ", element " << e;
        }
}

TEST(DropoutCuda, RowSeedsOnAlignedRows) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (DType dtype : kFloats)
    for (std::int64_t cols : {64, 100, 512, 4096, 20000})
      for (Layout layout : {Layout::kPacked, Layout::kTriton}) {
        DropoutCase c{"row seeds", {19, cols}, Arrangement::kContiguous, Arrangement::kContiguous, 0.3};
        c.row_seed_stride = 2;
        c.layout = layout;
        ASSERT_EQ(run_case(c, dtype), "");
      }
}

TEST(DropoutCuda, LargeTensorEqualsTheCpu) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const std::int64_t n = (std::int64_t{1} << 22) + 7;
  for (DType dtype : kFloats)
    for (Layout layout : {Layout::kPacked, Layout::kTriton})
      for (std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 35) - 1000}) {
        const std::vector<char> x = cases::random_memory(static_cast<std::size_t>(n) * dtype_size(dtype), fresh_seed());
        std::vector<char> y(x.size());
        DropoutOptions options;
        options.p = 0.1;
        options.seed = fresh_seed();
        options.first_index = first;
        options.layout = layout;
        dropout(contiguous_view(x.data(), dtype, {n}), contiguous_view(y.data(), dtype, {n}), options);
        const DeviceMemory dx(x), dy(x.size());
        check(cudaMemset(dy.data(), 0xCC, x.size()));
        dropout(contiguous_view(dx.data(), dtype, {n}, kCuda), contiguous_view(dy.data(), dtype, {n}, kCuda), options);
        const std::vector<char> got = dy.host();
        std::int64_t different = 0;
        for (std::int64_t e = 0; e < n; ++e)
          if (!same(dtype, cases::load_bits(got.data(), e, dtype), cases::load_bits(y.data(), e, dtype))) ++different;
        ASSERT_EQ(different, 0) << dtype_name(dtype) << ", first index " << first << ", seed " << fresh_seed();
      }
}

TEST(DropoutCuda, KeepMasksEqualTheOracle) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (const DropoutCase& c : cases::dropout_cases()) {
    const auto py = cases::place(c.shape, c.y);
    const auto seeds = cases::row_seeds(c);
    const DeviceMemory device_seeds(seeds);
    const DropoutOptions options = cases::options(c, device_seeds.as<std::uint64_t>());
    const std::vector<std::uint8_t> keep = cases::expected_keep(c, seeds);

    std::vector<std::uint8_t> expected(static_cast<std::size_t>(py.elements) + 2 * kGuard, 0xCC);
    const DeviceMemory mask(expected);
    cases::for_each_element(c.shape, [&](std::int64_t e, const std::vector<std::int64_t>& coords) {
      std::int64_t to = py.origin + static_cast<std::int64_t>(kGuard);
      for (std::size_t d = 0; d < coords.size(); ++d) to += coords[d] * py.strides[d];
      expected[static_cast<std::size_t>(to)] = keep[static_cast<std::size_t>(e)];
    });
    TensorView view = cases::view(mask.as() + kGuard, DType::kBool, c.shape, py);
    view.device = kCuda;
    keep_mask(view, options);
    ASSERT_EQ(mask.host<std::uint8_t>(), expected) << c.name;

    std::vector<std::uint8_t> bits((keep.size() + 7) / 8, 0);
    for (std::size_t e = 0; e < keep.size(); ++e)
      bits[e / 8] = static_cast<std::uint8_t>(bits[e / 8] | keep[e] << (e % 8));
    std::vector<std::uint8_t> poison(bits.size() + 16, 0xCC);
    const DeviceMemory packed(poison);
    std::copy(bits.begin(), bits.end(), poison.begin());
    keep_mask_packed(
        view, contiguous_view(packed.data(), DType::kUint8, {static_cast<std::int64_t>(bits.size())}, kCuda), options);
    ASSERT_EQ(packed.host<std::uint8_t>(), poison) << c.name << ", packed";
  }
}

TEST(DropoutCuda, MaskedEqualsTheCpu) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (DType dtype : kFloats)
    for (DType keep_dtype : {DType::kBool, DType::kUint8, DType::kInt32})
      for (Arrangement a : {Arrangement::kContiguous, Arrangement::kOffByOne, Arrangement::kFortran})
        for (std::int64_t rows : {1, 3, 100}) {
          const std::vector<std::int64_t> shape = {rows, 1031};
          const auto place = cases::place(shape, a);
          const auto elements = static_cast<std::size_t>(place.elements);
          const std::vector<char> x = cases::random_memory(elements * dtype_size(dtype), fresh_seed());
          std::vector<char> keep(elements * dtype_size(keep_dtype), 0), y(x.size(), 0x55);
          std::mt19937_64 engine(fresh_seed());
          for (std::size_t i = 0; i < keep.size(); i += dtype_size(keep_dtype))
            keep[i] = static_cast<char>(engine() & 1);
          const DeviceMemory dx(x), dkeep(keep), dy(y);
          const auto run = [&](void* px, void* pkeep, void* py, Device device) {
            TensorView vx = cases::view(px, dtype, shape, place), vkeep = cases::view(pkeep, keep_dtype, shape, place),
                       vy = cases::view(py, dtype, shape, place);
            vx.device = vkeep.device = vy.device = device;
            masked_dropout(vx, vkeep, vy, 0.3);
          };
          run(const_cast<char*>(x.data()), keep.data(), y.data(), {});
          run(dx.data(), dkeep.data(), dy.data(), kCuda);
          const std::vector<char> got = dy.host();
          for (std::int64_t e = 0; e < place.elements; ++e)
            ASSERT_TRUE(same(dtype, cases::load_bits(got.data(), e, dtype), cases::load_bits(y.data(), e, dtype))) << e;
        }
}

/// Decisions past 2^31 and 2^32 are those of a short call that starts there.
TEST(DropoutCuda, SizesBeyond32Bits) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (std::int64_t n : {(std::int64_t{1} << 31) + 1024, (std::int64_t{1} << 32) + 1024}) {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total));
    if (free < static_cast<std::size_t>(n) * 2 + (std::size_t{1} << 30)) GTEST_SKIP() << "too little device memory";
    const DeviceMemory x(static_cast<std::size_t>(n) * 2);
    check(cudaMemset(x.data(), 0x3C, static_cast<std::size_t>(n) * 2));
    DropoutOptions options;
    options.p = 0.5;
    options.scale = false;
    const TensorView view = contiguous_view(x.data(), DType::kFloat16, {n}, kCuda);
    dropout(view, view, options);
    check(cudaDeviceSynchronize());
    for (std::int64_t first : {std::int64_t{0}, n / 2 + 3, n - 1024}) {
      std::vector<std::uint16_t> part(1024);
      check(cudaMemcpy(part.data(), x.as<std::uint16_t>() + first, 2048, cudaMemcpyDeviceToHost));
      for (int i = 0; i < 1024; ++i)
        ASSERT_EQ(part[static_cast<std::size_t>(i)] != 0,
                  dropout_keep(0, static_cast<std::uint64_t>(first + i), threshold(0.5)))
            << n << " " << first + i;
    }
  }
}

/// A captured graph reads its seed when it runs; capture itself would fail if the call synchronised or allocated.
TEST(DropoutCuda, GraphWithASeedInDeviceMemory) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  constexpr std::int64_t kSize = 4096;
  const DeviceMemory x(std::vector<float>(kSize, 1.0f)), y(kSize * 4), eager(kSize * 4);
  const DeviceMemory seed(std::vector<std::uint64_t>{7});
  DropoutOptions options;
  options.seed = Seed::at(seed.as<std::uint64_t>());
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamCreate(&stream));
  Execution execution;
  execution.cuda_stream = stream;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  const auto view = [&](const DeviceMemory& m) { return contiguous_view(m.data(), DType::kFloat32, {kSize}, kCuda); };
  dropout(view(x), view(y), options, execution);
  dropout(view(x), view(y), options, execution);  // twice: kernels of one stream in a row
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&executable, graph, 0));
  std::vector<std::vector<float>> results;
  for (std::uint64_t value : {std::uint64_t{7}, std::uint64_t{8}}) {
    check(cudaMemcpyAsync(seed.data(), &value, 8, cudaMemcpyHostToDevice, stream));
    check(cudaGraphLaunch(executable, stream));
    check(cudaStreamSynchronize(stream));
    results.push_back(y.host<float>());
    DropoutOptions by_value = options;
    by_value.seed = value;
    dropout(view(x), view(eager), by_value);
    EXPECT_EQ(results.back(), eager.host<float>());
  }
  int agree = 0;
  for (std::size_t i = 0; i < kSize; ++i) agree += (results[0][i] != 0) == (results[1][i] != 0) ? 1 : 0;
  EXPECT_NEAR(agree, 2048, 128);
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
}

/// One after another on a stream, each reading what the one before wrote: order holds though launches may overlap.
TEST(DropoutCuda, ChainsOnAStream) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (std::int64_t n : {32, 5000, 3000000}) {
    const DeviceMemory memory(std::vector<float>(static_cast<std::size_t>(n), 1.0f));
    const TensorView view = contiguous_view(memory.data(), DType::kFloat32, {n}, kCuda);
    DropoutOptions options;
    options.p = 0.01;
    options.scale = false;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      options.seed = seed;
      dropout(view, view, options);
    }
    const std::vector<float> got = memory.host<float>();
    for (std::int64_t i = 0; i < std::min<std::int64_t>(n, 20000); ++i) {
      bool keep = true;
      for (std::uint64_t seed = 0; seed < 50; ++seed)
        keep = keep && dropout_keep(seed, static_cast<std::uint64_t>(i), threshold(0.01));
      ASSERT_EQ(got[static_cast<std::size_t>(i)] != 0, keep) << i;
    }
  }
}

TEST(DropoutCuda, RaisesFailuresOfTheDevice) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  const DeviceMemory x(64);
  const TensorView view = contiguous_view(x.data(), DType::kFloat32, {16}, {DeviceType::kCuda, 1000});
  EXPECT_THROW(dropout(view, view, {}), Error);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "no sticky error may be left";
}

}  // namespace
}  // namespace maskless
#endif  // MASKLESS_HAS_CUDA
