// What went wrong, in one line, for a person at a terminal. main() prints "maskless COMMAND: LINE" and exits with 2.
#ifndef MASKLESS_CLI_CLI_ERROR_H_
#define MASKLESS_CLI_CLI_ERROR_H_

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace maskless::cli {

class CliError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A failed system call on a file: "PATH: cannot be opened: No such file or directory".
[[noreturn]] inline void fail_system(const std::string& path, const std::string& what, int error = errno) {
  throw CliError(path + ": " + what + ": " + std::strerror(error));
}

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_CLI_ERROR_H_
