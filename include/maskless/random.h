// Random numbers with the same addressing as the masks: element i is a pure function of (seed, stream, first_index +
// i). docs/spec.md states the formulas.
#ifndef MASKLESS_RANDOM_H_
#define MASKLESS_RANDOM_H_

#include <cstdint>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless {

struct RandomOptions {
  Seed seed = {};
  std::uint32_t stream = 0;       ///< below 2^24
  std::uint64_t first_index = 0;  ///< position of the first element
  Shard shard = {};
};

/// Raw 32-bit words. out: uint32, any shape and strides. Bit-exact everywhere.
void random_bits(const TensorView& out, const RandomOptions& options, const Execution& execution = {});

/// Uniform in [0, 1), a multiple of 2^-24. out: float32. Bit-exact everywhere.
void random_uniform(const TensorView& out, const RandomOptions& options, const Execution& execution = {});

/// Triton's tl.rand(seed, index), bit for bit; options.stream must be 0. out: float32.
void random_uniform_triton(const TensorView& out, const RandomOptions& options, const Execution& execution = {});

/// Integers uniform in [low, high), without bias. out: int32 or int64, which must hold the range. Bit-exact everywhere.
void random_integers(const TensorView& out, std::int64_t low, std::int64_t high, const RandomOptions& options,
                     const Execution& execution = {});

/// Standard normal. out: float32. Box and Muller 1958, with arithmetic that is bit-exact everywhere.
void random_normal(const TensorView& out, const RandomOptions& options, const Execution& execution = {});

}  // namespace maskless

#endif  // MASKLESS_RANDOM_H_
