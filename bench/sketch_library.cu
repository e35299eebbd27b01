// The CUDA projections as a small C library, for bench/sketch.py, which calls it on PyTorch's tensors.
#include <cmath>
#include <cstdio>

#include "maskless/core/threshold.h"
#include "maskless/error.h"
#include "sketch/sketch_kernels.h"

/// Row-major tensors on the current device; dtype as maskless::DType counts. 0, or 1 with the error on stderr.
extern "C" int sketch(int signs, int transpose, long k, int nonzeros, double density, unsigned long seed, long batch,
                      long cols, unsigned long column_offset, int dtype, const void* in, void* out, int device,
                      void* stream) {
  using namespace maskless;
  SketchArgs args;
  SketchMatrix& m = args.matrix;
  m.signs = signs != 0;
  if (m.signs) {
    m.threshold = threshold(density);
  } else {
    m.geometry = sjlt_geometry(static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(nonzeros));
  }
  m.seed = seed;
  m.column_offset = column_offset;
  m.rows = k;
  m.cols = cols;
  m.scale = 1 / std::sqrt(m.signs ? density * static_cast<double>(k) : static_cast<double>(nonzeros));
  args.batch = batch;
  args.in_dtype = args.out_dtype = static_cast<DType>(dtype);
  args.in = in;
  args.out = out;
  args.in_strides[0] = transpose ? k : cols;
  args.out_strides[0] = transpose ? cols : k;
  args.in_strides[1] = args.out_strides[1] = 1;
  try {
    (transpose ? cuda::project_transpose : cuda::project)(args, Device{DeviceType::kCuda, device}, stream);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
