// What the backends implement for DropConnect: plain arguments, validated and normalised, no more questions asked.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_KERNELS_H_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_KERNELS_H_

#include <cstdint>

#include "maskless/core/uniform.h"
#include "maskless/dropconnect.h"

namespace maskless {

/// What decides: the part of the arguments that the mask is a function of.
struct DropconnectMask {
  std::uint64_t threshold = 0;  // dropped iff u < threshold; below 2^32, for p = 1 comes as an empty sum
  std::uint64_t seed = 0;
  const std::uint64_t* seed_pointer = nullptr;  // in place of seed, if not null
  std::uint64_t first_input = 0;                // position of input 0
  std::uint32_t tag = 0;                        // counter word 3
  std::uint32_t first_output = 0;               // position of output 0
  std::uint32_t first_sample = 0;               // position of row 0 in pass 0
  std::uint32_t sample_stride = 0;              // from one pass to the next
  std::uint32_t row_stride = 1;                 // from one row to the next; 0: one mask for the batch

  MASKLESS_HOST_DEVICE std::uint32_t sample(std::int64_t pass, std::int64_t row) const {
    return first_sample + static_cast<std::uint32_t>(pass) * sample_stride +
           static_cast<std::uint32_t>(row) * row_stride;
  }
};

/// Element (r, c) is data[r * row + c * col].
template <typename Pointer>
struct Matrix {
  Pointer data = nullptr;
  std::int64_t row = 0, col = 0;
};

/// x (rows, inputs), w (outputs, inputs), y and dy (passes, rows, outputs): pass s is at data + s * pass.
struct DropconnectShape {
  DType dtype = DType::kFloat32;
  std::int64_t passes = 1, rows = 0, outputs = 0, inputs = 0;
};

/// y[s, m, n] = scale * sum_k x[m, k] w[n, k] D[sample(s, m), n, k] + bias[n].
struct DropconnectArgs {
  DropconnectShape shape;
  DropconnectMask mask;
  double scale = 1.0;
  Matrix<const void*> x, w;
  const void* bias = nullptr;  // may be null
  std::int64_t bias_stride = 1;
  Matrix<void*> y;
  std::int64_t y_pass = 0;
};

/// dx[m, k] = scale * sum_{s, n} dy[s, m, n] w[n, k] D, dw[n, k] = scale * sum_{s, m} dy[s, m, n] x[m, k] D,
/// dbias[n] = sum_{s, m} dy[s, m, n]; each is left out where its pointer is null.
struct DropconnectBackwardArgs {
  DropconnectShape shape;
  DropconnectMask mask;
  double scale = 1.0;
  Matrix<const void*> dy, x, w;
  std::int64_t dy_pass = 0, x_pass = 0;  // x_pass for dw alone: dx has one x for all passes
  Matrix<void*> dx, dw;
  void* dbias = nullptr;
  std::int64_t dbias_stride = 1;
};

/// Both gradients of the product are one sum, out[a, k] = scale * sum_b s(a, b) v[b, k] D with b = (pass, 0 ... size_b
/// - 1):
///   dx: a = row, b = (pass, output), s = dy, v = weight;   dw: a = output, b = (pass, row), s = dy, v = x.
struct GradientArgs {
  DropconnectMask mask;
  double scale = 1.0;
  bool a_is_row = true;  // dx; else dw
  std::int64_t passes = 1, size_a = 0, size_b = 0, inputs = 0;
  const void* s = nullptr;
  std::int64_t s_pass = 0, s_a = 0, s_b = 0;
  Matrix<const void*> v;
  std::int64_t v_pass = 0;
  Matrix<void*> out;
};

inline GradientArgs dx_gradient(const DropconnectBackwardArgs& args) {
  const DropconnectShape& shape = args.shape;
  return {args.mask,    args.scale,  true,        shape.passes, shape.rows, shape.outputs, shape.inputs, args.dy.data,
          args.dy_pass, args.dy.row, args.dy.col, args.w,       0,          args.dx};
}
inline GradientArgs dw_gradient(const DropconnectBackwardArgs& args) {
  const DropconnectShape& shape = args.shape;
  return {args.mask,    args.scale,   false,       shape.passes, shape.outputs, shape.rows,  shape.inputs,
          args.dy.data, args.dy_pass, args.dy.col, args.dy.row,  args.x,        args.x_pass, args.dw};
}

/// keep[m, n, k] = 1 where D keeps, at data + m * stride[0] + n * stride[1] + k * stride[2].
struct DropconnectMaskArgs {
  DropconnectShape shape;
  DropconnectMask mask;
  std::uint8_t* keep = nullptr;
  std::int64_t strides[3] = {};
};

namespace cpu {
void dropconnect(const DropconnectArgs& args, const Execution& execution);
void dropconnect_backward(const DropconnectBackwardArgs& args, const Execution& execution);
void dropconnect_mask(const DropconnectMaskArgs& args, const Execution& execution);
}  // namespace cpu

namespace cuda {  // defined where the library is built with CUDA
void dropconnect(const DropconnectArgs& args, Device device, void* stream);
void dropconnect_backward(const DropconnectBackwardArgs& args, Device device, void* stream);
void dropconnect_mask(const DropconnectMaskArgs& args, Device device, void* stream);
}  // namespace cuda

}  // namespace maskless

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_KERNELS_H_
