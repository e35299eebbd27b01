// bfloat16 operands of the tensor core kernels, in the order in which a warp's lanes hold them for mma.m16n8k16, so
// that a lane finds what it needs by loads of 8 or 16 bytes. lane = 4 g + t, as in the PTX manual.
//
// A mask is applied to two elements at once by one logic instruction on the register that holds them: weights are
// stored times 2^118, so that every one has the two uppermost bits of its exponent set, and a mask bit that lies there
// clears it. What is dropped counts 2^-128 or 2^-64 of itself, which no sum in float32 sees. Two bits of a mask word
// come into place by one shift.
//
// Values for which that is not exact (weights outside [2^-53, 2^10), other factors outside [2^-86, 2^16), infinities,
// NaN) are reported; the blocks that meet them use plain multiply-adds. For float16, whose exponent is too short, two
// instructions a pair (PRMT spreads a mask bit) were slower than multiply-adds.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_PACK_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_PACK_CUH_

#include <cstdint>

#include "common/float_types.h"
#include "cuda/launch.h"
#include "dropconnect/dropconnect_words.cuh"

namespace maskless::cuda {

inline constexpr int kSteps = 8;  // products of 16 x 8 x 16 that use up one word a lane (forward) or half a word

/// In step s the mask bits high_bit(s) and low_bit(s) of each half of a word are used, at bits 14 and 13.
__host__ __device__ constexpr int high_bit(int step) { return 15 - 2 * step; }
__host__ __device__ constexpr int low_bit(int step) { return 14 - 2 * step; }

/// Brings the bits of step s into place. word is used up.
__device__ __forceinline__ std::uint32_t next_bits(std::uint32_t& word, int step) {
  if (step == 0) return word >> 1;
  return word <<= (step == 1 ? 1 : 2);
}
__device__ __forceinline__ std::uint32_t mask_high(std::uint32_t pair, std::uint32_t bits) {
  return pair & (bits | ~0x40004000u);
}
__device__ __forceinline__ std::uint32_t mask_low(std::uint32_t pair, std::uint32_t bits) {
  return pair & (bits | ~0x20002000u);
}

/// Factors by powers of two, and which values they are exact for. The masked operand is the weight (or x, for the
/// gradient of the weight).
template <bool kMasked>
struct PackRange {
  static constexpr std::uint32_t kLeast = (127 - 53) << 7, kEnd = (127 + 10) << 7;
  static constexpr int kShift = 118 << 7;
};
template <>
struct PackRange<false> {
  static constexpr std::uint32_t kLeast = (127 - 86) << 7, kEnd = (127 + 16) << 7;
  static constexpr int kShift = -(40 << 7);
};
inline constexpr float kUnpack = 0x1p-78f;
inline constexpr std::int64_t kMaxPackedSum = std::int64_t{1} << 22;  // longer sums might overflow

template <bool kMasked>
__device__ __forceinline__ std::uint32_t packed(std::uint16_t bits, bool& bad) {
  using Range = PackRange<kMasked>;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude == 0) return 0;
  bad |= magnitude - Range::kLeast >= Range::kEnd - Range::kLeast;
  return (bits + Range::kShift) & 0xFFFFu;
}

/// Elements at positions at ... at + 4 kFours - 1 of a row whose input k is at position shift + k; 0 outside.
template <int kFours>
__device__ __forceinline__ void load_positions(std::uint16_t (&out)[4 * kFours], const std::uint16_t* row,
                                               std::int64_t col, std::int64_t first, std::int64_t inputs, bool wide) {
#pragma unroll
  for (int f = 0; f < kFours; ++f) {
    const std::int64_t k = first + 4 * f;
    if (wide && k >= 0 && k + 4 <= inputs) {
      const uint2 raw = *reinterpret_cast<const uint2*>(row + k);
      out[4 * f] = static_cast<std::uint16_t>(raw.x);
      out[4 * f + 1] = static_cast<std::uint16_t>(raw.x >> 16);
      out[4 * f + 2] = static_cast<std::uint16_t>(raw.y);
      out[4 * f + 3] = static_cast<std::uint16_t>(raw.y >> 16);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) out[4 * f + e] = k + e >= 0 && k + e < inputs ? row[(k + e) * col] : 0;
    }
  }
}

/// Operands of the forward product: of weight, tiles of 16 outputs x 128 inputs (256 uint4: step, lane); of x, tiles of
/// 8 rows x 128 inputs (128 uint4: pair of steps, lane). Lane 4 g + t holds word t of rows g and g + 8.
struct PackedForward {
  uint4* w = nullptr;
  uint4* x = nullptr;
  unsigned char* bad_w = nullptr;  // of 8 rows x 128 inputs each
  unsigned char* bad_x = nullptr;
  int blocks = 0;                       // of 128 inputs
  std::int64_t w_rows = 0, x_rows = 0;  // padded to whole tiles of the product's blocks
};

/// Threads: (tile, block of inputs, row of the tile, word), first of w, then of x.
inline __global__ void __launch_bounds__(256)
    pack_forward_kernel(DropconnectArgs args, PackedForward packed_to, bool wide_x, bool wide_w) {
  let_later_work_start();
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t w_threads = packed_to.w_rows * packed_to.blocks * 4;
  const bool of_w = i < w_threads;  // the same for a warp
  if (!of_w) i -= w_threads;
  if (!of_w && i >= packed_to.x_rows * packed_to.blocks * 4) return;
  const int tile_rows = of_w ? 16 : 8, t = static_cast<int>(i & 3);
  const int r = static_cast<int>(i >> 2) & (tile_rows - 1);
  const std::int64_t place = (i >> 2) / tile_rows;  // tile * blocks + block
  const std::int64_t tile = place / packed_to.blocks, block = place - tile * packed_to.blocks;
  const std::int64_t row = tile * tile_rows + r;
  const int shift = static_cast<int>(args.mask.first_input % kBlockInputs);
  const Matrix<const void*>& from = of_w ? args.w : args.x;
  const bool exists = row < (of_w ? args.shape.outputs : args.shape.passes * args.shape.rows);
  const std::int64_t source = !exists ? 0 : of_w || args.shape.passes == 1 ? row : row % args.shape.rows;
  std::uint16_t raw[32];
  load_positions<8>(raw, static_cast<const std::uint16_t*>(from.data) + source * from.row, from.col,
                    block * kBlockInputs + 32 * t - shift, exists ? args.shape.inputs : 0, of_w ? wide_w : wide_x);
  bool bad = false;
  std::uint32_t pair[16];
#pragma unroll
  for (int b = 0; b < 16; ++b)
    pair[b] = of_w ? packed<true>(raw[b], bad) | packed<true>(raw[b + 16], bad) << 16
                   : packed<false>(raw[b], bad) | packed<false>(raw[b + 16], bad) << 16;
  const int lane = r % 8 * 4 + t;
  if (of_w) {
    auto* to = reinterpret_cast<uint2*>(packed_to.w + place * 256);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) to[(s * 32 + lane) * 2 + r / 8] = make_uint2(pair[high_bit(s)], pair[low_bit(s)]);
  } else {
#pragma unroll
    for (int s = 0; s < kSteps; s += 2)
      packed_to.x[place * 128 + s / 2 * 32 + lane] =
          make_uint4(pair[high_bit(s)], pair[low_bit(s)], pair[high_bit(s + 1)], pair[low_bit(s + 1)]);
  }
  const bool any = __any_sync(0xFFFFFFFFu, bad);  // whole warps: 32 threads are 8 rows of a tile and block
  if ((threadIdx.x & 31) == 0) (of_w ? packed_to.bad_w : packed_to.bad_x)[i >> 5] = any ? 1 : 0;
}

/// Operands of a gradient: of v, tiles of 128 inputs x 16 b (256 uint4: step, lane), where lane 4 g + t holds inputs
/// 16 g ... 16 g + 15 of b = 4 t ... 4 t + 3; of s, tiles of 8 a x 16 b (32 uint2), where it holds a = g of those b.
struct PackedGradient {
  uint4* v = nullptr;
  uint2* s = nullptr;
  unsigned char* bad_v = nullptr;  // four of each tile
  unsigned char* bad_s = nullptr;
  int chunks = 0;  // of 16 b
  int blocks = 0;
  std::int64_t s_tiles = 0;
};

/// Warps: (block of inputs, chunk, two steps) of v, then (tile, chunk) of s.
inline __global__ void __launch_bounds__(256)
    pack_gradient_kernel(GradientArgs args, PackedGradient packed_to, bool wide_v) {
  let_later_work_start();
  std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) >> 5;
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  const std::int64_t v_warps = std::int64_t{packed_to.blocks} * packed_to.chunks * (kSteps / 2);
  const bool of_v = warp < v_warps;
  const int step = of_v ? static_cast<int>(warp % (kSteps / 2)) * 2 : 0;
  warp = of_v ? warp / (kSteps / 2) : warp - v_warps;
  if (!of_v && warp >= packed_to.s_tiles * packed_to.chunks) return;
  const std::int64_t tile = warp / packed_to.chunks, chunk = warp - tile * packed_to.chunks, b0 = 16 * chunk + 4 * t;
  bool bad = false;
  if (of_v) {
    const std::int64_t k0 = tile * kBlockInputs + 16 * g - static_cast<int>(args.mask.first_input % kBlockInputs);
    std::uint32_t value[4][4];  // b; high and low bit of a step, then of the next
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const auto* row = static_cast<const std::uint16_t*>(args.v.data) + (b0 + c) * args.v.row;
      std::uint16_t raw[4];
      load_positions<1>(raw, row, args.v.col, k0 + 12 - 2 * step, b0 + c < args.size_b ? args.inputs : 0, wide_v);
#pragma unroll
      for (int i = 0; i < 4; ++i) value[c][i] = packed<true>(raw[3 - i], bad);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      packed_to.v[warp * 256 + (step + i) * 32 + lane] =
          make_uint4(value[0][2 * i] | value[1][2 * i] << 16, value[0][2 * i + 1] | value[1][2 * i + 1] << 16,
                     value[2][2 * i] | value[3][2 * i] << 16, value[2][2 * i + 1] | value[3][2 * i + 1] << 16);
  } else {
    const std::int64_t a = 8 * tile + g;
    std::uint32_t value[4];
#pragma unroll
    for (int c = 0; c < 4; ++c)
      value[c] = a < args.size_a && b0 + c < args.size_b
                     ? packed<false>(static_cast<const std::uint16_t*>(args.s)[a * args.s_a + (b0 + c) * args.s_b], bad)
                     : 0;
    packed_to.s[warp * 32 + lane] = make_uint2(value[0] | value[1] << 16, value[2] | value[3] << 16);
  }
  const bool any = __any_sync(0xFFFFFFFFu, bad);
  if (lane == 0) (of_v ? packed_to.bad_v : packed_to.bad_s)[of_v ? warp * (kSteps / 2) + step / 2 : warp] = any ? 1 : 0;
}

/// c += a b, a 16 x 16 (registers: rows g and g + 8, then the same for the other half of the sum), b 16 x 8.
__device__ __forceinline__ void mma(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                    std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_PACK_CUH_
