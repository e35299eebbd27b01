// out[a, k] = scale * sum_b s(a, b) v[b, k] D, see GradientArgs.
//
// A warp holds 16 (or 4) a x 128 inputs in registers: lane / 8 + 4 i counts a, lane % 8 takes 16 neighbouring inputs.
// For 16 b at a time it draws the words of its own (a, b) pairs into shared memory that no other warp touches.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_BACKWARD_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_BACKWARD_CUH_

#include "dropconnect/dropconnect_tile.cuh"
#include "dropconnect/dropconnect_words.cuh"

namespace maskless::cuda {

inline constexpr int kChunkB = 16;  // b in shared memory at a time

/// A warp covers 4 * kPerLane a; a block kWarpsA warps of different a, times kWarpsB warps that share out the b.
template <int kPerLane_, int kWarpsA_, int kWarpsB_, int kBlocksPerSm_>
struct GradientTile {
  static constexpr int kPerLane = kPerLane_, kWarpsA = kWarpsA_, kWarpsB = kWarpsB_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kWarpA = 4 * kPerLane, kA = kWarpA * kWarpsA;
  static constexpr int kWarps = kWarpsA * kWarpsB, kThreads = 32 * kWarps;
  static constexpr int kWarpB = kChunkB / kWarpsB;                                 // b of a chunk, one warp
  static constexpr int kItems = kWarpA * kWarpB >= 32 ? kWarpA * kWarpB / 32 : 1;  // words that a lane draws
  static constexpr int kGroup = kItems >= 4 ? 4 : kItems;
};

template <typename S, typename Tile>
struct BackwardShared {
  S v[2][kChunkB][kBlockInputs];  // four inputs u stand at (u & 3) * 8 + u / 4, so that eight lanes read 128 bytes
  S s[2][kChunkB][Tile::kA + 4];  // a of a warp stands at a % 4 * kPerLane + a / 4
  uint4 words[Tile::kWarpsA][kChunkB][Tile::kWarpA];
  uint4 table[kMaxPlanes];
  S sums[Tile::kWarpsB > 1 ? Tile::kWarpsB - 1 : 1][Tile::kWarpsB > 1 ? Tile::kWarpsA* Tile::kPerLane * 16 : 1][32];
};

/// Stores four rows of a gradient (or of this part's sums for it), a = first_a + r * step_a, 128 inputs from k0 on, of
/// which this lane has inputs 16 segment ... + 15 of row r = my_row. They change lanes in `stage`, which is this
/// warp's, so that a warp writes whole rows.
template <typename T>
__device__ __forceinline__ void store_gradient(const GradientArgs& args, bool wide_out, void* partial,
                                               SumOf<T> (*stage)[kBlockInputs], int my_row, int segment,
                                               const SumOf<T> (&sum)[16], std::int64_t first_a, int step_a,
                                               std::int64_t k0) {
  using S = SumOf<T>;
  const auto place = [](int four) { return four ^ (four >> 3 & 3); };  // so that eight lanes meet different banks
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    Four<S>& four = *reinterpret_cast<Four<S>*>(&stage[my_row][4 * place(4 * segment + i / 4)]);
    four = {{sum[i], sum[i + 1], sum[i + 2], sum[i + 3]}};
  }
  __syncwarp();
  const std::int64_t k = k0 + 4 * (threadIdx.x & 31);
  const auto store = [&](auto* row, std::int64_t col, const Four<S>& four) {
    if (wide_out && k >= 0 && k + 4 <= args.inputs) {
      store_four(row + k, four.v);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (k + e >= 0 && k + e < args.inputs) store_sum(row + (k + e) * col, four.v[e]);
    }
  };
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const std::int64_t a = first_a + r * step_a;
    if (a >= args.size_a) break;
    Four<S> four = *reinterpret_cast<const Four<S>*>(&stage[r][4 * place(static_cast<int>(threadIdx.x & 31))]);
    if (partial != nullptr) {
      store(static_cast<S*>(partial) + (blockIdx.y * args.size_a + a) * args.inputs, 1, four);
    } else {
#pragma unroll
      for (S& v : four.v) v *= static_cast<S>(args.scale);
      store(static_cast<T*>(args.out.data) + a * args.out.row, args.out.col, four);
    }
  }
}

/// Of the chunks of b, block row y takes per_split; if `partial` is not null, its sums go to partial[y][a][k].
template <typename T, typename Tile>
__device__ __forceinline__ void gradient_tile(const GradientArgs& args, bool wide_v, bool wide_out, void* partial,
                                              std::int64_t per_split, BackwardShared<SumOf<T>, Tile>& shared) {
  using S = SumOf<T>;
  constexpr int kThreads = Tile::kThreads, kA = Tile::kA, kWarps = Tile::kWarps, kWarpA = Tile::kWarpA;
  constexpr int kPerLane = Tile::kPerLane;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const int warp_a = warp % Tile::kWarpsA, warp_b = warp / Tile::kWarpsA;
  const int shift = static_cast<int>(args.mask.first_input % kBlockInputs);
  const std::int64_t blocks = (shift + args.inputs + kBlockInputs - 1) / kBlockInputs;
  const auto tiles_k = static_cast<unsigned>(blocks);
  const std::int64_t block = blockIdx.x % tiles_k, a0 = std::int64_t{blockIdx.x / tiles_k} * kA;
  const std::int64_t k0 = block * kBlockInputs - shift;  // local index of the block's first input
  const Key key = load_key(args.mask);

  const std::int64_t chunks_b = (args.size_b + kChunkB - 1) / kChunkB;  // of one pass
  const std::int64_t first_chunk = static_cast<std::int64_t>(blockIdx.y) * per_split;
  const std::int64_t last_chunk = min(first_chunk + per_split, chunks_b * args.passes);

  Decider d = make_decider(args.mask, key);
  d.table = shared.table;
  fill_table(shared.table, static_cast<std::uint32_t>(args.mask.first_input / kBlockInputs + block), args.mask, key,
             thread);

  // Where this thread loads from: of v one four of inputs in every kWarps-th row; of s a line along whichever of a and
  // b lies closer in memory.
  const int my_u = lane;
  const std::int64_t my_k = k0 + 4 * my_u;
  const int first_k = static_cast<int>(min(max(-my_k, std::int64_t{0}), std::int64_t{4}));
  const int last_k = static_cast<int>(min(max(args.inputs - my_k, std::int64_t{0}), std::int64_t{4}));
  const bool b_fast = args.s_b < args.s_a;
  const int my_a = b_fast ? thread / kChunkB : thread % kA, my_b = b_fast ? thread % kChunkB : thread / kA;
  const int step_a = b_fast ? kThreads / kChunkB : 0, step_b = b_fast ? 0 : kThreads / kA;
  const int limit_a = static_cast<int>(min(args.size_a - a0, std::int64_t{kA}));
  const auto load = [&](std::int64_t pass, std::int64_t b0, int buffer) {
    const int limit_b = static_cast<int>(min(args.size_b - b0, std::int64_t{kChunkB}));
    const bool inside = wide_v && k0 >= 0 && k0 + kBlockInputs <= args.inputs && limit_b == kChunkB;
    const T* v = static_cast<const T*>(args.v.data) + pass * args.v_pass + b0 * args.v.row + my_k * args.v.col;
#pragma unroll
    for (int i = 0; i < kChunkB / kWarps; ++i) {
      const int r = warp + i * kWarps;
      S* to = &shared.v[buffer][r][4 * ((my_u & 3) * 8 + my_u / 4)];
      const int last = r < limit_b ? last_k : 0;
      if (inside) {
        load_four_inside<T>(to, v + r * args.v.row);
      } else if (wide_v) {
        load_four_wide<T>(to, first_k == 0 && last > 0 ? v + r * args.v.row : static_cast<const T*>(args.v.data),
                          first_k == 0 ? last : 0);
      } else {
        load_four<T>(to, v + r * args.v.row, args.v.col, first_k, last);
      }
    }
    const T* s = static_cast<const T*>(args.s) + pass * args.s_pass + (a0 + my_a) * args.s_a + (b0 + my_b) * args.s_b;
    const std::int64_t step = step_a * args.s_a + step_b * args.s_b;
    if (kThreads > kChunkB * kA && thread >= kChunkB * kA) return;
#pragma unroll
    for (int i = 0; i < (kChunkB * kA + kThreads - 1) / kThreads; ++i) {
      const int a = my_a + i * step_a, b = my_b + i * step_b;
      shared.s[buffer][b][a / kWarpA * kWarpA + a % 4 * kPerLane + a % kWarpA / 4] =
          a < limit_a && b < limit_b ? load_sum(s) : S{0};
      s += step;
    }
  };

  const int group = lane >> 3, segment = lane & 7;
  S acc[kPerLane][4][4] = {};  // a, nibble, input
  std::int64_t pass = args.passes > 1 ? first_chunk / chunks_b : 0, b0 = (first_chunk - pass * chunks_b) * kChunkB;
  if (first_chunk < last_chunk) load(pass, b0, 0);
#pragma unroll 1
  for (std::int64_t chunk = first_chunk; chunk < last_chunk; ++chunk) {
    const int buffer = static_cast<int>(chunk - first_chunk) & 1;
    std::int64_t next_pass = pass, next_b0 = b0 + kChunkB;
    if (next_b0 >= args.size_b) {
      next_b0 = 0;
      ++next_pass;
    }
    copies_arrived();
    __syncthreads();
    if (chunk + 1 < last_chunk) load(next_pass, next_b0, buffer ^ 1);
    const int last_b = static_cast<int>(min(args.size_b - b0, static_cast<std::int64_t>((warp_b + 1) * Tile::kWarpB)));
    {
      constexpr int kStep = 32 / kWarpA;  // from one item of a lane to its next b
      const int a = lane % kWarpA, b = warp_b * Tile::kWarpB + lane / kWarpA;
      const std::int64_t at_a = a0 + warp_a * kWarpA + a, at_b = b0 + b;
      const bool none = at_a >= args.size_a || at_b >= args.size_b || lane / kWarpA >= Tile::kWarpB;
      const auto left = static_cast<int>(min(args.size_b - at_b, std::int64_t{kChunkB}));
      const int groups = ((left + kStep - 1) / kStep + Tile::kGroup - 1) / Tile::kGroup;
      const int items = none ? 0 : min(Tile::kItems, groups * Tile::kGroup);
      const std::uint32_t step_m = args.a_is_row ? 0 : kStep * args.mask.row_stride, step_n = args.a_is_row ? kStep : 0;
      const std::uint32_t m = args.mask.sample(pass, args.a_is_row ? at_a : at_b);
      const std::uint32_t n = args.mask.first_output + static_cast<std::uint32_t>(args.a_is_row ? at_b : at_a);
      __syncwarp();
      keep_words<Tile::kGroup, Tile::kItems - 1>(
          d, items, [&](int item) { return pair_part(m + item * step_m, n + item * step_n, key); },
          [&](int item, uint4 keep) { shared.words[warp_a][kStep * item + b][a] = keep; });
      __syncwarp();
    }
#pragma unroll 1
    for (int b = warp_b * Tile::kWarpB; b < last_b; ++b) {
      Four<S> vs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        vs[i] = *reinterpret_cast<const Four<S>*>(&shared.v[buffer][b][4 * (i * 8 + segment)]);
      S ss[kPerLane];
      if constexpr (kPerLane == 4) {
        const Four<S> four = *reinterpret_cast<const Four<S>*>(&shared.s[buffer][b][warp_a * kWarpA + group * 4]);
#pragma unroll
        for (int i = 0; i < 4; ++i) ss[i] = four.v[i];
      } else {
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) ss[i] = shared.s[buffer][b][warp_a * kWarpA + group * kPerLane + i];
      }
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const std::uint32_t word =
            reinterpret_cast<const unsigned short*>(&shared.words[warp_a][b][i * 4 + group])[segment];
        const S sa[4] = {ss[i], ss[i], ss[i], ss[i]};
        masked_fma4<0>(acc[i][0], sa, vs[0].v, word);
        masked_fma4<8>(acc[i][2], sa, vs[2].v, word);
        masked_fma4<4>(acc[i][1], sa, vs[1].v, word);
        masked_fma4<12>(acc[i][3], sa, vs[3].v, word);
      }
    }
    pass = next_pass;
    b0 = next_b0;
  }

  __syncthreads();                    // v is free
  if constexpr (Tile::kWarpsB > 1) {  // the warps' sums, in their order
    if (warp_b > 0)
#pragma unroll
      for (int i = 0; i < kPerLane * 16; ++i)
        shared.sums[warp_b - 1][warp_a * kPerLane * 16 + i][lane] = acc[i / 16][i / 4 % 4][i % 4];
    __syncthreads();
    if (warp_b > 0) return;
    for (int w = 0; w < Tile::kWarpsB - 1; ++w)
#pragma unroll
      for (int i = 0; i < kPerLane * 16; ++i)
        acc[i / 16][i / 4 % 4][i % 4] += shared.sums[w][warp_a * kPerLane * 16 + i][lane];
  }

#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    S row[16];
#pragma unroll
    for (int e = 0; e < 16; ++e) row[e] = acc[i][e / 4][e % 4];
    store_gradient<T>(args, wide_out, partial, &shared.v[0][4 * warp_a], group, segment, row,
                      a0 + warp_a * kWarpA + i * 4, 1, k0);
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, sizeof(T) == 8 ? (Tile::kBlocksPerSm + 1) / 2 : Tile::kBlocksPerSm)
    gradient_kernel(GradientArgs args, bool wide_v, bool wide_out, void* partial, std::int64_t per_split) {
  extern __shared__ __align__(16) unsigned char raw[];
  gradient_tile<T, Tile>(args, wide_v, wide_out, partial, per_split,
                         *reinterpret_cast<BackwardShared<SumOf<T>, Tile>*>(raw));
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_BACKWARD_CUH_
