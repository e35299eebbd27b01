#include "output_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csignal>
#include <filesystem>
#include <limits>
#include <system_error>

#include "cli_error.h"

namespace maskless::cli {
namespace {

// Names that a signal handler may unlink: plain memory, taken and given back by an atomic flag.
constexpr int kSlots = 16;
char slot_path[kSlots][PATH_MAX];
std::atomic<bool> slot_taken[kSlots];

void remove_temporaries() {
  for (int i = 0; i < kSlots; ++i)
    if (slot_taken[i].load()) unlink(slot_path[i]);
}

void on_interrupt(int signal_number) {
  remove_temporaries();
  signal(signal_number, SIG_DFL);  // end as the signal would have ended us, so that a shell sees it
  raise(signal_number);
}

void on_bus_error(int) {
  remove_temporaries();
  constexpr char kMessage[] =
      "maskless: a file could not be read or written to its end (it changed, or the disk failed)\n";
  static_cast<void>(!::write(STDERR_FILENO, kMessage, sizeof kMessage - 1));
  _exit(2);
}

/// Where a path leads: symbolic links followed at its end, also to a file that is not there yet.
std::string follow_links(const std::string& path) {
  std::filesystem::path at = path;
  std::error_code none;
  for (int links = 0; std::filesystem::is_symlink(at, none); ++links) {
    if (links == 40) fail_system(path, "cannot be written", ELOOP);  // Linux follows as many
    at = at.parent_path() / std::filesystem::read_symlink(at, none);
  }
  return at.string();
}

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return "./";
  return path.substr(0, slash + 1);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXCPU}) {
    struct sigaction old = {};
    sigaction(s, nullptr, &old);
    if (old.sa_handler != SIG_IGN) sigaction(s, &action, nullptr);  // nohup stays nohup
  }
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, nullptr);
  signal(SIGXFSZ, SIG_IGN);  // a file size limit is then a write error like a full disk
}

OutputFile::OutputFile(const std::string& target) : shown_(target) {
  if (target.empty()) throw CliError("the output needs a file name, got ''");
  target_ = follow_links(target);
  struct stat status = {};
  const bool exists = stat(target.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) throw CliError(shown_ + ": is a directory, not a file to write");
  if (exists && !S_ISREG(status.st_mode)) throw CliError(shown_ + ": is not a regular file");
  if (exists && access(target_.c_str(), W_OK) != 0) fail_system(shown_, "cannot be written");
  if (target_.back() == '/') throw CliError(shown_ + ": is a directory, not a file to write");

  for (int i = 0; i < kSlots && slot_ < 0; ++i) {
    if (!slot_taken[i].load()) slot_ = i;
  }
  if (slot_ < 0) throw CliError(shown_ + ": too many output files at a time");
  // No interruption between the file's creation and the handler's knowing it; its name only once the file is ours.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  int error = 0;
  for (int attempt = 0; fd_ < 0 && error == 0; ++attempt) {
    temporary_ = directory_of(target_) + ".maskless-" + std::to_string(getpid()) + "-" + std::to_string(slot_) + "-" +
                 std::to_string(attempt) + ".tmp";
    if (temporary_.size() >= PATH_MAX) {
      error = ENAMETOOLONG;
    } else {
      fd_ = open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd_ < 0 && (errno != EEXIST || attempt > 1000)) error = errno;
    }
  }
  if (fd_ >= 0) {
    std::copy_n(temporary_.c_str(), temporary_.size() + 1, slot_path[slot_]);
    slot_taken[slot_].store(true);
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) fail_system(shown_, "cannot be written", error);
  if (exists) static_cast<void>(fchmod(fd_, status.st_mode & 07777));
}

OutputFile::~OutputFile() { close_and_remove(); }

void OutputFile::close_and_remove() noexcept {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
  if (slot_ >= 0) slot_taken[slot_].store(false);
  slot_ = -1;
}

void OutputFile::write(const void* data, std::size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, from, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_system(shown_, "cannot be written");
    from += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

std::byte* OutputFile::map(std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()))
    fail_system(shown_, "cannot be written", EFBIG);
  // Reserved now, a full disk is an error here and not a SIGBUS later.
  if (const int error = posix_fallocate(fd_, 0, static_cast<off_t>(bytes)); error != 0)
    fail_system(shown_, "cannot be written", error);
  void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (address == MAP_FAILED) fail_system(shown_, "cannot be mapped");
  mapped_ = static_cast<std::byte*>(address);
  mapped_bytes_ = bytes;
  return mapped_;
}

void OutputFile::commit() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
  mapped_ = nullptr;
  const int fd = fd_;
  fd_ = -1;
  if (close(fd) != 0) fail_system(shown_, "cannot be written");  // some file systems report a full disk here
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail_system(shown_, "cannot be written");
  temporary_.clear();
  slot_taken[slot_].store(false);
  slot_ = -1;
}

}  // namespace maskless::cli
