// Tiles of a space whose memory, of one operand at least, is contiguous along another dimension than its positions: a
// transposed matrix, channels_last, Fortran order.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_TILES_H_
#define MASKLESS_SRC_DROPOUT_DROPOUT_TILES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/index_space.h"

namespace maskless {

/// Rows run along the memory-contiguous dimension, columns along the positions.
struct Tile {
  std::int64_t row = 0, rows = 0, cols = 0;
  std::int64_t outer_row = 0;  // coordinate of dimension 0
  std::uint64_t index = 0;     // position of its first element
  std::int64_t offsets[2] = {};
};

struct Tiling {
  static constexpr std::int64_t kRows = 256, kCols = 512;

  int along = -1;              // the dimension that is contiguous in memory
  bool together = false;       // ... for both operands
  std::int64_t width = kCols;  // of a tile; smaller where lines of one operand wait in the cache for the next rows
  std::int64_t count = 0;      // of tiles; 0 where tiles are of no use
  std::int64_t row_tiles = 0, col_tiles = 0;

  explicit Tiling(const IndexSpace& space) {
    const int inner = space.rank - 1;
    if (inner < 1 || space.index_strides[inner] != 1 || (space.strides[0][inner] == 1 && space.strides[1][inner] == 1))
      return;
    for (int d = 0; d < inner && !together; ++d) {
      if (space.shape[d] < 8 || (space.strides[0][d] != 1 && space.strides[1][d] != 1)) continue;
      along = d;
      together = space.strides[0][d] == 1 && space.strides[1][d] == 1;
    }
    if (along < 0) return;
    if (!together) width = 64;
    row_tiles = (space.shape[along] + kRows - 1) / kRows;
    col_tiles = (space.shape[inner] + width - 1) / width;
    count = space.size / space.shape[along] / space.shape[inner] * row_tiles * col_tiles;
  }

  Tile tile(const IndexSpace& space, std::int64_t number) const {
    const int inner = space.rank - 1;
    Tile tile;
    tile.index = space.first_index;
    const std::int64_t col = number % col_tiles * width;
    number /= col_tiles;
    tile.row = number % row_tiles * kRows;
    number /= row_tiles;
    for (int d = inner; d >= 0; --d) {
      std::int64_t coord = d == inner ? col : d == along ? tile.row : number % space.shape[d];
      if (d != inner && d != along) number /= space.shape[d];
      if (d == 0) tile.outer_row = coord;
      tile.index += space.index_strides[d] * static_cast<std::uint64_t>(coord);
      for (int o = 0; o < 2; ++o) tile.offsets[o] += space.strides[o][d] * coord;
    }
    tile.rows = std::min(kRows, space.shape[along] - tile.row);
    tile.cols = std::min(width, space.shape[inner] - col);
    return tile;
  }
};

/// 64 bits from bit `at` on.
inline std::uint64_t word_at(const std::uint8_t* bits, std::size_t at) {
  std::uint64_t word;
  std::memcpy(&word, bits + (at >> 3), sizeof word);
  const unsigned shift = static_cast<unsigned>(at & 7);
  return shift == 0 ? word : word >> shift | static_cast<std::uint64_t>(bits[(at >> 3) + 8]) << (64 - shift);
}

/// Bit c of word r goes to bit r of word c.
inline void transpose64(std::uint64_t* w) {
  std::uint64_t mask = 0x00000000FFFFFFFFu;
  for (int j = 32; j != 0; j >>= 1, mask ^= mask << j)
    for (int k = 0; k < 64; k = (k + j + 1) & ~j) {
      const std::uint64_t t = (w[k] >> j ^ w[k + j]) & mask;
      w[k] ^= t << j;
      w[k + j] ^= t;
    }
}

}  // namespace maskless

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_TILES_H_
