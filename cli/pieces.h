// Large arrays in pieces: each contiguous in memory, each a box of the whole, so that an operation gets it as a Shard.
#ifndef MASKLESS_CLI_PIECES_H_
#define MASKLESS_CLI_PIECES_H_

#include <algorithm>
#include <cstdint>

#include "maskless/tensor.h"
#include "npy.h"

namespace maskless::cli {

struct Piece {
  std::int64_t first = 0;  ///< where it starts, in elements in memory order
  ConstTensorView box;     ///< its shape and strides; no data
  Shard shard;             ///< where it lies in the whole

  template <typename View, typename Pointer>
  View view(Pointer data, DType dtype, Device device = {}) const {
    View view;
    view.data = data;
    view.dtype = dtype;
    view.device = device;
    view.rank = box.rank;
    view.shape = box.shape;
    view.strides = box.strides;
    return view;
  }
};

/// Calls f(piece) in memory order for pieces of at most `most` elements of an array of `shape` (at most 8 dimensions),
/// row-major or Fortran-ordered. An empty array has no pieces.
template <typename F>
void for_each_piece(const Shape& shape, bool fortran_order, std::int64_t most, F&& f) {
  const int rank = static_cast<int>(shape.size());
  int order[kMaxRank] = {};  // dimensions, fastest first
  for (int k = 0; k < rank; ++k) order[k] = fortran_order ? k : rank - 1 - k;
  const auto extent = [&](int k) { return shape[static_cast<std::size_t>(order[k])]; };
  for (int k = 0; k < rank; ++k)
    if (extent(k) == 0) return;

  // Whole in the `whole` fastest dimensions, cut in the next one, one coordinate at a time in the rest.
  int whole = 0;
  std::int64_t block = 1;
  while (whole < rank && extent(whole) <= most / block) block *= extent(whole++);
  const std::int64_t step = std::max<std::int64_t>(1, most / block);

  Piece piece;
  piece.box.rank = piece.shard.rank = rank;
  std::int64_t stride = 1;
  for (int k = 0; k < rank; ++k) {
    piece.box.strides[order[k]] = stride;
    piece.box.shape[order[k]] = k < whole ? extent(k) : 1;
    piece.shard.global_shape[order[k]] = extent(k);
    stride *= piece.box.shape[order[k]];
  }
  for (;;) {
    if (whole < rank) {
      const int d = order[whole];
      piece.box.shape[d] = std::min(step, extent(whole) - piece.shard.offsets[d]);
    }
    f(static_cast<const Piece&>(piece));
    piece.first += piece.box.size();
    int k = whole;  // to the next coordinates
    for (; k < rank; ++k) {
      const int d = order[k];
      piece.shard.offsets[d] += piece.box.shape[d];
      if (piece.shard.offsets[d] < extent(k)) break;
      piece.shard.offsets[d] = 0;
    }
    if (k >= rank) return;
  }
}

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_PIECES_H_
