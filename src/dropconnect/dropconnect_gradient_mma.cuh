// Gradients of bfloat16 on tensor cores, see GradientArgs: for one a, out[a, k] = sum_b (v o D_a)[b, k] s(a, b) is
// a product of a matrix (128 inputs k x 16 b at a time) and a vector. A warp takes 8 a: column j of the products is
// a_j, and for a_j the others' columns are zero, so that all add to the same sums.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_GRADIENT_MMA_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_GRADIENT_MMA_CUH_

#include "cuda/launch.h"
#include "dropconnect/dropconnect_backward.cuh"
#include "dropconnect/dropconnect_pack.cuh"

namespace maskless::cuda {

/// A block covers 8 kWarpsA a x 128 inputs, its warps kWarpsB chunks of 16 b at a time.
template <int kWarpsA_, int kWarpsB_, int kBlocksPerSm_, typename Plain_>
struct GradientMmaTile {
  static constexpr int kWarpsA = kWarpsA_, kWarpsB = kWarpsB_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = 32 * kWarpsA * kWarpsB, kA = 8 * kWarpsA;
  using Plain = Plain_;  // the same tile for values that need plain multiply-adds
  static_assert(Plain::kA == kA && Plain::kThreads == kThreads);
};

template <typename Tile>
struct GradientMmaShared {
  uint4 v[2][Tile::kWarpsB][256];
  union {
    uint4 words[Tile::kWarpsA * Tile::kWarpsB][32][5];  // 5 for 4, so that eight lanes meet different banks
    float sums[Tile::kWarpsB - 1][Tile::kWarpsA][32][32];
  };
  uint4 table[kMaxPlanes];
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    gradient_mma_kernel(GradientArgs args, bool wide_v, bool wide_out, void* partial, std::int64_t per_split,
                        PackedGradient packed) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<GradientMmaShared<Tile>*>(raw);
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const int warp_a = warp % Tile::kWarpsA, warp_b = warp / Tile::kWarpsA;
  const int block = static_cast<int>(blockIdx.x % static_cast<unsigned>(packed.blocks));
  const std::int64_t tile = blockIdx.x / static_cast<unsigned>(packed.blocks);
  const int first_chunk = static_cast<int>(blockIdx.y * per_split);
  const int chunks = min(packed.chunks - first_chunk, static_cast<int>(per_split));

  const std::int64_t v_at = std::int64_t{block} * packed.chunks + first_chunk;
  wait_for_earlier_work();
  bool bad = false;
  for (int i = thread; i < chunks; i += Tile::kThreads) {
    bad |= reinterpret_cast<const std::uint32_t*>(packed.bad_v)[v_at + i] != 0;
#pragma unroll
    for (int w = 0; w < Tile::kWarpsA; ++w)
      bad |= packed.bad_s[(tile * Tile::kWarpsA + w) * packed.chunks + first_chunk + i] != 0;
  }
  if (__syncthreads_or(bad) != 0) {
    gradient_tile<BFloat16, typename Tile::Plain>(args, wide_v, wide_out, partial, per_split,
                                                  *reinterpret_cast<BackwardShared<float, typename Tile::Plain>*>(raw));
    return;
  }

  const Key key = load_key(args.mask);
  const int shift = static_cast<int>(args.mask.first_input % kBlockInputs);
  const std::int64_t k0 = std::int64_t{block} * kBlockInputs - shift;  // local index of the block's first input
  Decider d = make_decider(args.mask, key);
  d.table = shared.table;
  fill_table(shared.table, static_cast<std::uint32_t>(args.mask.first_input / kBlockInputs + block), args.mask, key,
             thread);

  const uint4* v_from = packed.v + v_at * 256;
  const uint2* s_from = packed.s + ((tile * Tile::kWarpsA + warp_a) * packed.chunks + first_chunk) * 32 + lane;
  const auto load = [&](int chunk) {  // kWarpsB chunks
#pragma unroll
    for (int i = 0; i < Tile::kWarpsB * 256; i += Tile::kThreads) {
      const int at = i + thread;
      if (chunk + at / 256 < chunks)
        copy16_async(&shared.v[chunk / Tile::kWarpsB & 1][0][at], v_from + std::int64_t{chunk} * 256 + at);
    }
  };

  // This lane draws the calls of a_g and b = 4 t ... 4 t + 3 of a chunk.
  const std::int64_t a = tile * Tile::kA + warp_a * 8 + g;
  const std::uint32_t step_m = args.a_is_row ? 0 : args.mask.row_stride, step_n = args.a_is_row ? 1 : 0;
  auto& words = shared.words[warp];

  float acc[kSteps][4] = {};
  if (chunks > 0) load(0);
  uint2 s_next = warp_b < chunks ? s_from[warp_b * 32] : make_uint2(0, 0);
#pragma unroll 1
  for (int chunk0 = 0; chunk0 < chunks; chunk0 += Tile::kWarpsB) {
    const int chunk = chunk0 + warp_b;
    copies_arrived();
    __syncthreads();
    if (chunk0 + Tile::kWarpsB < chunks) load(chunk0 + Tile::kWarpsB);
    const uint2 s = s_next;
    s_next = chunk + Tile::kWarpsB < chunks ? s_from[(chunk + Tile::kWarpsB) * 32] : make_uint2(0, 0);
    if (chunk >= chunks) continue;
    {
      const std::int64_t b = std::int64_t{16} * (first_chunk + chunk) + 4 * t;
      const std::uint32_t m = args.mask.sample(0, args.a_is_row ? a : b);
      const std::uint32_t n = args.mask.first_output + static_cast<std::uint32_t>(args.a_is_row ? b : a);
      const auto pair_of = [&](int item) { return pair_part(m + item * step_m, n + item * step_n, key); };
      uint4 keep[4];
      if (d.planes <= kLockstepPlanes) {
        const PairPart pair[4] = {pair_of(0), pair_of(1), pair_of(2), pair_of(3)};
        keep_lockstep(d, pair, keep);
      } else {
        keep_each<3>(d, a < args.size_a ? 4 : 0, pair_of, [&](int item, uint4 k) { words[lane][item] = k; });
#pragma unroll
        for (int i = 0; i < 4; ++i) keep[i] = words[lane][i];
      }
      // Half words of two b side by side: lane 4 g + t then finds half word g of its b at words[4 j + t].
      const auto both = [](std::uint32_t p0, std::uint32_t p1, std::uint32_t q0, std::uint32_t q1) {
        return make_uint4(__byte_perm(p0, p1, 0x5410), __byte_perm(q0, q1, 0x5410), __byte_perm(p0, p1, 0x7632),
                          __byte_perm(q0, q1, 0x7632));
      };
      words[lane][0] = both(keep[0].x, keep[1].x, keep[2].x, keep[3].x);
      words[lane][1] = both(keep[0].y, keep[1].y, keep[2].y, keep[3].y);
      words[lane][2] = both(keep[0].z, keep[1].z, keep[2].z, keep[3].z);
      words[lane][3] = both(keep[0].w, keep[1].w, keep[2].w, keep[3].w);
      __syncwarp();
    }
    uint2 word[8], factor[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      word[j] = reinterpret_cast<const uint2*>(&words[4 * j + t])[g];
      factor[j] = j == g ? s : make_uint2(0, 0);
    }
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {  // two at once: products of one sum wait for each other
      const uint4* at = &shared.v[chunk / Tile::kWarpsB & 1][warp_b][step * 32 + lane];
      const uint4 v0 = at[0], v1 = at[32];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const std::uint32_t left0 = next_bits(word[j].x, step), right0 = next_bits(word[j].y, step);
        mma(acc[step], mask_high(v0.x, left0), mask_low(v0.y, left0), mask_high(v0.z, right0), mask_low(v0.w, right0),
            factor[j].x, factor[j].y);
        const std::uint32_t left1 = next_bits(word[j].x, step + 1), right1 = next_bits(word[j].y, step + 1);
        mma(acc[step + 1], mask_high(v1.x, left1), mask_low(v1.y, left1), mask_high(v1.z, right1),
            mask_low(v1.w, right1), factor[j].x, factor[j].y);
      }
    }
  }

  if constexpr (Tile::kWarpsB > 1) {  // the warps' sums, in their order
    __syncthreads();
    if (warp_b > 0)
#pragma unroll
      for (int i = 0; i < 32; ++i) shared.sums[warp_b - 1][warp_a][i][lane] = acc[i / 4][i % 4];
    __syncthreads();
    if (warp_b > 0) return;
    for (int w = 0; w < Tile::kWarpsB - 1; ++w)
#pragma unroll
      for (int i = 0; i < 32; ++i) acc[i / 4][i % 4] += shared.sums[w][warp_a][i][lane];
  }

#pragma unroll
  for (int c = 0; c < 2; ++c) {
    float sum[16];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      sum[high_bit(step)] = acc[step][c] * kUnpack;
      sum[low_bit(step)] = acc[step][2 + c] * kUnpack;
    }
    store_gradient<BFloat16>(args, wide_out, partial,
                             reinterpret_cast<float(*)[kBlockInputs]>(&shared.v[0][0][0]) + 4 * warp_a, t, g, sum,
                             tile * Tile::kA + warp_a * 8 + c, 2, k0);
  }
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_GRADIENT_MMA_CUH_
