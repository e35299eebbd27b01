// The arithmetic of the fused operations, one element at a time. C++17, host and device.
#ifndef MASKLESS_SRC_FUSED_FUSED_REFERENCE_H_
#define MASKLESS_SRC_FUSED_FUSED_REFERENCE_H_

#include <cmath>

#include "common/float_types.h"
#include "maskless/fused.h"

namespace maskless::reference {

template <typename T>
MASKLESS_HOST_DEVICE inline ArithmeticType<T> widen(T x) {
  if constexpr (sizeof(T) == 8) {
    return x;
  } else {
    return to_float(x);
  }
}
template <typename T>
MASKLESS_HOST_DEVICE inline T narrow(ArithmeticType<T> x) {
  if constexpr (sizeof(T) == 8) {
    return x;
  } else {
    return from_float<T>(x);
  }
}

inline constexpr double kInverseSqrt2 = 0.70710678118654752440;
inline constexpr double kInverseSqrt2Pi = 0.39894228040143267794;  // density of the standard normal at 0
inline constexpr double kGeluCubic = 0.044715;

/// tanh approximation: gelu(v) = v * sigmoid(2 * inner(v)), inner = sqrt(2 / pi) * (v + 0.044715 v^3).
template <typename A>
MASKLESS_HOST_DEVICE inline A sigmoid(A v) {
  return A(1) / (A(1) + std::exp(-v));
}

template <typename A>
MASKLESS_HOST_DEVICE inline A activate(Activation activation, A v) {
  switch (activation) {
    case Activation::kRelu: return v < A(0) ? A(0) : v;  // NaN stays
    case Activation::kGelu: return A(0.5) * v * std::erfc(-v * A(kInverseSqrt2));
    case Activation::kGeluTanh: return v * sigmoid(A(4 * kInverseSqrt2Pi) * v * (A(1) + A(kGeluCubic) * v * v));
    case Activation::kSilu: return v * sigmoid(v);
    default: return v;
  }
}

template <typename A>
MASKLESS_HOST_DEVICE inline A activate_derivative(Activation activation, A v) {
  switch (activation) {
    case Activation::kRelu: return v > A(0) ? A(1) : A(0);
    case Activation::kGelu:
      return A(0.5) * std::erfc(-v * A(kInverseSqrt2)) + v * A(kInverseSqrt2Pi) * std::exp(A(-0.5) * v * v);
    case Activation::kGeluTanh: {
      const A s = sigmoid(A(4 * kInverseSqrt2Pi) * v * (A(1) + A(kGeluCubic) * v * v));
      return s + v * s * (A(1) - s) * A(4 * kInverseSqrt2Pi) * (A(1) + A(3 * kGeluCubic) * v * v);
    }
    case Activation::kSilu: {
      const A s = sigmoid(v);
      return s + v * s * (A(1) - s);
    }
    default: return A(1);
  }
}

}  // namespace maskless::reference

#endif  // MASKLESS_SRC_FUSED_FUSED_REFERENCE_H_
