// Dropout on the CPU: contiguous memory in one pass; any other layout by keep bits that are made for a chunk of
// positions at a time, in a buffer in the L1 cache, then applied to memory. The vector code of all is in
// cpu/bit_kernels.cc.
#include <hwy/cache_control.h>

#include <cstring>

#include "cpu/bit_kernels.h"
#include "cpu/runs.h"
#include "cpu/threads.h"
#include "dropout/dropout_kernels.h"
#include "dropout/dropout_tiles.h"

namespace maskless::cpu {
namespace {

// Elements whose bits are made at a time: few enough that a core works on the bits of one chunk while it waits for the
// memory of another.
constexpr std::int64_t kChunk = 512;
constexpr std::size_t kFetchAhead = 1024;                      // bytes
constexpr std::int64_t kGrain = 16384;                         // elements that are worth another thread
constexpr std::int64_t kBypassBytes = std::int64_t{16} << 20;  // outputs that would not stay in a core's caches
constexpr std::int64_t kLineBytes = 64;

using ChunkBits = std::uint8_t[kChunk / 8 + kSpareBytes];

struct Chunk {
  Place place;             // of its first element
  int outer;               // dimensions [outer, rank) step through consecutive positions
  std::int64_t at, count;  // elements of those dimensions
  const std::uint8_t* bits;
  std::size_t first_bit;
};

/// Keep bits of elements [begin, end) of a space, in chunks of consecutive positions. `x` is operand 0 where it is
/// worth fetching ahead.
template <class F>
void for_chunks(const BitKernels& kernels, const IndexSpace& space, const DropoutMask& mask, std::int64_t begin,
                std::int64_t end, const char* x, std::int64_t item, F&& f) {
  Chunk chunk;
  chunk.outer = space.rank;
  std::int64_t block = 1;
  while (chunk.outer > 0 && space.index_strides[chunk.outer - 1] == static_cast<std::uint64_t>(block))
    block *= space.shape[--chunk.outer];
  ChunkBits bits;
  chunk.bits = bits;
  std::uint64_t seed = reference::seed_of(mask, 0);
  KeySchedule keys(seed);
  for (std::int64_t e = begin; e < end;) {
    chunk.place = {};
    chunk.place.index = space.first_index;
    descend(space, 0, chunk.outer, e / block, chunk.place);
    if (mask.row_seeds != nullptr) {
      seed = reference::seed_of(mask, chunk.place.coords[0]);
      keys = KeySchedule(seed);
    }
    const std::int64_t stop = std::min(e / block * block + block, end);
    for (chunk.at = e % block; e < stop; e += chunk.count, chunk.at += chunk.count) {
      chunk.count = std::min(kChunk, stop - e);
      Ahead ahead;
      if (x != nullptr)
        ahead = {x + (chunk.place.offsets[0] + chunk.at) * item + kFetchAhead, static_cast<std::size_t>(64 * item)};
      chunk.first_bit = kernels.keep_bits(mask, seed, keys, chunk.place.index + static_cast<std::uint64_t>(chunk.at),
                                          static_cast<std::size_t>(chunk.count), bits, ahead);
      f(static_cast<const Chunk&>(chunk));
    }
  }
}

/// The innermost stride of an operand.
std::int64_t inner_stride(const IndexSpace& space, int operand) {
  return space.rank == 0 ? 1 : space.strides[operand][space.rank - 1];
}

/// Any layout: bits of a chunk, then its runs of memory.
void dropout_chunks(const BitKernels& kernels, const DropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const IndexSpace& space = args.space;
  const auto item = static_cast<std::int64_t>(dtype_size(args.dtype));
  const auto apply = kernels.apply(args.dtype, args.copy);
  const char* x = static_cast<const char*>(args.x);
  char* y = static_cast<char*>(args.y);
  const std::int64_t x_stride = inner_stride(space, 0), y_stride = inner_stride(space, 1);
  for_chunks(kernels, space, args.mask, begin, end, x_stride == 1 ? x : nullptr, item, [&](const Chunk& chunk) {
    for_runs(space, chunk.outer, chunk.place, chunk.at, chunk.count,
             [&](const std::int64_t* offsets, std::int64_t done, std::int64_t length) {
               apply(args.scale, x + offsets[0] * item, x_stride, y + offsets[1] * item, y_stride,
                     static_cast<std::size_t>(length), chunk.bits, chunk.first_bit + static_cast<std::size_t>(done));
             });
  });
}

/// Contiguous memory in the packed layout.
void dropout_flat(const BitKernels& kernels, const DropoutArgs& args, std::int64_t begin, std::int64_t end,
                  bool bypass) {
  const auto item = static_cast<std::int64_t>(dtype_size(args.dtype));
  const auto flat = kernels.flat(args.dtype, args.copy);
  const char* x = static_cast<const char*>(args.x);
  char* y = static_cast<char*>(args.y);
  const std::uint64_t seed = reference::seed_of(args.mask, 0);
  const KeySchedule keys(seed);
  if (bypass) {  // to the output's next cache line
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y + begin * item) % kLineBytes) / item;
    const std::int64_t first = past == 0 ? begin : std::min(end, begin + kLineBytes / item - past);
    dropout_chunks(kernels, args, begin, first);
    begin = first;
  }
  while (begin < end) {
    begin += static_cast<std::int64_t>(
        flat(args.mask, seed, keys, args.space.first_index + static_cast<std::uint64_t>(begin), args.scale,
             x + begin * item, y + begin * item, static_cast<std::size_t>(end - begin), bypass));
    const std::int64_t rest = std::min(end, begin + 128);  // the end, or where block numbers wrap around
    dropout_chunks(kernels, args, begin, rest);
    begin = rest;
  }
  if (bypass) hwy::FlushStream();
}

/// Tiles [begin, end) of a space whose memory is contiguous along another dimension than its positions: bits are made
/// along the positions, transposed, and applied along the memory; or, where the operands differ, applied row by row.
void dropout_tiles(const BitKernels& kernels, const DropoutArgs& args, const Tiling& tiling, std::int64_t begin,
                   std::int64_t end) {
  const IndexSpace& space = args.space;
  const auto item = static_cast<std::int64_t>(dtype_size(args.dtype));
  const auto apply = kernels.apply(args.dtype, args.copy);
  const int inner = space.rank - 1, along = tiling.along;
  std::uint8_t bits[Tiling::kRows][Tiling::kCols / 8 + kSpareBytes];
  std::size_t first_bit[Tiling::kRows];
  std::uint64_t cols[64][Tiling::kRows / 64 + 1] = {};  // the last word of each is only read, past the end
  const std::int64_t x_step = space.strides[0][inner] * item, y_step = space.strides[1][inner] * item;
  std::uint64_t seed = reference::seed_of(args.mask, 0);
  KeySchedule keys(seed);
  for (std::int64_t t = begin; t < end; ++t) {
    const Tile tile = tiling.tile(space, t);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      if (args.mask.row_seeds != nullptr) {
        seed = reference::seed_of(args.mask, along == 0 ? tile.row + r : tile.outer_row);
        keys = KeySchedule(seed);
      }
      const std::uint64_t index = tile.index + static_cast<std::uint64_t>(r) * space.index_strides[along];
      first_bit[r] = kernels.keep_bits(args.mask, seed, keys, index, static_cast<std::size_t>(tile.cols), bits[r], {});
    }
    const char* x = static_cast<const char*>(args.x) + tile.offsets[0] * item;
    char* y = static_cast<char*>(args.y) + tile.offsets[1] * item;
    if (!tiling.together) {
      for (std::int64_t r = 0; r < tile.rows; ++r)
        apply(args.scale, x + r * space.strides[0][along] * item, space.strides[0][inner],
              y + r * space.strides[1][along] * item, space.strides[1][inner], static_cast<std::size_t>(tile.cols),
              bits[r], first_bit[r]);
      continue;
    }
    for (std::int64_t c0 = 0; c0 < tile.cols; c0 += 64) {
      for (std::int64_t r0 = 0; r0 < tile.rows; r0 += 64) {
        std::uint64_t square[64] = {};
        for (std::int64_t r = 0; r < std::min<std::int64_t>(64, tile.rows - r0); ++r)
          square[r] = word_at(bits[r0 + r], first_bit[r0 + r] + static_cast<std::size_t>(c0));
        transpose64(square);
        for (int c = 0; c < 64; ++c) cols[c][r0 / 64] = square[c];
      }
      for (std::int64_t c = 0; c < std::min<std::int64_t>(64, tile.cols - c0); ++c)
        apply(args.scale, x + (c0 + c) * x_step, 1, y + (c0 + c) * y_step, 1, static_cast<std::size_t>(tile.rows),
              reinterpret_cast<const std::uint8_t*>(cols[c]), 0);
    }
  }
}

void keep_mask_range(const BitKernels& kernels, const KeepMaskArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = inner_stride(args.space, 0);
  for_chunks(kernels, args.space, args.mask, begin, end, nullptr, 1, [&](const Chunk& chunk) {
    for_runs(args.space, chunk.outer, chunk.place, chunk.at, chunk.count,
             [&](const std::int64_t* offsets, std::int64_t done, std::int64_t length) {
               kernels.expand(chunk.bits, chunk.first_bit + static_cast<std::size_t>(done), args.keep + offsets[0],
                              stride, static_cast<std::size_t>(length));
             });
  });
}

/// begin is a multiple of 8: whole bytes are written, spare bits of the last one as 0.
void keep_mask_packed_range(const BitKernels& kernels, const KeepMaskPackedArgs& args, std::int64_t begin,
                            std::int64_t end) {
  auto to = static_cast<std::size_t>(begin);  // the next bit of the output
  for_chunks(kernels, args.space, args.mask, begin, end, nullptr, 1, [&](const Chunk& chunk) {
    std::size_t left = static_cast<std::size_t>(chunk.count), from = chunk.first_bit;
    while (left > 0) {
      const std::size_t used = to & 7, take = std::min<std::size_t>(left, 56);
      std::uint64_t word = word_at(chunk.bits, from) & ((std::uint64_t{1} << take) - 1);
      word <<= used;
      if (used != 0) word |= args.bits[to >> 3];
      std::memcpy(args.bits + (to >> 3), &word, (used + take + 7) / 8);
      to += take;
      from += take;
      left -= take;
    }
  });
}

void masked_range(const BitKernels& kernels, const MaskedDropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const IndexSpace& space = args.space;
  const auto item = static_cast<std::int64_t>(dtype_size(args.dtype));
  const auto keep_item = static_cast<std::int64_t>(dtype_size(args.keep_dtype));
  const auto apply = kernels.apply(args.dtype, args.copy);
  const auto gather = args.keep_dtype == DType::kInt32 ? kernels.gather32 : kernels.gather8;
  const char *x = static_cast<const char*>(args.x), *keep = static_cast<const char*>(args.keep);
  char* y = static_cast<char*>(args.y);
  const std::int64_t strides[3] = {inner_stride(space, 0), inner_stride(space, 1), inner_stride(space, 2)};
  ChunkBits bits;
  for_runs(space, 0, Place{}, begin, end - begin, [&](const std::int64_t* offsets, std::int64_t, std::int64_t length) {
    for (std::int64_t at = 0; at < length; at += kChunk) {
      const auto n = static_cast<std::size_t>(std::min(kChunk, length - at));
      gather(keep + (offsets[1] + at * strides[1]) * keep_item, strides[1], n, bits);
      apply(args.scale, x + (offsets[0] + at * strides[0]) * item, strides[0],
            y + (offsets[2] + at * strides[2]) * item, strides[2], n, bits, 0);
    }
  });
}

}  // namespace

void dropout(const DropoutArgs& args, const Execution& execution) {
  const BitKernels& kernels = bit_kernels(execution.isa);
  const Tiling tiling(args.space);
  if (tiling.count > 0) {
    parallel_for(execution.threads, tiling.count, 1,
                 [&](std::int64_t begin, std::int64_t end) { dropout_tiles(kernels, args, tiling, begin, end); });
    return;
  }
  const std::uint64_t t = args.mask.threshold;
  if (args.space.contiguous() && args.mask.layout == Layout::kPacked && args.mask.row_seeds == nullptr && t != 0 &&
      t >> 32 == 0) {
    const auto item = static_cast<std::int64_t>(dtype_size(args.dtype));
    const bool bypass = args.x != args.y && args.space.size * item >= kBypassBytes &&
                        reinterpret_cast<std::uintptr_t>(args.y) % dtype_size(args.dtype) == 0;
    parallel_for(execution.threads, args.space.size, kGrain,
                 [&](std::int64_t begin, std::int64_t end) { dropout_flat(kernels, args, begin, end, bypass); });
    return;
  }
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { dropout_chunks(kernels, args, begin, end); });
}

void keep_mask(const KeepMaskArgs& args, const Execution& execution) {
  const BitKernels& kernels = bit_kernels(execution.isa);
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { keep_mask_range(kernels, args, begin, end); });
}

void keep_mask_packed(const KeepMaskPackedArgs& args, const Execution& execution) {
  const BitKernels& kernels = bit_kernels(execution.isa);
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { keep_mask_packed_range(kernels, args, begin, end); });
}

void masked_dropout(const MaskedDropoutArgs& args, const Execution& execution) {
  const BitKernels& kernels = bit_kernels(execution.isa);
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { masked_range(kernels, args, begin, end); });
}

}  // namespace maskless::cpu
