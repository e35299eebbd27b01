// Runs of an index space: pieces of its innermost dimension, in row-major order.
#if defined(MASKLESS_CPU_RUNS_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_CPU_RUNS_HWY_H_
#undef MASKLESS_CPU_RUNS_HWY_H_
#else
#define MASKLESS_CPU_RUNS_HWY_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "common/index_space.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {

/// Where an element is: its memory offsets (in elements, one an operand), position and first coordinate.
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
HWY_INLINE void for_runs(const IndexSpace& space, int first, Place place, std::int64_t at, std::int64_t count, F&& f) {
  const int inner = space.rank - 1;
  if (inner < first) {  // a single element
    f(static_cast<const std::int64_t*>(place.offsets), std::int64_t{0}, count);
    return;
  }
  if (inner == first) {
    descend(space, first, inner + 1, at, place);
    f(static_cast<const std::int64_t*>(place.offsets), std::int64_t{0}, count);
    return;
  }
  descend(space, first, inner + 1, at, place);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t length = HWY_MIN(space.shape[inner] - place.coords[inner], count - done);
    f(static_cast<const std::int64_t*>(place.offsets), done, length);
    done += length;
    if (done == count) break;
    std::int64_t back = place.coords[inner];  // to the start of the next row
    for (int o = 0; o < space.operands; ++o) place.offsets[o] -= space.strides[o][inner] * back;
    place.coords[inner] = 0;
    for (int d = inner - 1; d >= first; --d) {
      const std::int64_t step = ++place.coords[d] < space.shape[d] ? 1 : 1 - space.shape[d];
      for (int o = 0; o < space.operands; ++o) place.offsets[o] += space.strides[o][d] * step;
      if (step == 1) break;
      place.coords[d] = 0;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
