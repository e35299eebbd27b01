// Bias, activation, dropout and residual in one pass, columns eight at a time: a thread keeps its columns and goes down
// rows, several at a time. What is kept is decided while the data is on its way. Steps from one group of rows to the
// next are computed by the host: as parameters of a kernel they take no registers.
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
  std::int64_t x_step, residual_step, y_step, octet_step;
};

template <typename T>
struct BackwardParameters {
  FusedParameters<T> matrix;
  Activation activation;
  const T *dy, *x, *bias;
  T* dx;
  ArithmeticType<T>* partial;  // [row group][column], or null without dbias
  std::int64_t dy_stride, x_stride, dx_stride;
  std::int64_t dy_step, x_step, dx_step, octet_step;
};

/// A warp along columns: with sums over rows, narrow and tall parts have the fewest sums to pass on.
inline constexpr int kBackwardLogLanes = 5;

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

/// A block takes `steps` times kRows rows a thread. Blocks are short: with blocks that stay, each with an equal part of
/// the rows, the next of them on their way, the same took 4 % (without dropout) to 13 % longer on an H200.
template <typename T, Activation kActivation, bool kResidual, Drop kDrop, int kThreads, int kRows, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    forward_rows_kernel(ForwardParameters<T> p, int log_lanes, int steps) {
  const Lanes lanes(log_lanes);
  const std::int64_t c = lanes.column;
  if (c >= p.matrix.cols) return;
  const Octets<kDrop> octets(p.matrix);
  const Activate<T, kActivation, kDrop != Drop::kNone> activate(p.matrix);
  const Values<T, 8> bias = prepared(p.bias, c, activate.prepare);
  const std::int64_t r = (static_cast<std::int64_t>(blockIdx.y) * steps * lanes.slots + lanes.slot) * kRows;
  const T *x = p.x + r * p.x_stride + c, *residual = kResidual ? p.residual + r * p.residual_stride + c : nullptr;
  T* y = p.y + r * p.y_stride + c;
  std::uint64_t octet = p.matrix.octet(r, c);
  const std::uint64_t octet_stride = p.matrix.row_index >> 3;

  const auto take = [&](auto rows) {
    constexpr int kTaken = rows.value;
    constexpr bool kStep = kTaken == kRows;
    Columns<T, 8> in[kTaken];
    [[maybe_unused]] Columns<T, 8> other[kResidual ? kTaken : 1];
#pragma unroll
    for (int u = 0; u < kTaken; ++u) in[u] = load_columns<T, 8>(x + u * p.x_stride);
    if constexpr (kResidual) {
#pragma unroll
      for (int u = 0; u < kTaken; ++u) other[u] = load_columns<T, 8>(residual + u * p.residual_stride);
    }
    std::uint64_t numbers[kTaken];
#pragma unroll
    for (int u = 0; u < kTaken; ++u) numbers[u] = octet + u * octet_stride;
    Halves halves[kTaken];
    octets.decide(numbers, halves);
#pragma unroll
    for (int u = 0; u < kTaken; ++u) {
      Values<T, 8> v = widen(in[u]);
#pragma unroll
      for (int j = 0; j < 8; ++j) v.v[j] = activate(v.v[j], bias.v[j]);
      octets.drop(v, halves[u]);
      if constexpr (kResidual) {
        const Values<T, 8> w = widen(other[u]);
#pragma unroll
        for (int j = 0; j < 8; ++j) v.v[j] = add(w.v[j], v.v[j]);
      }
      store_columns(y + u * p.y_stride, narrow(v));
    }
    octet += kStep ? p.octet_step : octet_stride;
    x += kStep ? p.x_step : p.x_stride;
    if constexpr (kResidual) residual += kStep ? p.residual_step : p.residual_stride;
    y += kStep ? p.y_step : p.y_stride;
  };
  std::int64_t left = p.matrix.rows - r;
#pragma unroll 1
  for (; steps > 0 && left >= kRows; --steps, left -= lanes.slots * kRows) take(std::integral_constant<int, kRows>{});
  if (kRows > 1 && steps > 0) {
#pragma unroll 1
    for (; left > 0; --left) take(std::integral_constant<int, 1>{});
  }
}

/// The block's sums over its rows, for the second stage.
template <typename T, int kThreads>
__device__ inline void store_sums(const Values<T, 8>& sum, void* shared, const Lanes& lanes,
                                  const BackwardParameters<T>& p) {
  using A = ArithmeticType<T>;
  A* const sums = static_cast<A*>(shared);  // [slot][column part][lane]
  __syncthreads();
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

/// Block y starts at row y * block_rows, and goes `step` rows on `steps` times. Sums over its rows are in registers,
/// then in `partial`.
template <typename T, Activation kActivation, Drop kDrop, int kThreads, int kRows, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    backward_rows_kernel(BackwardParameters<T> p, std::int64_t block_rows, std::int64_t step, int steps) {
  constexpr bool kInput = kActivation != Activation::kIdentity;
  __shared__ ArithmeticType<T> shared[kThreads * 8];
  const Lanes lanes(kBackwardLogLanes);
  const std::int64_t c = lanes.column;
  const Octets<kDrop> octets(p.matrix);
  Values<T, 8> sum = {};
  if (c < p.matrix.cols) {
    const ActivateBackward<T, kActivation, kDrop != Drop::kNone> activate(p.matrix);
    const Values<T, 8> bias = prepared(kInput ? p.bias : nullptr, c, activate.prepare);
    const std::int64_t r = blockIdx.y * block_rows + lanes.slot * kRows;
    const T *dy = p.dy + r * p.dy_stride + c, *x = kInput ? p.x + r * p.x_stride + c : nullptr;
    T* dx = p.dx + r * p.dx_stride + c;
    std::uint64_t octet = p.matrix.octet(r, c);
    const std::uint64_t octet_stride = p.matrix.row_index >> 3;

    const auto take = [&](auto rows) {
      constexpr int kTaken = rows.value;
      constexpr bool kStep = kTaken == kRows;
      Columns<T, 8> in[kTaken];
      [[maybe_unused]] Columns<T, 8> input[kInput ? kTaken : 1];
#pragma unroll
      for (int u = 0; u < kTaken; ++u) in[u] = load_columns<T, 8>(dy + u * p.dy_stride);
      if constexpr (kInput) {
#pragma unroll
        for (int u = 0; u < kTaken; ++u) input[u] = load_columns<T, 8>(x + u * p.x_stride);
      }
      std::uint64_t numbers[kTaken];
#pragma unroll
      for (int u = 0; u < kTaken; ++u) numbers[u] = octet + u * octet_stride;
      Halves halves[kTaken];
      octets.decide(numbers, halves);
#pragma unroll
      for (int u = 0; u < kTaken; ++u) {
        Values<T, 8> g = widen(in[u]), v = {};
        if constexpr (kInput) v = widen(input[u]);
#pragma unroll
        for (int j = 0; j < 8; ++j) g.v[j] = activate(g.v[j], v.v[j], bias.v[j]);
        octets.drop(g, halves[u]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum.v[j] += g.v[j];
        store_columns(dx + u * p.dx_stride, narrow(g));
      }
      octet += kStep ? p.octet_step : octet_stride;
      dy += kStep ? p.dy_step : p.dy_stride;
      if constexpr (kInput) x += kStep ? p.x_step : p.x_stride;
      dx += kStep ? p.dx_step : p.dx_stride;
    };
    std::int64_t left = p.matrix.rows - r;
#pragma unroll 1
    for (; steps > 0 && left >= kRows; --steps, left -= step) take(std::integral_constant<int, kRows>{});
    if (kRows > 1 && steps > 0) {
#pragma unroll 1
      for (; left > 0; --left) take(std::integral_constant<int, 1>{});
    }
  }
  let_later_work_start();
  if (p.partial != nullptr) store_sums<T, kThreads>(sum, shared, lanes, p);
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_FUSED_FUSED_ROWS_CUH_
