// LayerNorm and RMSNorm of residual + dropout(x + bias). A row stays in the registers of a warp or a block between its
// reductions; rows of unusual length or alignment take a slower road, an element at a time.
#include <algorithm>

#include "common/visit.h"
#include "fused/fused_device.cuh"
#include "fused/fused_norm.h"

namespace maskless::cuda {
namespace {

constexpr int kForwardThreads = 512;  // at most; up to half of that, registers are limited for three blocks
constexpr int kFewThreads = 128;      // of a block whose rows are short
constexpr int kSlowThreads = 256;
// Blocks that sum over rows: fixed, for the same bits on every device. One fills a multiprocessor's registers.
constexpr int kBackwardThreads = 512;
constexpr std::int64_t kBackwardGroups = 132;
constexpr std::int64_t kSlowGroups = 64;

__device__ inline float square_root_inverse(float v) { return rsqrtf(v); }
__device__ inline double square_root_inverse(double v) { return 1.0 / sqrt(v); }

template <typename A>
__device__ inline A warp_sum(A v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  return v;
}

/// Which part of a block takes a row: `threads` threads, a multiple of 32. All rows of a block go in step.
struct RowThreads {
  int slot, slots, thread, threads;

  __device__ explicit RowThreads(int a_row)
      : slot(threadIdx.x / a_row), slots(blockDim.x / a_row), thread(threadIdx.x % a_row), threads(a_row) {}
};

/// The sums over each row's threads, in a fixed order. `shared`: a number a warp, not in use by an earlier call.
template <int kSums, typename A>
__device__ inline void row_sums(A (&v)[kSums], A (*shared)[kSums], const RowThreads& row) {
#pragma unroll
  for (int i = 0; i < kSums; ++i) v[i] = warp_sum(v[i]);
  if (row.threads == 32) return;
  const int lane = threadIdx.x % 32;
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) shared[threadIdx.x / 32][i] = v[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSums; ++i)
    v[i] = warp_sum(lane < row.threads / 32 ? shared[row.slot * (row.threads / 32) + lane][i] : A(0));
}
template <typename A>
__device__ inline A row_sum(A v, A (*shared)[1], const RowThreads& row) {
  A one[1] = {v};
  row_sums(one, shared, row);
  return one[0];
}

template <typename T>
struct NormParameters {
  FusedParameters<T> matrix;
  const T *x, *residual, *bias, *weight, *norm_bias;
  T *sum, *y;
  ArithmeticType<T>*mean, *rstd;
  std::int64_t x_stride, residual_stride, sum_stride, y_stride;
  ArithmeticType<T> eps, inverse_cols;
  bool centred;
};

/// `threads` of a block take a row, kOctets times eight columns each.
template <typename T, int kThreads, int kOctets, bool kDrop>
__global__ void __launch_bounds__(kThreads, kThreads == kForwardThreads / 2 && sizeof(T) == 2 ? 3 : 1)
    norm_kernel(NormParameters<T> p, int threads) {
  using A = ArithmeticType<T>;
  __shared__ A shared[2][kThreads / 32][1];  // [which sum][warp of the block]
  const RowThreads row(threads);
  const std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * row.slots + row.slot;
  const bool active = r < p.matrix.rows;
  const int cols = static_cast<int>(p.matrix.cols);
  const auto column = [&](int q) { return (q * threads + row.thread) * 8; };
  Columns<T, 8> x[kOctets], residual[kOctets];
  const T *const from = p.x + r * p.x_stride, *const other = p.residual + r * p.residual_stride;
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    if (!active || column(q) >= cols) continue;
    x[q] = load_columns<T, 8>(from + column(q));
    if (p.residual != nullptr) residual[q] = load_columns<T, 8>(other + column(q));
  }
  const Octets<kDrop ? Drop::kAnySeed : Drop::kNone, true> octets(p.matrix);
  std::uint64_t octet[kOctets];
  octet[0] = p.matrix.octet(r, row.thread * 8);
#pragma unroll
  for (int q = 1; q < kOctets; ++q) octet[q] = octet[q - 1] + threads;
  Halves halves[kOctets];
  octets.decide(octet, halves);
  Values<T, 8> s[kOctets];
  T* const sum = p.sum + r * p.sum_stride;
  A total = 0;
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    const int c = column(q);
    if (!active || c >= cols) continue;
    s[q] = widen(x[q]);
    if (p.bias != nullptr) {
      const Values<T, 8> bias = widen(load_columns<T, 8>(p.bias + c));
#pragma unroll
      for (int j = 0; j < 8; ++j) s[q].v[j] = add(s[q].v[j], bias.v[j]);
    }
    if constexpr (kDrop) {
#pragma unroll
      for (int j = 0; j < 8; ++j) s[q].v[j] = scaled(s[q].v[j], p.matrix.scale);
    }
    octets.drop(s[q], halves[q]);
    if (p.residual != nullptr) {
      const Values<T, 8> before = widen(residual[q]);
#pragma unroll
      for (int j = 0; j < 8; ++j) s[q].v[j] = add(before.v[j], s[q].v[j]);
    }
    const Columns<T, 8> stored = narrow(s[q]);
    store_columns(sum + c, stored);
    s[q] = widen(stored);  // what is normalised is what is stored
#pragma unroll
    for (int j = 0; j < 8; ++j) total += s[q].v[j];
  }
  const A mean = p.centred ? row_sum(total, shared[0], row) * p.inverse_cols : A(0);
  A squares = 0;
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    if (!active || column(q) >= cols) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += (s[q].v[j] - mean) * (s[q].v[j] - mean);
  }
  const A rstd = square_root_inverse(row_sum(squares, shared[1], row) * p.inverse_cols + p.eps);
  if (!active) return;
  if (row.thread == 0) {
    if (p.centred) p.mean[r] = mean;
    p.rstd[r] = rstd;
  }
  T* const y = p.y + r * p.y_stride;
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    const int c = column(q);
    if (c >= cols) continue;
    const Values<T, 8> weight = features<T, 8>(p.weight, c, 1.0f), norm_bias = features<T, 8>(p.norm_bias, c);
#pragma unroll
    for (int j = 0; j < 8; ++j) s[q].v[j] = (s[q].v[j] - mean) * rstd * weight.v[j] + norm_bias.v[j];
    store_columns(y + c, narrow(s[q]));
  }
}

/// Any columns: a block a row, which reads its stored sum again.
template <typename T>
__global__ void __launch_bounds__(kSlowThreads) norm_slow_kernel(NormParameters<T> p) {
  using A = ArithmeticType<T>;
  __shared__ A shared[2][kSlowThreads / 32][1];
  const RowThreads row(kSlowThreads);
  const std::int64_t r = blockIdx.x;
  const int t = threadIdx.x;
  T* sum = p.sum + r * p.sum_stride;
  A total = 0, squares = 0;
  for (std::int64_t c = t; c < p.matrix.cols; c += kSlowThreads) {
    A v = scaled(add(reference::widen(p.x[r * p.x_stride + c]), features<T, 1>(p.bias, c).v[0]), p.matrix.scale);
    if (!kept(p.matrix, r, c)) v = 0;
    if (p.residual != nullptr) v = add(reference::widen(p.residual[r * p.residual_stride + c]), v);
    sum[c] = reference::narrow<T>(v);
    total += reference::widen(sum[c]);
  }
  const A count = static_cast<A>(p.matrix.cols);
  const A mean = p.centred ? row_sum(total, shared[0], row) / count : A(0);
  for (std::int64_t c = t; c < p.matrix.cols; c += kSlowThreads) {
    const A d = reference::widen(sum[c]) - mean;
    squares += d * d;
  }
  const A rstd = square_root_inverse(row_sum(squares, shared[1], row) / count + p.eps);
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
  ArithmeticType<T> inverse_cols;
  bool centred;
};

/// As norm_kernel, a block going down many rows, kRows a step, with its sums over them in registers. The next rows come
/// while these are worked on.
template <typename T, int kOctets, int kRows, int kStages, bool kDrop>
__global__ void __launch_bounds__(kBackwardThreads) norm_backward_kernel(NormBackwardParameters<T> p, int threads) {
  using A = ArithmeticType<T>;
  constexpr int kTensor = kParts<T> * 32, kRow = 3 * kOctets * kTensor, kStage = kRows * kRow;
  __shared__ A
      shared[2][kBackwardThreads / 32][2 * kRows];  // [parity of the step][warp of the block][row and which sum]
  extern __shared__ uint4 ring_memory[];  // [warp][stage][row][octet][dy, sum, dsum][part][lane]; in the end, sums
  uint4* const ring = ring_of_thread(ring_memory, kStages * kStage / 32);
  const RowThreads row(threads);
  const Octets<kDrop ? Drop::kAnySeed : Drop::kNone, true> octets(p.matrix);
  const int cols = static_cast<int>(p.matrix.cols);
  const auto column = [&](int q) { return (q * threads + row.thread) * 8; };
  Values<T, 8> dbias[kOctets] = {}, dweight[kOctets] = {}, dnorm_bias[kOctets] = {};
  Columns<T, 8> weights[kOctets];
#pragma unroll
  for (int q = 0; q < kOctets; ++q) {
    if (column(q) < cols && p.weight != nullptr) {
      weights[q] = load_columns<T, 8>(p.weight + column(q));
    } else {
      Values<T, 8> ones;
#pragma unroll
      for (int j = 0; j < 8; ++j) ones.v[j] = 1;
      weights[q] = narrow(ones);
    }
  }
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * row.slots * kRows;
  const auto fetch = [&](std::int64_t from, int stage) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (from + u >= p.matrix.rows) continue;
      const T* const dy = p.dy + (from + u) * p.dy_stride;
      const T* const sum = p.sum + (from + u) * p.sum_stride;
      const T* const dsum = p.dsum + (from + u) * p.dsum_stride;
#pragma unroll
      for (int q = 0; q < kOctets; ++q) {
        const int c = column(q);
        if (c >= cols) continue;
        uint4* const to = ring + stage * kStage + u * kRow + 3 * q * kTensor;
        fetch_columns<T>(to, dy + c);
        fetch_columns<T>(to + kTensor, sum + c);
        if (p.dsum != nullptr) fetch_columns<T>(to + 2 * kTensor, dsum + c);
      }
    }
    end_group();
  };
  std::int64_t r = (static_cast<std::int64_t>(blockIdx.x) * row.slots + row.slot) * kRows;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(r + stage * step, stage);
  int now = 0;
  A next_mean[kRows] = {}, next_rstd[kRows] = {};
  const auto fetch_statistics = [&](std::int64_t from) {
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      if (from + u >= p.matrix.rows) continue;
      if (p.centred) next_mean[u] = p.mean[from + u];
      next_rstd[u] = p.rstd[from + u];
    }
  };
  fetch_statistics(r);
  for (int parity = 0; r - row.slot * kRows < p.matrix.rows; r += step, parity ^= 1) {
    fetch(r + (kStages - 1) * step, now == 0 ? kStages - 1 : now - 1);
    A mean[kRows], rstd[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      mean[u] = next_mean[u];
      rstd[u] = next_rstd[u];
    }
    fetch_statistics(r + step);
    std::uint64_t octet[kRows * kOctets];
#pragma unroll
    for (int u = 0; u < kRows; ++u)
#pragma unroll
      for (int q = 0; q < kOctets; ++q) octet[u * kOctets + q] = p.matrix.octet(r + u, row.thread * 8) + q * threads;
    Halves halves[kRows * kOctets];
    octets.decide(octet, halves);
    wait_for_groups<kStages - 1>();
    const uint4* const from = ring + now * kStage;
    A sums[2 * kRows] = {};
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
#pragma unroll
      for (int q = 0; q < kOctets; ++q) {
        if (r + u >= p.matrix.rows || column(q) >= cols) continue;
        const uint4* const at = from + u * kRow + 3 * q * kTensor;
        const Values<T, 8> d = widen(fetched_columns<T>(at)), weight = widen(weights[q]),
                           s = widen(fetched_columns<T>(at + kTensor));
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const A g = d.v[j] * weight.v[j];
          sums[2 * u] += g;
          sums[2 * u + 1] += g * ((s.v[j] - mean[u]) * rstd[u]);
        }
      }
    }
    row_sums(sums, shared[parity], row);
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const A first = p.centred ? sums[2 * u] * p.inverse_cols : A(0), second = sums[2 * u + 1] * p.inverse_cols;
      T* const dresidual = p.dresidual + (r + u) * p.dresidual_stride;
      T* const dx = p.dx + (r + u) * p.dx_stride;
#pragma unroll
      for (int q = 0; q < kOctets; ++q) {
        const int c = column(q);
        if (r + u >= p.matrix.rows || c >= cols) continue;
        const uint4* const at = from + u * kRow + 3 * q * kTensor;
        const Values<T, 8> d = widen(fetched_columns<T>(at)), weight = widen(weights[q]),
                           s = widen(fetched_columns<T>(at + kTensor));
        Values<T, 8> ds;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const A normal = (s.v[j] - mean[u]) * rstd[u];
          ds.v[j] = rstd[u] * (d.v[j] * weight.v[j] - first - normal * second);
          dweight[q].v[j] += d.v[j] * normal;
          dnorm_bias[q].v[j] += d.v[j];
        }
        if (p.dsum != nullptr) {
          const Values<T, 8> other = widen(fetched_columns<T>(at + 2 * kTensor));
#pragma unroll
          for (int j = 0; j < 8; ++j) ds.v[j] += other.v[j];
        }
        if (p.dresidual != nullptr) store_columns(dresidual + c, narrow(ds));
        if constexpr (kDrop) {
#pragma unroll
          for (int j = 0; j < 8; ++j) ds.v[j] = scaled(ds.v[j], p.matrix.scale);
        }
        octets.drop(ds, halves[u * kOctets + q]);
#pragma unroll
        for (int j = 0; j < 8; ++j) dbias[q].v[j] += ds.v[j];
        store_columns(dx + c, narrow(ds));
      }
    }
    now = now == kStages - 1 ? 0 : now + 1;
  }
  wait_for_groups<0>();
  if (p.partial == nullptr) return;
#pragma unroll
  for (int which = 0; which < 3; ++which) {
    A* out = p.partial + (static_cast<std::int64_t>(blockIdx.x) * 3 + which) * p.matrix.cols;
    const Values<T, 8>* mine = which == 0 ? dbias : which == 1 ? dweight : dnorm_bias;
    if constexpr (kOctets == 1) {  // several rows a block
      A* const all = reinterpret_cast<A*>(ring_memory);
      __syncthreads();
#pragma unroll
      for (int j = 0; j < 8; ++j) all[(row.slot * 8 + j) * threads + row.thread] = mine[0].v[j];
      __syncthreads();
      for (int e = threadIdx.x; e < threads * 8 && e < cols; e += blockDim.x) {
        A total = 0;
        for (int k = 0; k < row.slots; ++k) total += all[(k * 8 + e % 8) * threads + e / 8];
        out[e] = total;
      }
    } else {
#pragma unroll
      for (int q = 0; q < kOctets; ++q) {
        const int c = column(q);
        if (c >= cols) continue;
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
  __shared__ A shared[2][kSlowThreads / 32][1];
  const RowThreads row(kSlowThreads);
  const std::int64_t r = blockIdx.x;
  const A mean = p.centred ? p.mean[r] : A(0), rstd = p.rstd[r], count = static_cast<A>(p.matrix.cols);
  A first = 0, second = 0;
  for (std::int64_t c = threadIdx.x; c < p.matrix.cols; c += kSlowThreads) {
    const A g = reference::widen(p.dy[r * p.dy_stride + c]) * features<T, 1>(p.weight, c, 1.0f).v[0];
    first += g;
    second += g * ((reference::widen(p.sum[r * p.sum_stride + c]) - mean) * rstd);
  }
  first = row_sum(first, shared[0], row);
  second = row_sum(second, shared[1], row);
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
    d = reference::widen(p.dy[r * p.dy_stride + c]);
    normal = (reference::widen(p.sum[r * p.sum_stride + c]) - mean) * rstd;
    ds = rstd * (d * features<T, 1>(p.weight, c, 1.0f).v[0] - means[2 * r] - normal * means[2 * r + 1]);
    if (p.dsum != nullptr) ds += reference::widen(p.dsum[r * p.dsum_stride + c]);
    dx = kept(p.matrix, r, c) ? scaled(ds, p.matrix.scale) : A(0);
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
                         ArithmeticType<T>(1) / static_cast<ArithmeticType<T>>(args.cols),
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
  const int slots = std::max(1, kFewThreads / threads);
  const auto blocks = static_cast<unsigned>(ceil_div(args.rows, slots));
  constexpr int kLarge = kForwardThreads, kSmall = kForwardThreads / 2;
  const bool drop = args.mask.threshold != 0;
  const auto kernel = threads * slots > kSmall
                          ? (drop ? norm_kernel<T, kLarge, kOctets, true> : norm_kernel<T, kLarge, kOctets, false>)
                          : (drop ? norm_kernel<T, kSmall, kOctets, true> : norm_kernel<T, kSmall, kOctets, false>);
  launch(op, kernel, blocks, threads * slots, stream, p, threads);
}

template <typename T>
void norm_backward(const char* op, const FusedNormBackwardArgs& args, Device device, void* stream) {
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
                                 A(1) / static_cast<A>(args.cols),
                                 args.norm == Norm::kLayer};
  const bool eight = wide_positions<T>(args) && wide<T>(p.dy, p.dy_stride) && wide<T>(p.dsum, p.dsum_stride) &&
                     wide<T>(p.sum, p.sum_stride) && wide<T>(p.dresidual, p.dresidual_stride) &&
                     wide<T>(p.dx, p.dx_stride) && wide<T>(p.weight, 0);
  const std::int64_t octets = args.cols / 8;
  std::int64_t groups = 0;
  constexpr int kMostOctets = sizeof(T) == 8 ? 1 : 2;
  if (args.rows > 0 && eight && octets <= kMostOctets * kBackwardThreads) {
    using std::integral_constant;
    const auto run = [&](auto octets_a_thread, auto rows, auto stages) {
      constexpr int kOctets = octets_a_thread.value, kRows = rows.value, kStages = stages.value;
      const int threads = round_to_warps(ceil_div(octets, kOctets)), slots = kBackwardThreads / threads;
      groups = std::min(ceil_div(args.rows, slots * kRows), kBackwardGroups);
      launch_shared(op,
                    args.mask.threshold != 0 ? norm_backward_kernel<T, kOctets, kRows, kStages, true>
                                             : norm_backward_kernel<T, kOctets, kRows, kStages, false>,
                    static_cast<unsigned>(groups), threads * slots,
                    threads * slots * 3 * kOctets * kRows * kStages * 8 * static_cast<int>(sizeof(T)), stream, p,
                    threads);
    };
    // Rows and stages together: 96 KiB of shared memory, which any device has.
    constexpr int kStages = sizeof(T) == 8 ? 1 : 2, kWideStages = sizeof(T) == 2 ? 2 : 1;
    if (octets <= kBackwardThreads) {
      run(integral_constant<int, 1>{}, integral_constant < int, sizeof(T) == 2 ? 2 : 1 > {},
          integral_constant<int, kStages>{});
    } else if constexpr (kMostOctets == 2) {
      run(integral_constant<int, 2>{}, integral_constant<int, 1>{}, integral_constant<int, kWideStages>{});
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
  if (sums)
    sum_groups<T>(op, device, p.partial, groups, args.cols, 3, args.dbias, args.dweight, args.dnorm_bias, stream);
}

}  // namespace

std::int64_t fused_norm_sums(std::int64_t rows, std::int64_t cols) {
  return 2 * rows + 3 * cols * std::min(rows, kBackwardGroups);
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
  visit_floating(args.dtype,
                 [&](auto type) { norm_backward<typename decltype(type)::type>(op, args, device, stream); });
}

}  // namespace maskless::cuda
