// The frozen numbers of the mask specification (tests/golden.json; docs/spec.md says what they are) against the core
// headers and the public functions. A difference here is a broken promise: masks change only with kSpecVersion.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "maskless/core/uniform.h"
#include "maskless/dropout.h"
#include "maskless/random.h"
#include "maskless/runtime.h"

#if MASKLESS_HAS_CUDA
#include "cuda/test_device.h"
#endif

namespace maskless {
namespace {

using Json = nlohmann::json;

const Json& golden() {
  static const Json json = Json::parse(std::ifstream(MASKLESS_SOURCE_DIR "/tests/golden.json"));
  return json;
}

std::uint64_t integer(const Json& text) { return std::stoull(text.get<std::string>()); }
std::uint32_t word(const Json& hex) {
  return static_cast<std::uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16));
}

/// Bit e & 7 of byte e >> 3, as hexadecimal bytes.
std::string hex(const std::vector<std::uint8_t>& bytes) {
  std::string text;
  for (std::uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}
template <typename Keep>
std::string packed(std::int64_t n, Keep keep) {
  std::vector<std::uint8_t> bytes((n + 7) / 8);
  for (std::int64_t e = 0; e < n; ++e) bytes[e >> 3] = static_cast<std::uint8_t>(bytes[e >> 3] | keep(e) << (e & 7));
  return hex(bytes);
}

DropoutOptions dropout_options(const Json& c) {
  DropoutOptions options;
  options.p = c.at("p");
  options.seed = integer(c.at("seed"));
  options.first_index = integer(c.at("first"));
  if (c.contains("stream")) options.stream = c.at("stream");
  return options;
}

TEST(Golden, Philox) {
  ASSERT_EQ(golden().at("philox").size(), 6u);
  for (const Json& c : golden().at("philox")) {
    Words4 counter{};
    for (int i = 0; i < 4; ++i) counter.w[i] = word(c.at("counter")[i]);
    const Words2 key{{word(c.at("key")[0]), word(c.at("key")[1])}};
    const Words4 out = c.at("rounds") == 7 ? philox4x32<7>(counter, key) : philox4x32<10>(counter, key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(out[i], word(c.at("out")[i])) << c;
  }
}

TEST(Golden, DropoutUniform) {
  ASSERT_EQ(golden().at("dropout_u").size(), 6u);
  for (const Json& c : golden().at("dropout_u")) {
    for (std::size_t i = 0; i < c.at("u").size(); ++i)
      EXPECT_EQ(dropout_uniform(integer(c.at("seed")), integer(c.at("first")) + i, c.at("stream")), word(c.at("u")[i]))
          << i << " of " << c;
  }
}

TEST(Golden, DropoutKeepInCore) {
  ASSERT_EQ(golden().at("dropout").size(), 7u);
  for (const Json& c : golden().at("dropout")) {
    const std::uint64_t seed = integer(c.at("seed")), first = integer(c.at("first")), t = threshold(c.at("p"));
    const std::string bits =
        packed(c.at("n"), [&](std::int64_t e) { return dropout_keep(seed, first + e, t, c.at("stream")); });
    EXPECT_EQ(bits, c.at("keep_bits").get<std::string>()) << c;
  }
}

TEST(Golden, DropoutMasksOnEveryInstructionSet) {
  for (const Json& c : golden().at("dropout")) {
    const std::int64_t n = c.at("n");
    const DropoutOptions options = dropout_options(c);
    for (Isa isa : instruction_sets()) {
      Execution execution;
      execution.isa = isa;
      std::vector<std::uint8_t> mask(n, 0xCC), bits((n + 7) / 8, 0xCC);
      keep_mask(contiguous_view(mask.data(), DType::kBool, {n}), options, execution);
      EXPECT_EQ(packed(n, [&](std::int64_t e) { return mask[e]; }), c.at("keep_bits")) << isa_name(isa) << c;
      keep_mask_packed(contiguous_view(static_cast<const void*>(nullptr), DType::kBool, {n}),
                       contiguous_view(bits.data(), DType::kUint8, {(n + 7) / 8}), options, execution);
      EXPECT_EQ(hex(bits), c.at("keep_bits")) << isa_name(isa) << c;
    }
  }
}

TEST(Golden, DropoutItselfDropsByTheMask) {
  for (const Json& c : golden().at("dropout")) {
    const std::int64_t n = c.at("n");
    const std::vector<float> x(n, 1.0f);
    for (Isa isa : instruction_sets()) {
      Execution execution;
      execution.isa = isa;
      std::vector<float> y(n, -7.0f);
      dropout(contiguous_view(x.data(), DType::kFloat32, {n}), contiguous_view(y.data(), DType::kFloat32, {n}),
              dropout_options(c), execution);
      EXPECT_EQ(packed(n, [&](std::int64_t e) { return y[e] != 0.0f; }), c.at("keep_bits")) << isa_name(isa) << c;
    }
  }
}

#if MASKLESS_HAS_CUDA
TEST(Golden, DropoutMasksOnTheCudaDevice) {
  MASKLESS_NEEDS_CUDA_DEVICE();
  for (const char* list : {"dropout", "triton_rand_gt_p"}) {
    for (const Json& c : golden().at(list)) {
      const std::int64_t n = c.at("n");
      DropoutOptions options = dropout_options(c);
      if (list[0] == 't') options.layout = Layout::kTriton;
      const testing::DeviceMemory mask(std::vector<std::uint8_t>(n, 0xCC)), bits((n + 7) / 8);
      keep_mask(contiguous_view(mask.data(), DType::kBool, {n}, testing::kCuda), options);
      keep_mask_packed(contiguous_view(static_cast<const void*>(nullptr), DType::kBool, {n}),
                       contiguous_view(bits.data(), DType::kUint8, {(n + 7) / 8}, testing::kCuda), options);
      const std::vector<std::uint8_t> host = mask.host<std::uint8_t>();
      EXPECT_EQ(packed(n, [&](std::int64_t e) { return host[e]; }), c.at("keep_bits")) << c;
      EXPECT_EQ(hex(bits.host<std::uint8_t>()), c.at("keep_bits")) << c;
    }
  }
}
#endif

TEST(Golden, DropconnectKeep) {
  ASSERT_EQ(golden().at("dropconnect").size(), 4u);
  for (const Json& c : golden().at("dropconnect")) {
    const std::int64_t m = c.at("M"), n = c.at("N"), k = c.at("K");
    const std::uint32_t m0 = c.at("m0"), n0 = c.at("n0");
    const std::uint64_t seed = integer(c.at("seed")), t = threshold(c.at("p"));
    const std::string bits = packed(m * n * k, [&](std::int64_t e) {
      return dropconnect_keep(seed, static_cast<std::uint32_t>(m0 + e / (n * k)),
                              static_cast<std::uint32_t>(n0 + e / k % n), e % k, t, c.at("stream"));
    });
    EXPECT_EQ(bits, c.at("keep_bits").get<std::string>()) << c;
  }
}

TEST(Golden, IidSigns) {
  ASSERT_EQ(golden().at("iid_signs").size(), 3u);
  for (const Json& c : golden().at("iid_signs")) {
    const std::int64_t rows = c.at("k"), columns = c.at("d"), j0 = c.at("j0");
    const std::uint32_t r0 = c.at("r0");
    const auto sign = [&](std::int64_t e) {
      return iid_sign(integer(c.at("seed")), static_cast<std::uint32_t>(r0 + e / columns), j0 + e % columns,
                      threshold(c.at("density")), c.at("stream"));
    };
    EXPECT_EQ(packed(rows * columns, [&](std::int64_t e) { return sign(e) == 1; }), c.at("plus")) << c;
    EXPECT_EQ(packed(rows * columns, [&](std::int64_t e) { return sign(e) == -1; }), c.at("minus")) << c;
  }
}

TEST(Golden, TritonRand) {
  ASSERT_EQ(golden().at("triton_rand_gt_p").size(), 3u);
  for (const Json& c : golden().at("triton_rand_gt_p")) {
    const std::int64_t n = c.at("n");
    const std::uint64_t seed = integer(c.at("seed")), first = integer(c.at("first"));
    const auto p = static_cast<float>(c.at("p").get<double>());
    EXPECT_EQ(packed(n, [&](std::int64_t e) { return triton_uniform(seed, first + e) > p; }), c.at("keep_bits")) << c;

    DropoutOptions options = dropout_options(c);
    options.layout = Layout::kTriton;
    for (Isa isa : instruction_sets()) {
      Execution execution;
      execution.isa = isa;
      std::vector<std::uint8_t> mask(n, 0xCC);
      keep_mask(contiguous_view(mask.data(), DType::kBool, {n}), options, execution);
      EXPECT_EQ(packed(n, [&](std::int64_t e) { return mask[e]; }), c.at("keep_bits")) << isa_name(isa) << c;
    }
  }
}

}  // namespace
}  // namespace maskless
