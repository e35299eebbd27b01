// DropConnect, one decision at a time: the oracle of the tests and the code for machines without vectors.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_REFERENCE_H_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_REFERENCE_H_

#include <cstdint>
#include <type_traits>

#include "common/float_types.h"
#include "dropconnect/dropconnect_kernels.h"

namespace maskless::reference {

inline bool keep(const DropconnectMask& mask, std::uint64_t seed, std::int64_t pass, std::int64_t m, std::int64_t n,
                 std::int64_t k) {
  return !plane_less(seed, mask.threshold, mask.first_input + static_cast<std::uint64_t>(k),
                     mask.first_output + static_cast<std::uint32_t>(n), mask.sample(pass, m), mask.tag);
}

inline std::uint64_t seed_of(const DropconnectMask& mask) {
  return mask.seed_pointer != nullptr ? *mask.seed_pointer : mask.seed;
}

/// The type of a sum over T.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
SumOf<T> to_sum(T v) {
  if constexpr (std::is_same_v<T, double>) {
    return v;
  } else {
    return to_float(v);
  }
}
template <typename T>
T from_sum(SumOf<T> v) {
  if constexpr (std::is_same_v<T, double>) {
    return v;
  } else {
    return from_float<T>(v);
  }
}

/// sum_k x[m, k] w[n, k] D in pass s, by sums of type S: the library's own, or double for an oracle.
template <typename T, typename S = SumOf<T>>
S product_sum(const DropconnectArgs& args, std::uint64_t seed, std::int64_t s, std::int64_t m, std::int64_t n) {
  const T* x = static_cast<const T*>(args.x.data) + m * args.x.row;
  const T* w = static_cast<const T*>(args.w.data) + n * args.w.row;
  S sum = 0;
  for (std::int64_t k = 0; k < args.shape.inputs; ++k)
    if (keep(args.mask, seed, s, m, n, k))
      sum += static_cast<S>(to_sum(x[k * args.x.col])) * static_cast<S>(to_sum(w[k * args.w.col]));
  return sum;
}

/// sum_b s(a, b) v[b, k] D.
template <typename T, typename S = SumOf<T>>
S gradient_sum(const GradientArgs& g, std::uint64_t seed, std::int64_t a, std::int64_t k) {
  S sum = 0;
  for (std::int64_t pass = 0; pass < g.passes; ++pass)
    for (std::int64_t b = 0; b < g.size_b; ++b)
      if (keep(g.mask, seed, pass, g.a_is_row ? a : b, g.a_is_row ? b : a, k))
        sum += static_cast<S>(to_sum(static_cast<const T*>(g.s)[pass * g.s_pass + a * g.s_a + b * g.s_b])) *
               static_cast<S>(to_sum(static_cast<const T*>(g.v.data)[pass * g.v_pass + b * g.v.row + k * g.v.col]));
  return sum;
}

/// Rows [begin, end) of passes * rows.
template <typename T, typename S = SumOf<T>>
void dropconnect(const DropconnectArgs& args, std::int64_t begin, std::int64_t end) {
  const std::uint64_t seed = seed_of(args.mask);
  const T* bias = static_cast<const T*>(args.bias);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int64_t s = r / args.shape.rows, m = r % args.shape.rows;
    for (std::int64_t n = 0; n < args.shape.outputs; ++n) {
      S sum = product_sum<T, S>(args, seed, s, m, n) * static_cast<S>(args.scale);
      if (bias != nullptr) sum += static_cast<S>(to_sum(bias[n * args.bias_stride]));
      static_cast<T*>(args.y.data)[s * args.y_pass + m * args.y.row + n * args.y.col] =
          from_sum<T>(static_cast<SumOf<T>>(sum));
    }
  }
}

/// Elements a in [begin, end).
template <typename T, typename S = SumOf<T>>
void gradient(const GradientArgs& g, std::int64_t begin, std::int64_t end) {
  const std::uint64_t seed = seed_of(g.mask);
  for (std::int64_t a = begin; a < end; ++a)
    for (std::int64_t k = 0; k < g.inputs; ++k)
      static_cast<T*>(g.out.data)[a * g.out.row + k * g.out.col] =
          from_sum<T>(static_cast<SumOf<T>>(gradient_sum<T, S>(g, seed, a, k) * static_cast<S>(g.scale)));
}

template <typename T, typename S = SumOf<T>>
void bias_gradient(const DropconnectBackwardArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t n = begin; n < end; ++n) {
    S sum = 0;
    for (std::int64_t s = 0; s < args.shape.passes; ++s)
      for (std::int64_t m = 0; m < args.shape.rows; ++m)
        sum += static_cast<S>(
            to_sum(static_cast<const T*>(args.dy.data)[s * args.dy_pass + m * args.dy.row + n * args.dy.col]));
    static_cast<T*>(args.dbias)[n * args.dbias_stride] = from_sum<T>(static_cast<SumOf<T>>(sum));
  }
}

inline void dropconnect_mask(const DropconnectMaskArgs& args, std::int64_t begin, std::int64_t end) {
  const std::uint64_t seed = seed_of(args.mask);
  for (std::int64_t m = begin; m < end; ++m)
    for (std::int64_t n = 0; n < args.shape.outputs; ++n)
      for (std::int64_t k = 0; k < args.shape.inputs; ++k)
        args.keep[m * args.strides[0] + n * args.strides[1] + k * args.strides[2]] =
            keep(args.mask, seed, 0, m, n, k) ? 1 : 0;
}

}  // namespace maskless::reference

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_REFERENCE_H_
