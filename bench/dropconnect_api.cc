// A C function around DropConnect on CUDA tensors, so that bench/dropconnect_gpu.py can time it beside peers in one
// process. Not part of the library.
#include <cstdint>
#include <cstdio>

#include "maskless/dropconnect.h"

using namespace maskless;

/// what: 0 forward (y), 1 dx, 2 dweight. dtype: 0 float16, 1 bfloat16, 2 float32, 3 float64. x (rows, inputs), w
/// (outputs, inputs), y and dy (passes, rows, outputs), all contiguous on device 0. Returns 0, or 1 and a line on
/// stderr.
extern "C" __attribute__((visibility("default"))) int maskless_dropconnect(int what, int dtype, std::int64_t passes,
                                                                           std::int64_t rows, std::int64_t outputs,
                                                                           std::int64_t inputs, const void* x,
                                                                           const void* w, void* y, void* out, double p,
                                                                           std::uint64_t seed, void* stream) {
  try {
    const Device device{DeviceType::kCuda, 0};
    const auto type = static_cast<DType>(dtype);
    DropconnectOptions options;
    options.p = p;
    options.seed = seed;
    options.samples = passes;
    Execution execution;
    execution.cuda_stream = stream;
    const ConstTensorView vx = contiguous_view(x, type, {rows, inputs}, device);
    const ConstTensorView vw = contiguous_view(w, type, {outputs, inputs}, device);
    const TensorView vy = contiguous_view(y, type, {passes, rows, outputs}, device);
    if (what == 0) {
      dropconnect(vx, vw, nullptr, vy, options, execution);
      return 0;
    }
    const TensorView gradient = contiguous_view(out, type, {what == 1 ? rows : outputs, inputs}, device);
    dropconnect_backward(vy, vx, vw, what == 1 ? &gradient : nullptr, what == 2 ? &gradient : nullptr, nullptr, options,
                         execution);
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
