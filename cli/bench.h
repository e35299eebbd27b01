// Timing for benchmarks and the demo: functions that take turns, so that noise hits all alike, and their medians.
#ifndef MASKLESS_CLI_BENCH_H_
#define MASKLESS_CLI_BENCH_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <vector>

#include "device.h"
#include "maskless/tensor.h"

namespace maskless::cli {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Median seconds a call of each function, taking turns for about `budget` seconds and at least 5 rounds. On a CUDA
/// device the functions queue work on the default stream, and the device's clock counts.
inline std::vector<double> median_seconds(Device device, const std::vector<std::function<void()>>& functions,
                                          double budget) {
  constexpr double kShortest = 200e-6;  // a sample is as many calls as last this long
  const auto sample = [&](const std::function<void()>& f, int calls) {
    if (device.type == DeviceType::kCuda) {
      DeviceTimer timer(device);
      timer.start();
      for (int i = 0; i < calls; ++i) f();
      return timer.stop() / calls;
    }
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) f();
    return seconds_since(start) / calls;
  };
  std::vector<std::vector<double>> samples(functions.size());
  std::vector<int> calls;
  for (const auto& f : functions) {
    sample(f, 1);  // pages, caches, kernels are loaded
    const double once = std::max(sample(f, 1), 1e-9);
    calls.push_back(static_cast<int>(std::clamp(kShortest / once, 1.0, 1e4)));
  }
  const auto start = Clock::now();
  for (int round = 0; round < 5 || seconds_since(start) < budget; ++round)
    for (std::size_t i = 0; i < functions.size(); ++i) samples[i].push_back(sample(functions[i], calls[i]));
  std::vector<double> medians;
  for (auto& s : samples) {
    std::nth_element(s.begin(), s.begin() + static_cast<std::ptrdiff_t>(s.size() / 2), s.end());
    medians.push_back(s[s.size() / 2]);
  }
  return medians;
}

/// memcpy by several threads, each a contiguous share.
inline void threaded_copy(void* to, const void* from, std::size_t bytes, int threads) {
  const std::size_t share = (bytes / static_cast<std::size_t>(threads) + 63) / 64 * 64;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int i = 0; i < threads; ++i) {
    const std::size_t begin = std::min(bytes, static_cast<std::size_t>(i) * share);
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, std::min(share, bytes - begin));
  }
}

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_BENCH_H_
