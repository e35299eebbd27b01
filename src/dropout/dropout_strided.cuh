// The kernels for rows and elements anywhere in memory. All find a position by its coordinates, share a Philox call
// over the eight positions it decides, and keep a warp's accesses side by side where memory allows it.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_STRIDED_CUH_
#define MASKLESS_SRC_DROPOUT_DROPOUT_STRIDED_CUH_

#include "common/index_space.h"
#include "dropout/dropout_flat.cuh"

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
template <int kOperands>
struct Place {
  std::int64_t at[kOperands] = {};
  std::uint64_t index = 0;
  std::int64_t row = 0;  // coordinate in dimension 0
};

/// a / b for a >= 0 and b > 0: a 64-bit division costs as much as a Philox call.
__device__ inline std::int64_t divide(std::int64_t a, std::int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// Element e, in row-major order, of the space's first `dims` dimensions.
template <int kOperands>
__device__ inline Place<kOperands> locate(const IndexSpace& space, std::int64_t e, int dims) {
  Place<kOperands> place;
  place.index = space.first_index;
#pragma unroll 1
  for (int d = dims - 1; d >= 0; --d) {
    const std::int64_t quotient = d == 0 ? 0 : divide(e, space.shape[d]);
    const std::int64_t coord = e - quotient * space.shape[d];
    e = quotient;
    place.index += space.index_strides[d] * static_cast<std::uint64_t>(coord);
#pragma unroll
    for (int o = 0; o < kOperands; ++o) place.at[o] += space.strides[o][d] * coord;
    place.row = coord;
  }
  return place;
}

// What is done to an element: `load` before its decision is known, `store` with it.

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

inline constexpr int kStridedThreads = 256;

/// Rows whose elements lie side by side, 16-byte aligned, at positions from a multiple of 8 on. The row is y and z of
/// the grid.
template <typename T, int kUnroll, bool kTriton>
__global__ void dropout_rows_kernel(IndexSpace space, DropElement<T> f, StridedMask mask) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const int inner = space.rank - 1;
  const std::int64_t size = space.shape[inner], octets = size / 8;
  if (row * size >= space.size) return;
  Place<2> place;
  if (inner == 1) {
    place = {{row * space.strides[0][0], row * space.strides[1][0]},
             space.first_index + space.index_strides[0] * static_cast<std::uint64_t>(row),
             row};
  } else {
    place = locate<2>(space, row, inner);
  }
  const T* x = f.x + place.at[0];
  T* y = f.y + place.at[1];
  const std::uint64_t seed = uniform(mask.seed(place.row));
  const std::int64_t tile = static_cast<std::int64_t>(blockDim.x) * kUnroll;
  const std::int64_t start = tile * blockIdx.x, rest = octets - start;
  const auto in_tile = static_cast<unsigned>(rest < tile ? rest : tile);
  const AlignedVectors from{x + 8 * start};
  const std::uint64_t first_octet = (place.index >> 3) + start;
  if constexpr (kTriton) {
    drop_triton_tile<T, kUnroll>(from, y + 8 * start, in_tile, first_octet, mask.mask, seed, f.scale);
  } else {
    drop_tile<T, kUnroll>(from, y + 8 * start, in_tile, first_octet, mask.mask, seed, f.scale);
  }
  if (blockIdx.x == 0 && threadIdx.x < (size & 7)) {
    const std::int64_t at = 8 * octets + threadIdx.x;
    const std::uint32_t byte = keep_byte(mask.mask, kTriton, seed, (place.index + at) >> 3);
    const std::int64_t ats[] = {place.at[0] + at, place.at[1] + at};
    f.store(ats, f.load(ats), (byte >> threadIdx.x & 1u) != 0);
  }
}

/// Rows (the last dimension) of any strides and alignment whose neighbours have neighbouring positions: a warp takes
/// 256 positions, a lane decides eight of them, and then the lanes go over the elements side by side. kUnit: every
/// operand's elements lie side by side.
template <typename F, bool kUnit>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_lines_kernel(IndexSpace space, F f, StridedMask mask, std::int64_t chunks, std::int64_t items) {
  constexpr int kOperands = F::kOperands;
  const int inner = space.rank - 1;
  const std::int64_t size = space.shape[inner];
  const int lane = threadIdx.x & 31;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kStridedThreads / 32);
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (kStridedThreads / 32) + threadIdx.x / 32;
       item < items; item += warps) {
    const std::int64_t row = inner == 0 ? 0 : divide(item, chunks);
    const Place<kOperands> place = locate<kOperands>(space, row, inner);
    const std::int64_t start = (item - row * chunks) * 256 - static_cast<std::int64_t>(place.index & 7);
    const int first = start < 0 ? static_cast<int>(-start) : 0;  // of the 256, [first, last) exist
    const int last = size - start < 256 ? static_cast<int>(size - start) : 256;
    std::int64_t base[kOperands], step[kOperands], at[kOperands];
#pragma unroll
    for (int o = 0; o < kOperands; ++o) {
      const std::int64_t stride = kUnit ? 1 : space.strides[o][inner];
      base[o] = place.at[o] + (start + lane) * stride;
      step[o] = 32 * stride;
    }
    typename F::Value values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int o = 0; o < kOperands; ++o) at[o] = base[o] + i * step[o];
      if (32 * i + lane >= first && 32 * i + lane < last) values[i] = f.load(at);
    }
    const std::uint64_t octet = (place.index + static_cast<std::uint64_t>(start + 8 * lane)) >> 3;
    const std::uint32_t byte = keep_byte(mask.mask, mask.triton, uniform(mask.seed(place.row)), octet);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int o = 0; o < kOperands; ++o) at[o] = base[o] + i * step[o];
      const bool keep = (__shfl_sync(0xFFFFFFFFu, byte, 4 * i + lane / 8) >> (lane & 7) & 1u) != 0;
      if (32 * i + lane >= first && 32 * i + lane < last) f.store(at, values[i], keep);
    }
  }
}

/// Short rows of neighbouring positions: a thread takes the eight positions of one Philox call in one row.
template <typename F>
__global__ void __launch_bounds__(kStridedThreads)
    dropout_octets_kernel(IndexSpace space, F f, StridedMask mask, std::int64_t octets, std::int64_t items) {
  constexpr int kOperands = F::kOperands;
  const int inner = space.rank - 1;
  const std::int64_t size = space.shape[inner], step = static_cast<std::int64_t>(gridDim.x) * kStridedThreads;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kStridedThreads + threadIdx.x; item < items;
       item += step) {
    const std::int64_t row = divide(item, octets);
    const Place<kOperands> place = locate<kOperands>(space, row, inner);
    const std::int64_t start = (item - row * octets) * 8 - static_cast<std::int64_t>(place.index & 7);
    const int first = start < 0 ? static_cast<int>(-start) : 0;
    const int last = size - start < 8 ? static_cast<int>(size - start) : 8;
    std::int64_t at[kOperands];
    typename F::Value values[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int o = 0; o < kOperands; ++o) at[o] = place.at[o] + (start + i) * space.strides[o][inner];
      if (i >= first && i < last) values[i] = f.load(at);
    }
    const std::uint64_t octet = (place.index + static_cast<std::uint64_t>(start)) >> 3;
    const std::uint32_t byte = keep_byte(mask.mask, mask.triton, mask.seed(place.row), octet);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int o = 0; o < kOperands; ++o) at[o] = place.at[o] + (start + i) * space.strides[o][inner];
      if (i >= first && i < last) f.store(at, values[i], (byte >> i & 1u) != 0);
    }
  }
}

/// Any space at all: an element a thread, each with its own Philox call.
template <typename F>
__global__ void __launch_bounds__(kStridedThreads) dropout_elements_kernel(IndexSpace space, F f, StridedMask mask) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kStridedThreads;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kStridedThreads + threadIdx.x; e < space.size;
       e += step) {
    const Place<F::kOperands> place = locate<F::kOperands>(space, e, space.rank);
    const typename F::Value value = f.load(place.at);
    const std::uint32_t byte = keep_byte(mask.mask, mask.triton, mask.seed(place.row), place.index >> 3);
    f.store(place.at, value, (byte >> (place.index & 7) & 1u) != 0);
  }
}

inline constexpr std::int64_t kShortLine = 100;  // rows shorter than this are not worth a warp

/// Any memory, an element an access.
template <typename F>
void launch_any(const char* op, IndexSpace space, const DropoutMask& mask, void* stream, const F& f) {
  if (space.rank == 0) {  // one element, as a row of one
    space.rank = 1;
    space.shape[0] = 1;
    space.index_strides[0] = 1;
  }
  const int last = space.rank - 1;
  const std::int64_t size = space.shape[last], rows = space.size / size;
  if (space.index_strides[last] != 1) {
    launch(op, dropout_elements_kernel<F>, blocks_for(space.size, kStridedThreads), kStridedThreads, stream, space, f,
           strided_mask(mask));
    return;
  }
  // A row may start anywhere in an octet: up to 7 positions more.
  if (size < kShortLine) {
    const std::int64_t octets = ceil_div(size + 7, 8);
    launch(op, dropout_octets_kernel<F>, blocks_for(rows * octets, kStridedThreads), kStridedThreads, stream, space, f,
           strided_mask(mask), octets, rows * octets);
    return;
  }
  bool unit = true;
  for (int o = 0; o < F::kOperands; ++o) unit = unit && space.strides[o][last] == 1;
  const std::int64_t chunks = ceil_div(size + 7, 256);
  launch(op, unit ? dropout_lines_kernel<F, true> : dropout_lines_kernel<F, false>,
         blocks_for(rows * chunks, kStridedThreads / 32), kStridedThreads, stream, space, f, strided_mask(mask), chunks,
         rows * chunks);
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_STRIDED_CUH_
