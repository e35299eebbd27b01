// The kernels for memory in any other order than that of the positions. All find an element's position by its
// coordinates, share a Philox call over the eight positions it decides, and keep a warp's accesses side by side.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_STRIDED_CUDA_H_
#define MASKLESS_SRC_DROPOUT_DROPOUT_STRIDED_CUDA_H_

#include "common/index_space.h"
#include "dropout/dropout_flat_cuda.h"

namespace maskless::cuda {

/// A mask with what only strided kernels ask of it.
struct StridedMask {
  DeviceMask mask;
  const std::uint64_t* row_seeds = nullptr;
  std::int64_t row_seed_stride = 1;
  bool triton = false;

  __device__ std::uint64_t seed(std::int64_t row) const {
    return row_seeds != nullptr ? row_seeds[row * row_seed_stride] : seed_of(mask);
  }
};

inline StridedMask strided_mask(const DropoutMask& mask) {
  return {device_mask(mask), mask.row_seeds, mask.row_seed_stride, mask.layout == Layout::kTriton};
}

/// Where an element (or the first of a row) lies in each operand, and its position.
struct Place {
  std::int64_t at[kMaxOperands] = {};
  std::uint64_t index = 0;
  std::int64_t row = 0;  // coordinate in dimension 0
};

/// Element e, in row-major order, of the space's first `dims` dimensions.
__device__ inline Place locate(const IndexSpace& space, std::int64_t e, int dims) {
  Place place;
  place.index = space.first_index;
  for (int d = dims - 1; d >= 0; --d) {
    std::int64_t quotient;
    if (((e | space.shape[d]) >> 32) == 0) {  // a 64-bit division costs many instructions
      quotient = static_cast<std::uint32_t>(e) / static_cast<std::uint32_t>(space.shape[d]);
    } else {
      quotient = e / space.shape[d];
    }
    const std::int64_t coord = e - quotient * space.shape[d];
    e = quotient;
    place.index += space.index_strides[d] * static_cast<std::uint64_t>(coord);
#pragma unroll
    for (int o = 0; o < kMaxOperands; ++o) place.at[o] += space.strides[o][d] * coord;
    place.row = coord;
  }
  return place;
}

// --- What is done to an element
// ---------------------------------------------------------------------------------------

/// y = x * scale or 0. Operands: x, y.
template <typename T>
struct DropElement {
  static constexpr int kOperands = 2;
  using Value = T;
  const T* x;
  T* y;
  Scale<T> scale;
  __device__ T load(const std::int64_t* at) const { return x[at[0]]; }
  __device__ void store(const std::int64_t* at, T value, bool keep) const {
    y[at[1]] = keep ? scale_element(value, scale) : T{};
  }
};

/// The mask as bytes. Operands: the mask.
struct KeepElement {
  static constexpr int kOperands = 1;
  using Value = bool;
  std::uint8_t* keep;
  __device__ bool load(const std::int64_t*) const { return true; }
  __device__ void store(const std::int64_t* at, bool, bool kept) const { keep[at[0]] = kept ? 1 : 0; }
};

// --- Kernels
// ----------------------------------------------------------------------------------------------------------

inline constexpr int kStridedThreads = 256;

/// Rows whose elements lie side by side, 16-byte aligned, at positions from a multiple of 8 on.
template <typename T, int kUnroll, bool kTriton>
__global__ void dropout_rows_kernel(IndexSpace space, DropElement<T> f, StridedMask mask) {
  wait_for_earlier_work();
  const int inner = space.rank - 1;
  const Place place = locate(space, blockIdx.x, inner);
  const std::int64_t size = space.shape[inner], octets = size / 8;
  const T* x = f.x + place.at[0];
  T* y = f.y + place.at[1];
  const std::uint64_t seed = mask.seed(place.row);
  const std::int64_t tile = static_cast<std::int64_t>(blockDim.x) * kUnroll;
  for (std::int64_t start = tile * blockIdx.y; start < octets; start += tile * gridDim.y) {
    const std::int64_t rest = octets - start;
    drop_tile<T, kUnroll, kTriton>(x + 8 * start, y + 8 * start, static_cast<unsigned>(rest < tile ? rest : tile),
                                   (place.index >> 3) + start, mask.mask, seed, f.scale);
  }
  if (blockIdx.y == 0 && threadIdx.x < (size & 7)) {
    const std::int64_t at = 8 * octets + threadIdx.x;
    const std::uint32_t byte = keep_byte(mask.mask, kTriton, seed, (place.index + at) >> 3);
    const std::int64_t ats[] = {place.at[0] + at, place.at[1] + at};
    f.store(ats, f.load(ats), (byte >> threadIdx.x & 1u) != 0);
  }
}

/// Rows (the last dimension) of any strides and alignment whose neighbours have neighbouring positions: a warp takes
/// 256 positions, a lane decides eight of them, and then the lanes go over the elements side by side.
template <typename F>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_lines_kernel(IndexSpace space, F f, StridedMask mask, std::int64_t chunks, std::int64_t items) {
  const int inner = space.rank - 1;
  const std::int64_t size = space.shape[inner];
  const int lane = threadIdx.x & 31;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kStridedThreads / 32);
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (kStridedThreads / 32) + threadIdx.x / 32;
       item < items; item += warps) {
    const std::int64_t row = chunks == 1 ? item : item / chunks;
    const Place place = locate(space, row, inner);
    const std::int64_t start = (item - row * chunks) * 256 - static_cast<std::int64_t>(place.index & 7);
    typename F::Value values[8];
    std::int64_t at[F::kOperands];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t e = start + 32 * i + lane;
      for (int o = 0; o < F::kOperands; ++o) at[o] = place.at[o] + e * space.strides[o][inner];
      if (e >= 0 && e < size) values[i] = f.load(at);
    }
    const std::uint64_t octet = (place.index + static_cast<std::uint64_t>(start + 8 * lane)) >> 3;
    const std::uint32_t byte = keep_byte(mask.mask, mask.triton, mask.seed(place.row), octet);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::int64_t e = start + 32 * i + lane;
      for (int o = 0; o < F::kOperands; ++o) at[o] = place.at[o] + e * space.strides[o][inner];
      const bool keep = (__shfl_sync(0xFFFFFFFFu, byte, 4 * i + lane / 8) >> (lane & 7) & 1u) != 0;
      if (e >= 0 && e < size) f.store(at, values[i], keep);
    }
  }
}

/// Any space at all: an element a thread, each with its own Philox call.
template <typename F>
__global__ void __launch_bounds__(kStridedThreads) dropout_elements_kernel(IndexSpace space, F f, StridedMask mask) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kStridedThreads;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kStridedThreads + threadIdx.x; e < space.size;
       e += step) {
    const Place place = locate(space, e, space.rank);
    const typename F::Value value = f.load(place.at);
    const std::uint32_t byte = keep_byte(mask.mask, mask.triton, mask.seed(place.row), place.index >> 3);
    f.store(place.at, value, (byte >> (place.index & 7) & 1u) != 0);
  }
}

/// Two dimensions of a space: `along`, in which memory runs, and the last, in which positions run; the others outside.
struct Plane {
  IndexSpace outer;
  std::int64_t along = 0, across = 0;  // extents: memory's dimension, the positions' dimension
  std::int64_t along_stride[2] = {}, across_stride[2] = {};
  std::uint64_t along_index = 0;
  std::int64_t tiles_along = 0, tiles_across = 0, tiles = 0;
};

/// Memory of x and y runs along one dimension, positions along another (channels last): lanes go along memory, and a
/// thread takes eight positions across. kWide elements of 2 bytes make an access of 4.
inline constexpr int kColumnLanes = 32, kColumnOctets = kStridedThreads / kColumnLanes;

template <typename T, int kWide>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_columns_kernel(Plane plane, DropElement<T> f, StridedMask mask) {
  struct alignas(sizeof(T) * kWide) Group {
    T element[kWide];
  };
  for (std::int64_t tile = blockIdx.x; tile < plane.tiles; tile += gridDim.x) {
    const std::int64_t tile_row = tile / plane.tiles_along, outer = tile_row / plane.tiles_across;
    const Place place = locate(plane.outer, outer, plane.outer.rank);
    const std::int64_t a = ((tile - tile_row * plane.tiles_along) * kColumnLanes + threadIdx.x % kColumnLanes) * kWide;
    const std::int64_t b = ((tile_row - outer * plane.tiles_across) * kColumnOctets + threadIdx.x / kColumnLanes) * 8;
    if (a >= plane.along || b >= plane.across) continue;
    const T* x = f.x + place.at[0] + a + b * plane.across_stride[0];
    T* y = f.y + place.at[1] + a + b * plane.across_stride[1];
    Group group[8];
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (b + j < plane.across) group[j] = *reinterpret_cast<const Group*>(x + j * plane.across_stride[0]);
    std::uint32_t byte[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w)
      byte[w] = keep_byte_at(mask.mask, mask.triton, mask.seed(a + w),
                             place.index + plane.along_index * static_cast<std::uint64_t>(a + w) + b);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int w = 0; w < kWide; ++w)
        group[j].element[w] = (byte[w] >> j & 1u) != 0 ? scale_element(group[j].element[w], f.scale) : T{};
      if (b + j < plane.across) *reinterpret_cast<Group*>(y + j * plane.across_stride[1]) = group[j];
    }
  }
}

/// Memory of one operand runs along one dimension, memory of the other and the positions along the other: a transpose
/// through shared memory, 64 x 64 elements a block. kOut: it is y whose memory does not run with the positions.
inline constexpr int kTile = 64;

template <typename T, bool kOut>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_transpose_kernel(Plane plane, DropElement<T> f, StridedMask mask, bool vectors) {
  __shared__ T shared[kTile][kTile + (sizeof(T) == 2 ? 2 : 1)];  // [across][along], padded against bank conflicts
  constexpr int kRows = kStridedThreads / kTile, kLoops = kTile / kRows;
  constexpr int kUnits = kTile * kTile / 8 / kStridedThreads, kParts = 8 / kVectorSize<T>;
  const int lane_a = threadIdx.x % kTile, row_b = threadIdx.x / kTile;
  for (std::int64_t tile = blockIdx.x; tile < plane.tiles; tile += gridDim.x) {
    const std::int64_t tile_row = tile / plane.tiles_along, outer = tile_row / plane.tiles_across;
    const Place place = locate(plane.outer, outer, plane.outer.rank);
    const std::int64_t a0 = (tile - tile_row * plane.tiles_along) * kTile;
    const std::int64_t b0 = (tile_row - outer * plane.tiles_across) * kTile;
    const T* x = f.x + place.at[0] + a0 * plane.along_stride[0] + b0 * plane.across_stride[0];
    T* y = f.y + place.at[1] + a0 * plane.along_stride[1] + b0 * plane.across_stride[1];
    const int rest_a = static_cast<int>(plane.along - a0 < kTile ? plane.along - a0 : kTile);
    const int rest_b = static_cast<int>(plane.across - b0 < kTile ? plane.across - b0 : kTile);
    const std::uint64_t index0 = place.index + plane.along_index * static_cast<std::uint64_t>(a0) + b0;

    if constexpr (!kOut) {
      T value[kLoops];
#pragma unroll
      for (int i = 0; i < kLoops; ++i)
        if (lane_a < rest_a && i * kRows + row_b < rest_b)
          value[i] = x[lane_a + (i * kRows + row_b) * plane.across_stride[0]];
#pragma unroll
      for (int i = 0; i < kLoops; ++i) shared[i * kRows + row_b][lane_a] = value[i];
      __syncthreads();
    }
    // Eight elements side by side across: eight lanes a row.
#pragma unroll
    for (int k = 0; k < kUnits; ++k) {
      const int unit = threadIdx.x + k * kStridedThreads, b = unit % 8 * 8, a = unit / 8;
      if (a < rest_a && b < rest_b) {
        const T* from = x + a * plane.along_stride[0] + b;
        T* to = y + a * plane.along_stride[1] + b;
        const bool whole = vectors && b + 8 <= rest_b;
        alignas(kVectorBytes) T value[8];
        auto* parts = reinterpret_cast<uint4*>(value);
        if constexpr (kOut) {
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
        } else if (whole) {
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
#pragma unroll
      for (int i = 0; i < kLoops; ++i)
        if (lane_a < rest_a && i * kRows + row_b < rest_b)
          y[lane_a + (i * kRows + row_b) * plane.across_stride[1]] = shared[i * kRows + row_b][lane_a];
      __syncthreads();
    }
  }
}

// --- Launchers that several operations use
// ----------------------------------------------------------------------------

inline constexpr std::int64_t kShortLine = 24;  // rows shorter than this are not worth a warp

template <typename F>
void launch_lines(const char* op, IndexSpace space, const DropoutMask& mask, void* stream, const F& f) {
  if (space.rank == 0) {  // one element, as a row of one
    space.rank = 1;
    space.shape[0] = 1;
    space.index_strides[0] = 1;
  }
  const std::int64_t size = space.shape[space.rank - 1];
  // A row may start anywhere in an octet: 7 positions more.
  const std::int64_t chunks = ceil_div(size + 7, 256), items = space.size / size * chunks;
  launch(op, dropout_lines_kernel<F>, blocks_for(items, kStridedThreads / 32), kStridedThreads, stream, space, f,
         strided_mask(mask), chunks, items);
}

template <typename F>
void launch_elements(const char* op, const IndexSpace& space, const DropoutMask& mask, void* stream, const F& f) {
  launch(op, dropout_elements_kernel<F>, blocks_for(space.size, kStridedThreads), kStridedThreads, stream, space, f,
         strided_mask(mask));
}

/// Any memory, an element an access. For a space whose last dimension counts positions one by one, as a rule.
template <typename F>
void launch_lines_or_elements(const char* op, const IndexSpace& space, const DropoutMask& mask, void* stream,
                              const F& f) {
  const bool line =
      space.rank == 0 || (space.index_strides[space.rank - 1] == 1 && space.shape[space.rank - 1] >= kShortLine);
  if (line) {
    launch_lines(op, space, mask, stream, f);
  } else {
    launch_elements(op, space, mask, stream, f);
  }
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_STRIDED_CUDA_H_
