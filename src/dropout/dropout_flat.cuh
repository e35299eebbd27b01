// The kernels for memory in the order of the positions: a copy that drops.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_FLAT_CUH_
#define MASKLESS_SRC_DROPOUT_DROPOUT_FLAT_CUH_

#include <type_traits>

#include "cuda/launch.h"
#include "cuda/mask.h"
#include "cuda/vector.h"

namespace maskless::cuda {

/// What kept elements are multiplied by, and whether.
template <typename T>
struct Scale {
  ArithmeticType<T> value;
  bool copy;
};

/// A kept element.
__device__ inline float scale_element(float x, Scale<float> s) { return s.copy ? x : x * s.value; }
__device__ inline double scale_element(double x, Scale<double> s) { return s.copy ? x : x * s.value; }
__device__ inline Float16 scale_element(Float16 x, Scale<Float16> s) {
  const float product = __half2float(__ushort_as_half(x.bits)) * s.value;
  return s.copy ? x : Float16{__half_as_ushort(__float2half_rn(product))};
}
__device__ inline BFloat16 scale_element(BFloat16 x, Scale<BFloat16> s) {
  const float product = to_float(x) * s.value;
  return s.copy ? x : BFloat16{__bfloat16_as_ushort(__float2bfloat16_rn(product))};
}

/// 16-bit elements: a vector is the eight elements of one Philox call.
template <typename T>
__device__ inline Vector apply(Vector x, const Flags& flags, Scale<T> scale) {
  if (!scale.copy) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 f = unpack2<T>(x.word[j]);
      x.word[j] = pack2<T>(make_float2(f.x * scale.value, f.y * scale.value));
    }
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) x.word[j] &= spread_flags(flags.word[j]);
  return x;
}

/// 32- and 64-bit elements: bit i of `keep` is the vector's element i.
__device__ inline Vector apply(const Vector& x, std::uint32_t keep, Scale<float> scale) {
  Vector y;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float product = scale.copy ? x.f32[i] : x.f32[i] * scale.value;
    y.f32[i] = (keep >> i & 1u) != 0 ? product : 0.0f;
  }
  return y;
}
__device__ inline Vector apply(const Vector& x, std::uint32_t keep, Scale<double> scale) {
  Vector y;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const double product = scale.copy ? x.f64[i] : x.f64[i] * scale.value;
    y.f64[i] = (keep >> i & 1u) != 0 ? product : 0.0;
  }
  return y;
}

/// x, or 0 unless kept: by a product with `zero`, which is 0 (see triton_words), in the multiplier's pipe.
__device__ inline float keep_or_zero(float x, bool keep, std::uint32_t zero) {
  std::uint32_t bits = __float_as_uint(x);
  asm("{ .reg .pred drop; setp.eq.u32 drop, %1, 0; @drop mul.lo.u32 %0, %0, %2; }"
      : "+r"(bits)
      : "r"(static_cast<std::uint32_t>(keep)), "r"(zero));
  return __uint_as_float(bits);
}

/// Any elements, each with a decision of its own.
template <typename T, bool kCopy>
__device__ inline Vector apply(const Vector& x, const bool (&keep)[kVectorSize<T>], Scale<T> scale,
                               std::uint32_t zero) {
  Vector y = x;
  if constexpr (kCopy && sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      y.word[j] = (keep[2 * j] ? x.word[j] & 0xFFFFu : 0u) | (keep[2 * j + 1] ? x.word[j] & 0xFFFF0000u : 0u);
  } else if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 f = unpack2<T>(x.word[j]);
      y.word[j] = pack2<T>(make_float2(keep_or_zero(f.x * scale.value, keep[2 * j], zero),
                                       keep_or_zero(f.y * scale.value, keep[2 * j + 1], zero)));
    }
  } else if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) y.f32[j] = keep_or_zero(kCopy ? x.f32[j] : x.f32[j] * scale.value, keep[j], zero);
  } else {
#pragma unroll
    for (int j = 0; j < 2; ++j) y.f64[j] = keep[j] ? (kCopy ? x.f64[j] : x.f64[j] * scale.value) : 0.0;
  }
  return y;
}

/// Where a tile's vectors are read: `load` asks for one, `vector` is it once it is there.
struct AlignedVectors {
  using Loaded = uint4;
  const void* base;
  __device__ Loaded load(unsigned at) const { return static_cast<const uint4*>(base)[at]; }
  __device__ static uint4 vector(const Loaded& loaded) { return loaded; }
};

/// Vectors that lie across two aligned ones, the second of which the neighbour reads, too (then from the L1 cache).
struct ShiftedVectors {
  struct Loaded {
    uint4 low, high;
  };
  const uint4* base;   // the aligned vector in which the first one starts
  unsigned shift = 0;  // bytes from there on
  __device__ explicit ShiftedVectors(const void* first)
      : base(reinterpret_cast<const uint4*>(reinterpret_cast<std::uintptr_t>(first) & ~std::uintptr_t{15})),
        shift(reinterpret_cast<std::uintptr_t>(first) & 15) {}
  __device__ Loaded load(unsigned at) const { return {base[at], base[at + 1]}; }
  __device__ uint4 vector(const Loaded& l) const {
    std::uint32_t w[8] = {l.low.x, l.low.y, l.low.z, l.low.w, l.high.x, l.high.y, l.high.z, l.high.w};
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = (shift & 8) != 0 ? w[i + 2] : w[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = (shift & 4) != 0 ? w[i + 1] : w[i];
    const unsigned bits = 8 * (shift & 3);
    return make_uint4(__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
                      __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits));
  }
};

/// One tile by one thread block: up to blockDim.x * kUnroll Philox calls ("octets" of eight positions), of which the
/// first `octets` exist. Each access of a warp is 512 bytes without a gap: for 4- and 8-byte elements an octet spans
/// 2 or 4 vectors, and so many lanes share each other's calls by shuffles.
template <typename T, int kUnroll, typename Vectors>
__device__ inline void drop_tile(const Vectors& x, T* y, unsigned octets, std::uint64_t first_octet,
                                 const DeviceMask& mask, std::uint64_t seed, Scale<T> scale) {
  constexpr int kShare = 8 / kVectorSize<T>;  // vectors an octet spans
  const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const unsigned mine = lane % kShare, group = lane / kShare;
  auto* to = reinterpret_cast<uint4*>(y);

  typename Vectors::Loaded loaded[kUnroll][kShare];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u)
#pragma unroll
    for (int k = 0; k < kShare; ++k) {
      const unsigned at = ((u * blockDim.x + warp * 32) * kShare) + k * 32 + lane;
      if (at < octets * kShare) loaded[u][k] = x.load(at);
    }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const std::uint64_t octet = first_octet + u * blockDim.x + warp * 32 + mine * (32 / kShare) + group;
    const Flags flags = keep_flags(mask, seed, octet);
    if constexpr (sizeof(T) == 2) {
      const unsigned at = u * blockDim.x + threadIdx.x;
      if (at < octets) to[at] = apply(Vector{x.vector(loaded[u][0])}, flags, scale).all;
    } else {
      const std::uint32_t byte = to_byte(flags);
#pragma unroll
      for (int k = 0; k < kShare; ++k) {
        const unsigned at = ((u * blockDim.x + warp * 32) * kShare) + k * 32 + lane;
        const std::uint32_t keep = __shfl_sync(0xFFFFFFFFu, byte, lane - mine + k) >> (mine * kVectorSize<T>);
        if (at < octets * kShare) to[at] = apply(Vector{x.vector(loaded[u][k])}, keep, scale).all;
      }
    }
  }
}

/// The same in the Triton layout: one call an element, nothing to share.
template <typename T, int kUnroll, typename Vectors>
__device__ inline void drop_triton_tile(const Vectors& x, T* y, unsigned octets, std::uint64_t first_octet,
                                        const DeviceMask& mask, std::uint64_t seed, Scale<T> scale) {
  constexpr int kSize = kVectorSize<T>, kVectors = kUnroll * 8 / kSize;
  const unsigned vectors = octets * (8 / kSize);
  const auto first_high = static_cast<std::uint32_t>(first_octet >> 29);
  const auto first_low = static_cast<std::uint32_t>(first_octet << 3);
  std::uint32_t zero = 0;
  const auto drop = [&](unsigned at, const typename Vectors::Loaded& loaded, std::uint32_t high, auto copy) {
    std::uint32_t word[kSize];
    triton_words(seed, high, first_low + at * kSize, zero, word);
    bool keep[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) keep[j] = triton_keep(mask, word[j], zero);
    const Vector result = apply<T, copy.value>(Vector{x.vector(loaded)}, keep, scale, zero);
    if (at < vectors) reinterpret_cast<uint4*>(y)[at] = result.all;
  };
  const bool one_high = first_low + (octets * 8 - 1) >= first_low;
  if (scale.copy || !one_high) {  // seldom, so small
#pragma unroll 1
    for (unsigned at = threadIdx.x; at < vectors; at += blockDim.x) {
      const std::uint32_t high = first_high + (first_low + at * kSize < first_low ? 1 : 0);
      if (scale.copy) {
        drop(at, x.load(at), high, std::true_type{});
      } else {
        drop(at, x.load(at), high, std::false_type{});
      }
    }
    return;
  }
  typename Vectors::Loaded loaded[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const unsigned at = v * blockDim.x + threadIdx.x;
    if (at < vectors) loaded[v] = x.load(at);
  }
  // The compiler would do much of the long arithmetic before it asks for the elements. It may not, as all depends on a
  // zero that it cannot foresee.
  zero = static_cast<std::uint32_t>(__syncthreads_count(0));
#pragma unroll
  for (int v = 0; v < kVectors; ++v) drop(v * blockDim.x + threadIdx.x, loaded[v], first_high, std::false_type{});
}

/// `head` elements up to a position that is a multiple of 8, whole octets from 16-byte aligned memory on (of y alone
/// for a shifted x), `tail` elements.
template <typename T>
struct FlatArgs {
  const T* x;
  T* y;
  std::int64_t octets;
  std::uint64_t first_index;
  DeviceMask mask;
  ArithmeticType<T> scale;
  std::uint8_t head, tail;  // fewer than 8; shifted: than 16
  bool copy;
  bool small;  // the next kernel may start beside this one
};

template <typename T, int kUnroll, bool kTriton, typename Vectors>
__global__ void dropout_flat_kernel(FlatArgs<T> args) {
  if (args.small) let_later_work_start();
  wait_for_earlier_work();
  const std::int64_t tile = static_cast<std::int64_t>(blockDim.x) * kUnroll;
  const std::int64_t start = tile * blockIdx.x, rest = args.octets - start, at = args.head + 8 * start;
  const Scale<T> scale = {args.scale, args.copy};
  std::uint64_t seed = args.mask.seed;
  if (args.mask.seed_pointer != nullptr) seed = kTriton ? uniform(*args.mask.seed_pointer) : *args.mask.seed_pointer;
  const auto octets = static_cast<unsigned>(rest < tile ? rest : tile);
  const std::uint64_t first_octet = ((args.first_index + args.head) >> 3) + start;
  if constexpr (kTriton) {
    drop_triton_tile<T, kUnroll>(Vectors{args.x + at}, args.y + at, octets, first_octet, args.mask, seed, scale);
  } else {
    drop_tile<T, kUnroll>(Vectors{args.x + at}, args.y + at, octets, first_octet, args.mask, seed, scale);
  }
  if ((args.head | args.tail) != 0 && blockIdx.x == 0 && threadIdx.x < args.head + args.tail) {
    const unsigned t = threadIdx.x;
    const std::int64_t e = t < args.head ? t : t + 8 * args.octets;
    const std::uint64_t index = args.first_index + e;
    const std::uint32_t byte = keep_byte(args.mask, kTriton, seed, index >> 3);
    args.y[e] = (byte >> (index & 7) & 1u) != 0 ? scale_element(args.x[e], scale) : T{};
  }
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_FLAT_CUH_
