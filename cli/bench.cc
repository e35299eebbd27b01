// maskless bench: one subcommand an operation. This file has the table of them, and dropout's.
#include "bench.h"

#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli_error.h"
#include "commands.h"
#include "maskless/core/uniform.h"
#include "maskless/core/version.h"
#include "maskless/dropout.h"
#include "maskless/runtime.h"
#include "options.h"

namespace maskless::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr DType kFloating[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32, DType::kFloat64};

/// The items of a list option, by name; throws for a name that is not there.
template <typename T, typename List, typename Name>
std::vector<T> select(const std::vector<std::string>& names, const List& all, const char* option, Name&& name_of) {
  std::vector<T> chosen;
  std::string known;
  for (const T& item : all) known += std::string(known.empty() ? "" : ", ") + name_of(item);
  for (const std::string& name : names) {
    bool found = false;
    for (const T& item : all) {
      if (name_of(item) != name) continue;
      chosen.push_back(item);
      found = true;
    }
    if (!found) throw CliError(std::string(option) + " must be of " + known + ", got " + name);
  }
  return names.empty() ? std::vector<T>(std::begin(all), std::end(all)) : chosen;
}

/// A row of the table, before it is measured.
struct Row {
  DType dtype;
  std::int64_t bytes;
  Execution execution;
  Device device;
};

struct DropoutBench {
  double p = 0.1;
  double seconds = 0.3;
  std::vector<double> sizes = {0.25, 64};
  std::vector<std::string> dtypes, isas;
  std::vector<std::uint64_t> threads;
  std::string device = "auto";
  bool json = false;

  std::vector<Row> rows() const {
    const Device where = choose_device(device);
    const auto the_dtypes =
        select<DType>(dtypes, kFloating, "--dtypes", [](DType dtype) { return std::string(dtype_name(dtype)); });
    const auto sets =
        select<Isa>(isas, instruction_sets(), "--isas", [](Isa isa) { return std::string(isa_name(isa)); });
    std::vector<Row> all;
    for (double size : sizes) {
      if (!(size >= 0.001 && size <= 1 << 20))
        throw CliError("--sizes must be in MiB, in 0.001 ... 1048576, got " + std::to_string(size));
      for (DType dtype : the_dtypes) {
        const Row row = {dtype, static_cast<std::int64_t>(size * (1 << 20)) / 64 * 64, {}, where};
        if (where.type == DeviceType::kCuda) {
          all.push_back(row);
          continue;
        }
        for (Isa isa : sets) {
          // By default one thread everywhere, and all of them with the best instruction set.
          std::vector<std::uint64_t> counts = threads.empty() ? std::vector<std::uint64_t>{1} : threads;
          if (threads.empty() && isa == sets.back() && default_threads() > 1)
            counts.push_back(static_cast<std::uint64_t>(default_threads()));
          for (std::uint64_t count : counts) {
            if (count < 1 || count > 1024)
              throw CliError("--threads must be in 1 ... 1024, got " + std::to_string(count));
            all.push_back(row);
            all.back().execution = {static_cast<int>(count), isa, nullptr};
          }
        }
      }
    }
    return all;
  }

  Json measure(const Row& row) const {
    const auto bytes = static_cast<std::size_t>(row.bytes), item = dtype_size(row.dtype);
    const auto n = static_cast<std::int64_t>(bytes / item);
    const bool cuda = row.device.type == DeviceType::kCuda;
    std::vector<std::byte> x(bytes, std::byte{0x3C}), y(bytes, std::byte{0xA5});  // 0x3C3C… is a float of every dtype
    std::optional<DeviceBuffer> device_x, device_y;
    if (cuda) {
      device_x.emplace(row.device, bytes);
      device_y.emplace(row.device, bytes);
      device_x->upload(x.data(), bytes);
    }
    const void* const from = cuda ? device_x->data() : x.data();
    void* const to = cuda ? device_y->data() : y.data();
    DropoutOptions options;
    options.p = p;
    options.seed = 123;
    const auto run = [&] {
      dropout(contiguous_view(from, row.dtype, {n}, row.device), contiguous_view(to, row.dtype, {n}, row.device),
              options, row.execution);
    };
    run();  // right first, then fast
    if (cuda) device_y->download(y.data(), bytes);
    const std::uint64_t t = threshold(p);
    for (std::int64_t e = 0; e<n; e += n> 1 << 16 ? 251 : 1) {
      const std::byte* const at = y.data() + static_cast<std::size_t>(e) * item;
      const bool kept = std::any_of(at, at + item, [](std::byte b) { return b != std::byte{0}; });
      if (kept != dropout_keep(123, static_cast<std::uint64_t>(e), t))
        throw CliError("element " + std::to_string(e) + " is wrong: run `maskless selftest`");
    }
    const auto copy = [&] {
      if (cuda) {
        device_y->copy_from(*device_x, bytes);
      } else {
        threaded_copy(y.data(), x.data(), bytes, row.execution.threads);
      }
    };
    const auto medians = median_seconds(row.device, {copy, run}, seconds);
    return {{"dtype", dtype_name(row.dtype)},
            {"bytes", bytes},
            {"device", device_text(row.device)},
            {"isa", cuda ? "" : isa_name(row.execution.isa)},
            {"threads", row.execution.threads},
            {"copy_seconds", medians[0]},
            {"dropout_seconds", medians[1]},
            {"of_copy", medians[0] / medians[1]},
            {"elements_per_second", static_cast<double>(n) / medians[1]}};
  }

  void run() const {
    if (!(seconds >= 0 && seconds <= 3600)) throw CliError("--seconds must be in 0 ... 3600");
    if (!valid_probability(p)) throw CliError("p must be in [0, 1], got " + std::to_string(p));
    const std::vector<Row> all = rows();
    Json json_rows = Json::array();
    if (!json)
      std::printf(
          "dropout, p = %g, beside a copy of the same arrays (GB/s read and written, medians of runs in turn)\n\n"
          "%-9s %9s  %-7s %7s  %9s %9s  %7s  %9s\n",
          p, "dtype", "MiB", "on", "threads", "copy", "dropout", "of copy", "G elem/s");
    for (const Row& row : all) {
      json_rows.push_back(measure(row));
      if (json) continue;
      const Json& r = json_rows.back();
      const double twice = 2e-9 * static_cast<double>(row.bytes);
      const bool cuda = row.device.type == DeviceType::kCuda;
      std::printf("%-9s %9.4g  %-7s %7s  %9.1f %9.1f  %7.2f  %9.2f\n", dtype_name(row.dtype),
                  static_cast<double>(row.bytes) / (1 << 20),
                  cuda ? device_text(row.device).c_str() : isa_name(row.execution.isa),
                  cuda ? "" : std::to_string(row.execution.threads).c_str(), twice / r["copy_seconds"].get<double>(),
                  twice / r["dropout_seconds"].get<double>(), r["of_copy"].get<double>(),
                  r["elements_per_second"].get<double>() / 1e9);
      std::fflush(stdout);
    }
    if (json)
      std::cout << Json{{"version", kVersion}, {"benchmark", "dropout"}, {"p", p}, {"rows", json_rows}}.dump(2) << "\n";
  }
};

}  // namespace

void add_bench_dropout(CLI::App& bench) {
  CLI::App* const sub = bench.add_subcommand("dropout", "Dropout beside a copy of the same arrays");
  const auto options = std::make_shared<DropoutBench>();
  add_number(*sub, "-p", options->p, "Probability to drop (default 0.1)");
  sub->add_option("--sizes", options->sizes, "Sizes of the input in MiB (default 0.25,64)")
      ->delimiter(',')
      ->type_name("MIB,...");
  sub->add_option("--dtypes", options->dtypes, "Of bfloat16, float16, float32, float64 (default all)")
      ->delimiter(',')
      ->type_name("DTYPE,...");
  sub->add_option("--isas", options->isas, "Instruction sets (default all that `maskless info` lists)")
      ->delimiter(',')
      ->type_name("ISA,...");
  sub->add_option("--threads", options->threads, "Thread counts (default 1, and all with the best instruction set)")
      ->delimiter(',')
      ->type_name("N,...");
  add_number(*sub, "--seconds", options->seconds, "Time for each row (default 0.3)");
  sub->add_option("--device", options->device, "auto, cpu, cuda or cuda:N (default auto)")->type_name("DEVICE");
  sub->add_flag("--json", options->json, "Print the rows as JSON");
  sub->footer(R"(Each row checks the result before it is timed.

Examples:
  maskless bench dropout
  maskless bench dropout --dtypes float32 --sizes 64,512 --threads 1,2,4 --json)");
  sub->callback([options] { options->run(); });
}

void add_bench(CLI::App& app) {
  constexpr void (*kBenches[])(CLI::App&) = {
      add_bench_dropout,
      add_bench_dropconnect,
  };
  CLI::App* const bench = app.add_subcommand("bench", "Time an operation beside what it is measured against");
  bench->require_subcommand(1);
  for (const auto add : kBenches) add(*bench);
}

}  // namespace maskless::cli
