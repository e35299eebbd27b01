// What the fused kernels share: groups of columns in registers, decisions for them, fast activations, sums over rows.
#ifndef MASKLESS_SRC_FUSED_FUSED_DEVICE_CUH_
#define MASKLESS_SRC_FUSED_FUSED_DEVICE_CUH_

#include <type_traits>

#include "cuda/launch.h"
#include "cuda/mask.h"
#include "cuda/vector.h"
#include "fused/fused_kernels.h"
#include "fused/fused_reference.h"

namespace maskless::cuda {

/// kWidth columns of one row as they lie in memory: 8, the positions of one Philox call, in accesses of 16 bytes; or 1.
template <typename T, int kWidth>
struct alignas(kWidth == 1 ? sizeof(T) : 16) Columns {
  T element[kWidth];
};

template <typename T, int kWidth>
__device__ inline Columns<T, kWidth> load_columns(const T* p) {
  Columns<T, kWidth> columns;
  if constexpr (kWidth == 1) {
    columns.element[0] = *p;
  } else {
#pragma unroll
    for (int q = 0; q < 8 / kVectorSize<T>; ++q)
      reinterpret_cast<uint4*>(columns.element)[q] = reinterpret_cast<const uint4*>(p)[q];
  }
  return columns;
}

/// In assembly: the compiler cuts a plain store of words that were put together from halves into four again.
template <typename T, int kWidth>
__device__ inline void store_columns(T* p, const Columns<T, kWidth>& columns) {
  if constexpr (kWidth == 1) {
    *p = columns.element[0];
  } else {
#pragma unroll
    for (int q = 0; q < 8 / kVectorSize<T>; ++q) {
      const uint4 v = reinterpret_cast<const uint4*>(columns.element)[q];
      asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(reinterpret_cast<uint4*>(p) + q), "r"(v.x),
                   "r"(v.y), "r"(v.z), "r"(v.w)
                   : "memory");
    }
  }
}

/// The same as numbers.
template <typename T, int kWidth>
struct Values {
  ArithmeticType<T> v[kWidth];
};

template <typename T, int kWidth>
__device__ inline Values<T, kWidth> widen(const Columns<T, kWidth>& columns) {
  Values<T, kWidth> values;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    if constexpr (std::is_same_v<T, Float16>) {
      values.v[j] = __half2float(__ushort_as_half(columns.element[j].bits));
    } else {
      values.v[j] = reference::widen(columns.element[j]);
    }
  }
  return values;
}

template <typename T, int kWidth>
__device__ inline Columns<T, kWidth> narrow(const Values<T, kWidth>& values) {
  Columns<T, kWidth> columns;
  if constexpr (sizeof(T) == 2 && kWidth > 1) {
    auto* words = reinterpret_cast<std::uint32_t*>(columns.element);
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) words[j] = pack2<T>(make_float2(values.v[2 * j], values.v[2 * j + 1]));
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) columns.element[j] = reference::narrow<T>(values.v[j]);
  }
  return columns;
}

/// kWidth values of a vector of features, or `absent` where it is left out.
template <typename T, int kWidth>
__device__ inline Values<T, kWidth> features(const T* vector, std::int64_t c, float absent = 0.0f) {
  if (vector != nullptr) return widen(load_columns<T, kWidth>(vector + c));
  Values<T, kWidth> values;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) values.v[j] = absent;
  return values;
}

/// What fused kernels know of the mask and the matrix.
template <typename T>
struct FusedParameters {
  std::int64_t rows, cols;
  DeviceMask mask;
  const std::uint64_t* row_seeds;
  std::int64_t row_seed_stride;
  std::uint64_t first_index, row_index;
  ArithmeticType<T> scale;

  /// Of row r, for kernels of single columns. The others have no row seeds: a seed from the parameters alone is known
  /// to be common to all threads, and its round keys are made once.
  template <int kWidth>
  __device__ std::uint64_t seed(std::int64_t r) const {
    if (kWidth == 1 && row_seeds != nullptr) return row_seeds[r * row_seed_stride];
    return seed_of(mask);
  }
};

template <typename T>
FusedParameters<T> fused_parameters(const FusedArgs& args) {
  return {args.rows,
          args.cols,
          device_mask(args.mask),
          args.mask.row_seeds,
          args.mask.row_seed_stride,
          args.first_index,
          args.row_index,
          static_cast<ArithmeticType<T>>(args.scale)};
}

/// Decisions of kWidth columns from (r, c) on. kDrop false is a program without dropout.
template <typename T, int kWidth, bool kDrop>
struct Keep {
  Flags flags;

  __device__ Keep(const FusedParameters<T>& p, std::uint64_t seed, std::int64_t r, std::int64_t c) {
    if constexpr (kDrop) {
      const std::uint64_t index = p.first_index + p.row_index * static_cast<std::uint64_t>(r) + c;
      flags = keep_flags(p.mask, seed, index >> 3);
      if constexpr (kWidth == 1) flags.word[0] = (to_byte(flags) >> (index & 7) & 1u) << 15;
    }
  }
  __device__ bool operator[](int j) const {
    if constexpr (!kDrop) return true;
    return (flags.word[j / 2] & (j % 2 == 0 ? 0x8000u : 0x80000000u)) != 0;
  }
  __device__ ArithmeticType<T> select(ArithmeticType<T> v, int j) const {
    return (*this)[j] ? v : ArithmeticType<T>(0);
  }

  /// v * scale, not to be contracted into a sum: equal to the CPU's.
  __device__ ArithmeticType<T> scaled(ArithmeticType<T> v, ArithmeticType<T> scale) const {
    if constexpr (!kDrop) return v;
    if constexpr (sizeof(T) == 8) {
      return __dmul_rn(v, scale);
    } else {
      return __fmul_rn(v, scale);
    }
  }

  /// dropout of a value.
  __device__ ArithmeticType<T> drop(ArithmeticType<T> v, int j, ArithmeticType<T> scale) const {
    return select(scaled(v, scale), j);
  }

  /// dropout of all values, rounded. Pairs of 16 bits are masked together.
  __device__ Columns<T, kWidth> drop_and_narrow(Values<T, kWidth> values, ArithmeticType<T> scale) const {
    if constexpr (kDrop && kWidth > 1 && sizeof(T) == 2) {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values.v[j] = scaled(values.v[j], scale);
      Columns<T, kWidth> columns = narrow(values);
      auto* words = reinterpret_cast<std::uint32_t*>(columns.element);
#pragma unroll
      for (int j = 0; j < kWidth / 2; ++j) words[j] &= spread_flags(flags.word[j]);
      return columns;
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) values.v[j] = drop(values.v[j], j, scale);
      return narrow(values);
    }
  }
};

__device__ inline float exp2_fast(float v) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
}
__device__ inline float reciprocal_fast(float v) {
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
}
/// As fmaxf, but NaN if one is.
__device__ inline float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float sigmoid_fast(float v) { return reciprocal_fast(1.0f + exp2_fast(-kLog2E * v)); }

/// For |v| <= 20: density = exp(-v^2 / 2), and the normal tail 1 - Phi(|v|) = density * poly(1 / (1 + 0.52 |v| /
/// sqrt2)), fitted for this use to a relative error of 1.8e-5: a tenth of what float16 can show.
__device__ inline void normal_tail(float a, float& density, float& tail) {
  density = exp2_fast(-0.5f * kLog2E * a * a);
  const float t = reciprocal_fast(fmaf(0.52f * static_cast<float>(reference::kInverseSqrt2), a, 1.0f));
  const float poly =
      fmaf(fmaf(fmaf(fmaf(-0.093431855f, t, 0.222109165f), t, 0.06620283f), t, 0.159447605f), t, 0.14566817f);
  tail = density * poly * t;
}

/// 16-bit data does not need the last digits of erfc and exp, and could not wait for them at the speed of memory.
template <typename T>
__device__ inline ArithmeticType<T> activate(Activation activation, ArithmeticType<T> v) {
  if constexpr (sizeof(T) == 2) {
    switch (activation) {
      case Activation::kRelu: return max_nan(v, 0.0f);
      case Activation::kGelu: {
        const float a = fminf(fabsf(v), 20.0f);
        float density, tail;
        normal_tail(a, density, tail);
        return fmaf(-a, tail, max_nan(v, 0.0f));
      }
      case Activation::kGeluTanh:
        return v * sigmoid_fast(v * fmaf(static_cast<float>(4 * reference::kInverseSqrt2Pi * reference::kGeluCubic),
                                         v * v, static_cast<float>(4 * reference::kInverseSqrt2Pi)));
      case Activation::kSilu: return v * sigmoid_fast(v);
      default: return v;
    }
  } else {
    return reference::activate(activation, v);
  }
}

template <typename T>
__device__ inline ArithmeticType<T> activate_derivative(Activation activation, ArithmeticType<T> v) {
  if constexpr (sizeof(T) == 2) {
    switch (activation) {
      case Activation::kGelu: {
        const float a = fminf(fabsf(v), 20.0f);
        float density, tail;
        normal_tail(a, density, tail);
        const float phi = static_cast<float>(reference::kInverseSqrt2Pi) * a * density;
        return v < 0.0f ? tail - phi : (v == v ? 1.0f - tail + phi : v);
      }
      case Activation::kGeluTanh: {
        const float slope = static_cast<float>(4 * reference::kInverseSqrt2Pi), square = v * v;
        const float cubic = static_cast<float>(reference::kGeluCubic);
        const float s = sigmoid_fast(v * slope * fmaf(cubic, square, 1.0f));
        return fmaf(v * s * (1.0f - s) * slope, fmaf(3 * cubic, square, 1.0f), s);
      }
      case Activation::kSilu: {
        const float s = sigmoid_fast(v);
        return fmaf(v * s, 1.0f - s, s);
      }
      default: return reference::activate_derivative(activation, v);
    }
  } else {
    return reference::activate_derivative(activation, v);
  }
}

/// Calls f with the activation as a constant, so that the choice is made once for many values.
template <typename F>
__device__ inline void visit_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::kRelu: return f(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kGelu: return f(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kGeluTanh: return f(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kSilu: return f(std::integral_constant<Activation, Activation::kSilu>{});
    default: return f(std::integral_constant<Activation, Activation::kIdentity>{});
  }
}

template <typename A>
__device__ inline A add(A a, A b) {
  if constexpr (sizeof(A) == 8) {
    return __dadd_rn(a, b);
  } else {
    return __fadd_rn(a, b);
  }
}

/// May rows of this pointer and stride be read as Columns<T, 8>?
template <typename T>
bool wide(const void* p, std::int64_t stride) {
  return p == nullptr || (aligned(p) && stride % kVectorSize<T> == 0);
}
template <typename T>
bool wide_positions(const FusedArgs& args) {
  return args.cols % 8 == 0 && args.first_index % 8 == 0 && args.row_index % 8 == 0 && args.mask.row_seeds == nullptr;
}

/// Calls f(width, drop) with std::integral_constants: whether columns go by eight, and whether there is any dropout.
template <typename F>
void visit_kernel(bool by_eight, bool drop, F&& f) {
  using One = std::integral_constant<int, 1>;
  using Eight = std::integral_constant<int, 8>;
  if (by_eight) {
    drop ? f(Eight{}, std::true_type{}) : f(Eight{}, std::false_type{});
  } else {
    drop ? f(One{}, std::true_type{}) : f(One{}, std::false_type{});
  }
}

/// Sums over rows, second stage: out[i][c] = the sum over groups g, in order, of partial[g][i][c], rounded once.
/// `which` are the sums that are wanted.
inline constexpr int kSumLanes = 32, kSumRows = 16;

template <typename T>
__global__ void __launch_bounds__(kSumLanes* kSumRows)
    sum_groups_kernel(const ArithmeticType<T>* partial, std::int64_t groups, std::int64_t cols, int sums, T* out0,
                      T* out1, T* out2) {
  __shared__ ArithmeticType<T> shared[kSumRows][kSumLanes];
  const int lane = threadIdx.x % kSumLanes, part = threadIdx.x / kSumLanes;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kSumLanes + lane;
  T* out = blockIdx.y == 0 ? out0 : blockIdx.y == 1 ? out1 : out2;
  if (out == nullptr) return;
  ArithmeticType<T> sum = 0;
  if (c < cols) {
#pragma unroll 8
    for (std::int64_t g = part; g < groups; g += kSumRows) sum += partial[(g * sums + blockIdx.y) * cols + c];
  }
  shared[part][lane] = sum;
  __syncthreads();
  if (part != 0 || c >= cols) return;
  for (int i = 1; i < kSumRows; ++i) sum += shared[i][lane];
  out[c] = reference::narrow<T>(sum);
}

template <typename T>
void sum_groups(const char* op, void* partial, std::int64_t groups, std::int64_t cols, int sums, void* out0, void* out1,
                void* out2, void* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(cols, kSumLanes)), static_cast<unsigned>(sums));
  launch(op, sum_groups_kernel<T>, grid, kSumLanes * kSumRows, stream, static_cast<const ArithmeticType<T>*>(partial),
         groups, cols, sums, static_cast<T*>(out0), static_cast<T*>(out1), static_cast<T*>(out2));
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_FUSED_FUSED_DEVICE_CUH_
