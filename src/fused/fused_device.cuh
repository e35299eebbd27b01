// What the fused kernels share: groups of columns in registers, decisions for them, fast activations, sums over rows.
#ifndef MASKLESS_SRC_FUSED_FUSED_DEVICE_CUH_
#define MASKLESS_SRC_FUSED_FUSED_DEVICE_CUH_

#include <type_traits>

#include "cuda/decide.h"
#include "cuda/launch.h"
#include "cuda/mask.h"
#include "cuda/ring.h"
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

/// Vectors of 16 bytes that eight elements are.
template <typename T>
inline constexpr int kParts = 8 / kVectorSize<T>;

/// A thread's first place among those of its warp, which are `vectors` a thread.
__device__ inline uint4* ring_of_thread(void* shared, int vectors) {
  return static_cast<uint4*>(shared) + (threadIdx.x / 32 * vectors * 32 + threadIdx.x % 32);
}
/// Starts the copy of eight elements to a thread's places from `ring` on.
template <typename T>
__device__ inline void fetch_columns(uint4* ring, const T* global) {
#pragma unroll
  for (int q = 0; q < kParts<T>; ++q) copy_ahead(ring + q * 32, reinterpret_cast<const uint4*>(global) + q);
}
template <typename T>
__device__ inline Columns<T, 8> fetched_columns(const uint4* ring) {
  Columns<T, 8> columns;
#pragma unroll
  for (int q = 0; q < kParts<T>; ++q) reinterpret_cast<uint4*>(columns.element)[q] = ring[q * 32];
  return columns;
}

/// The same as numbers.
template <typename T, int kWidth>
struct Values {
  ArithmeticType<T> v[kWidth];
};

template <typename T, int kWidth>
__device__ inline Values<T, kWidth> widen(const Columns<T, kWidth>& columns) {
  Values<T, kWidth> values;
  if constexpr (sizeof(T) == 2 && kWidth > 1) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(columns.element);
#pragma unroll
    for (int j = 0; j < kWidth / 2; ++j) {
      const float2 pair = unpack2<T>(words[j]);
      values.v[2 * j] = pair.x;
      values.v[2 * j + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int j = 0; j < kWidth; ++j) values.v[j] = reference::widen(columns.element[j]);
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
  RoundKeys keys;  // of the seed, if it is known here

  /// The octet that columns c ... c + 7 of row r are, c a multiple of 8.
  __device__ std::uint64_t octet(std::int64_t r, std::int64_t c) const {
    return (first_index + row_index * static_cast<std::uint64_t>(r) + static_cast<std::uint64_t>(c)) >> 3;
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
          static_cast<ArithmeticType<T>>(args.scale),
          round_keys(args.mask.seed)};
}

/// v * scale, not to be contracted into a sum: equal to the CPU's.
__device__ inline float scaled(float v, float scale) { return __fmul_rn(v, scale); }
__device__ inline double scaled(double v, double scale) { return __dmul_rn(v, scale); }

/// Is (r, c) kept? For kernels that take any columns, an element at a time.
template <typename T>
__device__ inline bool kept(const FusedParameters<T>& p, std::int64_t r, std::int64_t c) {
  const std::uint64_t seed = p.row_seeds != nullptr ? p.row_seeds[r * p.row_seed_stride] : seed_of(p.mask);
  const std::uint64_t index = p.first_index + p.row_index * static_cast<std::uint64_t>(r) + c;
  return (to_byte(keep_flags(p.mask, seed, index >> 3)) >> (index & 7) & 1u) != 0;
}

/// What a kernel is compiled for: no dropout, a seed that is known at the launch, or one that may be in memory.
enum class Drop { kNone, kGivenSeed, kAnySeed };

/// Calls f with what to compile for as a std::integral_constant. 16-bit data alone leaves too little time to make keys.
template <typename T, typename F>
void visit_drop(const DropoutMask& mask, F&& f) {
  if (mask.threshold == 0) return f(std::integral_constant<Drop, Drop::kNone>{});
  if constexpr (sizeof(T) == 2) {
    if (mask.seed_pointer == nullptr) return f(std::integral_constant<Drop, Drop::kGivenSeed>{});
  }
  f(std::integral_constant<Drop, Drop::kAnySeed>{});
}

/// Decisions of whole octets of rows. Without dropout there is nothing to know.
template <Drop kDrop, bool kOneInstruction = false>
class Octets : public Decider<kDrop == Drop::kGivenSeed> {
 public:
  template <typename T>
  __device__ explicit Octets(const FusedParameters<T>& p) : Decider<kDrop == Drop::kGivenSeed>(p.mask, p.keys) {}
  /// Leaves 0 where values are dropped.
  template <typename T>
  __device__ void drop(Values<T, 8>& values, const Halves& halves) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const KeptPair pair = this->template kept < kOneInstruction && !std::is_same_v < T, Float16 >> (halves.word[j]);
      if (!pair.first) values.v[2 * j] = 0;
      if (!pair.second) values.v[2 * j + 1] = 0;
    }
  }
};

template <bool kOneInstruction>
class Octets<Drop::kNone, kOneInstruction> {
 public:
  template <typename T>
  __device__ explicit Octets(const FusedParameters<T>&) {}
  template <int kCount>
  __device__ void decide(const std::uint64_t (&)[kCount], Halves (&)[kCount]) const {}
  template <typename T>
  __device__ void drop(Values<T, 8>&, const Halves&) const {}
};

__device__ inline float exp2_fast(float v) {
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
}
/// As fmaxf, but NaN if one is.
__device__ inline float max_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

template <typename A>
__device__ inline A add(A a, A b) {
  if constexpr (sizeof(A) == 8) {
    return __dadd_rn(a, b);
  } else {
    return __fadd_rn(a, b);
  }
}

inline constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float tanh_fast(float v) {
  asm("tanh.approx.f32 %0, %0;" : "+f"(v));
  return v;
}

/// Sigmoids as (1 + tanh(argument(w))) / 2, w = kAlpha * v: that factor leaves fewer operations, and comes with the
/// addition of the bias. For 16-bit data, which does not need the last digits of erfc and exp, and could not wait for
/// them at the speed of memory.
template <Activation kActivation>
struct Sigmoid;
template <>
struct Sigmoid<Activation::kSilu> {
  static constexpr float kAlpha = 0.5f;
  __device__ static float argument(float w) { return w; }
};
/// gelu's tanh form is v * sigmoid(2 sqrt(2 / pi) (v + 0.044715 v^3)).
template <>
struct Sigmoid<Activation::kGeluTanh> {
  static constexpr float kAlpha = 0.3292034911525734f;
  __device__ static float argument(float w) { return w * fmaf(w, w, 2.423681954311584f); }
};
/// The normal distribution Phi(v) as the sigmoid of v times a polynomial of v^2, fitted for this use: v * Phi(v) is off
/// by at most 3e-5, a sixteenth of half a unit of float16 at 1. Where the polynomial would turn (|v| = 7.25) it stays.
template <>
struct Sigmoid<Activation::kGelu> {
  static constexpr float kAlpha = 0.2037929797766129f;
  __device__ static float turn(float w) { return fmaf(w, w, -2.186101581318223f); }
  __device__ static float argument_of(float w, float turn) {
    const float q = fminf(turn, 0.0f);
    return w * fmaf(-q, q, 8.692363761752363f);
  }
  __device__ static float argument(float w) { return argument_of(w, turn(w)); }
};

/// activation(x + bias) * scale, or without the scale.
template <typename T, Activation kActivation, bool kScale>
class Activate {
 public:
  using A = ArithmeticType<T>;
  static constexpr bool kSigmoid = sizeof(T) == 2 && kActivation >= Activation::kGelu;

  __device__ explicit Activate(const FusedParameters<T>& p) : factor_(p.scale) {
    if constexpr (kSigmoid) factor_ = 0.5f / Sigmoid<kActivation>::kAlpha * (kScale ? p.scale : 1.0f);
  }
  /// What to pass as bias.
  __device__ static A prepare(A bias) {
    if constexpr (kSigmoid) return Sigmoid<kActivation>::kAlpha * bias;
    return bias;
  }
  __device__ A operator()(A x, A bias) const {
    if constexpr (kSigmoid) {
      const float w = fmaf(Sigmoid<kActivation>::kAlpha, x, bias), half = w * factor_;
      return fmaf(half, tanh_fast(Sigmoid<kActivation>::argument(w)), half);
    } else {
      A v = add(x, bias);
      if constexpr (sizeof(T) == 2 && kActivation == Activation::kRelu) {
        v = max_nan(v, 0.0f);
      } else {
        v = reference::activate(kActivation, v);
      }
      return kScale ? scaled(v, factor_) : v;
    }
  }

 private:
  A factor_;
};

/// g * scale * activation'(x + bias), or without the scale.
template <typename T, Activation kActivation, bool kScale>
class ActivateBackward {
 public:
  using A = ArithmeticType<T>;
  static constexpr bool kSigmoid = sizeof(T) == 2 && kActivation >= Activation::kGelu;

  __device__ explicit ActivateBackward(const FusedParameters<T>& p) : scale_(p.scale) {}
  __device__ static A prepare(A bias) {
    if constexpr (kSigmoid) return Sigmoid<kActivation>::kAlpha * bias;
    return bias;
  }
  __device__ A operator()(A g, A x, A bias) const {
    if constexpr (kScale) g = scaled(g, scale_);
    if constexpr (kActivation == Activation::kIdentity) {
      return g;
    } else if constexpr (kSigmoid) {
      using S = Sigmoid<kActivation>;
      const float w = fmaf(S::kAlpha, x, bias);
      if constexpr (kActivation == Activation::kGelu) {  // Phi(v) + v * density(v)
        const float turn = S::turn(w), density = exp2_fast(fmaf(kDensitySlope, turn, kDensityStart));
        return g * fmaf(w, density, fmaf(0.5f, tanh_fast(S::argument_of(w, turn)), 0.5f));
      } else {  // s + v s (1 - s) a'(v), s = (1 + t) / 2, s (1 - s) = (1 - t^2) / 4
        const float t = tanh_fast(S::argument(w)), s = fmaf(0.5f, t, 0.5f);
        float slope = w * (0.25f / S::kAlpha);
        if constexpr (kActivation == Activation::kGeluTanh) slope = w * fmaf(1.5f, w * w, 0.5f * 2.423681954311584f);
        return g * fmaf(fmaf(-t, t, 1.0f), slope, s);
      }
    } else {
      return g * reference::activate_derivative(kActivation, add(x, bias));
    }
  }

 private:
  /// log2 of the density of the normal distribution over kAlpha, as a function of turn.
  static constexpr float kDensitySlope = -17.36865162973262f, kDensityStart = -37.00056111763675f;
  A scale_;
};

/// Calls f with the activation as a std::integral_constant.
template <typename F>
MASKLESS_HOST_DEVICE void visit_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::kRelu: return f(std::integral_constant<Activation, Activation::kRelu>{});
    case Activation::kGelu: return f(std::integral_constant<Activation, Activation::kGelu>{});
    case Activation::kGeluTanh: return f(std::integral_constant<Activation, Activation::kGeluTanh>{});
    case Activation::kSilu: return f(std::integral_constant<Activation, Activation::kSilu>{});
    default: return f(std::integral_constant<Activation, Activation::kIdentity>{});
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

/// Sums over rows, second stage: out[i][c] = the sum over groups g, in order, of partial[g][i][c], rounded once.
/// `which` are the sums that are wanted.
inline constexpr int kSumLanes = 32, kSumRows = 16;

template <typename T>
__global__ void __launch_bounds__(kSumLanes* kSumRows)
    sum_groups_kernel(const ArithmeticType<T>* partial, std::int64_t groups, std::int64_t cols, int sums, T* out0,
                      T* out1, T* out2) {
  __shared__ ArithmeticType<T> shared[kSumRows][kSumLanes];
  wait_for_earlier_work();
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
void sum_groups(const char* op, Device device, void* partial, std::int64_t groups, std::int64_t cols, int sums,
                void* out0, void* out1, void* out2, void* stream) {
  const dim3 grid(static_cast<unsigned>(ceil_div(cols, kSumLanes)), static_cast<unsigned>(sums));
  launch_early<sum_groups_kernel<T>>(op, device, grid, kSumLanes * kSumRows, stream,
                                     static_cast<const ArithmeticType<T>*>(partial), groups, cols, sums,
                                     static_cast<T*>(out0), static_cast<T*>(out1), static_cast<T*>(out2));
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_FUSED_FUSED_DEVICE_CUH_
