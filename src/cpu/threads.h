// OpenMP threads over independent pieces of work.
#ifndef MASKLESS_SRC_CPU_THREADS_H_
#define MASKLESS_SRC_CPU_THREADS_H_

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace maskless::cpu {

inline constexpr std::int64_t kMostThreads = 1024;  // OpenMP ends the program where the system refuses another one

/// Calls f(begin, end) for ranges that cover [0, count), one a thread, cut at multiples of `grain`. threads = 0 takes
/// all that OpenMP offers; no more are used than there are pieces of `grain`. f must not throw.
template <typename F>
void parallel_for(int threads, std::int64_t count, std::int64_t grain, F&& f) {
  const std::int64_t pieces = (count + grain - 1) / grain;
  const std::int64_t wanted =
      std::min({std::int64_t{threads > 0 ? threads : omp_get_max_threads()}, pieces, kMostThreads});
  if (wanted <= 1) {
    if (count > 0) f(std::int64_t{0}, count);
    return;
  }
#pragma omp parallel num_threads(static_cast <int>(wanted))
  {
    const std::int64_t team = omp_get_num_threads(), me = omp_get_thread_num();
    const std::int64_t begin = pieces * me / team * grain, end = std::min(count, pieces * (me + 1) / team * grain);
    if (begin < end) f(begin, end);
  }
}

}  // namespace maskless::cpu

#endif  // MASKLESS_SRC_CPU_THREADS_H_
