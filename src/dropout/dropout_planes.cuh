// The kernels for memory that runs along another dimension than the positions do: channels last, transposes.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_PLANES_CUH_
#define MASKLESS_SRC_DROPOUT_DROPOUT_PLANES_CUH_

#include "dropout/dropout_strided.cuh"

namespace maskless::cuda {

/// Two dimensions of a space: `along`, in which memory runs, and the last, in which positions run ("across"); the
/// others outside.
struct Plane {
  IndexSpace outer;
  std::int64_t along = 0, across = 0;  // extents
  std::int64_t along_stride[2] = {}, across_stride[2] = {};
  std::uint64_t along_index = 0;
  std::int64_t tiles_along = 0, tiles_across = 0, tiles = 0;
};

/// Elements side by side that move in one access.
template <typename T, int kWide>
struct alignas(sizeof(T) * kWide) Group {
  T element[kWide];
};

inline constexpr int kColumnLanes = 32, kColumnRepeats = 2;
inline constexpr int kColumnPositions = kStridedThreads / kColumnLanes * kColumnRepeats * 8;  // of a block, across

/// Memory of x and y runs along: lanes go along memory, and a thread takes eight positions across at a time. kWide
/// elements of 2 bytes make an access of 4.
template <typename T, int kWide>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_columns_kernel(Plane plane, DropElement<T> f, StridedMask mask) {
  using Access = Group<T, kWide>;
  for (std::int64_t tile = blockIdx.x; tile < plane.tiles; tile += gridDim.x) {
    const std::int64_t tile_row = divide(tile, plane.tiles_along), outer = divide(tile_row, plane.tiles_across);
    const Place<2> place = locate<2>(plane.outer, outer, plane.outer.rank);
    const std::int64_t a = ((tile - tile_row * plane.tiles_along) * kColumnLanes + threadIdx.x % kColumnLanes) * kWide;
    if (a >= plane.along) continue;
    std::int64_t b =
        (tile_row - outer * plane.tiles_across) * kColumnPositions + threadIdx.x / kColumnLanes * kColumnRepeats * 8;
    std::uint64_t seed[kWide], index[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      seed[w] = mask.seed(a + w);
      index[w] = place.index + plane.along_index * static_cast<std::uint64_t>(a + w);
    }
#pragma unroll 1
    for (int repeat = 0; repeat < kColumnRepeats; ++repeat, b += 8) {
      if (b >= plane.across) break;
      const int rest = plane.across - b < 8 ? static_cast<int>(plane.across - b) : 8;
      const T* x = f.x + place.at[0] + a + b * plane.across_stride[0];
      T* y = f.y + place.at[1] + a + b * plane.across_stride[1];
      Access group[8];
#pragma unroll
      for (int j = 0; j < 8; ++j, x += plane.across_stride[0])
        if (j < rest) group[j] = *reinterpret_cast<const Access*>(x);
      std::uint32_t byte[kWide];
#pragma unroll
      for (int w = 0; w < kWide; ++w) byte[w] = keep_byte_at(mask.mask, mask.triton, seed[w], index[w] + b);
#pragma unroll
      for (int j = 0; j < 8; ++j, y += plane.across_stride[1]) {
#pragma unroll
        for (int w = 0; w < kWide; ++w)
          group[j].element[w] = (byte[w] >> j & 1u) != 0 ? scale_element(group[j].element[w], f.scale) : T{};
        if (j < rest) *reinterpret_cast<Access*>(y) = group[j];
      }
    }
  }
}

/// 16-bit elements, memory of x and y along, everything in eights: a thread takes eight octets of positions across,
/// side by side along, as eight vectors. `lanes` of them lie along in a block.
template <typename T>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_octet_columns_kernel(Plane plane, DropElement<T> f, DeviceMask mask, int lanes) {
  const std::uint64_t seed = seed_of(mask);
  for (std::int64_t tile = blockIdx.x; tile < plane.tiles; tile += gridDim.x) {
    const std::int64_t tile_row = divide(tile, plane.tiles_along), outer = divide(tile_row, plane.tiles_across);
    const Place<2> place = locate<2>(plane.outer, outer, plane.outer.rank);
    const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), row = static_cast<int>(threadIdx.x) / lanes;
    const std::int64_t a = ((tile - tile_row * plane.tiles_along) * lanes + lane) * 8;
    const std::int64_t b =
        ((tile_row - outer * plane.tiles_across) * (kStridedThreads / static_cast<unsigned>(lanes)) + row) * 8;
    if (a >= plane.along || b >= plane.across) continue;
    const T* x = f.x + place.at[0] + a + b * plane.across_stride[0];
    T* y = f.y + place.at[1] + a + b * plane.across_stride[1];
    Vector v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = load_vector(x + j * plane.across_stride[0]);
    std::uint64_t index = place.index + plane.along_index * static_cast<std::uint64_t>(a) + b;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const Flags low = keep_flags(mask, seed, index >> 3);
      const Flags high = keep_flags(mask, seed, (index + plane.along_index) >> 3);
      index += 2 * plane.along_index;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 value = unpack2<T>(v[j].word[w]);
        if (!f.scale.copy) v[j].word[w] = pack2<T>(make_float2(value.x * f.scale.value, value.y * f.scale.value));
        v[j].word[w] &= spread_flag_of_each(low.word[j / 2], high.word[j / 2], j % 2 != 0);
      }
    }
#pragma unroll  // by name: of an assignment the compiler makes four stores here
    for (int j = 0; j < 8; ++j) __stwb(reinterpret_cast<uint4*>(y + j * plane.across_stride[1]), v[j].all);
  }
}

inline constexpr int kTile = 64;

/// Memory of one operand (the crossed one) runs along, memory of the other across: a transpose through shared memory,
/// 64 x 64 elements a block. kOut: y is the crossed one. `vectors`: the other's rows are 16-byte aligned.
template <typename T, bool kOut, int kWide>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_transpose_kernel(Plane plane, DropElement<T> f, StridedMask mask, bool vectors) {
  alignas(8) __shared__ T shared[kTile][kTile + (sizeof(T) == 2 ? 2 : 1)];  // [across][along], padded against conflicts
  using Access = Group<T, kWide>;                                           // of the crossed operand
  constexpr int kRows = kStridedThreads / kTile * kWide, kLoops = kTile / kRows;
  constexpr int kUnits = kTile * kTile / 8 / kStridedThreads, kParts = 8 / kVectorSize<T>;
  const int lane_a = threadIdx.x % (kTile / kWide) * kWide, row_b = threadIdx.x / (kTile / kWide);
  for (std::int64_t tile = blockIdx.x; tile < plane.tiles; tile += gridDim.x) {
    const std::int64_t tile_row = divide(tile, plane.tiles_along), outer = divide(tile_row, plane.tiles_across);
    const Place<2> place = locate<2>(plane.outer, outer, plane.outer.rank);
    const std::int64_t a0 = (tile - tile_row * plane.tiles_along) * kTile;
    const std::int64_t b0 = (tile_row - outer * plane.tiles_across) * kTile;
    const T* x = f.x + place.at[0] + a0 * plane.along_stride[0] + b0 * plane.across_stride[0];
    T* y = f.y + place.at[1] + a0 * plane.along_stride[1] + b0 * plane.across_stride[1];
    const int rest_a = static_cast<int>(plane.along - a0 < kTile ? plane.along - a0 : kTile);
    const int rest_b = static_cast<int>(plane.across - b0 < kTile ? plane.across - b0 : kTile);
    const std::uint64_t index0 = place.index + plane.along_index * static_cast<std::uint64_t>(a0) + b0;

    if constexpr (!kOut) {
      Access value[kLoops];
      const T* from = x + lane_a + row_b * plane.across_stride[0];
#pragma unroll
      for (int i = 0; i < kLoops; ++i, from += kRows * plane.across_stride[0])
        if (lane_a < rest_a && i * kRows + row_b < rest_b) value[i] = *reinterpret_cast<const Access*>(from);
#pragma unroll
      for (int i = 0; i < kLoops; ++i) *reinterpret_cast<Access*>(&shared[i * kRows + row_b][lane_a]) = value[i];
      __syncthreads();
    }
    // Eight elements side by side across; eight lanes a row.
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int unit = threadIdx.x + k * kStridedThreads, b = unit % 8 * 8, a = unit / 8;
      if (a >= rest_a || b >= rest_b) continue;
      const bool whole = vectors && b + 8 <= rest_b;
      alignas(kVectorBytes) T value[8];
      auto* parts = reinterpret_cast<uint4*>(value);
      if constexpr (kOut) {
        const T* from = x + a * plane.along_stride[0] + b;
        if (whole) {
#pragma unroll
          for (int q = 0; q < kParts; ++q) parts[q] = reinterpret_cast<const uint4*>(from)[q];
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j)
            if (b + j < rest_b) value[j] = from[j];
        }
      } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) value[j] = shared[b + j][a];
      }
      const std::uint32_t byte =
          keep_byte_at(mask.mask, mask.triton, mask.seed(a0 + a), index0 + plane.along_index * a + b);
#pragma unroll
      for (int j = 0; j < 8; ++j) value[j] = (byte >> j & 1u) != 0 ? scale_element(value[j], f.scale) : T{};
      if constexpr (kOut) {
#pragma unroll
        for (int j = 0; j < 8; ++j) shared[b + j][a] = value[j];
      } else {
        T* to = y + a * plane.along_stride[1] + b;
        if (whole) {
#pragma unroll
          for (int q = 0; q < kParts; ++q) reinterpret_cast<uint4*>(to)[q] = parts[q];
        } else {
#pragma unroll
          for (int j = 0; j < 8; ++j)
            if (b + j < rest_b) to[j] = value[j];
        }
      }
    }
    __syncthreads();
    if constexpr (kOut) {
      T* to = y + lane_a + row_b * plane.across_stride[1];
#pragma unroll
      for (int i = 0; i < kLoops; ++i, to += kRows * plane.across_stride[1])
        if (lane_a < rest_a && i * kRows + row_b < rest_b)
          *reinterpret_cast<Access*>(to) = *reinterpret_cast<const Access*>(&shared[i * kRows + row_b][lane_a]);
      __syncthreads();
    }
  }
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_PLANES_CUH_
