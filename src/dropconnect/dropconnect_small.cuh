// Layers of up to 64 or so rows, outputs and inputs, where the shortest way from launch to result counts: masks are
// drawn while the kernel before still runs (memory is touched after the wait), all loads are in flight at once, no
// shared memory but for the last sum.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_SMALL_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_SMALL_CUH_

#include "cuda/launch.h"
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

/// The seed's halves; waits for it where it lies in memory.
__device__ __forceinline__ Key early_key(const DropconnectMask& mask) {
  if (mask.seed_pointer != nullptr) wait_for_earlier_work();
  return load_key(mask);
}

/// Four lanes an output: lane t takes inputs 16 i + 4 t ... + 3. All inputs lie in one block of 128. kWide: they can be
/// loaded by fours.
template <typename T, bool kWide>
__global__ void __launch_bounds__(128) forward_small_kernel(DropconnectArgs args) {
  using S = SumOf<T>;
  let_later_work_start();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), t = i & 3;
  const int outputs = static_cast<int>(args.shape.outputs), inputs = static_cast<int>(args.shape.inputs);
  const int rows = static_cast<int>(args.shape.rows), row = min((i >> 2) / outputs, rows - 1);
  const int n = (i >> 2) - (i >> 2) / outputs * outputs;
  const int shift = static_cast<int>(args.mask.first_input % kBlockInputs);
  const Key key = early_key(args.mask);
  const uint4 keep = keep_block(
      args.mask, key, pair_part(args.mask.sample(0, row), args.mask.first_output + static_cast<std::uint32_t>(n), key),
      static_cast<std::uint32_t>(args.mask.first_input / kBlockInputs));
  wait_for_earlier_work();
  const T* x = static_cast<const T*>(args.x.data) + row * args.x.row;
  const T* w = static_cast<const T*>(args.w.data) + n * args.w.row;
  S acc[4] = {};
#pragma unroll
  for (int j = 0; j < kBlockInputs / 16; ++j) {
    if (16 * j >= shift + inputs) break;
    const int at = 16 * j + 4 * t, k = at - shift;
    Four<S> xs = {}, ws = {};
    if (kWide && k >= 0 && k + 4 <= inputs) {
      xs = load_four_here<T>(x + k);
      ws = load_four_here<T>(w + k);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (k + e >= 0 && k + e < inputs) {
          xs.v[e] = load_sum(x + (k + e) * args.x.col);
          ws.v[e] = load_sum(w + (k + e) * args.w.col);
        }
    }
    const std::uint32_t word = j / 2 == 0 ? keep.x : j / 2 == 1 ? keep.y : j / 2 == 2 ? keep.z : keep.w;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if ((word >> (at % 32 + e) & 1) != 0) acc[e] = fma(xs.v[e], ws.v[e], acc[e]);
  }
  S sum = (acc[0] + acc[1]) + (acc[2] + acc[3]);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
  sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
  if (t != 0 || (i >> 2) >= rows * outputs) return;
  sum *= static_cast<S>(args.scale);
  if (args.bias != nullptr) sum += load_sum(static_cast<const T*>(args.bias) + n * args.bias_stride);
  store_sum(static_cast<T*>(args.y.data) + row * args.y.row + n * args.y.col, sum);
}

inline constexpr int kSmallB = 16, kSmallWarps = 8;

/// One a and 32 neighbouring inputs a block, 16 b a warp (up to eight warps, which then go on to the next b).
template <typename T>
__global__ void __launch_bounds__(32 * kSmallWarps) gradient_small_kernel(GradientArgs args) {
  using S = SumOf<T>;
  __shared__ S sums[kSmallWarps - 1][32];
  let_later_work_start();
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  const int shift = static_cast<int>(args.mask.first_input % kBlockInputs), inputs = static_cast<int>(args.inputs);
  const int tiles = (shift + inputs + 31) / 32;
  const int a = static_cast<int>(blockIdx.x) / tiles, tile = static_cast<int>(blockIdx.x) - a * tiles;
  const int k = tile * 32 + lane - shift;
  const bool in = k >= 0 && k < inputs;
  const Key key = early_key(args.mask);
  const auto block =
      static_cast<std::uint32_t>(args.mask.first_input / kBlockInputs) + static_cast<std::uint32_t>(tile / 4);
  const int size_b = static_cast<int>(args.size_b);
  const int chunks = (size_b + kSmallB - 1) / kSmallB;
  S acc[2] = {};
  for (int chunk = warp; chunk < chunks * static_cast<int>(args.passes); chunk += warps) {
    const int pass = chunk / chunks, b0 = (chunk - pass * chunks) * kSmallB, b = b0 + lane % kSmallB;
    const uint4 keep =
        keep_block(args.mask, key,
                   pair_part(args.mask.sample(pass, args.a_is_row ? a : b),
                             args.mask.first_output + static_cast<std::uint32_t>(args.a_is_row ? b : a), key),
                   block);
    const int w = tile % 4;
    const std::uint32_t word = w == 0 ? keep.x : w == 1 ? keep.y : w == 2 ? keep.z : keep.w;
    wait_for_earlier_work();
    const T* v = static_cast<const T*>(args.v.data) + pass * args.v_pass + b0 * args.v.row + k * args.v.col;
    const S factor =
        b < size_b ? load_sum(static_cast<const T*>(args.s) + pass * args.s_pass + a * args.s_a + b * args.s_b) : S{0};
    S value[kSmallB];
#pragma unroll
    for (int j = 0; j < kSmallB; ++j) value[j] = in && b0 + j < size_b ? load_sum(v + j * args.v.row) : S{0};
#pragma unroll
    for (int j = 0; j < kSmallB; ++j) {
      const S s = __shfl_sync(0xFFFFFFFFu, factor, j);
      if ((__shfl_sync(0xFFFFFFFFu, word, j) >> lane & 1) != 0) acc[j % 2] = fma(s, value[j], acc[j % 2]);
    }
  }
  S sum = acc[0] + acc[1];
  if (warps > 1) {
    if (warp > 0) sums[warp - 1][lane] = sum;
    __syncthreads();
    if (warp > 0) return;
    for (int i = 0; i < warps - 1; ++i) sum += sums[i][lane];
  }
  wait_for_earlier_work();
  if (in)
    store_sum(static_cast<T*>(args.out.data) + a * args.out.row + k * args.out.col, sum * static_cast<S>(args.scale));
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_SMALL_CUH_
