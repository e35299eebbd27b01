// A progress bar on a terminal, for work that takes longer than a moment. Silent where stderr is a file or a pipe.
#ifndef MASKLESS_CLI_PROGRESS_H_
#define MASKLESS_CLI_PROGRESS_H_

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace maskless::cli {

class Progress {
 public:
  /// `total` units of work, bytes as a rule.
  Progress(std::string label, std::uint64_t total, bool quiet = false)
      : label_(std::move(label)), total_(total), on_(!quiet && total > 0 && isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void advance(std::uint64_t units) {
    done_ += units;
    if (!on_) return;
    const auto now = Clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::milliseconds(100);
    const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
    const double seconds = std::chrono::duration<double>(now - start_).count();
    constexpr int kWidth = 30;
    const int full = static_cast<int>(fraction * kWidth);
    std::fprintf(stderr, "\r%s [%s%s] %3d%%  %.1f of %.1f GB  %.1f GB/s  %.0f s left\033[K", label_.c_str(),
                 std::string(static_cast<std::size_t>(full), '#').c_str(),
                 std::string(static_cast<std::size_t>(kWidth - full), '.').c_str(), static_cast<int>(fraction * 100),
                 static_cast<double>(done_) / 1e9, static_cast<double>(total_) / 1e9,
                 static_cast<double>(done_) / 1e9 / seconds, seconds * (1 - fraction) / fraction);
    std::fflush(stderr);
    shown_ = true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  std::uint64_t total_, done_ = 0;
  bool on_, shown_ = false;
  Clock::time_point start_ = Clock::now(), next_ = start_ + std::chrono::milliseconds(500);
};

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_PROGRESS_H_
