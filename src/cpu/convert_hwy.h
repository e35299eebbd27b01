// float16 and bfloat16 in the CPU kernels: vectors of their bits (uint16), multiplied in float32 and rounded once to
// nearest even. Equal, bit for bit, to to_float/from_float of common/float_types.h on every target and every version of
// Highway, whose own conversions are not. NaN comes out quiet, subnormals exact.
//
// The 16-bit types are converted where they lie: the even and the odd elements of a vector are the low and the high
// halves of its 32-bit lanes, so nothing is shuffled.
#if defined(MASKLESS_CPU_CONVERT_HWY_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MASKLESS_CPU_CONVERT_HWY_H_
#undef MASKLESS_CPU_CONVERT_HWY_H_
#else
#define MASKLESS_CPU_CONVERT_HWY_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "common/float_types.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

using D16 = hn::ScalableTag<std::uint16_t>;
using D32 = hn::ScalableTag<std::uint32_t>;
using DF = hn::ScalableTag<float>;
using V16 = hn::Vec<D16>;
using V32 = hn::Vec<D32>;
using VF = hn::Vec<DF>;

/// bfloat16: round(x * scale). The products' upper halves are the result, one more where the lower half is above
/// 0x8000, or equal to it beside an odd upper half. A bfloat16 NaN times the scale is quiet and its lower half is 0.
HWY_INLINE V16 scale_as(BFloat16, V16 x, VF scale) {
  const D16 d16;
  const D32 d;
  const V32 pairs = hn::BitCast(d, x);
  const V32 even = hn::BitCast(d, hn::Mul(hn::BitCast(DF(), hn::ShiftLeft<16>(pairs)), scale));
  const V32 odd = hn::BitCast(d, hn::Mul(hn::BitCast(DF(), hn::And(pairs, hn::Set(d, 0xFFFF0000u))), scale));
  const V16 upper = hn::OddEven(hn::BitCast(d16, odd), hn::BitCast(d16, hn::ShiftRight<16>(even)));
  const V16 lower = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(odd)), hn::BitCast(d16, even));
  const V16 rest = hn::Or(lower, hn::And(upper, hn::Set(d16, std::uint16_t{1})));
#if HWY_TARGET == HWY_AVX3
  const __mmask32 up = _mm512_cmpgt_epu16_mask(rest.raw, _mm512_set1_epi16(-0x8000));  // of 0x8000, unsigned
  return V16{_mm512_mask_sub_epi16(upper.raw, up, upper.raw, _mm512_set1_epi16(-1))};
#else
  return hn::Add(upper, hn::ShiftRight<15>(hn::SaturatedSub(rest, hn::Set(d16, std::uint16_t{1}))));
#endif
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3  // F16C: exact, to nearest even, NaN quiet

/// float16: round(x * scale).
HWY_INLINE V16 scale_as(Float16, V16 x, VF scale) {
#if HWY_TARGET == HWY_AVX3
  const __m512i v = x.raw;
  const __m512 low = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(v)), scale.raw);
  const __m512 high = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(v, 1)), scale.raw);
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return V16{
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(low, kNearest)), _mm512_cvtps_ph(high, kNearest), 1)};
#else
  const __m256i v = x.raw;
  const __m256 low = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), scale.raw);
  const __m256 high = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)), scale.raw);
  return V16{_mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT)),
                                     _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT), 1)};
#endif
}

#else

/// The float32 of float16 bits in the low half of each lane; the high half is 0.
HWY_INLINE VF float_of_half(V32 bits) {
  const D32 d;
  const DF df;
  const hn::RebindToSigned<D32> di;
  const V32 sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(d, 0x8000u)));
  const V32 magnitude = hn::And(bits, hn::Set(d, 0x7FFFu));
  const V32 shifted = hn::ShiftLeft<13>(magnitude);
  // 2^112 moves the exponent's bias from 15 to 127 and makes subnormals normal, exactly.
  const VF finite = hn::Mul(hn::BitCast(df, shifted), hn::BitCast(df, hn::Set(d, 0x77800000u)));
  const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7BFF));  // inf, NaN
  const auto nan = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7C00));
  const auto quiet = hn::IfThenElseZero(nan, hn::Set(di, 0x00400000));
  const V32 infinite = hn::Or(hn::Or(hn::Set(d, 0x7F800000u), hn::BitCast(d, quiet)), shifted);
  const auto chosen = hn::IfThenElse(special, hn::BitCast(di, infinite), hn::BitCast(di, finite));
  return hn::BitCast(df, hn::Or(sign, hn::BitCast(d, chosen)));
}

/// float16 bits, rounded to nearest even, in the low half of each lane.
HWY_INLINE V32 half_of_float(VF f) {
  const D32 d;
  const DF df;
  const hn::RebindToSigned<D32> di;
  const V32 u = hn::BitCast(d, f);
  const V32 sign = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 0x8000u));
  const V32 magnitude = hn::And(u, hn::Set(d, 0x7FFFFFFFu));
  const auto ordered = hn::BitCast(di, magnitude);
  const V32 odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1u));
  const V32 normal = hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(d, 0x38000000u - 0x0FFFu)), odd));
  // Subnormal: adding 0.5 leaves the result, rounded to nearest even, in the low bits.
  const V32 subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f))), hn::Set(d, 0x3F000000u));
  const V32 nan = hn::Or(hn::Set(d, 0x7E00u), hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 0x3FFu)));
  auto result =
      hn::IfThenElse(hn::Gt(ordered, hn::Set(di, 0x387FFFFF)), hn::BitCast(di, normal), hn::BitCast(di, subnormal));
  result = hn::IfThenElse(hn::Gt(ordered, hn::Set(di, 0x477FEFFF)), hn::Set(di, 0x7C00), result);
  result = hn::IfThenElse(hn::Gt(ordered, hn::Set(di, 0x7F800000)), hn::BitCast(di, nan), result);
  return hn::Or(sign, hn::BitCast(d, result));
}

/// float16: round(x * scale).
HWY_INLINE V16 scale_as(Float16, V16 x, VF scale) {
  const D32 d;
  const V32 pairs = hn::BitCast(d, x);
  const V32 even = half_of_float(hn::Mul(float_of_half(hn::And(pairs, hn::Set(d, 0xFFFFu))), scale));
  const V32 odd = half_of_float(hn::Mul(float_of_half(hn::ShiftRight<16>(pairs)), scale));
  return hn::BitCast(D16(), hn::Or(even, hn::ShiftLeft<16>(odd)));
}

#endif  // F16C

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#endif
