// Bias, activation, dropout and residual in one pass: a thread keeps its columns and goes down rows.
#include <algorithm>

#include "common/visit.h"
#include "fused/fused_device.cuh"
#include "fused/fused_norm.h"

namespace maskless::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnroll = 2;        // rows in flight a thread
constexpr int kForwardSteps = 4;  // times that a thread takes so many

/// How a matrix is cut: `lanes` threads of a block lie along columns, the others down rows.
struct Cut {
  int lanes;
  std::int64_t blocks_along;
};

Cut cut(std::int64_t groups) {
  int lanes = 32;
  while (lanes < kThreads && lanes < groups) lanes *= 2;
  return {lanes, ceil_div(groups, lanes)};
}

/// Row groups of a sum over rows, from the shape alone: the same bits on every device.
constexpr std::int64_t kSumBlocks = 528;

std::int64_t sum_groups_of(std::int64_t rows, std::int64_t column_groups) {
  const Cut c = cut(column_groups);
  const std::int64_t rows_a_step = kThreads / c.lanes * kUnroll;
  return std::max<std::int64_t>(1, std::min(kSumBlocks / c.blocks_along, ceil_div(rows, rows_a_step)));
}

template <typename T>
struct ForwardParameters {
  FusedParameters<T> matrix;
  Activation activation;
  const T *x, *residual, *bias;
  T* y;
  std::int64_t x_stride, residual_stride, y_stride;
};

template <typename T, int kWidth, bool kDrop>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 4 : 1) forward_kernel(ForwardParameters<T> p, int lanes) {
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * lanes + threadIdx.x % lanes) * kWidth;
  if (c >= p.matrix.cols) return;
  const Values<T, kWidth> bias = features<T, kWidth>(p.bias, c);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.y) * (kThreads / lanes) * kUnroll;
  for (std::int64_t r0 = (static_cast<std::int64_t>(blockIdx.y) * (kThreads / lanes) + threadIdx.x / lanes) * kUnroll;
       r0 < p.matrix.rows; r0 += step) {
    const int rest = p.matrix.rows - r0 < kUnroll ? static_cast<int>(p.matrix.rows - r0) : kUnroll;
    Columns<T, kWidth> x[kUnroll], residual[kUnroll];
    const T* from = p.x + r0 * p.x_stride + c;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u, from += p.x_stride)
      if (u < rest) x[u] = load_columns<T, kWidth>(from);
    if (p.residual != nullptr) {
      const T* other = p.residual + r0 * p.residual_stride + c;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, other += p.residual_stride)
        if (u < rest) residual[u] = load_columns<T, kWidth>(other);
    }
    T* y = p.y + r0 * p.y_stride + c;
    const auto rows = [&](auto activation) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, y += p.y_stride) {
        if (u >= rest) continue;
        const Keep<T, kWidth, kDrop> keep(p.matrix, p.matrix.template seed<kWidth>(r0 + u), r0 + u, c);
        Values<T, kWidth> v = widen(x[u]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v.v[j] = activate<T>(activation.value, add(v.v[j], bias.v[j]));
        if (p.residual == nullptr) {
          store_columns(y, keep.drop_and_narrow(v, p.matrix.scale));
          continue;
        }
        const Values<T, kWidth> other = widen(residual[u]);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) v.v[j] = add(other.v[j], keep.drop(v.v[j], j, p.matrix.scale));
        store_columns(y, narrow(v));
      }
    };
    visit_activation(p.activation, rows);
  }
}

template <typename T>
struct BackwardParameters {
  FusedParameters<T> matrix;
  Activation activation;
  const T *dy, *x, *bias;
  T* dx;
  ArithmeticType<T>* partial;  // [row group][column], or null without dbias
  std::int64_t dy_stride, x_stride, dx_stride;
  std::int64_t rows_a_group;
};

template <typename T, int kWidth, bool kDrop>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 2 ? 4 : 1)
    backward_kernel(BackwardParameters<T> p, int lanes) {
  using A = ArithmeticType<T>;
  __shared__ A shared[kThreads * kWidth];
  const int lane = threadIdx.x % lanes, slot = threadIdx.x / lanes, slots = kThreads / lanes;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * lanes + lane) * kWidth;
  const bool inside = c < p.matrix.cols;
  const bool active = p.activation != Activation::kIdentity;
  Values<T, kWidth> bias = {}, sum = {};
  if (inside && active) bias = features<T, kWidth>(p.bias, c);
  const std::int64_t begin = blockIdx.y * p.rows_a_group;
  const std::int64_t end = begin + p.rows_a_group < p.matrix.rows ? begin + p.rows_a_group : p.matrix.rows;
  for (std::int64_t r0 = begin + slot * kUnroll; inside && r0 < end; r0 += slots * kUnroll) {
    const int rest = end - r0 < kUnroll ? static_cast<int>(end - r0) : kUnroll;
    Columns<T, kWidth> dy[kUnroll], x[kUnroll];
    const T* from = p.dy + r0 * p.dy_stride + c;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u, from += p.dy_stride)
      if (u < rest) dy[u] = load_columns<T, kWidth>(from);
    if (active) {
      const T* input = p.x + r0 * p.x_stride + c;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, input += p.x_stride)
        if (u < rest) x[u] = load_columns<T, kWidth>(input);
    }
    T* dx = p.dx + r0 * p.dx_stride + c;
    const auto rows = [&](auto activation) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u, dx += p.dx_stride) {
        if (u >= rest) continue;
        const Keep<T, kWidth, kDrop> keep(p.matrix, p.matrix.template seed<kWidth>(r0 + u), r0 + u, c);
        Values<T, kWidth> g = widen(dy[u]);
        if constexpr (activation.value == Activation::kIdentity) {
#pragma unroll
          for (int j = 0; j < kWidth; ++j) g.v[j] = keep.drop(g.v[j], j, p.matrix.scale);
        } else {
          const Values<T, kWidth> v = widen(x[u]);
#pragma unroll
          for (int j = 0; j < kWidth; ++j) {
            const A derivative = activate_derivative<T>(activation.value, add(v.v[j], bias.v[j]));
            g.v[j] = keep.select(keep.scaled(g.v[j], p.matrix.scale) * derivative, j);
          }
        }
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum.v[j] += g.v[j];
        store_columns(dx, narrow(g));
      }
    };
    visit_activation(p.activation, rows);
  }
  if (p.partial == nullptr) return;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) shared[(slot * kWidth + j) * lanes + lane] = sum.v[j];
  __syncthreads();
  // The block's columns again, side by side now: element e of them is column lane e / kWidth, part e % kWidth.
  for (int e = threadIdx.x; e < lanes * kWidth; e += kThreads) {
    const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * lanes * kWidth + e;
    if (column >= p.matrix.cols) continue;
    A total = 0;
    for (int s = 0; s < slots; ++s) total += shared[(s * kWidth + e % kWidth) * lanes + e / kWidth];
    p.partial[blockIdx.y * p.matrix.cols + column] = total;
  }
}

template <typename T>
bool by_eight(const FusedForwardArgs& args) {
  return wide_positions<T>(args) && wide<T>(args.x.data, args.x.stride) &&
         wide<T>(args.residual.data, args.residual.stride) && wide<T>(args.y.data, args.y.stride) &&
         wide<T>(args.bias, 0);
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
  visit_kernel(by_eight<T>(args), args.mask.threshold != 0, [&](auto width, auto drop) {
    const Cut c = cut(ceil_div(args.cols, width.value));
    const std::int64_t steps = ceil_div(args.rows, kThreads / c.lanes * kUnroll * kForwardSteps);
    const dim3 grid(static_cast<unsigned>(c.blocks_along), static_cast<unsigned>(std::min<std::int64_t>(steps, 65535)));
    launch(op, forward_kernel<T, width.value, drop.value>, grid, kThreads, stream, p, c.lanes);
  });
}

template <typename T>
void backward(const char* op, const FusedBackwardArgs& args, void* stream) {
  const bool eight = wide_positions<T>(args) && wide<T>(args.dy.data, args.dy.stride) &&
                     wide<T>(args.x.data, args.x.stride) && wide<T>(args.dx.data, args.dx.stride) &&
                     wide<T>(args.bias, 0);
  visit_kernel(eight, args.mask.threshold != 0, [&](auto width, auto drop) {
    const std::int64_t column_groups = ceil_div(args.cols, width.value);
    const Cut c = cut(column_groups);
    const std::int64_t groups = sum_groups_of(args.rows, column_groups);
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
                               ceil_div(args.rows, groups)};
    if (args.rows > 0)
      launch(op, backward_kernel<T, width.value, drop.value>,
             dim3(static_cast<unsigned>(c.blocks_along), static_cast<unsigned>(groups)), kThreads, stream, p, c.lanes);
    if (args.dbias != nullptr)
      sum_groups<T>(op, args.workspace, args.rows > 0 ? groups : 0, args.cols, 1, args.dbias, nullptr, nullptr, stream);
  });
}

}  // namespace

std::int64_t fused_workspace_bytes(DType dtype, std::int64_t rows, std::int64_t cols) {
  const std::int64_t item = dtype == DType::kFloat64 ? 8 : 4;
  const std::int64_t groups = std::max(sum_groups_of(rows, cols), sum_groups_of(rows, ceil_div(cols, 8)));
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
