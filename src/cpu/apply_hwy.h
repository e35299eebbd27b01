// y = x * scale where a bit is 1, else +0: how every CPU kernel applies keep bits to a run of memory. The bits come
// from a generator or from a stored mask; bit j & 7 of byte j >> 3 belongs to element j.
#if defined(MASKLESS_CPU_APPLY_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_CPU_APPLY_HWY_H_
#undef MASKLESS_CPU_APPLY_HWY_H_
#else
#define MASKLESS_CPU_APPLY_HWY_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/convert_hwy.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

/// 57 bits or more, from bit `at` on. Reads the 8 bytes from byte at >> 3 on.
HWY_INLINE std::uint64_t bits_at(const std::uint8_t* bits, std::size_t at) {
  std::uint64_t word;
  std::memcpy(&word, bits + (at >> 3), sizeof word);
  return word >> (at & 7);
}

/// Lane j is chosen iff bit j is 1.
template <class D>
HWY_INLINE hn::Mask<D> mask_of(D d, std::uint64_t bits) {
  return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(&bits));
}

/// What happens to a vector of T that is loaded as raw bits: nothing, or a product and one rounding.
template <typename T>
struct Copy {  // T is an unsigned integer of the element's size
  using Lane = T;
  HWY_INLINE explicit Copy(double) {}
  HWY_INLINE hn::Vec<hn::ScalableTag<T>> operator()(hn::Vec<hn::ScalableTag<T>> x) const { return x; }
};

template <typename T>
struct Scale {  // float16, bfloat16
  using Lane = std::uint16_t;
  VF scale;
  HWY_INLINE explicit Scale(double s) : scale(hn::Set(DF(), static_cast<float>(s))) {}
  HWY_INLINE V16 operator()(V16 x) const { return scale_as(T{}, x, scale); }
};
template <>
struct Scale<float> {
  using Lane = std::uint32_t;
  VF scale;
  HWY_INLINE explicit Scale(double s) : scale(hn::Set(DF(), static_cast<float>(s))) {}
  HWY_INLINE V32 operator()(V32 x) const { return hn::BitCast(D32(), hn::Mul(hn::BitCast(DF(), x), scale)); }
};
template <>
struct Scale<double> {
  using Lane = std::uint64_t;
  using D = hn::ScalableTag<double>;
  hn::Vec<D> scale;
  HWY_INLINE explicit Scale(double s) : scale(hn::Set(D(), s)) {}
  HWY_INLINE hn::Vec<hn::ScalableTag<Lane>> operator()(hn::Vec<hn::ScalableTag<Lane>> x) const {
    return hn::BitCast(hn::ScalableTag<Lane>(), hn::Mul(hn::BitCast(D(), x), scale));
  }
};

/// One vector of `count` < a vector's lanes.
template <class Op, typename T>
HWY_INLINE void apply_some(const Op& op, const T* x, T* y, std::size_t count, std::uint64_t keep) {
  const hn::ScalableTag<typename Op::Lane> d;
  HWY_ALIGN typename Op::Lane buffer[hn::MaxLanes(d)] = {};
  std::memcpy(buffer, x, count * sizeof(T));
  hn::Store(hn::IfThenElseZero(mask_of(d, keep), op(hn::Load(d, buffer))), d, buffer);
  std::memcpy(y, buffer, count * sizeof(T));
}

/// n contiguous elements, their bits from bit `at` on (8 bytes past the last bit's are read). x == y is allowed.
template <class Op, typename T>
HWY_INLINE void apply_run(const Op& op, const T* x, T* y, std::size_t n, const std::uint8_t* bits, std::size_t at) {
  const hn::ScalableTag<T> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::IfThenElseZero(mask_of(d, bits_at(bits, at + i)), op(hn::LoadU(d, x + i))), d, y + i);
  if (i < n) apply_some(op, x + i, y + i, n - i, bits_at(bits, at + i));
}

/// n elements with any strides, by way of a buffer.
template <class Op, typename T>
HWY_INLINE void apply_strided(const Op& op, const T* x, std::int64_t x_stride, T* y, std::int64_t y_stride,
                              std::size_t n, const std::uint8_t* bits, std::size_t at) {
  const hn::ScalableTag<typename Op::Lane> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  HWY_ALIGN T buffer[kLanes] = {};
  typename Op::Lane* raw = reinterpret_cast<typename Op::Lane*>(buffer);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const std::int64_t count = static_cast<std::int64_t>(HWY_MIN(kLanes, n - i));
    for (std::int64_t j = 0; j < count; ++j) buffer[j] = x[j * x_stride];
    hn::Store(hn::IfThenElseZero(mask_of(d, bits_at(bits, at + i)), op(hn::Load(d, raw))), d, raw);
    for (std::int64_t j = 0; j < count; ++j) y[j * y_stride] = buffer[j];
    x += count * x_stride;
    y += count * y_stride;
  }
}

/// As cpu::BitKernels::Apply.
template <class Op>
void apply(double scale, const void* x, std::int64_t x_stride, void* y, std::int64_t y_stride, std::size_t n,
           const std::uint8_t* bits, std::size_t first_bit) {
  using Lane = typename Op::Lane;
  const Op op(scale);
  const Lane* from = static_cast<const Lane*>(x);
  Lane* to = static_cast<Lane*>(y);
  if ((x_stride == 1 && y_stride == 1) || n == 1) {
    apply_run(op, from, to, n, bits, first_bit);
  } else {
    apply_strided(op, from, x_stride, to, y_stride, n, bits, first_bit);
  }
}

inline void expand(const std::uint8_t* bits, std::size_t first_bit, std::uint8_t* keep, std::int64_t stride,
                   std::size_t n) {
  const hn::CappedTag<std::uint8_t, 32> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (stride == 1)
    for (; i + lanes <= n; i += lanes)
      hn::StoreU(hn::IfThenElseZero(mask_of(d, bits_at(bits, first_bit + i)), hn::Set(d, std::uint8_t{1})), d,
                 keep + i);
  for (; i < n; ++i)
    keep[static_cast<std::int64_t>(i) * stride] = static_cast<std::uint8_t>(bits_at(bits, first_bit + i) & 1);
}

template <typename U>
void gather(const void* memory, std::int64_t stride, std::size_t n, std::uint8_t* bits) {
  const hn::ScalableTag<U> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  const U* keep = static_cast<const U*>(memory);
  std::size_t i = 0;
  if (stride == 1 && kLanes >= 8)
    for (; i + kLanes <= n; i += kLanes)
      hn::StoreMaskBits(d, hn::Ne(hn::LoadU(d, keep + i), hn::Zero(d)), bits + i / 8);
  for (; i < n; i += 8) {
    unsigned byte = 0;
    for (std::size_t j = i; j < HWY_MIN(n, i + 8); ++j)
      byte |= (keep[static_cast<std::int64_t>(j) * stride] != 0 ? 1u : 0u) << (j - i);
    bits[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
