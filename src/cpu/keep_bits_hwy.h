// Keep bits of dropout, by vectors: the CPU kernels' generators for both layouts of the mask.
#if defined(MASKLESS_CPU_KEEP_BITS_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_CPU_KEEP_BITS_HWY_H_
#undef MASKLESS_CPU_KEEP_BITS_HWY_H_
#else
#define MASKLESS_CPU_KEEP_BITS_HWY_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/apply_hwy.h"
#include "cpu/bit_kernels.h"
#include "cpu/philox_hwy.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

HWY_INLINE void fetch(const cpu::Ahead& ahead, std::size_t bit) {
  for (std::size_t at = 0; at < ahead.bytes; at += 64) hwy::Prefetch(ahead.from + bit / 64 * ahead.bytes + at);
}

/// High halves of u as they are compared with the threshold's. Where only signed numbers compare at once, both have
/// their top bit flipped: that of u within the last keys, which costs nothing.
#if HWY_TARGET == HWY_AVX3
using DHalf = hn::ScalableTag<std::uint16_t>;
inline constexpr std::uint64_t kFlip = 0;
#else
using DHalf = hn::ScalableTag<std::int16_t>;
inline constexpr std::uint64_t kFlip = 0x8000800080008000u;
#endif

HWY_INLINE hn::Vec<DHalf> high_threshold(const DropoutMask& mask) {
  return hn::Set(DHalf(), static_cast<hn::TFromD<DHalf>>((mask.threshold >> 16 ^ kFlip) & 0xFFFF));
}

/// High halves of u for kBlocks consecutive blocks a call, first_block on. Philox with part = 0 in counter word 2,
/// whose first rounds simplify: the products of words that are equal in all lanes are taken once, and the product of
/// the block number grows by addition. The low 32 bits of the block number must not wrap around on the way.
class HighHalves {
 public:
  // A call is one chain of dependent steps: where a vector holds few, two go side by side.
  static constexpr std::size_t kChains = HWY_TARGET == HWY_AVX3 ? 1 : 2;
  static constexpr std::size_t kBlocks = kChains * kCalls;  // a call of next()
  static constexpr std::size_t kVectors = 2 * kChains;      // of kCalls / 2 blocks

  HWY_INLINE HighHalves(const cpu::KeySchedule& schedule, Words2 key, std::uint64_t first_block, std::uint32_t stream)
      : keys_(schedule, kFlip) {
    const D64 d;
    const V64 blocks = hn::Add(hn::Set(d, first_block & 0xFFFFFFFFu), block_lanes());
    product_ = mul_low(blocks, hn::Set(d, kPhiloxM0));
    step_ = hn::Set(d, std::uint64_t{kPhiloxM0} * kCalls);
    const std::uint32_t high = static_cast<std::uint32_t>(first_block >> 32);
    const std::uint64_t second = std::uint64_t{kPhiloxM0} * (high ^ key.w[0]);
    after1_ = hn::Set(d, std::uint64_t{counter_tag(Op::kDropout, stream) ^ key.w[1]});
    after2_ = hn::Set(d, second >> 32 ^ static_cast<std::uint32_t>(key.w[1] + kPhiloxW1));
    after3_ = hn::Set(d, std::uint64_t{static_cast<std::uint32_t>(second) ^ (key.w[1] + 2 * kPhiloxW1)});
  }

  /// Goes on `blocks` further, or back.
  HWY_INLINE void skip(std::int64_t blocks) {
    product_ = hn::Add(product_, hn::Set(D64(), std::uint64_t{kPhiloxM0} * static_cast<std::uint64_t>(blocks)));
  }

  /// In memory order, kCalls / 2 blocks a vector.
  HWY_INLINE void next(hn::Vec<DHalf> (&halves)[kVectors]) {
    const D64 d;
    const V64 m0 = hn::Set(d, kPhiloxM0), m1 = hn::Set(d, kPhiloxM1);
    Counters calls[kChains];
    for (Counters& c : calls) {
      const V64 c2 = hn::Xor(hn::ShiftRight<32>(product_), after1_);  // round 1
      const V64 b2 = mul_low(m1, c2);                                 // round 2
      c.c0 = hn::Xor(hn::ShiftRight<32>(b2), keys_.k0(1));
      c.c2 = hn::Xor(product_, after2_);
      const V64 a3 = mul_low(m0, c.c0), b3 = mul_low(m1, c.c2);  // round 3
      c.c0 = xor3(hn::ShiftRight<32>(b3), b2, keys_.k0(2));
      c.c1 = b3;
      c.c2 = hn::Xor(hn::ShiftRight<32>(a3), after3_);
      c.c3 = a3;
      product_ = hn::Add(product_, step_);
    }
    philox_rounds<3, 9>(calls, keys_);
    for (std::size_t g = 0; g < kChains; ++g) {
      V64 w01, w23;
      philox_last_round(calls[g], keys_, w01, w23);
      halves[2 * g] = hn::BitCast(DHalf(), hn::InterleaveLower(d, w01, w23));
      halves[2 * g + 1] = hn::BitCast(DHalf(), hn::InterleaveUpper(d, w01, w23));
    }
  }

 private:
  BroadcastKeys keys_;
  V64 product_, step_, after1_, after2_, after3_;
};

/// The bits of a mask of at most 64 lanes.
template <class D>
HWY_INLINE std::uint64_t bits_of(D d, hn::Mask<D> mask) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}

/// Some of kCalls / 2 blocks, from `block` on, have the high half of the threshold.
HWY_NOINLINE inline std::uint64_t settle_blocks(const DropoutMask& mask, std::uint64_t seed, std::uint64_t block,
                                                std::uint64_t keep, std::uint64_t equal) {
  for (unsigned b = 0; b < kCalls / 2; ++b) {
    const unsigned byte = static_cast<unsigned>(equal >> (8 * b) & 0xFF);
    if (byte == 0) continue;
    const std::uint64_t settled =
        cpu::settle(mask, seed, block + b, static_cast<unsigned>(keep >> (8 * b) & 0xFF), byte);
    keep = (keep & ~(std::uint64_t{0xFF} << (8 * b))) | settled << (8 * b);
  }
  return keep;
}

/// The masks of the next kBlocks blocks, `block` on: take(0 ... kVectors - 1, mask of kCalls / 2 blocks).
template <class F>
HWY_INLINE void keep_blocks(const DropoutMask& mask, std::uint64_t seed, std::uint64_t block, HighHalves& source,
                            hn::Vec<DHalf> t, F&& take) {
  constexpr std::size_t kVectors = HighHalves::kVectors;
  const DHalf d;
  hn::Vec<DHalf> halves[kVectors];
  source.next(halves);
  hn::Mask<DHalf> equal[kVectors], keep[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    keep[v] = hn::Gt(halves[v], t);
    equal[v] = hn::Eq(halves[v], t);
  }
  auto any = hn::Or(equal[0], equal[1]);
  for (std::size_t v = 2; v < kVectors; ++v) any = hn::Or(any, equal[v]);
  if (HWY_UNLIKELY(!hn::AllFalse(d, any))) {
    for (std::size_t v = 0; v < kVectors; ++v)  // once in 65,536 elements
      keep[v] =
          mask_of(d, settle_blocks(mask, seed, block + v * kCalls / 2, bits_of(d, keep[v]), bits_of(d, equal[v])));
  }
  for (std::size_t v = 0; v < kVectors; ++v) take(v, keep[v]);
}

/// Keep bits of `n` elements from `index` on: bit (index & 7) + e of `bits` is element e. Writes whole vectors: up to
/// 16 bytes more than (n + 7) / 8.
HWY_NOINLINE inline void packed_bits(const DropoutMask& mask, std::uint64_t seed, const cpu::KeySchedule& schedule,
                                     std::uint64_t index, std::size_t n, std::uint8_t* bits, cpu::Ahead ahead) {
  const auto t = high_threshold(mask);
  std::uint64_t block = index >> 3;
  std::size_t blocks = static_cast<std::size_t>(((index & 7) + n + 7) >> 3), at = 0;
  while (at < blocks) {
    constexpr std::size_t kBlocks = HighHalves::kBlocks;
    const std::uint64_t until_wrap = (std::uint64_t{1} << 32) - (block & 0xFFFFFFFFu);
    if (until_wrap < kBlocks) {  // once in 2^35 elements
      bits[at++] = cpu::block_bits(mask, seed, block++);
      continue;
    }
    const std::size_t groups =
        HWY_MIN((blocks - at + kBlocks - 1) / kBlocks, static_cast<std::size_t>(until_wrap / kBlocks));
    HighHalves halves(schedule, philox_key(seed), block, mask.stream);
    for (std::size_t g = 0; g < groups; ++g, at += kBlocks, block += kBlocks) {
      for (std::size_t b = at; b < at + kBlocks; ++b)
        if (b % 8 == 0) fetch(ahead, b * 8);
      keep_blocks(mask, seed, block, halves, t, [&](std::size_t v, hn::Mask<DHalf> keep) HWY_ATTR {
        hn::StoreMaskBits(DHalf(), keep, bits + at + v * kCalls / 2);
      });
    }
  }
}

/// The same for the Triton layout, one Philox call an element: bit e of `bits` is element e.
HWY_NOINLINE inline void triton_bits(const DropoutMask& mask, const cpu::KeySchedule& schedule, std::uint64_t index,
                                     std::size_t n, std::uint8_t* bits, cpu::Ahead ahead) {
  const RoundKeys keys = {schedule};
  const D64 d;
  const hn::Repartition<std::int32_t, D64> di;
  const auto below = hn::Set(di, static_cast<std::int32_t>(mask.threshold - 1));
  const V64 lanes = hn::Iota(d, 0), low = hn::Set(d, 0xFFFFFFFFu);
  const auto word0 = [&](std::uint64_t first) HWY_ATTR {
    const V64 at = hn::Add(hn::Set(d, first), lanes);
    Counters c = {hn::And(at, low), hn::ShiftRight<32>(at), hn::Zero(d), hn::Zero(d)};
    philox10(c, keys);
    return hn::BitCast(di, c.c0);
  };
  for (std::size_t e = 0; e < n; e += 64) {
    fetch(ahead, e);
    std::uint64_t word = 0;
    for (std::size_t k = 0; k < 64; k += 2 * kCalls) {
      const auto x = hn::ConcatEven(di, word0(index + e + k + kCalls), word0(index + e + k));
      const auto folded = hn::Xor(x, hn::ShiftRight<31>(x));  // x < 0 ? ~x : x
      std::uint8_t some[8] = {};
      hn::StoreMaskBits(di, hn::Gt(folded, below), some);
      std::uint64_t more;
      std::memcpy(&more, some, sizeof more);
      word |= more << k;
    }
    std::memcpy(bits + e / 8, &word, sizeof word);
  }
}

/// As cpu::BitKernels::keep_bits.
inline std::size_t keep_bits(const DropoutMask& mask, std::uint64_t seed, const cpu::KeySchedule& schedule,
                             std::uint64_t index, std::size_t n, std::uint8_t* bits, cpu::Ahead ahead) {
  const bool triton = mask.layout == Layout::kTriton;
  const bool none = mask.threshold == 0, all = mask.threshold >> (triton ? 31 : 32) != 0;
  if (none || all) {
    std::memset(bits, all ? 0 : 0xFF, n / 8 + 1);
    return 0;
  }
  if (triton) {
    triton_bits(mask, schedule, index, n, bits, ahead);
    return 0;
  }
  packed_bits(mask, seed, schedule, index, n, bits, ahead);
  return static_cast<std::size_t>(index & 7);
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
