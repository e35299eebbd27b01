#include "cpu/bit_kernels.h"

#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/bit_kernels.cc"
#include <hwy/foreach_target.h>  // this file again for each instruction set
#include <hwy/highway.h>

#include "cpu/apply_hwy.h"
#include "cpu/flat_hwy.h"
#include "cpu/keep_bits_hwy.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

extern const cpu::BitKernels kBitKernels;
const cpu::BitKernels kBitKernels = {keep_bits,
                                     apply<Copy<std::uint16_t>>,
                                     apply<Copy<std::uint32_t>>,
                                     apply<Copy<std::uint64_t>>,
                                     apply<Scale<Float16>>,
                                     apply<Scale<BFloat16>>,
                                     apply<Scale<float>>,
                                     apply<Scale<double>>,
                                     flat<Copy<std::uint16_t>>,
                                     flat<Copy<std::uint32_t>>,
                                     flat<Copy<std::uint64_t>>,
                                     flat<Scale<Float16>>,
                                     flat<Scale<BFloat16>>,
                                     flat<Scale<float>>,
                                     flat<Scale<double>>,
                                     expand,
                                     gather<std::uint8_t>,
                                     gather<std::uint32_t>};

#endif

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "cpu/dispatch.h"

namespace maskless::cpu {

std::uint8_t settle(const DropoutMask& mask, std::uint64_t seed, std::uint64_t block, unsigned keep, unsigned equal) {
  const Words4 low = dropout_words(seed, block, 1, mask.stream);
  for (unsigned h = 0; h < 8; ++h)
    if ((equal >> h & 1) != 0 && half_word(low, h) >= (mask.threshold & 0xFFFFu)) keep |= 1u << h;
  return static_cast<std::uint8_t>(keep);
}

std::uint8_t block_bits(const DropoutMask& mask, std::uint64_t seed, std::uint64_t block) {
  const Words4 high = dropout_words(seed, block, 0, mask.stream);
  const std::uint64_t t = mask.threshold >> 16;
  unsigned keep = 0, equal = 0;
  for (unsigned h = 0; h < 8; ++h) {
    keep |= (half_word(high, h) > t ? 1u : 0u) << h;
    equal |= (half_word(high, h) == t ? 1u : 0u) << h;
  }
  return equal == 0 ? static_cast<std::uint8_t>(keep) : settle(mask, seed, block, keep, equal);
}

namespace {

// Without vectors: the same table in plain C++.

std::size_t scalar_keep_bits(const DropoutMask& mask, std::uint64_t seed, const KeySchedule&, std::uint64_t index,
                             std::size_t n, std::uint8_t* bits, Ahead) {
  if (mask.layout == Layout::kPacked) {
    const std::size_t first = static_cast<std::size_t>(index & 7);
    for (std::size_t b = 0; b < (first + n + 7) / 8; ++b) bits[b] = block_bits(mask, seed, (index >> 3) + b);
    return first;
  }
  for (std::size_t e = 0; e < n; ++e) {
    if ((e & 7) == 0) bits[e / 8] = 0;
    if (reference::keep(mask, seed, index + e)) bits[e / 8] = static_cast<std::uint8_t>(bits[e / 8] | 1u << (e & 7));
  }
  return 0;
}

bool bit(const std::uint8_t* bits, std::size_t at) { return (bits[at >> 3] >> (at & 7) & 1) != 0; }

template <typename T, bool kCopy>
void scalar_apply(double scale, const void* x, std::int64_t x_stride, void* y, std::int64_t y_stride, std::size_t n,
                  const std::uint8_t* bits, std::size_t first_bit) {
  const T* from = static_cast<const T*>(x);
  T* to = static_cast<T*>(y);
  for (std::size_t j = 0; j < n; ++j, from += x_stride, to += y_stride) {
    if constexpr (kCopy) {
      *to = bit(bits, first_bit + j) ? *from : T{};
    } else {
      *to = bit(bits, first_bit + j) ? reference::scaled(*from, scale, false) : T{};
    }
  }
}

std::size_t scalar_flat(const DropoutMask&, std::uint64_t, const KeySchedule&, std::uint64_t, double, const void*,
                        void*, std::size_t, bool) {
  return 0;
}

void scalar_expand(const std::uint8_t* bits, std::size_t first_bit, std::uint8_t* keep, std::int64_t stride,
                   std::size_t n) {
  for (std::size_t j = 0; j < n; ++j, keep += stride) *keep = bit(bits, first_bit + j) ? 1 : 0;
}

template <typename U>
void scalar_gather(const void* memory, std::int64_t stride, std::size_t n, std::uint8_t* bits) {
  const U* keep = static_cast<const U*>(memory);
  for (std::size_t j = 0; j < n; ++j, keep += stride) {
    if ((j & 7) == 0) bits[j / 8] = 0;
    if (*keep != 0) bits[j / 8] = static_cast<std::uint8_t>(bits[j / 8] | 1u << (j & 7));
  }
}

constexpr BitKernels kScalar = {scalar_keep_bits,
                                scalar_apply<std::uint16_t, true>,
                                scalar_apply<std::uint32_t, true>,
                                scalar_apply<std::uint64_t, true>,
                                scalar_apply<Float16, false>,
                                scalar_apply<BFloat16, false>,
                                scalar_apply<float, false>,
                                scalar_apply<double, false>,
                                scalar_flat,
                                scalar_flat,
                                scalar_flat,
                                scalar_flat,
                                scalar_flat,
                                scalar_flat,
                                scalar_flat,
                                scalar_expand,
                                scalar_gather<std::uint8_t>,
                                scalar_gather<std::uint32_t>};

}  // namespace

const BitKernels& bit_kernels(Isa at_most) { return *MASKLESS_CHOOSE(at_most, kBitKernels, &kScalar); }

}  // namespace maskless::cpu

#endif  // HWY_ONCE
