// An output file that is whole or not there: written under a temporary name in the target's directory, renamed over the
// target by commit(), removed by the destructor, and on signals that end the program.
#ifndef MASKLESS_CLI_OUTPUT_FILE_H_
#define MASKLESS_CLI_OUTPUT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace maskless::cli {

class OutputFile {
 public:
  /// Creates the temporary file. The target may exist (also as the input that is being read: its inode stays alive).
  explicit OutputFile(const std::string& target);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Appends bytes. Throws CliError if they cannot be written (a full disk).
  void write(const void* data, std::size_t bytes);

  /// Reserves `bytes` on the disk and maps them for writing, in place of write(). 0 bytes give a null pointer.
  std::byte* map(std::uint64_t bytes);

  /// Closes the file and gives it its name.
  void commit();

 private:
  void close_and_remove() noexcept;

  std::string shown_;      // the target as the user named it
  std::string target_;     // with symbolic links followed, so that a link keeps pointing
  std::string temporary_;  // empty after commit
  int slot_ = -1;          // where the signal handler finds the temporary name
  int fd_ = -1;
  std::byte* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
};

/// Removes temporary files when the program is interrupted; a file that shrinks while it is mapped (SIGBUS) ends in one
/// clear line and exit status 2.
void install_signal_handlers();

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_OUTPUT_FILE_H_
