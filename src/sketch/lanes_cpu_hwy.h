// Vectors of a batch side by side: G of them with column c of all in G neighbouring places, and back. For files that
// are compiled once per instruction set.
#if defined(MASKLESS_SKETCH_LANES_CPU_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_SKETCH_LANES_CPU_HWY_H_
#undef MASKLESS_SKETCH_LANES_CPU_HWY_H_
#else
#define MASKLESS_SKETCH_LANES_CPU_HWY_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "sketch/sketch_reference.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

inline constexpr std::int64_t kPiece = 128;  // columns that are converted at a time

/// 4 vectors of 4 floats, transposed.
HWY_INLINE void transpose4(const float* const* from, std::int64_t at, float* to, std::int64_t step) {
  const hn::Full128<float> d;
  const hn::Full128<double> d64;
  const auto a = hn::LoadU(d, from[0] + at), b = hn::LoadU(d, from[1] + at);
  const auto e = hn::LoadU(d, from[2] + at), f = hn::LoadU(d, from[3] + at);
  const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));  // a0 b0 a1 b1
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
  const auto ef_low = hn::BitCast(d64, hn::InterleaveLower(d, e, f));
  const auto ef_high = hn::BitCast(d64, hn::InterleaveUpper(d, e, f));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ef_low)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ef_low)), d, to + step);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ef_high)), d, to + 2 * step);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ef_high)), d, to + 3 * step);
}

/// out[c * G + l] = element c of vector l, for c < n; 0 for the lanes from `lanes` on.
template <int G, typename T, typename S>
void pack_lanes(const T* x, const std::int64_t* strides, std::int64_t lanes, std::int64_t n, S* out) {
  HWY_ALIGN S buffer[G][kPiece];
  for (std::int64_t begin = 0; begin < n; begin += kPiece) {
    const std::int64_t count = HWY_MIN(kPiece, n - begin);
    const S* from[G];
    for (int l = 0; l < G; ++l) {
      const T* row = x + l * strides[0] + begin * strides[1];
      from[l] = buffer[l];
      if (l >= lanes) {
        for (std::int64_t c = 0; c < count; ++c) buffer[l][c] = 0;
        continue;
      }
      if constexpr (sizeof(T) == sizeof(S)) {
        if (strides[1] == 1) {
          from[l] = row;
          continue;
        }
      }
      if (strides[1] == 1) {
        for (std::int64_t c = 0; c < count; ++c) buffer[l][c] = to_sum(row[c]);
      } else {
        for (std::int64_t c = 0; c < count; ++c) buffer[l][c] = to_sum(row[c * strides[1]]);
      }
    }
    S* to = out + begin * G;
    std::int64_t c = 0;
    if constexpr (G % 4 == 0 && sizeof(S) == 4) {
      for (; c + 4 <= count; c += 4)
        for (int l = 0; l < G; l += 4) transpose4(from + l, c, to + c * G + l, G);
    }
    for (; c < count; ++c)
      for (int l = 0; l < G; ++l) to[c * G + l] = from[l][c];
  }
}

/// Element c of vector l from sums[c * G + l], scaled and rounded.
template <int G, typename Out, typename S>
void unpack_lanes(const S* sums, std::int64_t lanes, std::int64_t n, double scale, bool accumulate, Out* out,
                  const std::int64_t* strides) {
  for (std::int64_t begin = 0; begin < n; begin += 16) {  // by pieces, so that every cache line is read once
    const std::int64_t end = HWY_MIN(begin + 16, n);
    for (std::int64_t l = 0; l < lanes; ++l)
      for (std::int64_t c = begin; c < end; ++c)
        reference::store_sum(out + l * strides[0] + c * strides[1], sums[c * G + l], scale, accumulate);
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
