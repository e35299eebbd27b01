// maskless random
#include "maskless/random.h"

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli_error.h"
#include "commands.h"
#include "device.h"
#include "npy.h"
#include "options.h"
#include "pieces.h"
#include "print_json.h"
#include "progress.h"

namespace maskless::cli {
namespace {

constexpr std::int64_t kPieceBytes = 8 << 20;

struct RandomCommand {
  std::string out, dist = "uniform", dtype_text;
  Shape shape;
  SeedOptions seed;
  std::uint64_t first_index = 0;
  std::int64_t low = 0, high = 0;
  RunOptions run_options;

  DType dtype() const {
    if (dist == "bits") return DType::kUint32;
    if (dist == "integers") return dtype_text == "int32" ? DType::kInt32 : DType::kInt64;
    return DType::kFloat32;
  }

  void fill(const TensorView& out_view, const RandomOptions& options) const {
    const Execution execution = run_options.execution();
    if (dist == "bits") {
      random_bits(out_view, options, execution);
    } else if (dist == "integers") {
      random_integers(out_view, low, high, options, execution);
    } else if (dist == "normal") {
      random_normal(out_view, options, execution);
    } else if (dist == "uniform") {
      random_uniform(out_view, options, execution);
    } else {
      random_uniform_triton(out_view, options, execution);
    }
  }

  void run(const CLI::App& app) const {
    const auto start = std::chrono::steady_clock::now();
    const bool integers = dist == "integers";
    if (integers != (app.count("--high") > 0)) throw CliError("--high goes with --dist integers, which needs it");
    if (!integers && app.count("--low") > 0) throw CliError("--low goes with --dist integers");
    if (!integers && !dtype_text.empty()) throw CliError("--dtype goes with --dist integers");
    const Device device = choose_device(run_options.device);
    const auto item = static_cast<std::int64_t>(dtype_size(dtype()));
    std::int64_t size = 1;
    for (std::int64_t extent : shape)
      if (__builtin_mul_overflow(size, extent, &size) || size > INT64_MAX / 16)
        throw CliError("--shape must have fewer than 2^59 elements, got " + shape_text(shape));
    if (size > 0 && first_index > UINT64_MAX - static_cast<std::uint64_t>(size - 1))
      throw CliError("--first-index must leave every position below 2^64, got " + std::to_string(first_index));
    RandomOptions options;
    options.seed = seed.seed;
    options.stream = seed.stream32();
    fill(contiguous_view(static_cast<void*>(nullptr), dtype(), {0}), options);  // the library's own checks

    NpyOutput output(out, dtype(), shape);
    const std::int64_t most = std::min(kPieceBytes / item, std::max<std::int64_t>(size, 1));
    const std::unique_ptr<std::byte[]> buffer(new std::byte[static_cast<std::size_t>(most * item)]);
    std::optional<DeviceBuffer> on_device;
    if (device.type == DeviceType::kCuda) on_device.emplace(device, static_cast<std::size_t>(most * item));
    Progress progress("random", static_cast<std::uint64_t>(size * item), run_options.quiet);
    for_each_piece({size}, false, most, [&](const Piece& piece) {
      const auto bytes = static_cast<std::size_t>(piece.box.size() * item);
      options.first_index = first_index + static_cast<std::uint64_t>(piece.first);
      fill(piece.view<TensorView>(on_device ? on_device->data() : buffer.get(), dtype(), device), options);
      if (on_device) on_device->download(buffer.get(), bytes);
      output.write(buffer.get(), bytes);
      progress.advance(bytes);
    });
    output.commit();
    if (run_options.json) print(device, start);
  }

  void print(Device device, std::chrono::steady_clock::time_point start) const {
    nlohmann::ordered_json json = {
        {"command", "random"},
        {"output", out},
        {"dtype", dtype_name(dtype())},
        {"shape", shape},
        {"dist", dist},
        {"seed", seed.seed},
        {"stream", seed.stream},
        {"first_index", first_index},
        {"device", device_text(device)},
        {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
    if (dist == "integers") {
      json["low"] = low;
      json["high"] = high;
    }
    print_json(json);
  }
};

}  // namespace

void add_random(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("random", "Write random numbers, addressed like the masks");
  auto command = std::make_shared<RandomCommand>();
  sub->add_option("OUT", command->out, "Array to write (.npy)")->required();
  add_shape(*sub, "--shape", command->shape, "Required: shape, for example 1000,20")->required();
  add_choice(*sub, "--dist", command->dist, "uniform|normal|bits|integers|triton",
             "uniform (default): float32 in [0, 1); normal: float32; bits: uint32; integers: of [low, high); triton: "
             "tl.rand(seed, i), bit for bit");
  add_signed(*sub, "--low", command->low, "Least integer (default 0)");
  add_signed(*sub, "--high", command->high, "One above the greatest integer");
  add_choice(*sub, "--dtype", command->dtype_text, "int32|int64", "Of integers (default int64)");
  add_seed_options(*sub, command->seed)->required();
  add_integer(*sub, "--first-index", command->first_index, "Position of the first element (default 0)");
  add_run_options(*sub, command->run_options);
  sub->footer(
      R"(Element i is a function of (seed, stream, first index + i) alone: the same numbers on every device,
for any number of threads, and in whatever pieces they are made.

Examples:
  maskless random u.npy --shape 1000,20 --seed 123
  maskless random z.npy --shape 1000000 --dist normal --seed 123 --stream 1
  maskless random dice.npy --shape 100 --dist integers --low 1 --high 7 --seed 123
  maskless random tail.npy --shape 500 --seed 123 --first-index 500     the second half of 1,000)");
  sub->callback([command, sub] { command->run(*sub); });
}

}  // namespace maskless::cli
