// One element a thread, by its coordinates.
#include "cuda/launch.h"
#include "random/random_kernels.h"
#include "random/random_reference.h"

namespace maskless::cuda {
namespace {

constexpr int kThreads = 256;

__device__ void put(const RandomArgs& args, std::uint64_t seed, std::uint64_t index, std::int64_t at) {
  const auto integer = [&](std::uint64_t below) {
    const std::uint64_t value = static_cast<std::uint64_t>(args.low) + below;
    if (args.dtype == DType::kInt32) {
      static_cast<std::int32_t*>(args.out)[at] = static_cast<std::int32_t>(value);
    } else {
      static_cast<std::int64_t*>(args.out)[at] = static_cast<std::int64_t>(value);
    }
  };
  float* real = static_cast<float*>(args.out);
  switch (args.kind) {
    case RandomKind::kBits:
      static_cast<std::uint32_t*>(args.out)[at] = reference::random_word(seed, args.stream, index);
      return;
    case RandomKind::kUniform:
      real[at] = reference::uniform_of(reference::random_word(seed, args.stream, index));
      return;
    case RandomKind::kUniformTriton: real[at] = triton_uniform(seed, index); return;
    case RandomKind::kNormal: real[at] = reference::random_normal(seed, args.stream, index); return;
    case RandomKind::kIntegers:
      return integer(reference::random_below(seed, args.stream, index, args.range, args.unfair));
    case RandomKind::kWideIntegers:
      return integer(reference::random_below_wide(seed, args.stream, index, args.range, args.unfair));
  }
}

__global__ void random_kernel(RandomArgs args) {
  const std::uint64_t seed = args.seed_pointer != nullptr ? *args.seed_pointer : args.seed;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < args.space.size;
       e += step) {
    std::uint64_t index = args.space.first_index;
    std::int64_t at = 0, rest = e;
    for (int d = args.space.rank - 1; d >= 0; --d) {
      const std::int64_t coord = rest % args.space.shape[d];
      rest /= args.space.shape[d];
      index += args.space.index_strides[d] * static_cast<std::uint64_t>(coord);
      at += args.space.strides[0][d] * coord;
    }
    put(args, seed, index, at);
  }
}

}  // namespace

void random(const RandomArgs& args, Device device, void* stream) {
  DeviceGuard guard("random", device);
  const std::int64_t blocks = (args.space.size + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
  random_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(args);
  check("random", cudaGetLastError());
}

}  // namespace maskless::cuda
