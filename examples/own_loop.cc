// Masks in a loop of your own, with the core headers alone (no library to link).
//
// The standard error of a mean by random halves: each replicate takes the mean of a random half of the data, and the
// spread of those means is the standard error (P. J. McCarthy, "Pseudo-replication: half samples", 1969). A stored form
// would need one mask a replicate, 20 MB here; a seed needs none, and replicate 17 can be had again without the
// others.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "maskless/core/threshold.h"
#include "maskless/core/uniform.h"

int main() {
  constexpr std::int64_t kSize = 100'000;
  constexpr int kReplicates = 200;
  constexpr std::uint64_t kSeed = 2026;
  constexpr std::uint64_t kHalf = maskless::threshold(0.5);  // dropped if and only if u < kHalf

  std::vector<double> data(kSize);
  std::mt19937 random(1);
  std::exponential_distribution<double> waiting_time(1.0 / 3.0);  // mean 3, standard deviation 3
  for (double& x : data) x = waiting_time(random);

  double sum = 0, squares = 0;
  for (int replicate = 0; replicate < kReplicates; ++replicate) {
    double kept_sum = 0;
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < kSize; ++i) {
      // A pure function of seed, position and stream: any thread, any order, any machine gives the same answer.
      if (maskless::dropout_keep(kSeed, i, kHalf, replicate)) {
        kept_sum += data[i];
        ++kept;
      }
    }
    const double mean = kept_sum / static_cast<double>(kept);
    sum += mean;
    squares += mean * mean;
  }
  const double mean = sum / kReplicates;
  const double error = std::sqrt((squares - sum * mean) / (kReplicates - 1));
  const double theory = 3.0 / std::sqrt(static_cast<double>(kSize));
  std::printf("mean %.4f, standard error %.5f by random halves, %.5f by theory\n", mean, error, theory);

  // The spread of 200 replicates is itself known to 5%; four times that is a bound that a right program keeps.
  return std::abs(error / theory - 1.0) < 0.2 ? 0 : 1;
}
