#include "options.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "cli_error.h"
#include "maskless/core/uniform.h"

namespace maskless::cli {
namespace {

template <typename T>
std::optional<T> parse(std::string_view text) {
  T value{};
  int base = 10;
  if constexpr (std::is_unsigned_v<T>) {
    if (text.starts_with("0x") || text.starts_with("0X")) {
      base = 16;
      text.remove_prefix(2);
    }
  }
  const char* const end = text.data() + text.size();
  const auto result = [&] {
    if constexpr (std::is_floating_point_v<T>)
      return std::from_chars(text.data(), end, value);
    else
      return std::from_chars(text.data(), end, value, base);
  }();
  if (result.ec != std::errc() || result.ptr != end) return std::nullopt;
  return value;
}

std::string limit_text(std::uint64_t most) {
  return most == UINT64_MAX ? "2^64-1" : most == kStreamLimit - 1 ? "2^24-1" : std::to_string(most);
}

/// The longest of an option's names, for messages.
std::string shown(const std::string& names) { return names.substr(names.rfind(',') + 1); }

}  // namespace

CLI::Option* add_integer(CLI::App& app, const std::string& name, std::uint64_t& value, const std::string& help,
                         std::uint64_t most) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name, most](const std::string& text) {
            const auto parsed = parse<std::uint64_t>(text);
            if (!parsed || *parsed > most)
              throw CliError(shown(name) + " must be an integer in 0 ... " + limit_text(most) + ", got " + text);
            value = *parsed;
          },
          help)
      ->type_name("N");
}

CLI::Option* add_signed(CLI::App& app, const std::string& name, std::int64_t& value, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            const auto parsed = parse<std::int64_t>(text);
            if (!parsed) throw CliError(shown(name) + " must be an integer in -2^63 ... 2^63-1, got " + text);
            value = *parsed;
          },
          help)
      ->type_name("N");
}

CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            const auto parsed = parse<double>(text);
            if (!parsed) throw CliError(shown(name) + " must be a number, got " + text);
            value = *parsed;
          },
          help)
      ->type_name("X");
}

CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value, const std::string& choices,
                        const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name, choices](const std::string& text) {
            const bool plain = !text.empty() && text.find('|') == std::string::npos;
            if (!plain || ("|" + choices + "|").find("|" + text + "|") == std::string::npos)
              throw CliError(shown(name) + " must be one of " + choices + ", got " + text);
            value = text;
          },
          help)
      ->type_name(choices);
}

CLI::Option* add_shape(CLI::App& app, const std::string& name, Shape& value, const std::string& help) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            value.clear();
            std::string_view rest = text;
            while (!rest.empty()) {
              const auto cut = rest.find_first_of(",x");
              const auto extent = parse<std::int64_t>(rest.substr(0, cut));
              if (!extent || *extent < 0)
                throw CliError(shown(name) + " must be extents like 1000,20, each in 0 ... 2^63-1, got " + text);
              value.push_back(*extent);
              rest = cut == std::string_view::npos ? std::string_view{} : rest.substr(cut + 1);
            }
            if (value.size() > kMaxRank)
              throw CliError(shown(name) + " must have at most 8 dimensions, got " + std::to_string(value.size()));
          },
          help)
      ->type_name("N,N,...");
}

CLI::Option* add_seed_options(CLI::App& app, SeedOptions& options) {
  CLI::Option* const seed = add_integer(app, "--seed", options.seed,
                                        "Required, 0 ... 2^64-1 (also 0x...): the same seed gives the same bits");
  add_integer(app, "--stream", options.stream,
              "Call site: layers with one seed and different streams have independent masks (default 0)",
              kStreamLimit - 1);
  return seed;
}

void add_run_options(CLI::App& app, RunOptions& options, const std::string& between_devices) {
  add_integer(app, "--threads", options.threads, "CPU threads (default 0: all); never changes the result", 1024);
  app.add_option("--device", options.device,
                 "auto, cpu, cuda or cuda:N (default auto: cuda if there is a device); " + between_devices)
      ->type_name("DEVICE");
  app.add_flag("--json", options.json, "Print what was done as JSON");
  app.add_flag("-q,--quiet", options.quiet, "No progress bar");
}

CLI::Option* add_dtype_option(CLI::App& app, std::string& as_dtype) {
  return add_choice(app, "--dtype", as_dtype, "bfloat16",
                    "Take 2-byte void or uint16 data as bfloat16 ('<V2', as ml_dtypes saves it, needs no option)");
}

}  // namespace maskless::cli
