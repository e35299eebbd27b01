// Masks in a CUDA kernel of your own, with the core headers alone (no library to link).
//
//   nvcc -std=c++17 -arch=sm_90 -I include examples/own_kernel.cu
//
// Here dropout is fused into a gate: y = dropout(x * gate). Its backward pass, dx = dropout(dy) * gate, is the same
// kernel on dy: the mask is computed again where it is used, and nothing was stored.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "maskless/core/threshold.h"
#include "maskless/core/uniform.h"

// One thread takes the eight elements of one Philox call, so the generator is paid once for all eight.
__global__ void gated_dropout(const float* x, const float* gate, float* y, std::int64_t n, std::uint64_t seed,
                              std::uint64_t t, float scale) {
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const maskless::Words4 high = maskless::dropout_words(seed, block, 0, 0);
  for (unsigned h = 0; h < 8; ++h) {
    const std::int64_t i = block * 8 + h;
    if (i >= n) return;
    const std::uint32_t u = maskless::half_word(high, h);
    // The high half of u decides, except once in 65,536 elements, when the whole of u has to be looked at.
    const bool keep = u != t >> 16 ? u > t >> 16 : maskless::dropout_keep(seed, i, t);
    y[i] = keep ? x[i] * gate[i] * scale : 0.0f;
  }
}

static bool ok(cudaError_t status) {
  if (status != cudaSuccess) std::printf("CUDA: %s\n", cudaGetErrorString(status));
  return status == cudaSuccess;
}

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("compiled; there is no CUDA device here to run it on");
    return 0;
  }
  constexpr std::int64_t kSize = 1000003;
  constexpr std::uint64_t kSeed = 42;
  constexpr double kP = 0.1;
  const std::uint64_t t = maskless::threshold(kP);
  const auto scale = static_cast<float>(maskless::keep_scale(kP));

  std::vector<float> x(kSize), gate(kSize), y(kSize);
  for (std::int64_t i = 0; i < kSize; ++i) {
    x[i] = static_cast<float>(i % 97 + 1);
    gate[i] = static_cast<float>(i % 13 + 1) / 13.0f;
  }
  float *d_x, *d_gate, *d_y;
  const std::size_t bytes = kSize * sizeof(float);
  if (!ok(cudaMalloc(&d_x, bytes)) || !ok(cudaMalloc(&d_gate, bytes)) || !ok(cudaMalloc(&d_y, bytes))) return 1;
  if (!ok(cudaMemcpy(d_x, x.data(), bytes, cudaMemcpyHostToDevice))) return 1;
  if (!ok(cudaMemcpy(d_gate, gate.data(), bytes, cudaMemcpyHostToDevice))) return 1;

  const auto grid = static_cast<unsigned>((kSize + 8 * 256 - 1) / (8 * 256));
  gated_dropout<<<grid, 256>>>(d_x, d_gate, d_y, kSize, kSeed, t, scale);
  if (!ok(cudaGetLastError()) || !ok(cudaMemcpy(y.data(), d_y, bytes, cudaMemcpyDeviceToHost))) return 1;

  std::int64_t kept = 0;
  for (std::int64_t i = 0; i < kSize; ++i) {  // the CPU draws the same mask
    const bool keep = maskless::dropout_keep(kSeed, i, t);
    const float want = keep ? x[i] * gate[i] * scale : 0.0f;
    kept += keep;
    if (y[i] != want) return std::printf("element %lld differs\n", static_cast<long long>(i)), 1;
  }
  std::printf("kept %lld of %lld, on the GPU as on the CPU\n", static_cast<long long>(kept),
              static_cast<long long>(kSize));
  cudaFree(d_x);
  cudaFree(d_gate);
  cudaFree(d_y);
  return 0;
}
