// Runs of an index space: pieces of its innermost dimension, in row-major order.
#ifndef MASKLESS_SRC_CPU_RUNS_H_
#define MASKLESS_SRC_CPU_RUNS_H_

#include <algorithm>
#include <cstdint>

#include "common/index_space.h"

namespace maskless::cpu {

/// Where an element is: its memory offsets (in elements, one an operand), position and coordinates.
struct Place {
  std::int64_t offsets[kMaxOperands] = {};
  std::uint64_t index = 0;
  std::int64_t coords[kMaxRank] = {};
};

/// Adds what the row-major number `at` within dimensions [first, last) contributes to `place`.
inline void descend(const IndexSpace& space, int first, int last, std::int64_t at, Place& place) {
  for (int d = last - 1; d >= first; --d) {
    const std::int64_t coord = at % space.shape[d];
    at /= space.shape[d];
    place.coords[d] = coord;
    place.index += space.index_strides[d] * static_cast<std::uint64_t>(coord);
    for (int o = 0; o < space.operands; ++o) place.offsets[o] += space.strides[o][d] * coord;
  }
}

/// Elements [at, at + count) within dimensions [first, rank), in pieces of the innermost one: f(offsets, done, length).
/// `place` is where the outer coordinates alone lead.
template <class F>
void for_runs(const IndexSpace& space, int first, Place place, std::int64_t at, std::int64_t count, F&& f) {
  const std::int64_t* offsets = place.offsets;
  const int inner = space.rank - 1;
  if (inner < first) return f(offsets, std::int64_t{0}, count);  // a single element
  descend(space, first, space.rank, at, place);
  for (std::int64_t done = 0;;) {
    const std::int64_t length = std::min(space.shape[inner] - place.coords[inner], count - done);
    f(offsets, done, length);
    done += length;
    if (done == count) return;
    for (int o = 0; o < space.operands; ++o) place.offsets[o] -= space.strides[o][inner] * place.coords[inner];
    place.coords[inner] = 0;
    for (int d = inner - 1; d >= first; --d) {  // to the start of the next row
      const std::int64_t step = ++place.coords[d] < space.shape[d] ? 1 : 1 - space.shape[d];
      for (int o = 0; o < space.operands; ++o) place.offsets[o] += space.strides[o][d] * step;
      if (step == 1) break;
      place.coords[d] = 0;
    }
  }
}

}  // namespace maskless::cpu

#endif  // MASKLESS_SRC_CPU_RUNS_H_
