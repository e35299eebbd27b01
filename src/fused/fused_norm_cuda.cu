// LayerNorm and RMSNorm of residual + dropout(x + bias). A row stays in the registers of a warp or a block between its
// reductions; rows of unusual length or alignment take a slower road, an element at a time.
#include <algorithm>

#include "common/visit.h"
#include "fused/fused_device.cuh"
#include "fused/fused_norm.h"

namespace maskless::cuda {
namespace {

constexpr int kForwardThreads = 512;  // at most
constexpr int kSlowThreads = 256;
// Blocks that sum over rows: fixed, for the same bits on every device. Three small ones or one large one fill a
// multiprocessor's registers.
constexpr int kSmallBackward = 256, kLargeBackward = 512;  // threads
constexpr std::int64_t kSmallGroups = 396, kLargeGroups = 132;
constexpr std::int64_t kSlowGroups = 64;

__device__ inline float square_root_inverse(float v) { return 1.0f / sqrtf(v); }
__device__ inline double square_root_inverse(double v) { return 1.0 / sqrt(v); }

template <typename A>
__device__ inline A warp_sum(A v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  return v;
}

/// Waits for the `threads` (a multiple of 32) threads of a row: barrier `slot` + 1 of the block.
__device__ inline void row_barrier(int slot, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(slot + 1), "r"(threads) : "memory");
}

/// The sum over a row's threads, in a fixed order. `shared`: a number a warp, not in use by an earlier call.
template <typename A>
__device__ inline A row_sum(A v, A* shared, int slot, int thread, int threads) {
  v = warp_sum(v);
  if (threads == 32) return v;
  if (thread % 32 == 0) shared[thread / 32] = v;
  row_barrier(slot, threads);
  v = shared[0];
  for (int w = 1; w < threads / 32; ++w) v += shared[w];
  return v;
}

template <typename T>
struct NormParameters {
  FusedParameters<T> matrix;
  const T *x, *residual, *bias, *weight, *norm_bias;
  T *sum, *y;
  ArithmeticType<T>*mean, *rstd;
  std::int64_t x_stride, residual_stride, sum_stride, y_stride;
  ArithmeticType<T> eps;
  bool centred;
};

/// `threads` of a block take a row, kOctets times eight columns each.
template <typename T, int kOctets, bool kDrop>
__global__ void __launch_bounds__(kForwardThreads) norm_kernel(NormParameters<T> p, int threads) {
  using A = ArithmeticType<T>;
  __shared__ A shared[2][kForwardThreads / 32];
  const int slot = threadIdx.x / threads, t = threadIdx.x % threads;
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * (blockDim.x / threads) + slot;
  if (r >= p.matrix.rows) return;  // whole rows of threads
  const A count = static_cast<A>(p.matrix.cols);
  Columns<T, 8> x[kOctets], residual[kOctets];
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    const std::int64_t c = (static_cast<std::int64_t>(q) * threads + t) * 8;
    if (c >= p.matrix.cols) continue;
    x[q] = load_columns<T, 8>(p.x + r * p.x_stride + c);
    if (p.residual != nullptr) residual[q] = load_columns<T, 8>(p.residual + r * p.residual_stride + c);
  }
  const std::uint64_t seed = p.matrix.template seed<8>(r);
  Values<T, 8> s[kOctets];
  A total = 0;
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    const std::int64_t c = (static_cast<std::int64_t>(q) * threads + t) * 8;
    if (c >= p.matrix.cols) continue;
    const Keep<T, 8, kDrop> keep(p.matrix, seed, r, c);
    const Values<T, 8> bias = features<T, 8>(p.bias, c);
    s[q] = widen(x[q]);
#pragma unroll
    for (int j = 0; j < 8; ++j) s[q].v[j] = keep.drop(add(s[q].v[j], bias.v[j]), j, p.matrix.scale);
    if (p.residual != nullptr) {
      const Values<T, 8> other = widen(residual[q]);
#pragma unroll
      for (int j = 0; j < 8; ++j) s[q].v[j] = add(other.v[j], s[q].v[j]);
    }
    const Columns<T, 8> stored = narrow(s[q]);
    store_columns(p.sum + r * p.sum_stride + c, stored);
    s[q] = widen(stored);  // what is normalised is what is stored
#pragma unroll
    for (int j = 0; j < 8; ++j) total += s[q].v[j];
  }
  const A mean = p.centred ? row_sum(total, shared[0], slot, t, threads) / count : A(0);
  A squares = 0;
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    if ((static_cast<std::int64_t>(q) * threads + t) * 8 >= p.matrix.cols) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += (s[q].v[j] - mean) * (s[q].v[j] - mean);
  }
  const A rstd = square_root_inverse(row_sum(squares, shared[1], slot, t, threads) / count + p.eps);
  if (t == 0) {
    if (p.centred) p.mean[r] = mean;
    p.rstd[r] = rstd;
  }
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    const std::int64_t c = (static_cast<std::int64_t>(q) * threads + t) * 8;
    if (c >= p.matrix.cols) continue;
    const Values<T, 8> weight = features<T, 8>(p.weight, c, 1.0f), norm_bias = features<T, 8>(p.norm_bias, c);
#pragma unroll
    for (int j = 0; j < 8; ++j) s[q].v[j] = (s[q].v[j] - mean) * rstd * weight.v[j] + norm_bias.v[j];
    store_columns(p.y + r * p.y_stride + c, narrow(s[q]));
  }
}

/// Any columns: a block a row, which reads its stored sum again.
template <typename T>
__global__ void __launch_bounds__(kSlowThreads) norm_slow_kernel(NormParameters<T> p) {
  using A = ArithmeticType<T>;
  __shared__ A shared[2][kSlowThreads / 32];
  const std::int64_t r = blockIdx.x;
  const int t = threadIdx.x;
  const std::uint64_t seed = p.matrix.template seed<1>(r);
  T* sum = p.sum + r * p.sum_stride;
  A total = 0, squares = 0;
  for (std::int64_t c = t; c < p.matrix.cols; c += kSlowThreads) {
    const Keep<T, 1, true> keep(p.matrix, seed, r, c);
    A v = keep.drop(add(reference::widen(p.x[r * p.x_stride + c]), features<T, 1>(p.bias, c).v[0]), 0, p.matrix.scale);
    if (p.residual != nullptr) v = add(reference::widen(p.residual[r * p.residual_stride + c]), v);
    sum[c] = reference::narrow<T>(v);
    total += reference::widen(sum[c]);
  }
  const A count = static_cast<A>(p.matrix.cols);
  const A mean = p.centred ? row_sum(total, shared[0], 0, t, kSlowThreads) / count : A(0);
  for (std::int64_t c = t; c < p.matrix.cols; c += kSlowThreads) {
    const A d = reference::widen(sum[c]) - mean;
    squares += d * d;
  }
  const A rstd = square_root_inverse(row_sum(squares, shared[1], 0, t, kSlowThreads) / count + p.eps);
  if (t == 0) {
    if (p.centred) p.mean[r] = mean;
    p.rstd[r] = rstd;
  }
  for (std::int64_t c = t; c < p.matrix.cols; c += kSlowThreads)
    p.y[r * p.y_stride + c] =
        reference::narrow<T>((reference::widen(sum[c]) - mean) * rstd * features<T, 1>(p.weight, c, 1.0f).v[0] +
                             features<T, 1>(p.norm_bias, c).v[0]);
}

template <typename T>
struct NormBackwardParameters {
  FusedParameters<T> matrix;
  const T *dy, *dsum, *sum, *weight;
  const ArithmeticType<T>*mean, *rstd;
  T *dresidual, *dx;
  ArithmeticType<T>* partial;  // [block][dbias, dweight, dnorm_bias][column], or null
  std::int64_t dy_stride, dsum_stride, sum_stride, dresidual_stride, dx_stride;
  bool centred;
};

/// As norm_kernel, a block going down many rows with its sums over them in registers.
template <typename T, int kThreads, int kOctets, bool kDrop>
__global__ void __launch_bounds__(kThreads, kThreads == kSmallBackward && sizeof(T) < 8 ? 3 : 1)
    norm_backward_kernel(NormBackwardParameters<T> p, int threads) {
  using A = ArithmeticType<T>;
  __shared__ A shared[2][2][kThreads / 32];  // [parity of the row][which sum][warp of the block]
  __shared__ A sums[kOctets == 1 ? kThreads * 8 : 1];
  const int slot = threadIdx.x / threads, t = threadIdx.x % threads, slots = blockDim.x / threads;
  const int first_warp = slot * (threads / 32);
  const A count = static_cast<A>(p.matrix.cols);
  Values<T, 8> dbias[kOctets] = {}, dweight[kOctets] = {}, dnorm_bias[kOctets] = {};
  Columns<T, 8> dy[kOctets], sum[kOctets], dsum[kOctets];
  const auto load = [&](std::int64_t r) {
#pragma unroll
    for (int q = 0; q < kOctets; ++q) {
      const std::int64_t c = (static_cast<std::int64_t>(q) * threads + t) * 8;
      if (c >= p.matrix.cols) continue;
      dy[q] = load_columns<T, 8>(p.dy + r * p.dy_stride + c);
      sum[q] = load_columns<T, 8>(p.sum + r * p.sum_stride + c);
      if (p.dsum != nullptr) dsum[q] = load_columns<T, 8>(p.dsum + r * p.dsum_stride + c);
    }
  };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * slots;
  int parity = 0;
  for (std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * slots + slot; r < p.matrix.rows;
       r += step, parity ^= 1) {
    load(r);
    const std::uint64_t seed = p.matrix.template seed<8>(r);
    const A mean = p.centred ? p.mean[r] : A(0), rstd = p.rstd[r];
    A first = 0, second = 0;
#pragma unroll
    for (int q = 0; q < kOctets; ++q) {
      const std::int64_t c = (static_cast<std::int64_t>(q) * threads + t) * 8;
      if (c >= p.matrix.cols) continue;
      const Values<T, 8> d = widen(dy[q]), s = widen(sum[q]), weight = features<T, 8>(p.weight, c, 1.0f);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const A g = d.v[j] * weight.v[j];
        first += g;
        second += g * ((s.v[j] - mean) * rstd);
      }
    }
    first = warp_sum(first);
    second = warp_sum(second);
    if (threads > 32) {
      if (t % 32 == 0) {
        shared[parity][0][threadIdx.x / 32] = first;
        shared[parity][1][threadIdx.x / 32] = second;
      }
      row_barrier(slot, threads);
      first = second = 0;
      for (int w = 0; w < threads / 32; ++w) {
        first += shared[parity][0][first_warp + w];
        second += shared[parity][1][first_warp + w];
      }
    }
    first = p.centred ? first / count : A(0);
    second /= count;
#pragma unroll
    for (int q = 0; q < kOctets; ++q) {
      const std::int64_t c = (static_cast<std::int64_t>(q) * threads + t) * 8;
      if (c >= p.matrix.cols) continue;
      const Keep<T, 8, kDrop> keep(p.matrix, seed, r, c);
      const Values<T, 8> d = widen(dy[q]), s = widen(sum[q]), weight = features<T, 8>(p.weight, c, 1.0f);
      Values<T, 8> ds, dx;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const A normal = (s.v[j] - mean) * rstd;
        ds.v[j] = rstd * (d.v[j] * weight.v[j] - first - normal * second);
        dweight[q].v[j] += d.v[j] * normal;
        dnorm_bias[q].v[j] += d.v[j];
      }
      if (p.dsum != nullptr) {
        const Values<T, 8> other = widen(dsum[q]);
#pragma unroll
        for (int j = 0; j < 8; ++j) ds.v[j] += other.v[j];
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        dx.v[j] = keep.drop(ds.v[j], j, p.matrix.scale);
        dbias[q].v[j] += dx.v[j];
      }
      if (p.dresidual != nullptr) store_columns(p.dresidual + r * p.dresidual_stride + c, narrow(ds));
      store_columns(p.dx + r * p.dx_stride + c, narrow(dx));
    }
  }
  if (p.partial == nullptr) return;
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    A* out = p.partial + (static_cast<std::int64_t>(blockIdx.x) * 3 + which) * p.matrix.cols;
    const Values<T, 8>* mine = which == 0 ? dbias : which == 1 ? dweight : dnorm_bias;
    if constexpr (kOctets == 1) {  // several rows a block
      __syncthreads();
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[(slot * 8 + j) * threads + t] = mine[0].v[j];
      __syncthreads();
      for (int e = threadIdx.x; e < threads * 8 && e < p.matrix.cols; e += blockDim.x) {
        A total = 0;
        for (int k = 0; k < slots; ++k) total += sums[(k * 8 + e % 8) * threads + e / 8];
        out[e] = total;
      }
    } else {
#pragma unroll
      for (int q = 0; q < kOctets; ++q) {
        const std::int64_t c = (static_cast<std::int64_t>(q) * threads + t) * 8;
        if (c >= p.matrix.cols) continue;
#pragma unroll
        for (int j = 0; j < 8; ++j) out[c + j] = mine[q].v[j];
      }
    }
  }
}

/// Any columns, first pass: a row's two means, for the passes below.
template <typename T>
__global__ void __launch_bounds__(kSlowThreads)
    norm_means_kernel(NormBackwardParameters<T> p, ArithmeticType<T>* means) {
  using A = ArithmeticType<T>;
  __shared__ A shared[2][kSlowThreads / 32];
  const std::int64_t r = blockIdx.x;
  const A mean = p.centred ? p.mean[r] : A(0), rstd = p.rstd[r], count = static_cast<A>(p.matrix.cols);
  A first = 0, second = 0;
  for (std::int64_t c = threadIdx.x; c < p.matrix.cols; c += kSlowThreads) {
    const A g = reference::widen(p.dy[r * p.dy_stride + c]) * features<T, 1>(p.weight, c, 1.0f).v[0];
    first += g;
    second += g * ((reference::widen(p.sum[r * p.sum_stride + c]) - mean) * rstd);
  }
  first = row_sum(first, shared[0], 0, threadIdx.x, kSlowThreads);
  second = row_sum(second, shared[1], 0, threadIdx.x, kSlowThreads);
  if (threadIdx.x == 0) {
    means[2 * r] = p.centred ? first / count : A(0);
    means[2 * r + 1] = second / count;
  }
}

/// The gradients of one element, from its row's means.
template <typename T>
struct NormGradients {
  ArithmeticType<T> d, normal, ds, dx;

  __device__ NormGradients(const NormBackwardParameters<T>& p, const ArithmeticType<T>* means, std::int64_t r,
                           std::int64_t c) {
    using A = ArithmeticType<T>;
    const A mean = p.centred ? p.mean[r] : A(0), rstd = p.rstd[r];
    const Keep<T, 1, true> keep(p.matrix, p.matrix.template seed<1>(r), r, c);
    d = reference::widen(p.dy[r * p.dy_stride + c]);
    normal = (reference::widen(p.sum[r * p.sum_stride + c]) - mean) * rstd;
    ds = rstd * (d * features<T, 1>(p.weight, c, 1.0f).v[0] - means[2 * r] - normal * means[2 * r + 1]);
    if (p.dsum != nullptr) ds += reference::widen(p.dsum[r * p.dsum_stride + c]);
    dx = keep.drop(ds, 0, p.matrix.scale);
  }
};

template <typename T>
__global__ void __launch_bounds__(kSlowThreads)
    norm_sums_kernel(NormBackwardParameters<T> p, const ArithmeticType<T>* means, std::int64_t rows_a_group) {
  using A = ArithmeticType<T>;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kSlowThreads + threadIdx.x;
  if (c >= p.matrix.cols) return;
  const std::int64_t begin = blockIdx.y * rows_a_group;
  const std::int64_t end = begin + rows_a_group < p.matrix.rows ? begin + rows_a_group : p.matrix.rows;
  A dbias = 0, dweight = 0, dnorm_bias = 0;
  for (std::int64_t r = begin; r < end; ++r) {
    const NormGradients<T> g(p, means, r, c);
    dbias += g.dx;
    dweight += g.d * g.normal;
    dnorm_bias += g.d;
  }
  A* out = p.partial + static_cast<std::int64_t>(blockIdx.y) * 3 * p.matrix.cols + c;
  out[0] = dbias;
  out[p.matrix.cols] = dweight;
  out[2 * p.matrix.cols] = dnorm_bias;
}

template <typename T>
__global__ void __launch_bounds__(kSlowThreads)
    norm_gradients_kernel(NormBackwardParameters<T> p, const ArithmeticType<T>* means) {
  const std::int64_t r = blockIdx.x;
  for (std::int64_t c = threadIdx.x; c < p.matrix.cols; c += kSlowThreads) {
    const NormGradients<T> g(p, means, r, c);
    if (p.dresidual != nullptr) p.dresidual[r * p.dresidual_stride + c] = reference::narrow<T>(g.ds);
    p.dx[r * p.dx_stride + c] = reference::narrow<T>(g.dx);
  }
}

void few_rows(const char* op, std::int64_t rows) {
  if (rows > kMaxBlocks)
    throw Error(ErrorKind::kValue, op, "x", "must have fewer than 2^31 rows on cuda", std::to_string(rows));
}

int round_to_warps(std::int64_t threads) { return static_cast<int>(ceil_div(threads, 32) * 32); }

template <typename T>
void norm(const char* op, const FusedNormArgs& args, void* stream) {
  NormParameters<T> p = {fused_parameters<T>(args),
                         static_cast<const T*>(args.x.data),
                         static_cast<const T*>(args.residual.data),
                         static_cast<const T*>(args.bias),
                         static_cast<const T*>(args.weight),
                         static_cast<const T*>(args.norm_bias),
                         static_cast<T*>(args.sum.data),
                         static_cast<T*>(args.y.data),
                         static_cast<ArithmeticType<T>*>(args.mean),
                         static_cast<ArithmeticType<T>*>(args.rstd),
                         args.x.stride,
                         args.residual.stride,
                         args.sum.stride,
                         args.y.stride,
                         static_cast<ArithmeticType<T>>(args.eps),
                         args.norm == Norm::kLayer};
  const bool eight = wide_positions<T>(args) && wide<T>(p.x, p.x_stride) && wide<T>(p.residual, p.residual_stride) &&
                     wide<T>(p.sum, p.sum_stride) && wide<T>(p.y, p.y_stride) && wide<T>(p.bias, 0) &&
                     wide<T>(p.weight, 0) && wide<T>(p.norm_bias, 0);
  const std::int64_t octets = args.cols / 8;
  constexpr int kOctets = sizeof(T) == 8 ? 2 : 4;
  if (!eight || octets > kOctets * kForwardThreads) {
    launch(op, norm_slow_kernel<T>, static_cast<unsigned>(args.rows), kSlowThreads, stream, p);
    return;
  }
  const int threads = round_to_warps(ceil_div(octets, kOctets));
  const int slots = threads == 32 ? 4 : 1;
  const auto blocks = static_cast<unsigned>(ceil_div(args.rows, slots));
  launch(op, args.mask.threshold != 0 ? norm_kernel<T, kOctets, true> : norm_kernel<T, kOctets, false>, blocks,
         threads * slots, stream, p, threads);
}

template <typename T>
void norm_backward(const char* op, const FusedNormBackwardArgs& args, void* stream) {
  using A = ArithmeticType<T>;
  const bool sums = args.dbias != nullptr || args.dweight != nullptr || args.dnorm_bias != nullptr;
  A* const work = static_cast<A*>(args.workspace);
  NormBackwardParameters<T> p = {fused_parameters<T>(args),
                                 static_cast<const T*>(args.dy.data),
                                 static_cast<const T*>(args.dsum.data),
                                 static_cast<const T*>(args.sum.data),
                                 static_cast<const T*>(args.weight),
                                 static_cast<const A*>(args.mean),
                                 static_cast<const A*>(args.rstd),
                                 static_cast<T*>(args.dresidual.data),
                                 static_cast<T*>(args.dx.data),
                                 sums ? work : nullptr,
                                 args.dy.stride,
                                 args.dsum.stride,
                                 args.sum.stride,
                                 args.dresidual.stride,
                                 args.dx.stride,
                                 args.norm == Norm::kLayer};
  const bool eight = wide_positions<T>(args) && wide<T>(p.dy, p.dy_stride) && wide<T>(p.dsum, p.dsum_stride) &&
                     wide<T>(p.sum, p.sum_stride) && wide<T>(p.dresidual, p.dresidual_stride) &&
                     wide<T>(p.dx, p.dx_stride) && wide<T>(p.weight, 0);
  const std::int64_t octets = args.cols / 8;
  std::int64_t groups = 0;
  if (args.rows > 0 && eight && octets <= 2 * kLargeBackward) {
    const auto run = [&](auto kernel, int block, int octets_a_thread, std::int64_t most) {
      const int threads = round_to_warps(ceil_div(octets, octets_a_thread)), slots = block / threads;
      groups = std::min(ceil_div(args.rows, slots), most);
      launch(op, kernel, static_cast<unsigned>(groups), threads * slots, stream, p, threads);
    };
    const bool drop = args.mask.threshold != 0;
    if (octets <= kSmallBackward) {
      run(drop ? norm_backward_kernel<T, kSmallBackward, 1, true> : norm_backward_kernel<T, kSmallBackward, 1, false>,
          kSmallBackward, 1, kSmallGroups);
    } else if (octets <= kLargeBackward) {
      run(drop ? norm_backward_kernel<T, kLargeBackward, 1, true> : norm_backward_kernel<T, kLargeBackward, 1, false>,
          kLargeBackward, 1, kLargeGroups);
    } else {
      run(drop ? norm_backward_kernel<T, kLargeBackward, 2, true> : norm_backward_kernel<T, kLargeBackward, 2, false>,
          kLargeBackward, 2, kLargeGroups);
    }
  } else if (args.rows > 0) {
    A* const means = work;
    const auto rows = static_cast<unsigned>(args.rows);
    p.partial = sums ? work + 2 * args.rows : nullptr;
    launch(op, norm_means_kernel<T>, rows, kSlowThreads, stream, p, means);
    if (sums) {  // before the gradients, which may be written over dy
      groups = std::min(args.rows, kSlowGroups);
      const dim3 grid(static_cast<unsigned>(ceil_div(args.cols, kSlowThreads)), static_cast<unsigned>(groups));
      launch(op, norm_sums_kernel<T>, grid, kSlowThreads, stream, p, means, ceil_div(args.rows, groups));
    }
    launch(op, norm_gradients_kernel<T>, rows, kSlowThreads, stream, p, means);
  }
  if (sums) sum_groups<T>(op, p.partial, groups, args.cols, 3, args.dbias, args.dweight, args.dnorm_bias, stream);
}

}  // namespace

std::int64_t fused_norm_sums(std::int64_t rows, std::int64_t cols) {
  return 2 * rows + 3 * cols * std::min(rows, kSmallGroups);
}

void fused_norm(const FusedNormArgs& args, Device device, void* stream) {
  const char* op = "fused norm";
  few_rows(op, args.rows);
  DeviceGuard guard(op, device);
  visit_floating(args.dtype, [&](auto type) { norm<typename decltype(type)::type>(op, args, stream); });
}

void fused_norm_backward(const FusedNormBackwardArgs& args, Device device, void* stream) {
  const char* op = "fused norm backward";
  few_rows(op, args.rows);
  DeviceGuard guard(op, device);
  visit_floating(args.dtype, [&](auto type) { norm_backward<typename decltype(type)::type>(op, args, stream); });
}

}  // namespace maskless::cuda
