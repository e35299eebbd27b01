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

/// Rounds four to ten of N vectors of calls, interleaved: words 0, 1 and words 2, 3 of each call.
template <int N>
HWY_INLINE void finish_rounds(const WordsPlan& plan, Counters (&c)[N], V64* w01, V64* w23) {
  const D64 d;
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

/// One plane of N vectors of calls of one row.
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
  finish_rounds<N>(plan, c, w01, w23);
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
      keep01 = hn::OrAnd(keep01, open01, w01);
      keep23 = hn::OrAnd(keep23, open23, w23);
      open01 = hn::AndNot(w01, open01);
      open23 = hn::AndNot(w23, open23);
    }
  }
  HWY_INLINE bool done() const {
    const D64 d;
    return hn::AllTrue(d, hn::Eq(hn::Or(open01, open23), hn::Zero(d)));
  }
};

inline constexpr int kUnchecked = 8;     // planes before which a vector is hardly ever decided
inline constexpr int kRowsTogether = 4;  // rows of a block whose calls are drawn together

#if HWY_TARGET == HWY_AVX3
/// Calls of several rows that have open bits, side by side. After eight planes they are about 25 of 64, and a quarter
/// of these two planes later.
class OpenCalls {
 public:
  void add(const Pairs& pairs, int vector, const Decision& decision, std::int64_t place) {
    const V64 places = hn::Iota(D64(), static_cast<std::uint64_t>(place) + static_cast<std::uint64_t>(vector) * kCalls);
    put(open_lanes(decision), {pairs.vector[vector].low, hn::Set(D64(), pairs.sample_low), places, decision});
  }

  /// Draws planes from `first` on until all is decided; the word of a call's place in `out` becomes whole.
  void finish(const WordsPlan& plan, const BlockPart* parts, int first, std::uint64_t* out) {
    for (int q = first; count_ > 0;) {
      for (int i = 0; i < 2 && q < plan.planes; ++i, ++q) draw(plan, parts[q], (plan.threshold >> (31 - q) & 1u) != 0);
      const int vectors = (count_ + 7) / 8, count = count_;
      count_ = 0;
      for (int v = 0; v < vectors; ++v) {
        const Calls calls = get(v);
        const auto lanes = static_cast<__mmask8>(count - 8 * v >= 8 ? 0xFF : (1 << (count - 8 * v)) - 1);
        const __mmask8 open = q < plan.planes ? open_lanes(calls.decision) & lanes : __mmask8{0};
        const auto done = static_cast<__mmask8>(lanes & ~open);
        const Decision& d = calls.decision;  // equal so far and no 1 bit of T left: kept
        _mm512_mask_i64scatter_epi64(out, done, calls.place.raw, hn::Or(d.keep01, d.open01).raw, 8);
        _mm512_mask_i64scatter_epi64(out + kGroupCalls, done, calls.place.raw, hn::Or(d.keep23, d.open23).raw, 8);
        put(open, calls);
      }
    }
  }

 private:
  struct Calls {
    V64 low, sample, place;
    Decision decision;
  };
  static constexpr int kFields = 7;

  static __mmask8 open_lanes(const Decision& d) {
    const __m512i open = _mm512_or_si512(d.open01.raw, d.open23.raw);
    return _mm512_test_epi64_mask(open, open);
  }
  HWY_INLINE Calls get(int v) const {
    const auto field = [&](int f) { return V64{_mm512_load_si512(fields_[f] + 8 * v)}; };
    return {field(0), field(1), field(2), {field(3), field(4), field(5), field(6)}};
  }
  HWY_INLINE void put(__mmask8 lanes, const Calls& c) {
    const V64 values[kFields] = {
        c.low, c.sample, c.place, c.decision.open01, c.decision.open23, c.decision.keep01, c.decision.keep23};
    for (int f = 0; f < kFields; ++f)
      _mm512_storeu_si512(fields_[f] + count_, _mm512_maskz_compress_epi64(lanes, values[f].raw));
    count_ += __builtin_popcount(lanes);
  }

  template <int N>
  HWY_INLINE void draw_vectors(const WordsPlan& plan, const BlockPart& block, bool one, int v0) {
    const D64 d;
    const V64 m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1), k1 = hn::Set(d, plan.k1 + 2 * kPhiloxW1);
    Counters c[N];
    for (int v = 0; v < N; ++v) {
      const V64 low{_mm512_load_si512(fields_[0] + 8 * (v0 + v))}, sample{_mm512_load_si512(fields_[1] + 8 * (v0 + v))};
      const V64 b3 = mul_low(m1, hn::Xor(hn::ShiftRight<32>(low), all_lanes(block.x2)));
      const V64 a3 = mul_low(m0, hn::Xor(sample, hn::Set(d, block.c0)));
      c[v] = {hn::Xor(hn::ShiftRight<32>(b3), all_lanes(block.x0)), b3, xor3(hn::ShiftRight<32>(a3), low, k1), a3};
    }
    V64 w01[N], w23[N];
    finish_rounds<N>(plan, c, w01, w23);
    for (int v = 0; v < N; ++v) {
      Decision decision = get(v0 + v).decision;
      decision.add(w01[v], w23[v], one);
      const V64 values[] = {decision.open01, decision.open23, decision.keep01, decision.keep23};
      for (int f = 0; f < 4; ++f) _mm512_store_si512(fields_[3 + f] + 8 * (v0 + v), values[f].raw);
    }
  }
  HWY_INLINE void draw(const WordsPlan& plan, const BlockPart& block, bool one) {
    for (int v = 0; 8 * v < count_; v += 4) {
      switch ((count_ + 7) / 8 - v) {
        case 1: draw_vectors<1>(plan, block, one, v); break;
        case 2: draw_vectors<2>(plan, block, one, v); break;
        case 3: draw_vectors<3>(plan, block, one, v); break;
        default: draw_vectors<4>(plan, block, one, v);
      }
    }
  }

  alignas(64) std::uint64_t fields_[kFields][kRowsTogether * kGroupCalls + 8];
  int count_ = 0;
};
#endif

/// Keep bits of 16 outputs of up to kRowsTogether rows in the block of `parts`; those of row i go to out[i * stride].
HWY_INLINE void keep_bits(const WordsPlan& plan, const Pairs* pairs, int count, const BlockPart* parts, GroupBits* out,
                          int stride) {
  const D64 d;
  constexpr int kTogether = HWY_TARGET == HWY_AVX3 ? 2 : 1;  // vectors interleaved, as the registers allow
  static_assert(kVectors % kTogether == 0);
  const int first = plan.planes < kUnchecked ? plan.planes : kUnchecked;
#if HWY_TARGET == HWY_AVX3
  OpenCalls open;
#endif
  for (int i = 0; i < count; ++i) {
    RowPart rows[kMaxPlanes];
    for (int q = 0; q < first; ++q) rows[q] = make_row_part(plan, parts[q], pairs[i].sample_low);
    [[maybe_unused]] int made = first;
    GroupBits& to = out[i * stride];
    for (int v0 = 0; v0 < kVectors; v0 += kTogether) {
      Decision decision[kTogether];
      const V64 ones = hn::Set(d, ~std::uint64_t{0}), zero = hn::Zero(d);
      for (int v = 0; v < kTogether; ++v) decision[v] = {ones, ones, zero, zero};
      for (int q = 0; q < first; ++q) {
        V64 w01[kTogether], w23[kTogether];
        plane<kTogether>(plan, pairs[i].vector + v0, parts[q], rows[q], w01, w23);
        const bool one = (plan.threshold >> (31 - q) & 1u) != 0;
        for (int v = 0; v < kTogether; ++v) decision[v].add(w01[v], w23[v], one);
      }
      for (int v = 0; v < kTogether; ++v) {
#if HWY_TARGET == HWY_AVX3
        if (plan.planes > first) open.add(pairs[i], v0 + v, decision[v], std::int64_t{i} * stride * 2 * kGroupCalls);
#else
        for (int q = first; q < plan.planes && !decision[v].done(); ++q) {
          if (q == made) rows[made++] = make_row_part(plan, parts[q], pairs[i].sample_low);
          V64 w01, w23;
          plane<1>(plan, pairs[i].vector + v0 + v, parts[q], rows[q], &w01, &w23);
          decision[v].add(w01, w23, (plan.threshold >> (31 - q) & 1u) != 0);
        }
#endif
        // Equal so far and no 1 bit of T left: kept.
        const std::size_t at = static_cast<std::size_t>(v0 + v) * kCalls;
        hn::Store(hn::Or(decision[v].keep01, decision[v].open01), d, to.word[0] + at);
        hn::Store(hn::Or(decision[v].keep23, decision[v].open23), d, to.word[1] + at);
      }
    }
  }
#if HWY_TARGET == HWY_AVX3
  open.finish(plan, parts, first, out->word[0]);
#endif
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
