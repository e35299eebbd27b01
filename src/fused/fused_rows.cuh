// Bias, activation, dropout and residual in one pass, columns eight at a time: a thread keeps its columns and goes down
// rows, several at a time. What is kept is decided while the data is on its way.
#ifndef MASKLESS_SRC_FUSED_FUSED_ROWS_CUH_
#define MASKLESS_SRC_FUSED_FUSED_ROWS_CUH_

#include "fused/fused_device.cuh"

namespace maskless::cuda {

template <typename T>
struct ForwardParameters {
  FusedParameters<T> matrix;
  Activation activation;
  const T *x, *residual, *bias;
  T* y;
  std::int64_t x_stride, residual_stride, y_stride;
};

template <typename T>
struct BackwardParameters {
  FusedParameters<T> matrix;
  Activation activation;
  const T *dy, *x, *bias;
  T* dx;
  ArithmeticType<T>* partial;  // [row group][column], or null without dbias
  std::int64_t dy_stride, x_stride, dx_stride;
};

/// A block's threads: 2^log_lanes along columns, the others down rows. A thread's columns are eight from `column` on.
struct Lanes {
  int log_lanes, lane, slot, slots;
  std::int64_t column;

  __device__ explicit Lanes(int log)
      : log_lanes(log),
        lane(threadIdx.x & ((1 << log) - 1)),
        slot(threadIdx.x >> log),
        slots(blockDim.x >> log),
        column(((static_cast<std::int64_t>(blockIdx.x) << log) + lane) * 8) {}
};

/// Eight columns of a vector of features, as f leaves them; zeros if the vector is left out.
template <typename T, typename F>
__device__ inline Values<T, 8> prepared(const T* vector, std::int64_t c, F&& f) {
  Values<T, 8> values = features<T, 8>(vector, c);
#pragma unroll
  for (int j = 0; j < 8; ++j) values.v[j] = f(values.v[j]);
  return values;
}

/// kRows rows at a time, and `steps` times that one after another.
template <typename T, Activation kActivation, bool kResidual, bool kDrop, int kThreads, int kRows, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    forward_rows_kernel(ForwardParameters<T> p, int log_lanes, std::int64_t steps) {
  const Lanes lanes(log_lanes);
  const std::int64_t c = lanes.column;
  if (c >= p.matrix.cols) return;
  const Octets<kDrop> octets(p.matrix);
  const Activate<T, kActivation, kDrop> activate(p.matrix);
  const Values<T, 8> bias = prepared(p.bias, c, activate.prepare);
  const auto take = [&](std::int64_t r, auto rows) {  // so many rows from r on
    constexpr int kTaken = decltype(rows)::value;
    Columns<T, 8> x[kTaken];
    [[maybe_unused]] Columns<T, 8> residual[kResidual ? kTaken : 1];
    const T* from = p.x + r * p.x_stride + c;
#pragma unroll
    for (int u = 0; u < kTaken; ++u, from += p.x_stride) x[u] = load_columns<T, 8>(from);
    if constexpr (kResidual) {
      const T* other = p.residual + r * p.residual_stride + c;
#pragma unroll
      for (int u = 0; u < kTaken; ++u, other += p.residual_stride) residual[u] = load_columns<T, 8>(other);
    }
    std::uint64_t octet[kTaken];
    octet[0] = p.matrix.octet(r, c);
#pragma unroll
    for (int u = 1; u < kTaken; ++u) octet[u] = octet[u - 1] + (p.matrix.row_index >> 3);
    Halves halves[kTaken];
    octets.decide(octet, halves);
    T* y = p.y + r * p.y_stride + c;
#pragma unroll
    for (int u = 0; u < kTaken; ++u, y += p.y_stride) {
      Values<T, 8> v = widen(x[u]);
#pragma unroll
      for (int j = 0; j < 8; ++j) v.v[j] = activate(v.v[j], bias.v[j]);
      octets.drop(v, halves[u]);
      if constexpr (kResidual) {
        const Values<T, 8> other = widen(residual[u]);
#pragma unroll
        for (int j = 0; j < 8; ++j) v.v[j] = add(other.v[j], v.v[j]);
      }
      store_columns(y, narrow(v));
    }
  };
  std::int64_t r = (blockIdx.y * steps * lanes.slots + lanes.slot) * kRows;
  for (std::int64_t step = 0; step < steps; ++step, r += lanes.slots * kRows) {
    if (r + kRows <= p.matrix.rows) {
      take(r, std::integral_constant<int, kRows>{});
    } else {
#pragma unroll 1
      for (; r < p.matrix.rows; ++r) take(r, std::integral_constant<int, 1>{});
      break;
    }
  }
}

/// The block's sums over its rows, for the second stage.
template <typename T, int kThreads>
__device__ inline void store_sums(const Values<T, 8>& sum, void* shared, const Lanes& lanes,
                                  const BackwardParameters<T>& p) {
  using A = ArithmeticType<T>;
  A* const sums = static_cast<A*>(shared);  // [slot][column part][lane]
#pragma unroll
  for (int j = 0; j < 8; ++j) sums[((lanes.slot * 8 + j) << lanes.log_lanes) + lanes.lane] = sum.v[j];
  __syncthreads();
  for (int e = threadIdx.x; e < 8 << lanes.log_lanes; e += kThreads) {
    const std::int64_t column = (static_cast<std::int64_t>(blockIdx.x) << lanes.log_lanes) * 8 + e;
    if (column >= p.matrix.cols) continue;
    A total = 0;
    for (int s = 0; s < lanes.slots; ++s) total += sums[((s * 8 + e % 8) << lanes.log_lanes) + e / 8];
    p.partial[blockIdx.y * p.matrix.cols + column] = total;
  }
}

/// kRows rows at a time, every gridDim.y-th such group, with sums over them in registers.
template <typename T, Activation kActivation, bool kDrop, int kThreads, int kRows, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks) backward_rows_kernel(BackwardParameters<T> p, int log_lanes) {
  using A = ArithmeticType<T>;
  constexpr bool kInput = kActivation != Activation::kIdentity;
  __shared__ A shared[kThreads * 8];
  const Lanes lanes(log_lanes);
  const std::int64_t c = lanes.column;
  Values<T, 8> sum = {};
  const Octets<kDrop> octets(p.matrix);
  if (c < p.matrix.cols) {
    const ActivateBackward<T, kActivation, kDrop> activate(p.matrix);
    const Values<T, 8> bias = prepared(kInput ? p.bias : nullptr, c, activate.prepare);
    const auto take = [&](std::int64_t r, auto rows) {
      constexpr int kTaken = decltype(rows)::value;
      Columns<T, 8> dy[kTaken];
      [[maybe_unused]] Columns<T, 8> x[kInput ? kTaken : 1];
      const T* from = p.dy + r * p.dy_stride + c;
#pragma unroll
      for (int u = 0; u < kTaken; ++u, from += p.dy_stride) dy[u] = load_columns<T, 8>(from);
      if constexpr (kInput) {
        const T* input = p.x + r * p.x_stride + c;
#pragma unroll
        for (int u = 0; u < kTaken; ++u, input += p.x_stride) x[u] = load_columns<T, 8>(input);
      }
      std::uint64_t octet[kTaken];
      octet[0] = p.matrix.octet(r, c);
#pragma unroll
      for (int u = 1; u < kTaken; ++u) octet[u] = octet[u - 1] + (p.matrix.row_index >> 3);
      Halves halves[kTaken];
      octets.decide(octet, halves);
      T* dx = p.dx + r * p.dx_stride + c;
#pragma unroll
      for (int u = 0; u < kTaken; ++u, dx += p.dx_stride) {
        Values<T, 8> g = widen(dy[u]);
        Values<T, 8> v = {};
        if constexpr (kInput) v = widen(x[u]);
#pragma unroll
        for (int j = 0; j < 8; ++j) g.v[j] = activate(g.v[j], v.v[j], bias.v[j]);
        octets.drop(g, halves[u]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum.v[j] += g.v[j];
        store_columns(dx, narrow(g));
      }
    };
    std::int64_t r = (static_cast<std::int64_t>(blockIdx.y) * lanes.slots + lanes.slot) * kRows;
    const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * lanes.slots * kRows;
    for (; r + kRows <= p.matrix.rows; r += step) take(r, std::integral_constant<int, kRows>{});
#pragma unroll 1
    for (const std::int64_t end = r + kRows; r < end && r < p.matrix.rows; ++r)
      take(r, std::integral_constant<int, 1>{});
  }
  if (p.partial != nullptr) store_sums<T, kThreads>(sum, shared, lanes, p);
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_FUSED_FUSED_ROWS_CUH_
