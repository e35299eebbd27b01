// The positions and signs of the sparse Johnson-Lindenstrauss transform (op 4): which row of each block a column hits.
//
// The k rows are cut into s blocks, and every column has one nonzero, +-1/sqrt(s), in each block (Kane and Nelson,
// "Sparser Johnson-Lindenstrauss transforms", JACM 2014). Columns are cut into tiles of W = 2^n, the largest power of
// two that no block is shorter than, and a keyed permutation of the W slots takes each tile to distinct rows of a
// block: columns of one tile never collide, and what is a scatter by columns is a gather by rows. The permutation is an
// unbalanced Feistel network on (a, b), tweaked by the low bits o, with multiply-shift hashing as its round function:
// uniform for each column, and close to pairwise uniform within a tile. A column's low bits are those of its row's
// group of 8 in another order, so that 8 neighbouring rows read from 8 different banks of a memory.
// docs/spec.md states the same in words. C++17, host and device.
#ifndef MASKLESS_CORE_SJLT_H_
#define MASKLESS_CORE_SJLT_H_

#include <cstdint>

#include "maskless/core/philox.h"
#include "maskless/core/uniform.h"

namespace maskless {

inline constexpr int kSjltMaxNonzeros = 16;

/// The shape of S: k rows in s blocks, the first `longer` of which have one row more than the others.
struct SjltGeometry {
  std::uint32_t rows = 1;        // k < 2^31
  std::uint32_t blocks = 1;      // s
  std::uint32_t block_rows = 1;  // floor(k / s)
  std::uint32_t longer = 0;      // k mod s
  int tile_bits = 0;             // n: W = 2^n columns a tile
  int low_bits = 0;              // bits of o
  int a_bits = 0, b_bits = 0;    // bits of a (high) and b (middle): n = a_bits + b_bits + low_bits
};

MASKLESS_HOST_DEVICE constexpr SjltGeometry sjlt_geometry(std::uint32_t k, std::uint32_t s) {
  SjltGeometry g;
  g.rows = k;
  g.blocks = s;
  g.block_rows = k / s;
  g.longer = k % s;
  while (g.block_rows >> g.tile_bits > 1) ++g.tile_bits;
  g.low_bits = g.tile_bits >= 6 ? 3 : 0;
  g.a_bits = (g.tile_bits - g.low_bits + 1) / 2;
  g.b_bits = g.tile_bits - g.low_bits - g.a_bits;
  return g;
}

/// First row of a block, and its number of rows.
MASKLESS_HOST_DEVICE constexpr std::uint32_t sjlt_block_start(const SjltGeometry& g, std::uint32_t block) {
  return block * g.block_rows + (block < g.longer ? block : g.longer);
}
MASKLESS_HOST_DEVICE constexpr std::uint32_t sjlt_block_rows(const SjltGeometry& g, std::uint32_t block) {
  return g.block_rows + (block < g.longer ? 1 : 0);
}

/// What the permutation of one tile in one block is made of: multipliers and summands of its rounds, and where its W
/// slots begin among the rows of the block (0 if there are as many rows as slots).
struct SjltKey {
  std::uint32_t m0, s0;  // o from (a, b)
  std::uint32_t m1, s1;  // b from (a, o)
  std::uint32_t m2, s2;  // a from (b, o)
  std::uint32_t m3, s3;  // b from (a, o)
  std::uint32_t m4, s4;  // a from (b, o)
  std::uint32_t window;
};

MASKLESS_HOST_DEVICE constexpr SjltKey sjlt_key_of(Words4 w, std::uint32_t block_rows, std::uint32_t tile_bits) {
  SjltKey key{};
  key.m0 = w.w[1] << 8 | 1, key.s0 = w.w[0];
  key.m1 = w.w[2] << 8 | 1, key.s1 = w.w[1];
  key.m2 = w.w[3], key.s2 = w.w[2];
  key.m3 = w.w[0] << 3 | 1, key.s3 = w.w[3];
  key.m4 = w.w[1] << 10 | 1, key.s4 = w.w[3];
  if (block_rows != 1u << tile_bits) {
    // A multiple of the greatest power of two up to 8 that divides the rows, uniform: every row is as likely.
    const std::uint32_t unit = (block_rows & 7) == 0 ? 8 : block_rows & (0u - block_rows) & 7;
    key.window = unit * static_cast<std::uint32_t>(std::uint64_t{w.w[3]} * (block_rows / unit) >> 32);
  }
  return key;
}

/// The key of a tile (column >> tile_bits) in a block: one Philox call.
MASKLESS_HOST_DEVICE constexpr SjltKey sjlt_key(std::uint64_t seed, std::uint32_t stream, const SjltGeometry& g,
                                                std::uint32_t block, std::uint64_t tile) {
  const Words4 words = philox4x32(Words4{{static_cast<std::uint32_t>(tile), static_cast<std::uint32_t>(tile >> 32),
                                          block, counter_tag(Op::kSjlt, stream)}},
                                  philox_key(seed));
  return sjlt_key_of(words, sjlt_block_rows(g, block), static_cast<std::uint32_t>(g.tile_bits));
}

namespace detail {
/// The top `bits` bits of x * m + s, moved up by `low` bits; 0 bits give 0.
MASKLESS_HOST_DEVICE constexpr std::uint32_t sjlt_hash(std::uint32_t x, std::uint32_t m, std::uint32_t s, int bits,
                                                       int low) {
  return bits == 0 ? 0 : (x * m + s) >> (32 - bits) << low;
}
}  // namespace detail

/// Slot (0 ... W - 1) to column within the tile.
MASKLESS_HOST_DEVICE constexpr std::uint32_t sjlt_column(const SjltGeometry& g, const SjltKey& key,
                                                         std::uint32_t slot) {
  const int l = g.low_bits;
  const std::uint32_t low_mask = (1u << l) - 1;
  const std::uint32_t h = slot >> l;
  const std::uint32_t v = h * key.m0 + key.s0;
  const std::uint32_t o = ((slot & low_mask) * (v | 1) + (v >> 29)) & low_mask;
  std::uint32_t a = (h >> g.b_bits) << l | o;
  std::uint32_t b = (h & ((1u << g.b_bits) - 1)) << l | o;
  b ^= detail::sjlt_hash(a, key.m1, key.s1, g.b_bits, l);
  a ^= detail::sjlt_hash(b, key.m2, key.s2, g.a_bits, l);
  b ^= detail::sjlt_hash(a, key.m3, key.s3, g.b_bits, l);
  a ^= detail::sjlt_hash(b, key.m4, key.s4, g.a_bits, l);
  return (a >> l) << (g.b_bits + l) | b;
}

/// Column within the tile to slot: the inverse of sjlt_column.
MASKLESS_HOST_DEVICE constexpr std::uint32_t sjlt_slot(const SjltGeometry& g, const SjltKey& key,
                                                       std::uint32_t column) {
  const int l = g.low_bits;
  const std::uint32_t low_mask = (1u << l) - 1;
  const std::uint32_t o = column & low_mask;
  std::uint32_t a = (column >> (g.b_bits + l)) << l | o;
  std::uint32_t b = (column >> l & ((1u << g.b_bits) - 1)) << l | o;
  a ^= detail::sjlt_hash(b, key.m4, key.s4, g.a_bits, l);
  b ^= detail::sjlt_hash(a, key.m3, key.s3, g.b_bits, l);
  a ^= detail::sjlt_hash(b, key.m2, key.s2, g.a_bits, l);
  b ^= detail::sjlt_hash(a, key.m1, key.s1, g.b_bits, l);
  const std::uint32_t h = (a >> l) << g.b_bits | b >> l;
  const std::uint32_t v = h * key.m0 + key.s0;
  return h << l | (((o - (v >> 29)) * (v | 1)) & low_mask);  // an odd number is its own inverse modulo 8
}

/// Slot to row within a block of `block_rows` rows, and back (W or more where no slot of the tile hits the row).
MASKLESS_HOST_DEVICE constexpr std::uint32_t sjlt_row_of_slot(const SjltKey& key, std::uint32_t block_rows,
                                                              std::uint32_t slot) {
  const std::uint32_t row = slot + key.window;
  return row >= block_rows ? row - block_rows : row;
}
MASKLESS_HOST_DEVICE constexpr std::uint32_t sjlt_slot_of_row(const SjltKey& key, std::uint32_t block_rows,
                                                              std::uint32_t row) {
  return row >= key.window ? row - key.window : row + block_rows - key.window;
}

/// 128 sign bits of a block: bit f & 31 of word (f >> 5) & 3, for slots f = tile * W + slot with f >> 7 == index.
/// 1 is minus.
MASKLESS_HOST_DEVICE constexpr Words4 sjlt_sign_words(std::uint64_t seed, std::uint32_t stream, std::uint32_t block,
                                                      std::uint64_t index) {
  return philox4x32(Words4{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 256 + block,
                            counter_tag(Op::kSjlt, stream)}},
                    philox_key(seed));
}

/// The nonzero of a column in a block: its row among all k, and its sign.
struct SjltEntry {
  std::uint32_t row;
  bool minus;
};

MASKLESS_HOST_DEVICE constexpr SjltEntry sjlt_entry(std::uint64_t seed, std::uint32_t stream, const SjltGeometry& g,
                                                    std::uint32_t block, std::uint64_t column) {
  const std::uint64_t tile = column >> g.tile_bits;
  const SjltKey key = sjlt_key(seed, stream, g, block, tile);
  const std::uint32_t slot = sjlt_slot(g, key, static_cast<std::uint32_t>(column - (tile << g.tile_bits)));
  const std::uint64_t f = (tile << g.tile_bits) + slot;
  const Words4 signs = sjlt_sign_words(seed, stream, block, f >> 7);
  const std::uint32_t row = sjlt_row_of_slot(key, sjlt_block_rows(g, block), slot);
  return {sjlt_block_start(g, block) + row, (signs.w[(f >> 5) & 3] >> (f & 31) & 1u) != 0};
}

}  // namespace maskless

#endif  // MASKLESS_CORE_SJLT_H_
