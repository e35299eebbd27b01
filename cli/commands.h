// The subcommands: each operation's file adds its own to the program. A new one is declared here and listed in main.cc.
#ifndef MASKLESS_CLI_COMMANDS_H_
#define MASKLESS_CLI_COMMANDS_H_

#include <CLI/CLI.hpp>

namespace maskless::cli {

void add_dropout(CLI::App& app);
void add_dropconnect(CLI::App& app);
void add_dropconnect_backward(CLI::App& app);
void add_mask(CLI::App& app);
void add_random(CLI::App& app);
void add_project(CLI::App& app);
void add_info(CLI::App& app);
void add_selftest(CLI::App& app);
void add_demo(CLI::App& app);

/// `maskless bench`, and what is under it: each operation adds its own, listed in bench.cc.
void add_bench(CLI::App& app);
void add_bench_dropout(CLI::App& bench);
void add_bench_dropconnect(CLI::App& bench);

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_COMMANDS_H_
