// Random numbers on the device: four elements a Philox call where memory is contiguous, else one by its coordinates.
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/philox.h"
#include "cuda/triton.h"
#include "random/random_kernels.h"
#include "random/random_reference.h"

namespace maskless::cuda {
namespace {

constexpr int kThreads = 256;

__device__ std::uint64_t seed_of(const RandomArgs& args) {
  return args.seed_pointer != nullptr ? *args.seed_pointer : args.seed;
}

/// Element `index` of the sequence, as raw bits of Out.
template <typename Out>
__device__ Out draw(const RandomArgs& args, std::uint64_t seed, std::uint64_t index) {
  switch (args.kind) {
    case RandomKind::kBits: return static_cast<Out>(reference::random_word(seed, args.stream, index));
    case RandomKind::kUniform:
      return static_cast<Out>(__float_as_uint(reference::uniform_of(reference::random_word(seed, args.stream, index))));
    case RandomKind::kUniformTriton: return static_cast<Out>(__float_as_uint(triton_uniform(seed, index)));
    case RandomKind::kNormal:
      return static_cast<Out>(__float_as_uint(reference::random_normal(seed, args.stream, index)));
    case RandomKind::kIntegers:
      return static_cast<Out>(static_cast<std::uint64_t>(args.low) +
                              reference::random_below(seed, args.stream, index, args.range, args.unfair));
    default:
      return static_cast<Out>(static_cast<std::uint64_t>(args.low) +
                              reference::random_below_wide(seed, args.stream, index, args.range, args.unfair));
  }
}

/// Elements 4 * quad ... + 3, from one Philox call where a draw is one word.
template <typename Out>
__device__ void draw_four(const RandomArgs& args, std::uint64_t seed, std::uint64_t first, Out (&out)[4]) {
  if (args.kind == RandomKind::kWideIntegers) {
    for (unsigned i = 0; i < 4; ++i) out[i] = draw<Out>(args, seed, first + i);
    return;
  }
  if (args.kind == RandomKind::kUniformTriton) {
    std::uint32_t word[4];
    triton_words(seed, static_cast<std::uint32_t>(first >> 32), static_cast<std::uint32_t>(first), 0, word);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t folded = (word[i] >> 31) != 0 ? ~word[i] : word[i];
      out[i] = static_cast<Out>(__float_as_uint(triton_word_to_float(folded)));
    }
    return;
  }
  const std::uint64_t block = first >> 2;
  const Words4 words = philox(Words4{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0,
                                      counter_tag(Op::kRandom, args.stream)}},
                              philox_key(seed));
  if (args.kind == RandomKind::kNormal) {
    const Normal2 a = normal_pair(words[0], words[1]), b = normal_pair(words[2], words[3]);
    const float four[] = {a.first, a.second, b.first, b.second};
    for (unsigned i = 0; i < 4; ++i) out[i] = static_cast<Out>(__float_as_uint(four[i]));
    return;
  }
#pragma unroll
  for (unsigned i = 0; i < 4; ++i) {
    if (args.kind == RandomKind::kBits) {
      out[i] = static_cast<Out>(words[i]);
    } else if (args.kind == RandomKind::kUniform) {
      out[i] = static_cast<Out>(__float_as_uint(reference::uniform_of(words[i])));
    } else {
      const std::uint64_t product = words[i] * args.range;
      out[i] = static_cast<std::uint32_t>(product) >= args.unfair
                   ? static_cast<Out>(static_cast<std::uint64_t>(args.low) + (product >> 32))
                   : draw<Out>(args, seed, first + i);  // drawn again
    }
  }
}

template <typename Out>
__global__ void __launch_bounds__(kThreads) random_flat_kernel(RandomArgs args) {
  struct alignas(16) Four {
    Out element[4];
  };
  const std::uint64_t seed = seed_of(args);
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads, size = args.space.size;
  Out* out = static_cast<Out*>(args.out);
  for (std::int64_t quad = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; 4 * quad < size;
       quad += step) {
    Four four;
    draw_four(args, seed, args.space.first_index + 4 * quad, four.element);
    if (4 * quad + 4 <= size) {
      reinterpret_cast<Four*>(out)[quad] = four;
    } else {
      for (int i = 0; 4 * quad + i < size; ++i) out[4 * quad + i] = four.element[i];
    }
  }
}

template <typename Out>
__global__ void __launch_bounds__(kThreads) random_kernel(RandomArgs args) {
  const std::uint64_t seed = seed_of(args);
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
    static_cast<Out*>(args.out)[at] = draw<Out>(args, seed, index);
  }
}

template <typename Out>
void run(const RandomArgs& args, void* stream) {
  const char* op = "random";
  if (args.space.contiguous() && args.space.first_index % 4 == 0 && aligned(args.out)) {
    launch(op, random_flat_kernel<Out>, blocks_for(args.space.size, 4 * kThreads), kThreads, stream, args);
  } else {
    launch(op, random_kernel<Out>, blocks_for(args.space.size, kThreads), kThreads, stream, args);
  }
}

}  // namespace

void random(const RandomArgs& args, Device device, void* stream) {
  DeviceGuard guard("random", device);
  if (dtype_size(args.dtype) == 8) {
    run<std::uint64_t>(args, stream);
  } else {
    run<std::uint32_t>(args, stream);
  }
}

}  // namespace maskless::cuda
