// Vector Philox4x32-10 for the CPU kernels, by Google Highway. Include it inside a translation unit that is compiled
// once per instruction set (foreach_target.h): the code lives in maskless::HWY_NAMESPACE.
//
// Counter words live in 64-bit lanes, one Philox call a lane: a round is then two 32x32->64 multiplications, two shifts
// and two three-way xors, without a shuffle. Only the low 32 bits of a lane count; the high ones may hold garbage.
//
// Order of the lanes: block_lanes() numbers them 0, L/2, 1, L/2+1, 2, ... (L lanes of 64 bits; AVX-512: 0, 4, 1, 5, 2,
// 6, 3, 7). Then, after philox10(counters, keys, w01, w23), InterleaveLower(w01, w23) holds the four words of calls 0
// ... L/2-1 one after the other in memory order, and InterleaveUpper(d, w01, w23) those of calls L/2 ... L-1.
#if defined(MASKLESS_CPU_PHILOX_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_CPU_PHILOX_HWY_H_
#undef MASKLESS_CPU_PHILOX_HWY_H_
#else
#define MASKLESS_CPU_PHILOX_HWY_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "cpu/schedule.h"
#include "maskless/core/philox.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

using D64 = hn::ScalableTag<std::uint64_t>;
using V64 = hn::Vec<D64>;
inline constexpr std::size_t kCalls = hn::MaxLanes(D64());  // Philox calls that one vector holds

/// Lane number l holds call number lane_call(l).
constexpr std::size_t lane_call(std::size_t l) { return l / 2 + (l & 1) * (kCalls / 2); }

/// The call numbers of the lanes: 0, L/2, 1, L/2 + 1, ...
HWY_INLINE V64 block_lanes() {
  const D64 d;
  HWY_ALIGN std::uint64_t lanes[kCalls];
  for (std::size_t l = 0; l < kCalls; ++l) lanes[l] = lane_call(l);
  return hn::Load(d, lanes);
}

/// The keys of ten rounds. They are broadcast where they are used, and kept in registers as far as these reach.
struct RoundKeys {
  cpu::KeySchedule schedule;

  HWY_INLINE V64 k0(int round) const { return hn::Set(D64(), schedule.k0[round]); }
  HWY_INLINE V64 k1(int round) const { return hn::Set(D64(), schedule.k1[round]); }
};

HWY_INLINE RoundKeys round_keys(Words2 key) { return {cpu::KeySchedule(std::uint64_t{key.w[1]} << 32 | key.w[0])}; }

HWY_INLINE V64 xor3(V64 a, V64 b, V64 c) { return hn::Xor(a, hn::Xor(b, c)); }

/// The 64-bit product of the low halves.
HWY_INLINE V64 mul_low(V64 a, V64 b) {
  const hn::Repartition<std::uint32_t, D64> d32;
  return hn::MulEven(hn::BitCast(d32, a), hn::BitCast(d32, b));
}

/// Counter words in, or a call's words out; only the low 32 bits of a lane count.
struct Counters {
  V64 c0, c1, c2, c3;
};

/// Rounds First ... Last - 1.
template <int First, int Last>
HWY_INLINE void philox_rounds(Counters& c, const RoundKeys& keys) {
  const D64 d;
  const V64 m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 10
#endif
  for (int r = First; r < Last; ++r) {
    const V64 a = mul_low(m0, c.c0), b = mul_low(m1, c.c2);
    c.c0 = xor3(hn::ShiftRight<32>(b), c.c1, keys.k0(r));
    c.c1 = b;
    c.c2 = xor3(hn::ShiftRight<32>(a), c.c3, keys.k1(r));
    c.c3 = a;
  }
}

/// The halves of each lane swapped.
HWY_INLINE V64 swap_words(V64 v) {
  const D64 d;
  const hn::Repartition<std::uint32_t, D64> d32;
  return hn::BitCast(d, hn::Shuffle2301(hn::BitCast(d32, v)));
}

/// The last round with its output assembled: words 0 and 1 of each call in one lane (w1 << 32 | w0), words 2 and 3 too.
HWY_INLINE void philox_last_round(const Counters& c, const RoundKeys& keys, V64& w01, V64& w23) {
  const D64 d;
  const V64 m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1), low = hn::Set(d, 0xFFFFFFFFu);
  const V64 a = mul_low(m0, c.c0), b = mul_low(m1, c.c2);
  w01 = xor3(swap_words(b), hn::And(c.c1, low), keys.k0(9));
  w23 = xor3(swap_words(a), hn::And(c.c3, low), keys.k1(9));
}

/// All ten rounds. Interleave several calls for throughput where the registers allow it.
HWY_INLINE void philox10(Counters& c, const RoundKeys& keys) { philox_rounds<0, 10>(c, keys); }

/// All ten rounds, words assembled as by philox_last_round.
HWY_INLINE void philox10(Counters c, const RoundKeys& keys, V64& w01, V64& w23) {
  philox_rounds<0, 9>(c, keys);
  philox_last_round(c, keys, w01, w23);
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
