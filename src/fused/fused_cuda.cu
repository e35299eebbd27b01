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
constexpr int kForwardThreads = 128, kForwardBlocks = 6, kBackwardThreads = 256;
template <typename T, bool kResidual>
constexpr int kForwardRows = sizeof(T) == 8 ? 1 : (kResidual ? 4 : 8) / static_cast<int>(sizeof(T));
template <typename T>
constexpr int kBackwardRows = sizeof(T) == 8 ? 1 : 2;
template <typename T>
constexpr int backward_blocks(Activation activation) {
  return sizeof(T) == 8 ? 1 : activation == Activation::kIdentity ? 4 : 3;
}
/// Most to compute: forward twice as many rows one after another, so that a block's start counts less; backward not in
/// short blocks.
constexpr bool heavy(Activation activation) {
  return activation == Activation::kGelu || activation == Activation::kGeluTanh;
}

constexpr int kSlowThreads = 256;
constexpr std::int64_t kMaxGridY = 65535;

int log_lanes(std::int64_t octets, int threads) {
  int log = 5;
  while (1 << log < threads && 1 << log < octets) ++log;
  return log;
}

/// How rows are divided for sums over them, from the arguments alone: the same bits on every device. Group g starts at
/// row g * block_rows and goes on by `step` rows `steps` times.
struct Division {
  std::int64_t groups, block_rows, step, steps;
};

std::int64_t wide_blocks_along(std::int64_t cols) { return ceil_div(cols, 8 << kBackwardLogLanes); }

template <typename T>
Division divide(std::int64_t rows, std::int64_t cols, Activation activation) {
  constexpr std::int64_t kShort = 128;        // rows of a short block
  constexpr std::int64_t kMostGroups = 1024;  // for the sake of the workspace
  constexpr std::int64_t kStep = (kBackwardThreads >> kBackwardLogLanes) * kBackwardRows<T>;
  const std::int64_t along = wide_blocks_along(cols), at_once = 132 * backward_blocks<T>(activation);
  const bool many = !heavy(activation) && along * (rows / kShort) >= 4 * at_once;
  if (many || activation == Activation::kIdentity) {  // rows of a block below each other
    const std::int64_t steps =
        ceil_div(many ? std::max(kShort, ceil_div(rows, kMostGroups)) : ceil_div(rows * along, at_once), kStep);
    return {ceil_div(rows, steps * kStep), steps * kStep, kStep, steps};
  }
  const std::int64_t groups = std::clamp<std::int64_t>(at_once / along, 1, ceil_div(rows, kStep));  // side by side
  return {groups, kStep, groups * kStep, ceil_div(rows, groups * kStep)};
}

std::int64_t slow_blocks_along(std::int64_t cols) { return ceil_div(cols, kSlowThreads); }
std::int64_t slow_groups(std::int64_t rows, std::int64_t cols) {
  return std::clamp<std::int64_t>(528 / slow_blocks_along(cols), 1, rows);
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

/// Octets from one row to the next, where rows are taken eight columns at a time.
std::int64_t octet_stride(const FusedArgs& args) { return static_cast<std::int64_t>(args.row_index >> 3); }

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
                            args.y.stride,
                            0,
                            0,
                            0,
                            0};
  if (!wide_positions<T>(args) || !wide<T>(p.x, p.x_stride) || !wide<T>(p.residual, p.residual_stride) ||
      !wide<T>(p.y, p.y_stride) || !wide<T>(p.bias, 0)) {
    const dim3 grid(static_cast<unsigned>(slow_blocks_along(args.cols)),
                    static_cast<unsigned>(std::min(args.rows, kMaxGridY)));
    launch(op, forward_slow_kernel<T>, grid, kSlowThreads, stream, p);
    return;
  }
  visit_activation(args.activation, [&](auto activation) {
    constexpr Activation kActivation = activation.value;
    const auto run = [&](auto residual, auto drop) {
      constexpr bool kResidual = residual.value;
      constexpr int kRows = kForwardRows<T, kResidual>;
      const int log = log_lanes(args.cols / 8, kForwardThreads);
      const std::int64_t step = (kForwardThreads >> log) * kRows;
      const std::int64_t steps =
          std::max<std::int64_t>(heavy(kActivation) ? 2 : 1, ceil_div(args.rows, kMaxGridY * step));
      p.x_step = step * p.x_stride;
      p.residual_step = step * p.residual_stride;
      p.y_step = step * p.y_stride;
      p.octet_step = step * octet_stride(args);
      const dim3 grid(static_cast<unsigned>(ceil_div(args.cols / 8, std::int64_t{1} << log)),
                      static_cast<unsigned>(ceil_div(args.rows, steps * step)));
      launch(op, forward_rows_kernel<T, kActivation, kResidual, drop.value, kForwardThreads, kRows, kForwardBlocks>,
             grid, kForwardThreads, stream, p, log, static_cast<int>(steps));
    };
    visit_drop<T>(args.mask, [&](auto drop) {
      if constexpr (kActivation == Activation::kIdentity) {  // residual sums have no other
        if (p.residual != nullptr) return run(std::true_type{}, drop);
      }
      run(std::false_type{}, drop);
    });
  });
}

template <typename T>
void backward(const char* op, const FusedBackwardArgs& args, Device device, void* stream) {
  BackwardParameters<T> p = {fused_parameters<T>(args),
                             args.activation,
                             static_cast<const T*>(args.dy.data),
                             static_cast<const T*>(args.x.data),
                             static_cast<const T*>(args.bias),
                             static_cast<T*>(args.dx.data),
                             args.dbias == nullptr ? nullptr : static_cast<ArithmeticType<T>*>(args.workspace),
                             args.dy.stride,
                             args.x.stride,
                             args.dx.stride,
                             0,
                             0,
                             0,
                             0};
  std::int64_t groups = 0;
  const bool any = args.rows > 0;
  if (any && (!wide_positions<T>(args) || !wide<T>(p.dy, p.dy_stride) || !wide<T>(p.x, p.x_stride) ||
              !wide<T>(p.dx, p.dx_stride) || !wide<T>(p.bias, 0))) {
    groups = slow_groups(args.rows, args.cols);
    const dim3 grid(static_cast<unsigned>(slow_blocks_along(args.cols)), static_cast<unsigned>(groups));
    launch(op, backward_slow_kernel<T>, grid, kSlowThreads, stream, p);
  } else if (any) {
    const Division d = divide<T>(args.rows, args.cols, args.activation);
    groups = d.groups;
    p.dy_step = d.step * p.dy_stride;
    p.x_step = d.step * p.x_stride;
    p.dx_step = d.step * p.dx_stride;
    p.octet_step = d.step * octet_stride(args);
    const dim3 grid(static_cast<unsigned>(wide_blocks_along(args.cols)), static_cast<unsigned>(groups));
    visit_activation(args.activation, [&](auto activation) {
      constexpr int kBlocks = backward_blocks<T>(activation.value);
      visit_drop<T>(args.mask, [&](auto drop) {
        launch(op, backward_rows_kernel<T, activation.value, drop.value, kBackwardThreads, kBackwardRows<T>, kBlocks>,
               grid, kBackwardThreads, stream, p, d.block_rows, d.step, static_cast<int>(d.steps));
      });
    });
  }
  if (args.dbias != nullptr)
    sum_groups<T>(op, device, args.workspace, groups, args.cols, 1, args.dbias, nullptr, nullptr, stream);
}

}  // namespace

std::int64_t fused_workspace_bytes(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::int64_t item = dtype == DType::kFloat64 ? 8 : 4;
  std::int64_t groups = 0;
  if (rows > 0 && cols > 0) {
    groups = slow_groups(rows, cols);
    visit_floating(dtype, [&](auto type) {
      for (Activation activation : {Activation::kIdentity, Activation::kRelu, Activation::kGelu})
        groups = std::max(groups, divide<typename decltype(type)::type>(rows, cols, activation).groups);
    });
  }
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
  visit_floating(args.dtype, [&](auto type) { backward<typename decltype(type)::type>(op, args, device, stream); });
}

}  // namespace maskless::cuda
