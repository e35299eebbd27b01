// Dropout of contiguous memory in one loop: bits go from the generator to the data through registers, so that the
// processor overlaps the arithmetic of one group of elements with the memory of others.
#if defined(MASKLESS_CPU_FLAT_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_CPU_FLAT_HWY_H_
#undef MASKLESS_CPU_FLAT_HWY_H_
#else
#define MASKLESS_CPU_FLAT_HWY_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "cpu/apply_hwy.h"
#include "cpu/keep_bits_hwy.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

/// The bits of a mask of at most 64 lanes.
template <class D>
HWY_INLINE std::uint64_t bits_of(D d, hn::Mask<D> mask) {
  std::uint64_t bits = 0;
  hn::StoreMaskBits(d, mask, reinterpret_cast<std::uint8_t*>(&bits));
  return bits;
}

/// Some of 8 * kCalls elements have the high half of the threshold.
HWY_NOINLINE inline std::uint64_t settle_group(const DropoutMask& mask, std::uint64_t seed, std::uint64_t block,
                                               std::uint64_t keep, std::uint64_t equal) {
  for (unsigned b = 0; b < kCalls; ++b) {
    const unsigned byte = static_cast<unsigned>(equal >> (8 * b) & 0xFF);
    if (byte == 0) continue;
    const std::uint64_t settled =
        cpu::settle(mask, seed, block + b, static_cast<unsigned>(keep >> (8 * b) & 0xFF), byte);
    keep = (keep & ~(std::uint64_t{0xFF} << (8 * b))) | settled << (8 * b);
  }
  return keep;
}

#if HWY_TARGET != HWY_AVX3

/// A mask of 16-bit lanes, all ones or zeros, used on as many elements of Lane's size: f(first element, their mask).
template <typename Lane, class F>
HWY_INLINE void for_masks(hn::Vec<hn::ScalableTag<std::int16_t>> mask, F&& f) {
  const hn::ScalableTag<std::int16_t> d16;
  const hn::ScalableTag<std::int32_t> d32;
  const hn::ScalableTag<std::int64_t> d64;
  if constexpr (sizeof(Lane) == 2) {
    f(std::size_t{0}, hn::BitCast(hn::ScalableTag<Lane>(), mask));
  } else {
    const hn::Half<decltype(d16)> dh16;
    const hn::Half<decltype(d32)> dh32;
    const hn::Vec<decltype(d32)> halves[2] = {hn::PromoteTo(d32, hn::LowerHalf(dh16, mask)),
                                              hn::PromoteTo(d32, hn::UpperHalf(dh16, mask))};
    constexpr std::size_t kLanes = hn::MaxLanes(d32);
    for (std::size_t h = 0; h < 2; ++h) {
      if constexpr (sizeof(Lane) == 4) {
        f(h * kLanes, hn::BitCast(hn::ScalableTag<Lane>(), halves[h]));
      } else {
        const auto low = hn::PromoteTo(d64, hn::LowerHalf(dh32, halves[h]));
        const auto high = hn::PromoteTo(d64, hn::UpperHalf(dh32, halves[h]));
        f(h * kLanes, hn::BitCast(hn::ScalableTag<Lane>(), low));
        f(h * kLanes + kLanes / 2, hn::BitCast(hn::ScalableTag<Lane>(), high));
      }
    }
  }
}

#endif

/// As cpu::BitKernels::Flat.
template <class Op>
std::size_t flat(const DropoutMask& mask, std::uint64_t seed, const cpu::KeySchedule& schedule, std::uint64_t index,
                 double scale, const void* x, void* y, std::size_t n, bool bypass) {
  using Lane = typename Op::Lane;
  const hn::ScalableTag<Lane> d;
  const hn::ScalableTag<std::uint16_t> d16;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr std::size_t kAhead = 2048 / sizeof(Lane);  // elements
  const RoundKeys keys = {schedule};
  const Op op(scale);
  const Lane* from = static_cast<const Lane*>(x);
  Lane* to = static_cast<Lane*>(y);
  const auto t = hn::Set(d16, static_cast<std::uint16_t>(mask.threshold >> 16));
  std::uint64_t block = index >> 3;
  const unsigned shift = static_cast<unsigned>(index & 7);
  // A word of 64 elements takes eight blocks, and one more where it does not begin with a block. The block number's low
  // 32 bits do not wrap around on the way.
  const std::uint64_t blocks = (std::uint64_t{1} << 32) - (block & 0xFFFFFFFFu);
  if (blocks < 16) return 0;
  const std::size_t words = static_cast<std::size_t>(HWY_MIN(n / 64, blocks / 8 - 1));
  HighHalves halves(keys, philox_key(seed), block, mask.stream);
  const auto next_word = [&]() HWY_ATTR {
    std::uint64_t word = 0;
    for (std::size_t c = 0; c < 8; c += kCalls, block += kCalls) {
      V64 first, second;
      halves.next(first, second);
      const auto h0 = hn::BitCast(d16, first), h1 = hn::BitCast(d16, second);
      std::uint64_t keep = bits_of(d16, hn::Gt(h0, t)) | bits_of(d16, hn::Gt(h1, t)) << (4 * kCalls);
      const auto equal0 = hn::Eq(h0, t), equal1 = hn::Eq(h1, t);
      if (HWY_UNLIKELY(!hn::AllFalse(d16, hn::Or(equal0, equal1))))  // once in 65,536 elements
        keep = settle_group(mask, seed, block, keep, bits_of(d16, equal0) | bits_of(d16, equal1) << (4 * kCalls));
      word |= keep << (8 * c);
    }
    return word;
  };
#if HWY_TARGET != HWY_AVX3  // masks are vectors: where positions allow it, they need not become bits
  if (shift == 0) {
    const hn::ScalableTag<std::int16_t> di16;
    for (std::size_t w = 0; w < words; ++w) {
      for (std::size_t i = 0; i < 64; i += 64 / sizeof(Lane)) hwy::Prefetch(from + kAhead + i);
      for (std::size_t c = 0; c < 8; c += kCalls, block += kCalls) {
        V64 first, second;
        halves.next(first, second);
        const auto h0 = hn::BitCast(d16, first), h1 = hn::BitCast(d16, second);
        auto keep0 = hn::Gt(h0, t), keep1 = hn::Gt(h1, t);
        const auto equal0 = hn::Eq(h0, t), equal1 = hn::Eq(h1, t);
        if (HWY_UNLIKELY(!hn::AllFalse(d16, hn::Or(equal0, equal1)))) {  // once in 65,536 elements
          const std::uint64_t settled =
              settle_group(mask, seed, block, bits_of(d16, keep0) | bits_of(d16, keep1) << (4 * kCalls),
                           bits_of(d16, equal0) | bits_of(d16, equal1) << (4 * kCalls));
          keep0 = mask_of(d16, settled);
          keep1 = mask_of(d16, settled >> (4 * kCalls));
        }
        const auto use = [&](std::size_t i, hn::Vec<decltype(d)> keep) HWY_ATTR {
          const auto v = hn::And(keep, op(hn::LoadU(d, from + i)));
          if (bypass) {
            hn::Stream(v, d, to + i);
          } else {
            hn::StoreU(v, d, to + i);
          }
        };
        for_masks<Lane>(hn::BitCast(di16, hn::VecFromMask(d16, keep0)), use);
        from += 4 * kCalls;
        to += 4 * kCalls;
        for_masks<Lane>(hn::BitCast(di16, hn::VecFromMask(d16, keep1)), use);
        from += 4 * kCalls;
        to += 4 * kCalls;
      }
    }
    return words * 64;
  }
#endif
  std::uint64_t previous = shift != 0 ? next_word() : 0;
  for (std::size_t w = 0; w < words; ++w, from += 64, to += 64) {
    for (std::size_t i = 0; i < 64; i += 64 / sizeof(Lane)) hwy::Prefetch(from + kAhead + i);
    std::uint64_t keep = next_word();
    if (shift != 0) {
      const std::uint64_t joined = previous >> shift | keep << (64 - shift);
      previous = keep;
      keep = joined;
    }
    for (std::size_t i = 0; i < 64; i += kLanes) {
      const auto v = hn::IfThenElseZero(mask_of(d, keep >> i), op(hn::LoadU(d, from + i)));
      if (bypass) {
        hn::Stream(v, d, to + i);
      } else {
        hn::StoreU(v, d, to + i);
      }
    }
  }
  return words * 64;
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
