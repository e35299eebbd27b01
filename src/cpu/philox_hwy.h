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

/// The same for long loops: broadcast once, and read from memory where registers are few.
class BroadcastKeys {
 public:
  /// `last` is added to both keys of the last round, by xor.
  HWY_INLINE BroadcastKeys(const cpu::KeySchedule& schedule, std::uint64_t last) {
    const D64 d;
    for (int r = 0; r < 10; ++r) {
      const std::uint64_t more = r == 9 ? last : 0;
      hn::Store(hn::Set(d, schedule.k0[r] ^ more), d, keys_[0][r]);
      hn::Store(hn::Set(d, schedule.k1[r] ^ more), d, keys_[1][r]);
    }
  }
  HWY_INLINE V64 k0(int round) const { return hn::Load(D64(), keys_[0][round]); }
  HWY_INLINE V64 k1(int round) const { return hn::Load(D64(), keys_[1][round]); }

 private:
  HWY_ALIGN std::uint64_t keys_[2][10][kCalls];
};

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

/// Rounds First ... Last - 1 of N vectors of calls, side by side.
template <int First, int Last, std::size_t N, class Keys>
HWY_INLINE void philox_rounds(Counters (&c)[N], const Keys& keys) {
  const D64 d;
  const V64 m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 10
#endif
  for (int r = First; r < Last; ++r) {
    for (Counters& one : c) {
      const V64 a = mul_low(m0, one.c0), b = mul_low(m1, one.c2);
      one.c0 = xor3(hn::ShiftRight<32>(b), one.c1, keys.k0(r));
      one.c1 = b;
      one.c2 = xor3(hn::ShiftRight<32>(a), one.c3, keys.k1(r));
      one.c3 = a;
    }
  }
}

/// The same of one vector.
template <int First, int Last, class Keys>
HWY_INLINE void philox_rounds(Counters& c, const Keys& keys) {
  Counters one[1] = {c};
  philox_rounds<First, Last>(one, keys);
  c = one[0];
}

/// The halves of each lane swapped.
HWY_INLINE V64 swap_words(V64 v) {
  const D64 d;
  const hn::Repartition<std::uint32_t, D64> d32;
  return hn::BitCast(d, hn::Shuffle2301(hn::BitCast(d32, v)));
}

/// The last round with its output assembled: words 0 and 1 of each call in one lane (w1 << 32 | w0), words 2 and 3 too.
template <class Keys>
HWY_INLINE void philox_last_round(const Counters& c, const Keys& keys, V64& w01, V64& w23) {
  const D64 d;
  const V64 m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1);
  const V64 a = mul_low(m0, c.c0), b = mul_low(m1, c.c2);
#if HWY_TARGET == HWY_AVX3  // one instruction where the generic form has two
  constexpr __mmask16 kLowHalves = 0x5555;
  constexpr int kXor3 = 0x96;
  w01 = V64{_mm512_mask_ternarylogic_epi32(swap_words(b).raw, kLowHalves, c.c1.raw, keys.k0(9).raw, kXor3)};
  w23 = V64{_mm512_mask_ternarylogic_epi32(swap_words(a).raw, kLowHalves, c.c3.raw, keys.k1(9).raw, kXor3)};
#else
  const V64 low = hn::Set(d, 0xFFFFFFFFu);
  w01 = xor3(swap_words(b), hn::And(c.c1, low), keys.k0(9));
  w23 = xor3(swap_words(a), hn::And(c.c3, low), keys.k1(9));
#endif
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
