// The keys of Philox's ten rounds, made once a seed.
#ifndef MASKLESS_SRC_CPU_SCHEDULE_H_
#define MASKLESS_SRC_CPU_SCHEDULE_H_

#include <cstdint>

#include "maskless/core/philox.h"

namespace maskless::cpu {

struct KeySchedule {
  std::uint64_t k0[10], k1[10];  // 32 bits each

  explicit KeySchedule(std::uint64_t seed) {
    Words2 key = philox_key(seed);
    for (int r = 0; r < 10; ++r, key.w[0] += kPhiloxW0, key.w[1] += kPhiloxW1) {
      k0[r] = key.w[0];
      k1[r] = key.w[1];
    }
  }
};

}  // namespace maskless::cpu

#endif  // MASKLESS_SRC_CPU_SCHEDULE_H_
