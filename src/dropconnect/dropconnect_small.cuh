// Gradients of layers of up to 64 rows, outputs and inputs, where the shortest way from launch to result counts: no
// shared memory, no barriers, all loads in flight at once.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_SMALL_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_SMALL_CUH_

#include "dropconnect/dropconnect_tile.cuh"
#include "dropconnect/dropconnect_words.cuh"

namespace maskless::cuda {

/// Keep words of one pair and block, planes one after the other until all are decided.
__device__ __forceinline__ uint4 keep_block(const DropconnectMask& mask, Key key, PairPart pair, std::uint32_t block) {
  const Decider d = make_decider(mask, key);
  uint4 open = make_uint4(~0u, ~0u, ~0u, ~0u), keep = make_uint4(0, 0, 0, 0);
#pragma unroll 1
  for (int q = 0; q < d.planes && (open.x | open.y | open.z | open.w) != 0; ++q) {
    const uint4 u = call(block_part(static_cast<std::uint32_t>(q), block, mask.tag, key), pair, key);
    const auto t = static_cast<std::uint32_t>(static_cast<std::int32_t>(d.threshold << q) >> 31);
    keep = make_uint4(keep.x | (open.x & u.x & ~t), keep.y | (open.y & u.y & ~t), keep.z | (open.z & u.z & ~t),
                      keep.w | (open.w & u.w & ~t));
    open = make_uint4(open.x & ~(u.x ^ t), open.y & ~(u.y ^ t), open.z & ~(u.z ^ t), open.w & ~(u.w ^ t));
  }
  return make_uint4(keep.x | open.x, keep.y | open.y, keep.z | open.z, keep.w | open.w);
}

/// One a and 32 neighbouring inputs a warp; its lanes draw the words of 32 b at once.
template <typename T>
__global__ void __launch_bounds__(32) gradient_small_kernel(GradientArgs args) {
  using S = SumOf<T>;
  const int lane = static_cast<int>(threadIdx.x);
  const int shift = static_cast<int>(args.mask.first_input % kBlockInputs), inputs = static_cast<int>(args.inputs);
  const int tiles = (shift + inputs + 31) / 32;
  const int a = static_cast<int>(blockIdx.x) / tiles, tile = static_cast<int>(blockIdx.x) - a * tiles;
  const int k = tile * 32 + lane - shift;
  const bool in = k >= 0 && k < inputs;
  const Key key = load_key(args.mask);
  const auto block =
      static_cast<std::uint32_t>(args.mask.first_input / kBlockInputs) + static_cast<std::uint32_t>(tile / 4);
  const int size_b = static_cast<int>(args.size_b);
  S acc = 0;
  for (int pass = 0; pass < static_cast<int>(args.passes); ++pass)
    for (int b0 = 0; b0 < size_b; b0 += 32) {
      const int b = b0 + lane;
      const S factor = b < size_b
                           ? load_sum(static_cast<const T*>(args.s) + pass * args.s_pass + a * args.s_a + b * args.s_b)
                           : S{0};
      const uint4 keep =
          keep_block(args.mask, key,
                     pair_part(args.mask.sample(pass, args.a_is_row ? a : b),
                               args.mask.first_output + static_cast<std::uint32_t>(args.a_is_row ? b : a), key),
                     block);
      const int w = tile % 4;
      const std::uint32_t word = w == 0 ? keep.x : w == 1 ? keep.y : w == 2 ? keep.z : keep.w;
      const T* v = static_cast<const T*>(args.v.data) + pass * args.v_pass + b0 * args.v.row + k * args.v.col;
#pragma unroll 16
      for (int j = 0; j < 32; ++j) {
        const S value = in && b0 + j < size_b ? load_sum(v + j * args.v.row) : S{0};
        const S s = __shfl_sync(0xFFFFFFFFu, factor, j);
        if ((__shfl_sync(0xFFFFFFFFu, word, j) >> lane & 1) != 0) acc = fma(s, value, acc);
      }
    }
  if (in)
    store_sum(static_cast<T*>(args.out.data) + a * args.out.row + k * args.out.col, acc * static_cast<S>(args.scale));
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_SMALL_CUH_
