// The forward product of bfloat16 on tensor cores. For one sample m, y[m, n] = sum_k (w o D_m)[n, k] x[m, k] is a
// product of a matrix that only this sample has and a vector: of the eight columns of mma.m16n8k16 one is of use. A
// warp takes 16 outputs x 8 rows; the eight rows' x are the columns of every product, and row j has sums of its own, of
// which column j is kept. What counts is the making of w o D_m: a logic instruction for two elements.
//
// Floor at 1024^3, bfloat16, one H200, p = 0.5, for 8 products a lane: 4 LOP3, 2 shifts, 1 HMMA and 3.1 for a
// sixteenth of a call: 1.3 issue slots and 1.4 cycles of the ALU a product, 0.053 ms.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_FORWARD_MMA_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_FORWARD_MMA_CUH_

#include "cuda/launch.h"
#include "dropconnect/dropconnect_forward.cuh"
#include "dropconnect/dropconnect_pack.cuh"

namespace maskless::cuda {

/// A block covers 16 kWarpsN outputs x 8 kWarpsM rows.
template <int kWarpsN_, int kWarpsM_, int kBlocksPerSm_, typename Plain_>
struct MmaTile {
  static constexpr int kWarpsN = kWarpsN_, kWarpsM = kWarpsM_, kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsM, kN = 16 * kWarpsN, kM = 8 * kWarpsM;
  using Plain = Plain_;                                // the same tile for values that need plain multiply-adds
  static_assert(kThreads == 256 && kWarpsM % 2 == 0);  // so many copy a tile of w, or two of x
  static_assert(Plain::kM == kM && Plain::kN == kN && Plain::kThreads == kThreads);
};

inline constexpr int kDepth = 2;  // blocks of 128 inputs fetched at a time: as often the warps wait for each other

template <typename Tile>
struct MmaShared {
  uint4 w[2][kDepth][Tile::kWarpsN][256];
  uint4 x[2][kDepth][Tile::kWarpsM][128];
  uint4 words[Tile::kWarpsN * Tile::kWarpsM][8][20];  // row, output; 20 for 16, so that stores meet different banks
  uint4 table[2][kDepth][kMaxPlanes];
};

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocksPerSm)
    forward_mma_kernel(DropconnectArgs args, bool wide_x, bool wide_w, Split split, PackedForward packed) {
  extern __shared__ __align__(16) unsigned char raw[];
  auto& shared = *reinterpret_cast<MmaShared<Tile>*>(raw);
  const DropconnectShape& shape = args.shape;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5, g = lane >> 2, t = lane & 3;
  const int warp_n = warp % Tile::kWarpsN, warp_m = warp / Tile::kWarpsN;
  const auto tiles_n = static_cast<unsigned>((shape.outputs + Tile::kN - 1) / Tile::kN);
  const std::int64_t tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n;
  const std::int64_t rows = shape.passes * shape.rows;
  const int block0 = static_cast<int>(blockIdx.y) * split.per_split;
  const int blocks = min(packed.blocks - block0, split.per_split);

  wait_for_earlier_work();
  const Key key = load_key(args.mask);
  const auto first_block = static_cast<std::uint32_t>(args.mask.first_input / kBlockInputs) + block0;
  const std::int64_t next_tile = std::int64_t{packed.blocks} * 256;  // of w; half of it of x
  const uint4* w_from = packed.w + tile_n * Tile::kWarpsN * next_tile + block0 * 256 + thread;
  const uint4* x_from =
      packed.x + (tile_m * Tile::kWarpsM + thread / 128) * (next_tile / 2) + block0 * 128 + thread % 128;
  const auto load = [&](int first) {  // kDepth blocks
    const int stage = first / kDepth & 1;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (first + d >= blocks) break;
#pragma unroll
      for (int i = 0; i < Tile::kWarpsN; ++i)
        copy16_async(&shared.w[stage][d][i][thread], w_from + i * next_tile + d * 256);
#pragma unroll
      for (int i = 0; i < Tile::kWarpsM / 2; ++i)
        copy16_async(&shared.x[stage][d][2 * i][thread], x_from + i * next_tile + d * 128);
    }
    w_from += kDepth * 256;
    x_from += kDepth * 128;
    if (thread < kMaxPlanes * kDepth)
      shared.table[stage][thread / kMaxPlanes][thread % kMaxPlanes] =
          block_part(static_cast<std::uint32_t>(thread % kMaxPlanes),
                     first_block + static_cast<std::uint32_t>(first + thread / kMaxPlanes), args.mask.tag, key);
  };

  if (blocks > 0) load(0);
  bool bad = false;
  for (int group = warp; group < 2 * Tile::kWarpsN + Tile::kWarpsM; group += Tile::kThreads / 32) {
    const bool of_w = group < 2 * Tile::kWarpsN;
    const std::int64_t tile =
        of_w ? tile_n * Tile::kWarpsN + group / 2 : tile_m * Tile::kWarpsM + group - 2 * Tile::kWarpsN;
    for (int i = lane; i < blocks; i += 32) {
      const std::int64_t at = tile * packed.blocks + block0 + i;
      bad |= (of_w ? packed.bad_w[2 * at + group % 2] : packed.bad_x[at]) != 0;
    }
  }
  if (__syncthreads_or(bad) != 0) {
    copies_arrived();
    __syncthreads();
    forward_tile<BFloat16, typename Tile::Plain>(args, wide_x, wide_w, split,
                                                 *reinterpret_cast<ForwardShared<float, typename Tile::Plain>*>(raw));
    return;
  }

  // This lane draws the calls of row g and outputs t, t + 4, t + 8, t + 12.
  const std::int64_t row = tile_m * Tile::kM + warp_m * 8 + g;
  const std::int64_t pass = shape.passes > 1 ? row / shape.rows : 0;
  const std::uint32_t m = args.mask.sample(pass, row - pass * shape.rows);
  const std::uint32_t n = args.mask.first_output + static_cast<std::uint32_t>(tile_n * Tile::kN + warp_n * 16 + t);
  PairPart pair[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pair[i] = pair_part(m, n + 4 * i, key);
  Decider decider = make_decider(args.mask, key);
  auto& words = shared.words[warp];

  float acc[8][4] = {};
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    const int stage = block / kDepth & 1, d = block % kDepth;
    if (d == 0) {
      copies_arrived();
      __syncthreads();
      if (block + kDepth < blocks) load(block + kDepth);
    }
    decider.table = shared.table[stage][d];
    if (decider.planes <= kLockstepPlanes) {
      uint4 keep[4];
      keep_lockstep(decider, pair, keep);
      __syncwarp();  // all have read the words before
#pragma unroll
      for (int i = 0; i < 4; ++i) words[g][t + 4 * i] = keep[i];
    } else {
      __syncwarp();
      keep_each<3>(
          decider, row < rows ? 4 : 0, [&](int item) { return pair_part(m, n + 4 * item, key); },
          [&](int item, uint4 keep) { words[g][t + 4 * item] = keep; });
    }
    __syncwarp();
    std::uint32_t word[8][2];
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) word[j][h] = reinterpret_cast<const std::uint32_t*>(&words[j][g + 8 * h])[t];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint4 w = shared.w[stage][d][warp_n][s * 32 + lane];  // row g: high, low; row g + 8: high, low
      const uint2 x = reinterpret_cast<const uint2*>(&shared.x[stage][d][warp_m][s / 2 * 32 + lane])[s & 1];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const std::uint32_t upper = next_bits(word[j][0], s), lower = next_bits(word[j][1], s);
        mma(acc[j], mask_high(w.x, upper), mask_high(w.z, lower), mask_low(w.y, upper), mask_low(w.w, lower), x.x, x.y);
      }
    }
  }

  // Column j of row j's product: this lane has those of rows 2 t and 2 t + 1.
  float sum[2][2];
#pragma unroll
  for (int c = 0; c < 2; ++c)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[c][h] = acc[c][2 * h + c];
#pragma unroll
      for (int u = 1; u < 4; ++u) sum[c][h] = t == u ? acc[2 * u + c][2 * h + c] : sum[c][h];
      sum[c][h] *= kUnpack;
    }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const std::int64_t r = tile_m * Tile::kM + warp_m * 8 + 2 * t + c, p = shape.passes > 1 ? r / shape.rows : 0;
    if (r >= rows) continue;
    BFloat16* y = static_cast<BFloat16*>(args.y.data) + p * args.y_pass + (r - p * shape.rows) * args.y.row;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const std::int64_t output = tile_n * Tile::kN + warp_n * 16 + g + 8 * h;
      if (output >= shape.outputs) continue;
      if (split.partial != nullptr) {
        static_cast<float*>(split.partial)[(blockIdx.y * rows + r) * shape.outputs + output] = sum[c][h];
      } else {
        float v = sum[c][h] * static_cast<float>(args.scale);
        if (args.bias != nullptr) v += load_sum(static_cast<const BFloat16*>(args.bias) + output * args.bias_stride);
        store_sum(y + output * args.y.col, v);
      }
    }
  }
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_FORWARD_MMA_CUH_
