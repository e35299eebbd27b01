// What the backends implement for random numbers: plain arguments, validated and normalised.
#ifndef MASKLESS_SRC_RANDOM_RANDOM_KERNELS_H_
#define MASKLESS_SRC_RANDOM_RANDOM_KERNELS_H_

#include <cstdint>

#include "common/index_space.h"
#include "maskless/random.h"

namespace maskless {

enum class RandomKind : std::uint8_t {
  kBits,
  kUniform,
  kUniformTriton,
  kIntegers,      // range <= 2^32
  kWideIntegers,  // range > 2^32
  kNormal,
};

/// Operands of the space: out.
struct RandomArgs {
  IndexSpace space;
  RandomKind kind = RandomKind::kBits;
  DType dtype = DType::kUint32;
  std::uint64_t seed = 0;
  const std::uint64_t* seed_pointer = nullptr;  // in place of seed, if not null
  std::uint32_t stream = 0;
  std::int64_t low = 0;  // integers: low ... low + range - 1
  std::uint64_t range = 0;
  std::uint64_t unfair = 0;  // integers: 2^32 (wide: 2^64) modulo range; products with smaller low words are redrawn
  void* out = nullptr;
};

namespace cpu {
void random(const RandomArgs& args, const Execution& execution);
}
namespace cuda {  // defined where the library is built with CUDA
void random(const RandomArgs& args, Device device, void* stream);
}

}  // namespace maskless

#endif  // MASKLESS_SRC_RANDOM_RANDOM_KERNELS_H_
