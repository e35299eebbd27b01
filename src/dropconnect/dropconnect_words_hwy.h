// Keep words of DropConnect by vectors: one Philox call a 64-bit lane, lanes over neighbouring outputs n, for one
// sample m and block of 128 inputs. What of a call does not depend on n (three of the first three rounds' six products)
// is computed once, in scalars. Include inside a file that is compiled once per instruction set.
#if defined(MASKLESS_DROPCONNECT_WORDS_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_DROPCONNECT_WORDS_HWY_H_
#undef MASKLESS_DROPCONNECT_WORDS_HWY_H_
#else
#define MASKLESS_DROPCONNECT_WORDS_HWY_H_
#endif

#include <cstdint>

#include "cpu/philox_hwy.h"
#include "maskless/core/uniform.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

inline constexpr int kGroupCalls = 16;  // outputs drawn together
inline constexpr int kVectors = kGroupCalls / static_cast<int>(kCalls);

/// Keep bits of one m, 16 n and 128 inputs: input k is bit (k & 63) ^ 32 of word[k >> 6][n]. The halves are swapped, as
/// a Philox round's product has them: word 1 comes out of its low half.
struct alignas(64) GroupBits {
  std::uint64_t word[2][kGroupCalls];
};

/// The keys of ten rounds, one in every lane: read from memory by the instruction that uses them.
struct KeyLanes {
  V64 k0[9], k1[9], last0, last1;  // the last round's in the high half
};

struct WordsPlan {
  KeyLanes keys;
  std::uint32_t k0, k1, tag, first_output, first_block;
  std::uint32_t threshold;
  int planes;
};

inline WordsPlan make_plan(std::uint64_t seed, std::uint64_t threshold, std::uint32_t tag, std::uint32_t first_output,
                           std::uint32_t first_block) {
  const D64 d;
  const Words2 key = philox_key(seed);
  KeyLanes keys;
  for (std::uint32_t r = 0; r < 9; ++r) {
    keys.k0[r] = hn::Set(d, key.w[0] + r * kPhiloxW0);
    keys.k1[r] = hn::Set(d, key.w[1] + r * kPhiloxW1);
  }
  keys.last0 = hn::Set(d, std::uint64_t{key.w[0] + 9 * kPhiloxW0} << 32);
  keys.last1 = hn::Set(d, std::uint64_t{key.w[1] + 9 * kPhiloxW1} << 32);
  return {keys,
          key.w[0],
          key.w[1],
          tag,
          first_output,
          first_block,
          static_cast<std::uint32_t>(threshold),
          planes_needed(threshold)};
}

/// What (m, n) gives to the calls of a vector of outputs: the product of round two.
struct PairVector {
  V64 low, high;
};
struct Pairs {
  std::uint32_t sample_low;
  PairVector vector[kVectors];
};

HWY_INLINE Pairs make_pairs(const WordsPlan& plan, std::uint32_t m, std::uint32_t n) {
  const D64 d;
  const std::uint64_t b = std::uint64_t{kPhiloxM1} * m;
  const V64 constant = hn::Set(d, static_cast<std::uint32_t>(b >> 32) ^ plan.k0), m0 = hn::Set(d, kPhiloxM0);
  Pairs pairs;
  pairs.sample_low = static_cast<std::uint32_t>(b);
  for (int v = 0; v < kVectors; ++v) {
    const V64 outputs = hn::Iota(d, plan.first_output + n + static_cast<std::uint64_t>(v) * kCalls);
    pairs.vector[v].low = mul_low(m0, hn::Xor(outputs, constant));
    pairs.vector[v].high = hn::ShiftRight<32>(pairs.vector[v].low);
  }
  return pairs;
}

/// What (plane, block) gives to a call, and what (plane, block, m) does, each in a whole lane: vectors load them so.
struct BlockPart {
  std::uint64_t x0, x2;
  std::uint32_t c0;
};
struct RowPart {
  std::uint64_t x3, c3;
};
inline constexpr int kMaxPlanes = 32;

/// The parts of all planes of a block: parts[0 ... kMaxPlanes).
inline void make_block_parts(const WordsPlan& plan, std::uint32_t block, BlockPart* parts) {
  for (int q = 0; q < plan.planes; ++q) {
    const std::uint64_t a1 =
        std::uint64_t{kPhiloxM0} * (static_cast<std::uint32_t>(q) << 27 | (plan.first_block + block));
    const std::uint64_t b2 = std::uint64_t{kPhiloxM1} * (static_cast<std::uint32_t>(a1 >> 32) ^ plan.tag ^ plan.k1);
    parts[q] = {static_cast<std::uint32_t>(b2) ^ (plan.k0 + 2 * kPhiloxW0),
                static_cast<std::uint32_t>(a1) ^ (plan.k1 + kPhiloxW1),
                static_cast<std::uint32_t>(b2 >> 32) ^ (plan.k0 + kPhiloxW0)};
  }
}

HWY_INLINE RowPart make_row_part(const WordsPlan& plan, const BlockPart& block, std::uint32_t sample_low) {
  const std::uint64_t a3 = std::uint64_t{kPhiloxM0} * (block.c0 ^ sample_low);
  return {static_cast<std::uint32_t>(a3 >> 32) ^ (plan.k1 + 2 * kPhiloxW1), a3};
}

HWY_INLINE V64 all_lanes(const std::uint64_t& value) {
#if HWY_TARGET == HWY_AVX3
  return V64{_mm512_set1_epi64(static_cast<long long>(value))};
#else
  return hn::Set(D64(), value);
#endif
}

/// One plane of N vectors of calls, interleaved: words 0, 1 and words 2, 3 of each call.
template <int N>
HWY_INLINE void plane(const WordsPlan& plan, const PairVector* pair, const BlockPart& block, const RowPart& row,
                      V64* w01, V64* w23) {
  const D64 d;
  Counters c[N];
  for (int v = 0; v < N; ++v) {
    const V64 b3 = mul_low(hn::Set(d, kPhiloxM1), hn::Xor(pair[v].high, all_lanes(block.x2)));
    c[v] = {hn::Xor(hn::ShiftRight<32>(b3), all_lanes(block.x0)), b3, hn::Xor(pair[v].low, all_lanes(row.x3)),
            all_lanes(row.c3)};
  }
  const V64 m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 10
#endif
  for (int r = 3; r < 9; ++r)
    for (int v = 0; v < N; ++v) {
      const V64 a = mul_low(m0, c[v].c0), b = mul_low(m1, c[v].c2);
      c[v].c0 = xor3(hn::ShiftRight<32>(b), c[v].c1, plan.keys.k0[r]);
      c[v].c1 = b;
      c[v].c2 = xor3(hn::ShiftRight<32>(a), c[v].c3, plan.keys.k1[r]);
      c[v].c3 = a;
    }
  for (int v = 0; v < N; ++v) {  // the last round: words 1 and 0, and words 3 and 2, in the halves of a lane
    const V64 a = mul_low(m0, c[v].c0), b = mul_low(m1, c[v].c2);
    w01[v] = xor3(b, hn::ShiftLeft<32>(c[v].c1), plan.keys.last0);
    w23[v] = xor3(a, hn::ShiftLeft<32>(c[v].c3), plan.keys.last1);
  }
}

/// Bits that are still open (equal to T so far) and, of the others, those that are kept.
struct Decision {
  V64 open01, open23, keep01, keep23;

  /// One plane more, whose bit of T is `one`.
  HWY_INLINE void add(V64 w01, V64 w23, bool one) {
    if (one) {  // a 0 bit drops
      open01 = hn::And(open01, w01);
      open23 = hn::And(open23, w23);
    } else {  // a 1 bit keeps
      keep01 = hn::Or(keep01, hn::And(open01, w01));
      keep23 = hn::Or(keep23, hn::And(open23, w23));
      open01 = hn::AndNot(w01, open01);
      open23 = hn::AndNot(w23, open23);
    }
  }
  HWY_INLINE bool done() const {
    const D64 d;
    return hn::AllTrue(d, hn::Eq(hn::Or(open01, open23), hn::Zero(d)));
  }
};

#if HWY_TARGET == HWY_AVX3
/// After plane `first` about 6 of 16 calls have bits that are open: these go on in one vector, if they fit.
HWY_INLINE void finish_together(const WordsPlan& plan, const Pairs& pairs, const BlockPart* parts, RowPart* rows,
                                int first, int& made, int v0, Decision (&decision)[2]) {
  const auto open_lanes = [](const Decision& d) {
    return _mm512_test_epi64_mask(_mm512_or_si512(d.open01.raw, d.open23.raw), _mm512_set1_epi64(-1));
  };
  const __mmask8 a = open_lanes(decision[0]), b = open_lanes(decision[1]);
  const int count_a = __builtin_popcount(a), count = count_a + __builtin_popcount(b);
  if (count == 0 || count > 8) return;
  const auto upper = static_cast<__mmask8>(0xFFu << count_a);  // where b's calls go
  const auto join = [&](V64 of_a, V64 of_b) {
    return V64{_mm512_mask_expand_epi64(_mm512_maskz_compress_epi64(a, of_a.raw), upper,
                                        _mm512_maskz_compress_epi64(b, of_b.raw))};
  };
  const PairVector* two = pairs.vector + v0;
  PairVector pair;
  pair.low = join(two[0].low, two[1].low);
  pair.high = hn::ShiftRight<32>(pair.low);
  const V64 zero = hn::Zero(D64());
  Decision rest = {join(decision[0].open01, decision[1].open01), join(decision[0].open23, decision[1].open23), zero,
                   zero};
  int q = first;
  do {
    if (q == made) rows[made++] = make_row_part(plan, parts[q], pairs.sample_low);
    V64 w01, w23;
    plane<1>(plan, &pair, parts[q], rows[q], &w01, &w23);
    rest.add(w01, w23, (plan.threshold >> (31 - q) & 1u) != 0);
  } while (++q < plan.planes && !rest.done());
  const auto part_of_a = [&](V64 v) { return V64{_mm512_maskz_expand_epi64(a, v.raw)}; };
  const auto part_of_b = [&](V64 v) {
    return V64{_mm512_maskz_expand_epi64(b, _mm512_maskz_compress_epi64(upper, v.raw))};
  };
  const V64 keep01 = hn::Or(rest.keep01, rest.open01), keep23 = hn::Or(rest.keep23, rest.open23);
  decision[0] = {zero, zero, hn::Or(decision[0].keep01, part_of_a(keep01)),
                 hn::Or(decision[0].keep23, part_of_a(keep23))};
  decision[1] = {zero, zero, hn::Or(decision[1].keep01, part_of_b(keep01)),
                 hn::Or(decision[1].keep23, part_of_b(keep23))};
}
#endif

/// Keep bits of 16 outputs in the block of `parts`.
HWY_INLINE void keep_bits(const WordsPlan& plan, const Pairs& pairs, const BlockPart* parts, GroupBits& out) {
  const D64 d;
  constexpr int kTogether = HWY_TARGET == HWY_AVX3 ? 2 : 1;  // vectors interleaved, as the registers allow
  static_assert(kVectors % kTogether == 0);
  constexpr int kUnchecked = 8;  // planes before which a vector is hardly ever decided
  RowPart rows[kMaxPlanes];
  const int first = plan.planes < kUnchecked ? plan.planes : kUnchecked;
  for (int q = 0; q < first; ++q) rows[q] = make_row_part(plan, parts[q], pairs.sample_low);
  int made = first;
  for (int v0 = 0; v0 < kVectors; v0 += kTogether) {
    Decision decision[kTogether];
    const V64 ones = hn::Set(d, ~std::uint64_t{0}), zero = hn::Zero(d);
    for (int v = 0; v < kTogether; ++v) decision[v] = {ones, ones, zero, zero};
    for (int q = 0; q < first; ++q) {
      V64 w01[kTogether], w23[kTogether];
      plane<kTogether>(plan, pairs.vector + v0, parts[q], rows[q], w01, w23);
      const bool one = (plan.threshold >> (31 - q) & 1u) != 0;
      for (int v = 0; v < kTogether; ++v) decision[v].add(w01[v], w23[v], one);
    }
#if HWY_TARGET == HWY_AVX3
    if (plan.planes > first) finish_together(plan, pairs, parts, rows, first, made, v0, decision);
#endif
    for (int v = 0; v < kTogether; ++v) {
      for (int q = first; q < plan.planes && !decision[v].done(); ++q) {
        if (q == made) rows[made++] = make_row_part(plan, parts[q], pairs.sample_low);
        V64 w01, w23;
        plane<1>(plan, pairs.vector + v0 + v, parts[q], rows[q], &w01, &w23);
        decision[v].add(w01, w23, (plan.threshold >> (31 - q) & 1u) != 0);
      }
      // Equal so far and no 1 bit of T left: kept.
      const std::size_t at = static_cast<std::size_t>(v0 + v) * kCalls;
      hn::Store(hn::Or(decision[v].keep01, decision[v].open01), d, out.word[0] + at);
      hn::Store(hn::Or(decision[v].keep23, decision[v].open23), d, out.word[1] + at);
    }
  }
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
