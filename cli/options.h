// Options that operations share, with one wording for their help and for what is wrong with them.
#ifndef MASKLESS_CLI_OPTIONS_H_
#define MASKLESS_CLI_OPTIONS_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "maskless/tensor.h"
#include "npy.h"

namespace maskless::cli {

/// An unsigned integer, decimal or 0x hexadecimal, at most `most`; "--seed must be …, got …" otherwise.
CLI::Option* add_integer(CLI::App& app, const std::string& name, std::uint64_t& value, const std::string& help,
                         std::uint64_t most = UINT64_MAX);
/// A signed 64-bit integer.
CLI::Option* add_signed(CLI::App& app, const std::string& name, std::int64_t& value, const std::string& help);
/// A number; what it must be is the operation's to check (NaN included).
CLI::Option* add_number(CLI::App& app, const std::string& name, double& value, const std::string& help);
/// One of several words: choices "packed|triton".
CLI::Option* add_choice(CLI::App& app, const std::string& name, std::string& value, const std::string& choices,
                        const std::string& help);
/// Extents: "1000,20" or "1000x20"; "" is a scalar.
CLI::Option* add_shape(CLI::App& app, const std::string& name, Shape& value, const std::string& help);

/// --seed and --stream: which mask.
struct SeedOptions {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;

  std::uint32_t stream32() const { return static_cast<std::uint32_t>(stream); }
};
CLI::Option* add_seed_options(CLI::App& app, SeedOptions& options);  // returns --seed

/// --threads, --device, --json: how to run, and what to print. What is random is the same with any of them.
struct RunOptions {
  std::uint64_t threads = 0;
  std::string device = "auto";
  bool json = false;
  bool quiet = false;  // no progress bar

  Execution execution() const {
    Execution execution;
    execution.threads = static_cast<int>(threads);
    return execution;
  }
};
/// `between_devices` says in the help what --device may change.
void add_run_options(CLI::App& app, RunOptions& options,
                     const std::string& between_devices = "never changes the result");

/// --dtype bfloat16, for files whose dtype does not say so.
CLI::Option* add_dtype_option(CLI::App& app, std::string& as_dtype);

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_OPTIONS_H_
