// Bias, activation, dropout and residual in one pass: which kernel takes which matrix, and the kernels for those whose
// columns cannot be taken eight at a time.
#include <algorithm>

#include "common/visit.h"
#include "fused/fused_norm.h"
#include "fused/fused_rows.cuh"

namespace maskless::cuda {
namespace {

// Tuning, measured on an H200 (bench/results/): threads of a block, rows that a thread takes together, blocks of a
// multiprocessor (for the compiler's registers).
constexpr int kForwardThreads = 128, kForwardBlocks = 6;
/// Rows that a thread takes together; twice that one after another where there is more to compute.
template <typename T, bool kResidual>
constexpr int kForwardRows = sizeof(T) == 8 ? 1 : (kResidual ? 4 : 8) / static_cast<int>(sizeof(T));
constexpr std::int64_t kForwardSteps(Activation activation) { return activation >= Activation::kGelu ? 2 : 1; }
constexpr int kBackwardThreads = 256;
/// Where there is little to compute, one row and more threads.
template <typename T, Activation kActivation>
constexpr int kBackwardRows = sizeof(T) == 8 || kActivation == Activation::kRelu ? 1 : 2;
template <typename T, Activation kActivation>
constexpr int kBackwardBlocks = sizeof(T) == 8                     ? 1
                                : kActivation <= Activation::kRelu ? 4
                                                                   : 3;

constexpr int kSlowThreads = 256;
constexpr std::int64_t kMaxGridY = 65535;

int log_lanes(std::int64_t octets, int threads) {
  int log = 5;
  while (1 << log < threads && 1 << log < octets) ++log;
  return log;
}

/// Row groups of a sum over rows, from the arguments alone: the same bits on every device. So many blocks are at work
/// at once.
std::int64_t sum_groups_of(std::int64_t rows, std::int64_t blocks_along, Activation activation) {
  const std::int64_t blocks = activation <= Activation::kRelu ? 528 : 396;
  return std::max<std::int64_t>(1, std::min(blocks / blocks_along, rows));
}
std::int64_t slow_blocks_along(std::int64_t cols) { return ceil_div(cols, kSlowThreads); }
std::int64_t wide_blocks_along(std::int64_t cols) {
  const std::int64_t octets = ceil_div(cols, 8);
  return ceil_div(octets, std::int64_t{1} << log_lanes(octets, kBackwardThreads));
}

/// Any columns: a thread goes down rows of one.
template <typename T>
__global__ void __launch_bounds__(kSlowThreads) forward_slow_kernel(ForwardParameters<T> p) {
  using A = ArithmeticType<T>;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kSlowThreads + threadIdx.x;
  if (c >= p.matrix.cols) return;
  visit_activation(p.activation, [&](auto activation) {
    const Activate<T, decltype(activation)::value, true> activate(p.matrix);
    const A bias = activate.prepare(features<T, 1>(p.bias, c).v[0]);
    for (std::int64_t r = blockIdx.y; r < p.matrix.rows; r += gridDim.y) {
      const A v = activate(reference::widen(p.x[r * p.x_stride + c]), bias);
      A y = kept(p.matrix, r, c) ? v : A(0);
      if (p.residual != nullptr) y = add(reference::widen(p.residual[r * p.residual_stride + c]), y);
      p.y[r * p.y_stride + c] = reference::narrow<T>(y);
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kSlowThreads) backward_slow_kernel(BackwardParameters<T> p) {
  using A = ArithmeticType<T>;
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kSlowThreads + threadIdx.x;
  if (c >= p.matrix.cols) return;
  visit_activation(p.activation, [&](auto activation) {
    constexpr Activation kActivation = decltype(activation)::value;
    const ActivateBackward<T, kActivation, true> activate(p.matrix);
    const A bias = activate.prepare(features<T, 1>(p.bias, c).v[0]);
    A sum = 0;
    for (std::int64_t r = blockIdx.y; r < p.matrix.rows; r += gridDim.y) {
      const A dy = reference::widen(p.dy[r * p.dy_stride + c]);
      const A x = kActivation == Activation::kIdentity ? A(0) : reference::widen(p.x[r * p.x_stride + c]);
      const A g = kept(p.matrix, r, c) ? activate(dy, x, bias) : A(0);
      sum += g;
      p.dx[r * p.dx_stride + c] = reference::narrow<T>(g);
    }
    if (p.partial != nullptr) p.partial[blockIdx.y * p.matrix.cols + c] = sum;
  });
}

template <typename T>
void forward(const char* op, const FusedForwardArgs& args, void* stream) {
  ForwardParameters<T> p = {fused_parameters<T>(args),
                            args.activation,
                            static_cast<const T*>(args.x.data),
                            static_cast<const T*>(args.residual.data),
                            static_cast<const T*>(args.bias),
                            static_cast<T*>(args.y.data),
                            args.x.stride,
                            args.residual.stride,
                            args.y.stride};
  if (!wide_positions<T>(args) || !wide<T>(p.x, p.x_stride) || !wide<T>(p.residual, p.residual_stride) ||
      !wide<T>(p.y, p.y_stride) || !wide<T>(p.bias, 0)) {
    const dim3 grid(static_cast<unsigned>(slow_blocks_along(args.cols)),
                    static_cast<unsigned>(std::min(args.rows, kMaxGridY)));
    launch(op, forward_slow_kernel<T>, grid, kSlowThreads, stream, p);
    return;
  }
  const bool drop = args.mask.threshold != 0;
  visit_activation(args.activation, [&](auto activation) {
    constexpr Activation kActivation = decltype(activation)::value;
    const auto run = [&](auto residual) {
      constexpr bool kResidual = decltype(residual)::value;
      constexpr int kThreads = kForwardThreads, kRows = kForwardRows<T, kResidual>, kBlocks = kForwardBlocks;
      const int log = log_lanes(args.cols / 8, kThreads);
      const std::int64_t rows_a_step = (kThreads >> log) * kRows;
      const std::int64_t steps = std::max(kForwardSteps(kActivation), ceil_div(args.rows, kMaxGridY * rows_a_step));
      const dim3 grid(static_cast<unsigned>(ceil_div(args.cols / 8, std::int64_t{1} << log)),
                      static_cast<unsigned>(ceil_div(args.rows, steps * rows_a_step)));
      launch(op,
             drop ? forward_rows_kernel<T, kActivation, kResidual, true, kThreads, kRows, kBlocks>
                  : forward_rows_kernel<T, kActivation, kResidual, false, kThreads, kRows, kBlocks>,
             grid, kThreads, stream, p, log, steps);
    };
    if constexpr (kActivation == Activation::kIdentity) {  // residual sums have no other
      if (p.residual != nullptr) return run(std::true_type{});
    }
    run(std::false_type{});
  });
}

template <typename T>
void backward(const char* op, const FusedBackwardArgs& args, void* stream) {
  BackwardParameters<T> p = {fused_parameters<T>(args),
                             args.activation,
                             static_cast<const T*>(args.dy.data),
                             static_cast<const T*>(args.x.data),
                             static_cast<const T*>(args.bias),
                             static_cast<T*>(args.dx.data),
                             args.dbias == nullptr ? nullptr : static_cast<ArithmeticType<T>*>(args.workspace),
                             args.dy.stride,
                             args.x.stride,
                             args.dx.stride};
  std::int64_t groups = 0;
  const auto grid = [&](std::int64_t blocks_along, std::int64_t rows_a_step) {
    groups = sum_groups_of(ceil_div(args.rows, rows_a_step), blocks_along, args.activation);
    return dim3(static_cast<unsigned>(blocks_along), static_cast<unsigned>(groups));
  };
  if (args.rows > 0 && (!wide_positions<T>(args) || !wide<T>(p.dy, p.dy_stride) || !wide<T>(p.x, p.x_stride) ||
                        !wide<T>(p.dx, p.dx_stride) || !wide<T>(p.bias, 0))) {
    launch(op, backward_slow_kernel<T>, grid(slow_blocks_along(args.cols), 1), kSlowThreads, stream, p);
  } else if (args.rows > 0) {
    constexpr int kThreads = kBackwardThreads;
    const int log = log_lanes(args.cols / 8, kThreads);
    const bool drop = args.mask.threshold != 0;
    visit_activation(args.activation, [&](auto activation) {
      constexpr Activation kActivation = decltype(activation)::value;
      constexpr int kRows = kBackwardRows<T, kActivation>, kBlocks = kBackwardBlocks<T, kActivation>;
      launch(op,
             drop ? backward_rows_kernel<T, kActivation, true, kThreads, kRows, kBlocks>
                  : backward_rows_kernel<T, kActivation, false, kThreads, kRows, kBlocks>,
             grid(wide_blocks_along(args.cols), (kThreads >> log) * kRows), kThreads, stream, p, log);
    });
  }
  if (args.dbias != nullptr)
    sum_groups<T>(op, args.workspace, groups, args.cols, 1, args.dbias, nullptr, nullptr, stream);
}

}  // namespace

std::int64_t fused_workspace_bytes(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::int64_t item = dtype == DType::kFloat64 ? 8 : 4;
  const std::int64_t groups = std::max(sum_groups_of(rows, slow_blocks_along(cols), Activation::kIdentity),
                                       sum_groups_of(rows, wide_blocks_along(cols), Activation::kIdentity));
  return std::max(groups * cols, fused_norm_sums(rows, cols)) * item;
}

void fused_forward(const FusedForwardArgs& args, Device device, void* stream) {
  const char* op = "fused dropout";
  DeviceGuard guard(op, device);
  visit_floating(args.dtype, [&](auto type) { forward<typename decltype(type)::type>(op, args, stream); });
}

void fused_backward(const FusedBackwardArgs& args, Device device, void* stream) {
  const char* op = "fused dropout backward";
  DeviceGuard guard(op, device);
  visit_floating(args.dtype, [&](auto type) { backward<typename decltype(type)::type>(op, args, stream); });
}

}  // namespace maskless::cuda
