// Two random words to two standard normal numbers, with the same bits on every processor.
//
// Method: G. E. P. Box, M. E. Muller, "A note on the generation of random normal deviates", Annals of Mathematical
// Statistics 29 (1958). Logarithm, sine and cosine are polynomials whose every rounding is written out: fused
// multiply-adds, products that no addition follows, one IEEE square root. So no compiler option that keeps IEEE
// arithmetic (contraction included) can change a bit. C++17, host and device.
#ifndef MASKLESS_CORE_NORMAL_H_
#define MASKLESS_CORE_NORMAL_H_

#include <cstdint>

#include "maskless/core/philox.h"

namespace maskless {

namespace detail {

#if defined(__CUDA_ARCH__)
__device__ inline float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ inline float root(float x) { return __fsqrt_rn(x); }
__device__ inline float as_float(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ inline std::uint32_t as_bits(float x) { return __float_as_uint(x); }
#else
MASKLESS_HOST_DEVICE inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MASKLESS_HOST_DEVICE inline float root(float x) { return __builtin_sqrtf(x); }
MASKLESS_HOST_DEVICE inline float as_float(std::uint32_t bits) {
  float x = 0;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
MASKLESS_HOST_DEVICE inline std::uint32_t as_bits(float x) {
  std::uint32_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
#endif

}  // namespace detail

namespace normal {  // coefficients, least maximal relative error of the function

inline constexpr std::uint32_t kRootHalf = 0x3F3504F3u;  // float32(sqrt(1/2))
inline constexpr float kLog2 = 0.693147182f;
/// log(1 + f) = f - f^2/2 + f^3 q(f) for 1 + f in [sqrt(1/2), sqrt(2)); q's coefficient of f^i.
MASKLESS_HOST_DEVICE constexpr float log_term(int i) {
  constexpr float terms[8] = {0.333333313f, -0.250008225f, 0.200012267f, -0.166233569f,
                              0.142017618f, -0.131601945f, 0.127615497f, -0.0763442963f};
  return terms[i];
}
/// sin(pi/4 s) = s P(s^2) for s in [-1, 1]; P's coefficient of s^2i.
MASKLESS_HOST_DEVICE constexpr float sin_term(int i) {
  constexpr float terms[4] = {0.785398185f, -0.0807454363f, 0.00249000709f, -3.59545083e-05f};
  return terms[i];
}
/// cos(pi/4 s) = Q(s^2).
MASKLESS_HOST_DEVICE constexpr float cos_term(int i) {
  constexpr float terms[5] = {1.0f, -0.308425128f, 0.0158543251f, -0.000325938629f, 3.52981124e-06f};
  return terms[i];
}

}  // namespace normal

struct Normal2 {
  float first, second;
};

/// The radius sqrt(-2 log u) for u = (word + 1/2) / 2^32, rounded to float32; 0 ... 6.76.
MASKLESS_HOST_DEVICE inline float normal_radius(std::uint32_t word) {
  const float u = detail::fused(static_cast<float>(word), 0x1p-32f, 0x1p-33f);
  const std::uint32_t bits = detail::as_bits(u);
  const std::int32_t exponent = static_cast<std::int32_t>(bits - normal::kRootHalf) >> 23;
  const float f = detail::as_float(bits - (static_cast<std::uint32_t>(exponent) << 23)) - 1.0f;  // exact
  float q = normal::log_term(7);
  for (int i = 6; i >= 0; --i) q = detail::fused(q, f, normal::log_term(i));
  const float log_mantissa = detail::fused(f * f, detail::fused(f, q, -0.5f), f);
  const float log_u = detail::fused(static_cast<float>(exponent), normal::kLog2, log_mantissa);
  return detail::root(detail::as_float(detail::as_bits(2.0f * log_u) & 0x7FFFFFFFu));  // log_u <= 0
}

/// radius * (cos, sin) of the angle 2 pi word_b / 2^32, radius from word_a.
MASKLESS_HOST_DEVICE inline Normal2 normal_pair(std::uint32_t word_a, std::uint32_t word_b) {
  const float radius = normal_radius(word_a);
  const std::uint32_t quarter = (word_b + 0x20000000u) >> 30;  // the nearest multiple of pi/2
  const auto rest = static_cast<std::int32_t>(word_b - (quarter << 30));
  const float s = static_cast<float>(rest) * 0x1p-29f, t = s * s;
  float p = normal::sin_term(3);
  for (int i = 2; i >= 0; --i) p = detail::fused(p, t, normal::sin_term(i));
  float q = normal::cos_term(4);
  for (int i = 3; i >= 0; --i) q = detail::fused(q, t, normal::cos_term(i));
  const float sine = s * p;
  float c = (quarter & 1) != 0 ? sine : q, d = (quarter & 1) != 0 ? q : sine;  // |cos|, |sin| up to signs
  if (quarter == 1 || quarter == 2) c = -c;
  if (quarter >= 2) d = -d;
  return {radius * c, radius * d};
}

}  // namespace maskless

#endif  // MASKLESS_CORE_NORMAL_H_
