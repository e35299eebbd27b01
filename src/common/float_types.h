// float16 and bfloat16 as their bits, with conversions that round to nearest even and keep NaN quiet on every compiler
// and target. C++17, host and device.
#ifndef MASKLESS_SRC_COMMON_FLOAT_TYPES_H_
#define MASKLESS_SRC_COMMON_FLOAT_TYPES_H_

#include <cstdint>
#include <cstring>

#include "maskless/core/philox.h"

namespace maskless {

struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

/// The type that arithmetic on T is done in: float, or double for double.
template <typename T>
struct Arithmetic {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};
template <typename T>
using ArithmeticType = typename Arithmetic<T>::type;

namespace detail {
MASKLESS_HOST_DEVICE inline std::uint32_t float_bits(float f) {
  std::uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}
MASKLESS_HOST_DEVICE inline float bits_float(std::uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}
}  // namespace detail

MASKLESS_HOST_DEVICE inline float to_float(float f) { return f; }

MASKLESS_HOST_DEVICE inline float to_float(BFloat16 b) {
  return detail::bits_float(static_cast<std::uint32_t>(b.bits) << 16);
}

MASKLESS_HOST_DEVICE inline float to_float(Float16 h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h.bits & 0x8000u) << 16;
  const std::uint32_t magnitude = h.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // inf, NaN (made quiet)
    const std::uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0u;
    return detail::bits_float(sign | 0x7F800000u | quiet | (magnitude & 0x3FFu) << 13);
  }
  // 2^112 moves the exponent's bias from 15 to 127 and makes subnormals normal, exactly.
  const float f = detail::bits_float(magnitude << 13) * detail::bits_float(0x77800000u);
  return detail::bits_float(sign | detail::float_bits(f));
}

template <typename T>
MASKLESS_HOST_DEVICE inline T from_float(float f);

template <>
MASKLESS_HOST_DEVICE inline float from_float<float>(float f) {
  return f;
}

template <>
MASKLESS_HOST_DEVICE inline BFloat16 from_float<BFloat16>(float f) {
  const std::uint32_t u = detail::float_bits(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>(u >> 16 | 0x40u)};
  return {static_cast<std::uint16_t>((u + 0x7FFFu + (u >> 16 & 1u)) >> 16)};
}

template <>
MASKLESS_HOST_DEVICE inline Float16 from_float<Float16>(float f) {
  const std::uint32_t u = detail::float_bits(f);
  const std::uint32_t sign = u >> 16 & 0x8000u;
  const std::uint32_t magnitude = u & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return {static_cast<std::uint16_t>(sign | 0x7E00u | (magnitude >> 13 & 0x3FFu))};
  if (magnitude >= 0x477FF000u) return {static_cast<std::uint16_t>(sign | 0x7C00u)};  // rounds to inf
  if (magnitude >= 0x38800000u) {                                                     // normal
    const std::uint32_t rounded = magnitude - 0x38000000u + 0x0FFFu + (magnitude >> 13 & 1u);
    return {static_cast<std::uint16_t>(sign | rounded >> 13)};
  }
  // Subnormal: adding 0.5 leaves the result, rounded to nearest even, in the low bits.
  const float shifted = detail::bits_float(magnitude) + 0.5f;
  return {static_cast<std::uint16_t>(sign | (detail::float_bits(shifted) - 0x3F000000u))};
}

}  // namespace maskless

#endif  // MASKLESS_SRC_COMMON_FLOAT_TYPES_H_
