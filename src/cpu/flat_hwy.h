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
#include <cstring>

#include "cpu/apply_hwy.h"
#include "cpu/keep_bits_hwy.h"

// Lambdas take HWY_ATTR, but not HWY_INLINE.
#define MASKLESS_INLINE __attribute__((always_inline))

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

/// A mask of 16-bit lanes, used on as many elements of Lane's size: f(first element, their mask).
template <typename Lane, class F>
HWY_INLINE void for_masks(hn::Mask<DHalf> mask, F&& f) {
  const hn::ScalableTag<Lane> d;
  if constexpr (sizeof(Lane) == 2) {
    f(std::size_t{0}, hn::RebindMask(d, mask));
  } else {
#if HWY_TARGET == HWY_AVX3  // a register of bits
    using Mask = hn::Mask<decltype(d)>;
    const auto piece = [&](std::size_t first, __mmask32 bits) {
      f(first, Mask{static_cast<decltype(Mask::raw)>(bits)});
    };
    piece(0, mask.raw);
    if constexpr (sizeof(Lane) == 8) piece(8, _kshiftri_mask32(mask.raw, 8));
    piece(16, _kshiftri_mask32(mask.raw, 16));
    if constexpr (sizeof(Lane) == 8) piece(24, _kshiftri_mask32(mask.raw, 24));
#else  // all ones or zeros in each lane
    const DHalf d16;
    const hn::ScalableTag<std::int32_t> d32;
    const hn::ScalableTag<std::int64_t> d64;
    const hn::Half<decltype(d16)> dh16;
    const hn::Half<decltype(d32)> dh32;
    const auto lanes = hn::VecFromMask(d16, mask);
    const hn::Vec<decltype(d32)> halves[2] = {hn::PromoteTo(d32, hn::LowerHalf(dh16, lanes)),
                                              hn::PromoteTo(d32, hn::UpperHalf(dh16, lanes))};
    constexpr std::size_t kLanes = hn::MaxLanes(d32);
    for (std::size_t h = 0; h < 2; ++h) {
      if constexpr (sizeof(Lane) == 4) {
        f(h * kLanes, hn::MaskFromVec(hn::BitCast(d, halves[h])));
      } else {
        const auto low = hn::PromoteTo(d64, hn::LowerHalf(dh32, halves[h]));
        const auto high = hn::PromoteTo(d64, hn::UpperHalf(dh32, halves[h]));
        f(h * kLanes, hn::MaskFromVec(hn::BitCast(d, low)));
        f(h * kLanes + kLanes / 2, hn::MaskFromVec(hn::BitCast(d, high)));
      }
    }
#endif
  }
}

/// `flat` with bypass or without.
template <class Op, bool kBypass>
HWY_NOINLINE std::size_t flat_groups(const DropoutMask& mask, std::uint64_t seed, const cpu::KeySchedule& schedule,
                                     std::uint64_t index, double scale, const void* x, void* y, std::size_t n) {
  using Lane = typename Op::Lane;
  using LaneMask = hn::Mask<hn::ScalableTag<Lane>>;
  using HalfMask = hn::Mask<DHalf>;
  const hn::ScalableTag<Lane> d;
  const DHalf d16;
  constexpr std::size_t kHalves = hn::MaxLanes(d16), kGroup = 8 * HighHalves::kBlocks;  // elements
  constexpr std::size_t kAhead = 8192 / sizeof(Lane), kLine = 64 / sizeof(Lane), kPage = 4096 / sizeof(Lane);
  const Op op(scale);
  const Lane* from = static_cast<const Lane*>(x);
  Lane* to = static_cast<Lane*>(y);
  const auto t = high_threshold(mask);
  const std::uint64_t block = index >> 3;
  const unsigned shift = static_cast<unsigned>(index & 7);
  // A group takes kBlocks blocks, and one more where it does not begin with a block. The block number's low 32 bits do
  // not wrap around on the way.
  const std::uint64_t until_wrap = ((std::uint64_t{1} << 32) - (block & 0xFFFFFFFFu)) / HighHalves::kBlocks;
  if (until_wrap < 2) return 0;
  const std::size_t end = kGroup * static_cast<std::size_t>(HWY_MIN(n / kGroup, until_wrap - 1));
  HighHalves halves(schedule, philox_key(seed), block, mask.stream);

  // The masks of the group that begins with the block of element e: take(element of the group, mask of kHalves).
  const auto next_masks = [&](std::size_t e, auto&& take) HWY_ATTR MASKLESS_INLINE {
    keep_blocks(mask, seed, block + e / 8, halves, t,
                [&](std::size_t v, HalfMask keep) HWY_ATTR MASKLESS_INLINE { take(v * kHalves, keep); });
  };
  const auto use = [&](std::size_t e, LaneMask keep) HWY_ATTR MASKLESS_INLINE {
    const auto v = hn::IfThenElseZero(keep, op(hn::LoadU(d, from + e)));
    if constexpr (kBypass) {
      hn::Stream(v, d, to + e);
    } else {
      hn::StoreU(v, d, to + e);
    }
  };
  const auto use_halves = [&](std::size_t e, HalfMask keep) HWY_ATTR MASKLESS_INLINE {
    for_masks<Lane>(keep, [&](std::size_t i, LaneMask some) HWY_ATTR MASKLESS_INLINE { use(e + i, some); });
  };
  const auto fetch_group = [&](std::size_t e) HWY_ATTR MASKLESS_INLINE {
    for (std::size_t i = 0; i < kGroup; i += kLine) hwy::Prefetch(from + e + i + kAhead);
  };

  std::size_t e = 0;
  if (shift == 0) {
    const auto group = [&](std::size_t at) HWY_ATTR MASKLESS_INLINE {
      fetch_group(at);
      next_masks(at, [&](std::size_t i, HalfMask keep) HWY_ATTR MASKLESS_INLINE { use_halves(at + i, keep); });
    };
    if constexpr (kBypass) {  // two pages in turn: more of the memory is on its way than from one
      constexpr std::int64_t kPageBlocks = kPage / 8, kBlocks = HighHalves::kBlocks;
      for (; e + 2 * kPage <= end; e += 2 * kPage) {
        for (std::size_t at = e; at < e + kPage; at += kGroup) {
          group(at);
          halves.skip(kPageBlocks - kBlocks);
          group(at + kPage);
          halves.skip(-kPageBlocks);
        }
        halves.skip(kPageBlocks);
      }
    }
    for (; e < end; e += kGroup) group(e);
    return end;
  }
#if HWY_TARGET == HWY_AVX3
  const auto next_bits = [&](std::size_t at) HWY_ATTR MASKLESS_INLINE {
    std::uint64_t bits = 0;
    next_masks(at, [&](std::size_t i, HalfMask keep) HWY_ATTR MASKLESS_INLINE { bits |= bits_of(d16, keep) << i; });
    return bits;
  };
  std::uint64_t bits = next_bits(0);
  for (; e < end; e += kGroup) {
    fetch_group(e);
    const std::uint64_t next = next_bits(e + kGroup), keep = bits >> shift | next << (64 - shift);
    bits = next;
    for (std::size_t i = 0; i < kGroup; i += hn::MaxLanes(d)) use(e + i, mask_of(d, keep >> i));
  }
#else
  // Two groups of masks in turn, and the first block of the first again, so that what is read lies together.
  HWY_ALIGN hn::TFromD<DHalf> lanes[2 * kGroup + 8];
  const auto next_lanes = [&](std::size_t at, hn::TFromD<DHalf>* out) HWY_ATTR MASKLESS_INLINE {
    next_masks(at, [&](std::size_t i, HalfMask keep)
                       HWY_ATTR MASKLESS_INLINE { hn::Store(hn::VecFromMask(d16, keep), d16, out + i); });
    if (out == lanes) std::memcpy(lanes + 2 * kGroup, lanes, 16);
  };
  next_lanes(0, lanes);
  for (; e < end; e += kGroup) {
    fetch_group(e);
    const std::size_t now = e / kGroup % 2 * kGroup;
    next_lanes(e + kGroup, lanes + (kGroup - now));
    for (std::size_t i = 0; i < kGroup; i += kHalves)
      use_halves(e + i, hn::MaskFromVec(hn::LoadU(d16, lanes + now + shift + i)));
  }
#endif
  return end;
}

/// As cpu::BitKernels::Flat.
template <class Op>
std::size_t flat(const DropoutMask& mask, std::uint64_t seed, const cpu::KeySchedule& schedule, std::uint64_t index,
                 double scale, const void* x, void* y, std::size_t n, bool bypass) {
  return bypass ? flat_groups<Op, true>(mask, seed, schedule, index, scale, x, y, n)
                : flat_groups<Op, false>(mask, seed, schedule, index, scale, x, y, n);
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
