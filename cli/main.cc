// maskless: the command line. Each subcommand is added by its operation's file; this is the table of them, and the only
// place where errors become text and exit statuses: 0 done, 1 a check failed, 2 the request cannot be done.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>

#include "cli_error.h"
#include "commands.h"
#include "maskless/core/version.h"
#include "maskless/error.h"
#include "output_file.h"

namespace {

using namespace maskless;
using namespace maskless::cli;

constexpr void (*kCommands[])(CLI::App&) = {
    add_dropout,               // dropout.cc
    add_mask,                  //
    add_dropconnect,           // dropconnect.cc
    add_dropconnect_backward,  //
    add_random,                // random.cc
    add_project,               // project.cc
    add_demo,                  // demo.cc
    add_selftest,              // selftest.cc
    add_bench,                 // bench.cc
    add_info,                  // info.cc
};

/// CLI11's help, with descriptions wrapped to a terminal and without what the text around it says already.
class Help : public CLI::Formatter {
 public:
  Help() { column_width(kColumn); }

  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_positional() || option->get_type_name().empty() ? "" : " " + option->get_type_name();
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    std::size_t start = 0;
    while (text.size() - start > kWidth) {
      const auto space = text.rfind(' ', start + kWidth);
      if (space == std::string::npos || space <= start) break;
      text[space] = '\n';
      start = space + 1;
    }
    return text;
  }

 private:
  static constexpr std::size_t kColumn = 28, kWidth = 70;
};

/// "maskless bench dropout": the program and the subcommands that were asked for.
std::string command_name(const CLI::App& app) {
  std::string name = "maskless";
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += " " + at->get_name();
  }
  return name;
}

int fail(const CLI::App& app, std::string line) {
  for (char& c : line)  // one line, and no control sequence out of a file
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7F') c = ' ';
  std::cerr << command_name(app) << ": " << line << "\n";
  return 2;
}

int run(CLI::App& app, int argc, char** argv) {
  try {
    try {
      app.parse(argc, argv);
    } catch (const CLI::Success& asked) {  // --help, --version
      app.exit(asked);
    }
    std::cout.flush();
    if (!std::cout || std::ferror(stdout) != 0) throw CliError("standard output cannot be written");
    return 0;
  } catch (const CLI::RuntimeError& status) {  // a command that ran and found something wrong
    return status.get_exit_code();
  } catch (const CLI::ExtrasError& error) {  // its own text has them in reverse
    for (const std::string& word : app.remaining(true))
      if (word.size() > 1 && word[0] == '-')
        return fail(app, "there is no option '" + word + "' (see " + command_name(app) + " --help)");
    return fail(app, std::string(error.what()) + " (see " + command_name(app) + " --help)");
  } catch (const CLI::ParseError& error) {
    return fail(app, std::string(error.what()) + " (see " + command_name(app) + " --help)");
  } catch (const Error& error) {
    return fail(app, error.argument() + " " + error.rule() + (error.value().empty() ? "" : ", got " + error.value()));
  } catch (const std::bad_alloc&) {
    return fail(app, "not enough memory");
  } catch (const std::exception& error) {
    return fail(app, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  install_signal_handlers();
  CLI::App app(
      "Random masks on linear operations, never stored: the same seed gives the same bits on every\n"
      "CPU and GPU, for any number of threads, memory layout and sharding.\n");
  app.name("maskless");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("maskless ") + kVersion, "Print the version and exit");
  app.formatter(std::make_shared<Help>());
  for (const auto add : kCommands) add(app);
  app.footer(
      "Start with:\n"
      "  maskless demo                                            what this is about\n"
      "  maskless random x.npy --shape 1000,20 --seed 1           an array to try things on\n"
      "  maskless dropout x.npy y.npy -p 0.1 --seed 123           about 2,000 of its elements dropped\n\n"
      "`maskless COMMAND --help` explains a command and shows examples. Exit status: 0 done, 1 a check\n"
      "failed, 2 the request cannot be done (one line on standard error says why).");
  const auto is_asked_for = [&](const CLI::App* sub) { return sub->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_asked_for).empty())
    return fail(app, "there is no command '" + std::string(argv[1]) + "' (see maskless --help)");
  return run(app, argc, argv);
}
