// Timing by rounds: every contestant runs once a round, so that all share the machine's moods; medians are compared.
// What one thread runs is timed by that thread's own clock, which stands still while others have the processor.
#ifndef MASKLESS_BENCH_ROUNDS_H_
#define MASKLESS_BENCH_ROUNDS_H_

#include <time.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace maskless::bench {

struct Contestant {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  double fastest() const { return *std::min_element(seconds.begin(), seconds.end()); }
};

inline double seconds_of(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline void run_rounds(std::vector<Contestant>& contestants, int rounds, bool one_thread) {
  const clockid_t clock = one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  for (Contestant& c : contestants) c.run();  // warm up
  for (int round = 0; round < rounds; ++round)
    for (Contestant& c : contestants) {
      const double start = seconds_of(clock);
      c.run();
      c.seconds.push_back(seconds_of(clock) - start);
    }
}

}  // namespace maskless::bench

#endif  // MASKLESS_BENCH_ROUNDS_H_
