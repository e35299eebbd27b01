// maskless selftest: is every backend of this program, on this machine, right?
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "device.h"
#include "golden.h"
#include "maskless/core/uniform.h"
#include "maskless/core/version.h"
#include "maskless/dropout.h"
#include "maskless/random.h"
#include "maskless/runtime.h"

namespace maskless::cli {
namespace {

using Json = nlohmann::ordered_json;

std::uint64_t integer(const Json& text) { return std::stoull(text.get<std::string>()); }
std::uint32_t word(const Json& hex) {
  return static_cast<std::uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16));
}

/// Golden bits are hexadecimal bytes: element e is bit e & 7 of byte e >> 3.
bool golden_bit(const std::string& hex, std::int64_t e) {
  return (std::stoul(hex.substr(static_cast<std::size_t>(e / 8 * 2), 2), nullptr, 16) >> (e & 7) & 1) != 0;
}

/// One place to run: an instruction set of the CPU, or a CUDA device.
struct Place {
  std::string name;
  Device device;
  Execution execution;
};

std::vector<Place> places() {
  std::vector<Place> all;
  for (Isa isa : instruction_sets()) all.push_back({std::string("cpu ") + isa_name(isa), {}, {0, isa, nullptr}});
  for (const CudaDevice& device : cuda_devices())
    all.push_back({"cuda:" + std::to_string(device.index), {DeviceType::kCuda, device.index}, {}});
  return all;
}

/// Bytes on the host that a place's operation writes: f gets memory there, poisoned before.
std::vector<std::uint8_t> run_at(const Place& place, std::size_t bytes, const std::function<void(void*)>& f) {
  std::vector<std::uint8_t> out(bytes, 0xA5);
  if (place.device.type == DeviceType::kCpu) {
    f(out.data());
  } else {
    DeviceBuffer buffer(place.device, bytes);
    buffer.upload(out.data(), bytes);
    f(buffer.data());
    buffer.download(out.data(), bytes);
  }
  return out;
}

/// Collects results: what was compared where, how often, and the first difference.
class Report {
 public:
  void check(const std::string& where, const std::string& what, const std::function<std::int64_t(std::string&)>& run) {
    std::string difference;
    std::int64_t count = 0;
    try {
      count = run(difference);
      if (count == 0 && difference.empty()) difference = "nothing was compared";
    } catch (const std::exception& error) {
      difference = error.what();
    }
    checks_.push_back({{"where", where}, {"what", what}, {"compared", count}, {"passed", difference.empty()}});
    if (!difference.empty()) checks_.back()["difference"] = difference;
    passed_ = passed_ && difference.empty();
  }
  bool passed() const { return passed_; }
  Json json() const {
    return {{"version", kVersion}, {"specification", kSpecVersion}, {"passed", passed_}, {"checks", checks_}};
  }
  void print() const {
    for (const Json& check : checks_) {
      std::printf("%-6s  %-14s  %-62s %9lld\n", check["passed"].get<bool>() ? "ok" : "FAILED",
                  check["where"].get<std::string>().c_str(), check["what"].get<std::string>().c_str(),
                  static_cast<long long>(check["compared"].get<std::int64_t>()));
      if (check.contains("difference")) std::printf("        %s\n", check["difference"].get<std::string>().c_str());
    }
    std::printf("%s\n", passed_ ? "every value is as the specification says" : "FAILED");
    std::fflush(stdout);
  }

 private:
  Json checks_ = Json::array();
  bool passed_ = true;
};

template <typename T>
void compare(const T& got, const T& want, const std::string& at, std::string& difference) {
  if (got != want && difference.empty())
    difference = at + ": got " + std::to_string(got) + ", must be " + std::to_string(want);
}

// --- the headers against published and golden numbers
// -----------------------------------------------------------------

std::int64_t check_philox(const Json& golden, std::string& difference) {
  std::int64_t count = 0;
  for (const Json& c : golden["philox"]) {
    Words4 counter{};
    for (unsigned i = 0; i < 4; ++i) counter.w[i] = word(c["counter"][i]);
    const Words2 key{{word(c["key"][0]), word(c["key"][1])}};
    const Words4 out = c["rounds"] == 7 ? philox4x32<7>(counter, key) : philox4x32<10>(counter, key);
    for (unsigned i = 0; i < 4; ++i, ++count)
      compare(out.w[i], word(c["out"][i]), "word " + std::to_string(i), difference);
  }
  return count;
}

std::int64_t check_positions(const Json& golden, std::string& difference) {
  std::int64_t count = 0;
  for (const Json& c : golden["dropout_u"]) {
    std::uint64_t index = integer(c["first"]);
    for (const Json& u : c["u"]) {
      compare(dropout_uniform(integer(c["seed"]), index, c["stream"]), word(u), "u of " + std::to_string(index),
              difference);
      ++index, ++count;
    }
  }
  return count;
}

std::int64_t check_dropconnect(const Json& golden, std::string& difference) {
  std::int64_t count = 0;
  for (const Json& c : golden["dropconnect"]) {
    const std::uint64_t seed = integer(c["seed"]), t = threshold(c["p"]);
    const std::uint32_t m0 = c["m0"], n0 = c["n0"], samples = c["M"], outputs = c["N"], stream = c["stream"];
    const std::string bits = c["keep_bits"];
    const std::uint64_t inputs = c["K"];
    std::int64_t e = 0;
    for (std::uint32_t m = 0; m < samples; ++m)
      for (std::uint32_t n = 0; n < outputs; ++n)
        for (std::uint64_t k = 0; k < inputs; ++k, ++e)
          compare(dropconnect_keep(seed, m0 + m, n0 + n, k, t, stream), golden_bit(bits, e),
                  "decision " + std::to_string(e), difference);
    count += e;
  }
  return count;
}

std::int64_t check_signs(const Json& golden, std::string& difference) {
  std::int64_t count = 0;
  for (const Json& c : golden["iid_signs"]) {
    const std::uint64_t seed = integer(c["seed"]), t = threshold(c["density"]), columns = c["d"], j0 = c["j0"];
    const std::uint32_t r0 = c["r0"], rows = c["k"], stream = c["stream"];
    const std::string plus = c["plus"], minus = c["minus"];
    std::int64_t e = 0;
    for (std::uint32_t r = 0; r < rows; ++r)
      for (std::uint64_t j = 0; j < columns; ++j, ++e)
        compare(iid_sign(seed, r0 + r, j0 + j, t, stream), int{golden_bit(plus, e)} - int{golden_bit(minus, e)},
                "entry " + std::to_string(e), difference);
    count += e;
  }
  return count;
}

// --- the operations, at every place
// -----------------------------------------------------------------------------------

DropoutOptions options_of(const Json& c, Layout layout) {
  DropoutOptions options;
  options.p = c["p"];
  options.seed = integer(c["seed"]);
  options.first_index = integer(c["first"]);
  options.layout = layout;
  if (layout == Layout::kPacked) options.stream = c["stream"];
  return options;
}

/// keep_mask and keep_mask_packed against golden bits.
std::int64_t check_masks(const Place& place, const Json& cases, Layout layout, std::string& difference) {
  std::int64_t count = 0;
  for (const Json& c : cases) {
    const DropoutOptions options = options_of(c, layout);
    const std::string bits = c["keep_bits"];
    const std::int64_t n = c["n"], bytes = (n + 7) / 8;
    const auto mask = run_at(place, static_cast<std::size_t>(n), [&](void* data) {
      keep_mask(contiguous_view(data, DType::kUint8, {n}, place.device), options, place.execution);
    });
    for (std::int64_t e = 0; e < n; ++e)
      compare(int{mask[static_cast<std::size_t>(e)]}, int{golden_bit(bits, e)}, "element " + std::to_string(e),
              difference);
    const auto packed = run_at(place, static_cast<std::size_t>(bytes), [&](void* data) {
      keep_mask_packed(contiguous_view(static_cast<const void*>(nullptr), DType::kUint8, {n}),
                       contiguous_view(data, DType::kUint8, {bytes}, place.device), options, place.execution);
    });
    for (std::int64_t e = 0; e < 8 * bytes; ++e)
      compare(packed[static_cast<std::size_t>(e / 8)] >> (e & 7) & 1, int{e < n && golden_bit(bits, e)},
              "bit " + std::to_string(e), difference);
    count += n + 8 * bytes;
  }
  return count;
}

struct Sample {  // the bits of 1, and of 1 / (1 - 0.75) = 4, in a dtype
  DType dtype;
  std::uint64_t one, four;
};
constexpr Sample kSamples[] = {{DType::kFloat16, 0x3C00, 0x4400},
                               {DType::kBFloat16, 0x3F80, 0x4080},
                               {DType::kFloat32, 0x3F800000, 0x40800000},
                               {DType::kFloat64, 0x3FF0000000000000, 0x4010000000000000}};

/// dropout of ones in place against the header's decisions: every dtype, lengths around vector edges, positions on both
/// sides of 2^35 (where the counter's low word overflows), odd offsets.
std::int64_t check_dropout(const Place& place, const Sample& sample, std::string& difference) {
  std::int64_t count = 0;
  const std::size_t item = dtype_size(sample.dtype);
  for (std::int64_t n : {1, 7, 8, 63, 1025, 100003}) {
    for (std::uint64_t first : {std::uint64_t{0}, (std::uint64_t{1} << 35) - 500, (std::uint64_t{1} << 62) + 3}) {
      DropoutOptions options;
      options.p = 0.75;
      options.seed = 0x123456789ABCDEF;
      options.stream = 77;
      options.first_index = first;
      std::vector<std::uint8_t> ones(static_cast<std::size_t>(n) * item);
      for (std::size_t e = 0; e < static_cast<std::size_t>(n); ++e) std::memcpy(&ones[e * item], &sample.one, item);
      const auto out = run_at(place, ones.size(), [&](void* data) {
        if (place.device.type == DeviceType::kCpu) std::memcpy(data, ones.data(), ones.size());
        std::optional<DeviceBuffer> x;
        if (place.device.type == DeviceType::kCuda) {
          x.emplace(place.device, ones.size());
          x->upload(ones.data(), ones.size());
        }
        const void* const from = x ? x->data() : data;
        dropout(contiguous_view(from, sample.dtype, {n}, place.device),
                contiguous_view(data, sample.dtype, {n}, place.device), options, place.execution);
        if (x) x->download(ones.data(), 1);  // waits before x is freed
      });
      const std::uint64_t t = threshold(options.p);
      for (std::size_t e = 0; e < static_cast<std::size_t>(n); ++e) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &out[e * item], item);
        compare(bits, dropout_keep(options.seed.value, first + e, t, options.stream) ? sample.four : 0,
                "position " + std::to_string(first + e), difference);
      }
      count += n;
    }
  }
  return count;
}

/// tl.rand(123, 0 ... 9), as Triton prints them.
constexpr float kTritonRand[] = {0.13389549f, 0.7207006f,  0.34458476f, 0.23751315f, 0.4584163f,
                                 0.7886559f,  0.04469619f, 0.37937284f, 0.9078339f,  0.61357445f};

std::int64_t check_random(const Place& place, std::string& difference) {
  constexpr std::int64_t kSize = 10007;
  RandomOptions options;
  options.seed = 123;
  const auto numbers = [&](std::int64_t n, DType dtype, const auto& f) {
    return run_at(place, static_cast<std::size_t>(n) * dtype_size(dtype),
                  [&](void* data) { f(contiguous_view(data, dtype, {n}, place.device)); });
  };
  const auto triton = numbers(std::size(kTritonRand), DType::kFloat32,
                              [&](const TensorView& out) { random_uniform_triton(out, options, place.execution); });
  for (std::size_t i = 0; i < std::size(kTritonRand); ++i) {
    float value = 0;
    std::memcpy(&value, &triton[4 * i], sizeof value);
    compare(value, triton_uniform(123, i), "tl.rand(123, " + std::to_string(i) + ")", difference);
    compare(std::abs(value - kTritonRand[i]) < 1e-8f, true, "tl.rand as published", difference);
  }
  options.stream = 9;
  options.first_index = (std::uint64_t{1} << 34) - 5000;  // across an overflow of the counter's low word
  const auto words =
      numbers(kSize, DType::kUint32, [&](const TensorView& out) { random_bits(out, options, place.execution); });
  const auto uniforms =
      numbers(kSize, DType::kFloat32, [&](const TensorView& out) { random_uniform(out, options, place.execution); });
  for (std::size_t i = 0; i < kSize; ++i) {
    const std::uint64_t index = options.first_index + i, block = index >> 2;
    const Words4 four = philox4x32(Words4{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                           0, counter_tag(Op::kRandom, options.stream)}},
                                   philox_key(123));
    const std::uint32_t want = four[static_cast<unsigned>(index & 3)];
    std::uint32_t got = 0;
    std::memcpy(&got, &words[4 * i], sizeof got);
    compare(got, want, "word " + std::to_string(index), difference);
    float uniform = 0;
    std::memcpy(&uniform, &uniforms[4 * i], sizeof uniform);
    compare(uniform, static_cast<float>(want >> 8) * 0x1p-24f, "uniform " + std::to_string(index), difference);
  }
  // Normals and integers: the bits that the scalar code gives.
  const Place scalar = {"cpu scalar", {}, {1, Isa::kScalar, nullptr}};
  const auto derived = [&](const Place& at) {
    auto bytes = run_at(at, 4 * kSize, [&](void* data) {
      random_normal(contiguous_view(data, DType::kFloat32, {kSize}, at.device), options, at.execution);
    });
    for (std::int64_t high : {std::int64_t{7}, std::int64_t{1} << 40}) {
      const auto more = run_at(at, 8 * kSize, [&](void* data) {
        random_integers(contiguous_view(data, DType::kInt64, {kSize}, at.device), -3, high, options, at.execution);
      });
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    return bytes;
  };
  if (derived(place) != derived(scalar) && difference.empty())
    difference = "normal numbers or integers differ from those of the scalar code";
  return static_cast<std::int64_t>(std::size(kTritonRand)) + 5 * kSize;
}

std::int64_t check_threads(std::string& difference) {
  constexpr std::int64_t kSize = 1000003;
  DropoutOptions options;
  options.p = 0.1;
  options.seed = 42;
  std::vector<std::uint8_t> first;
  for (int threads : {1, 2, 3, 8}) {
    Execution execution;
    execution.threads = threads;
    std::vector<std::uint8_t> mask(kSize, 0xA5);
    keep_mask(contiguous_view(static_cast<void*>(mask.data()), DType::kUint8, {kSize}), options, execution);
    if (first.empty()) first = mask;
    if (mask != first && difference.empty()) difference = std::to_string(threads) + " threads give another mask than 1";
  }
  return 4 * kSize;
}

Report run_all() {
  const Json golden = Json::parse(kGoldenJson);
  Report report;
  const auto header = [&](const char* what, auto check) {
    report.check("specification", what, [&](std::string& difference) { return check(golden, difference); });
  };
  header("Philox4x32-10 and -7: the published answers, in words", check_philox);
  header("dropout: golden uniforms", check_positions);
  header("DropConnect: golden decisions", check_dropconnect);
  header("iid signs: golden entries", check_signs);
  for (const Place& place : places()) {
    report.check(place.name, "dropout: golden masks, as bytes and as bits", [&](std::string& difference) {
      return check_masks(place, golden["dropout"], Layout::kPacked, difference);
    });
    report.check(place.name, "dropout: golden masks of the Triton layout", [&](std::string& difference) {
      return check_masks(place, golden["triton_rand_gt_p"], Layout::kTriton, difference);
    });
    for (const Sample& sample : kSamples)
      report.check(place.name, std::string("dropout of ") + dtype_name(sample.dtype) + " against the header",
                   [&](std::string& difference) { return check_dropout(place, sample, difference); });
    report.check(place.name, "random: tl.rand's numbers, words, uniforms, normals, integers",
                 [&](std::string& difference) { return check_random(place, difference); });
  }
  report.check("cpu", "dropout: 1, 2, 3 and 8 threads, one mask", check_threads);
  return report;
}

}  // namespace

void add_selftest(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("selftest", "Check every instruction set and device found here");
  const auto json = std::make_shared<bool>(false);
  sub->add_flag("--json", *json, "Print the results as JSON");
  sub->footer(
      "Compares what this program computes, on every instruction set and CUDA device it finds, with published\n"
      "answers and with the golden numbers of the mask specification. Exit status 1 if any value differs.");
  sub->callback([json] {
    const Report report = run_all();
    if (*json) {
      std::cout << report.json().dump(2) << "\n";
    } else {
      report.print();
    }
    if (!report.passed()) throw CLI::RuntimeError(1);
  });
}

}  // namespace maskless::cli
