// Dropout on the CPU. Keep bits are made for a chunk of positions at a time, in a buffer that stays in the L1 cache,
// then applied to memory, whatever its layout. While bits are made, the memory that they are for is fetched.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dropout/dropout_cpu.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // this file again for each instruction set
#include <hwy/highway.h>

#include "common/visit.h"
#include "cpu/apply_hwy.h"
#include "cpu/dropout_bits_hwy.h"
#include "cpu/runs_hwy.h"
#include "dropout/dropout_reference.h"
#include "dropout/dropout_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

inline constexpr std::int64_t kChunk = 4096;    // elements whose bits are made at a time
inline constexpr std::size_t kSpareBytes = 64;  // written and read past the last bit
using ChunkBits = std::uint8_t[kChunk / 8 + kSpareBytes];

/// Keep bits of elements [begin, end) of a space, in chunks of consecutive positions: f(outer, place, at, count, bits,
/// first_bit) for elements at ... at + count of the innermost dimensions [outer, rank). `fetch` is operand 0, if it is
/// worth fetching ahead; the first chunk is shorter by `shorten`.
template <class T, class F>
HWY_INLINE void for_chunks(const IndexSpace& space, const DropoutMask& mask, std::int64_t begin, std::int64_t end,
                           const T* fetch, std::int64_t shorten, F&& f) {
  int outer = space.rank;  // dimensions [outer, rank) step through consecutive positions
  std::int64_t block = 1;
  while (outer > 0 && space.index_strides[outer - 1] == static_cast<std::uint64_t>(block))
    block *= space.shape[--outer];
  HWY_ALIGN ChunkBits bits;
  std::uint64_t seed = reference::seed_of(mask, 0);
  RoundKeys keys = round_keys(philox_key(seed));
  for (std::int64_t e = begin; e < end;) {
    Place place;
    place.index = space.first_index;
    descend(space, 0, outer, e / block, place);
    if (mask.row_seeds != nullptr) {
      seed = reference::seed_of(mask, place.coords[0]);
      keys = round_keys(philox_key(seed));
    }
    const std::int64_t stop = HWY_MIN(e / block * block + block, end);
    while (e < stop) {
      const std::int64_t at = e % block, count = HWY_MIN(kChunk - shorten, stop - e);
      shorten = 0;
      const std::uint64_t index = place.index + static_cast<std::uint64_t>(at);
      Ahead ahead;
      if (fetch != nullptr) ahead = {reinterpret_cast<const char*>(fetch + place.offsets[0] + at), 64 * sizeof(T)};
      const std::size_t first_bit = keep_bits(mask, seed, keys, index, static_cast<std::size_t>(count), bits, ahead);
      f(outer, place, at, count, static_cast<const std::uint8_t*>(bits), first_bit);
      e += count;
    }
  }
}

template <typename T, class Op>
void dropout_as(const Op& op, const DropoutArgs& args, std::int64_t begin, std::int64_t end, bool stream) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  const IndexSpace& space = args.space;
  if (stream) {  // contiguous; chunks but the first begin where a cache line of the output does
    const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(y + begin) % 64 / sizeof(T));
    for_chunks(
        space, args.mask, begin, end, x, past,
        [&](int, const Place&, std::int64_t at, std::int64_t count, const std::uint8_t* bits, std::size_t first_bit)
            HWY_ATTR { apply_run<true>(op, x + at, y + at, static_cast<std::size_t>(count), bits, first_bit); });
    hwy::FlushStream();
    return;
  }
  const std::int64_t x_stride = space.rank == 0 ? 1 : space.strides[0][space.rank - 1];
  const std::int64_t y_stride = space.rank == 0 ? 1 : space.strides[1][space.rank - 1];
  const bool unit = x_stride == 1 && y_stride == 1;
  for_chunks(space, args.mask, begin, end, x_stride == 1 ? x : nullptr, 0,
             [&](int outer, const Place& place, std::int64_t at, std::int64_t count, const std::uint8_t* bits,
                 std::size_t first_bit) HWY_ATTR {
               for_runs(space, outer, place, at, count,
                        [&](const std::int64_t* offsets, std::int64_t done, std::int64_t length) HWY_ATTR {
                          const auto n = static_cast<std::size_t>(length);
                          const std::size_t bit = first_bit + static_cast<std::size_t>(done);
                          if (unit) {
                            apply_run<false>(op, x + offsets[0], y + offsets[1], n, bits, bit);
                          } else {
                            apply_strided(op, x + offsets[0], x_stride, y + offsets[1], y_stride, n, bits, bit);
                          }
                        });
             });
}

void dropout(const DropoutArgs& args, std::int64_t begin, std::int64_t end, bool stream) {
  visit_floating(args.dtype, [&](auto type) HWY_ATTR {
    using T = typename decltype(type)::type;
    if (args.copy) {
      dropout_as<T>(Copy<T>{}, args, begin, end, stream);
    } else {
      dropout_as<T>(Scale<T>{args.scale}, args, begin, end, stream);
    }
  });
}

/// Tiles [begin, end) of a space whose memory is contiguous along another dimension than its positions: bits are made
/// along the positions, transposed, and applied along the memory.
template <typename T, class Op>
void dropout_tiles_as(const Op& op, const DropoutArgs& args, const Tiling& tiling, std::int64_t begin,
                      std::int64_t end) {
  const IndexSpace& space = args.space;
  const int inner = space.rank - 1, along = tiling.along;
  constexpr std::size_t kRowBytes = Tiling::kCols / 8 + kSpareBytes;
  HWY_ALIGN std::uint8_t bits[Tiling::kRows][kRowBytes];
  std::size_t first_bit[Tiling::kRows];
  HWY_ALIGN std::uint64_t cols[64][Tiling::kRows / 64 + 1] = {};  // and one word that is read past the end
  const std::int64_t x_stride = space.strides[0][inner], y_stride = space.strides[1][inner];
  std::uint64_t seed = reference::seed_of(args.mask, 0);
  RoundKeys keys = round_keys(philox_key(seed));
  for (std::int64_t t = begin; t < end; ++t) {
    const Tile tile = tiling.tile(space, t);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      if (args.mask.row_seeds != nullptr) {
        seed = reference::seed_of(args.mask, along == 0 ? tile.row + r : tile.outer_row);
        keys = round_keys(philox_key(seed));
      }
      const std::uint64_t index = tile.index + static_cast<std::uint64_t>(r) * space.index_strides[along];
      first_bit[r] = keep_bits(args.mask, seed, keys, index, static_cast<std::size_t>(tile.cols), bits[r]);
    }
    const T* x = static_cast<const T*>(args.x) + tile.offsets[0];
    T* y = static_cast<T*>(args.y) + tile.offsets[1];
    for (std::int64_t c0 = 0; c0 < tile.cols; c0 += 64) {
      for (std::int64_t r0 = 0; r0 < tile.rows; r0 += 64) {
        std::uint64_t square[64] = {};
        for (std::int64_t r = 0; r < HWY_MIN(64, tile.rows - r0); ++r)
          square[r] = word_at(bits[r0 + r], first_bit[r0 + r] + static_cast<std::size_t>(c0));
        transpose64(square);
        for (int c = 0; c < 64; ++c) cols[c][r0 / 64] = square[c];
      }
      for (std::int64_t c = 0; c < HWY_MIN(64, tile.cols - c0); ++c)
        apply_run<false>(op, x + (c0 + c) * x_stride, y + (c0 + c) * y_stride, static_cast<std::size_t>(tile.rows),
                         reinterpret_cast<const std::uint8_t*>(cols[c]), 0);
    }
  }
}

void dropout_tiles(const DropoutArgs& args, const Tiling& tiling, std::int64_t begin, std::int64_t end) {
  visit_floating(args.dtype, [&](auto type) HWY_ATTR {
    using T = typename decltype(type)::type;
    if (args.copy) {
      dropout_tiles_as<T>(Copy<T>{}, args, tiling, begin, end);
    } else {
      dropout_tiles_as<T>(Scale<T>{args.scale}, args, tiling, begin, end);
    }
  });
}

/// Bits to bytes of 0 and 1.
HWY_INLINE void expand(const std::uint8_t* bits, std::size_t at, std::uint8_t* keep, std::int64_t stride,
                       std::size_t n) {
  const hn::CappedTag<std::uint8_t, 32> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  if (stride == 1)
    for (; i + lanes <= n; i += lanes)
      hn::StoreU(hn::IfThenElseZero(mask_of(d, bits_at(bits, at + i)), hn::Set(d, std::uint8_t{1})), d, keep + i);
  for (; i < n; ++i) keep[static_cast<std::int64_t>(i) * stride] = static_cast<std::uint8_t>(bits_at(bits, at + i) & 1);
}

void keep_mask(const KeepMaskArgs& args, std::int64_t begin, std::int64_t end) {
  const IndexSpace& space = args.space;
  const std::int64_t stride = space.rank == 0 ? 1 : space.strides[0][space.rank - 1];
  for_chunks(space, args.mask, begin, end, static_cast<const std::uint8_t*>(nullptr), 0,
             [&](int outer, const Place& place, std::int64_t at, std::int64_t count, const std::uint8_t* bits,
                 std::size_t first_bit) HWY_ATTR {
               for_runs(space, outer, place, at, count,
                        [&](const std::int64_t* offsets, std::int64_t done, std::int64_t length) HWY_ATTR {
                          expand(bits, first_bit + static_cast<std::size_t>(done), args.keep + offsets[0], stride,
                                 static_cast<std::size_t>(length));
                        });
             });
}

/// begin is a multiple of 8: whole bytes are written, spare bits of the last one as 0.
void keep_mask_packed(const KeepMaskPackedArgs& args, std::int64_t begin, std::int64_t end) {
  auto to = static_cast<std::size_t>(begin);  // the next bit of the output
  for_chunks(args.space, args.mask, begin, end, static_cast<const std::uint8_t*>(nullptr), 0,
             [&](int, const Place&, std::int64_t, std::int64_t count, const std::uint8_t* bits, std::size_t first_bit)
                 HWY_ATTR {
                   std::size_t left = static_cast<std::size_t>(count), from = first_bit;
                   while (left > 0) {
                     const std::size_t used = to & 7, take = HWY_MIN(left, std::size_t{48});
                     std::uint64_t word = (bits_at(bits, from) & ((std::uint64_t{1} << take) - 1)) << used;
                     if (used != 0) word |= args.bits[to >> 3];
                     std::memcpy(args.bits + (to >> 3), &word, (used + take + 7) / 8);
                     to += take;
                     from += take;
                     left -= take;
                   }
                 });
}

/// Stored mask values (bytes or int32) to bits.
template <typename K>
HWY_INLINE void gather_bits(const K* keep, std::int64_t stride, std::size_t n, std::uint8_t* bits) {
  using U = hwy::MakeUnsigned<K>;
  const hn::ScalableTag<U> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  std::size_t i = 0;
  if (stride == 1 && kLanes >= 8)
    for (; i + kLanes <= n; i += kLanes)
      hn::StoreMaskBits(d, hn::Ne(hn::LoadU(d, reinterpret_cast<const U*>(keep) + i), hn::Zero(d)), bits + i / 8);
  for (; i < n; i += 8) {
    unsigned byte = 0;
    for (std::size_t j = i; j < HWY_MIN(n, i + 8); ++j)
      byte |= (keep[static_cast<std::int64_t>(j) * stride] != 0 ? 1u : 0u) << (j - i);
    bits[i / 8] = static_cast<std::uint8_t>(byte);
  }
}

template <typename T, typename K, class Op>
HWY_INLINE void masked_as(const Op& op, const MaskedDropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const IndexSpace& space = args.space;
  const T* x = static_cast<const T*>(args.x);
  const K* keep = static_cast<const K*>(args.keep);
  T* y = static_cast<T*>(args.y);
  std::int64_t strides[3] = {1, 1, 1};
  if (space.rank > 0)
    for (int o = 0; o < 3; ++o) strides[o] = space.strides[o][space.rank - 1];
  HWY_ALIGN ChunkBits bits;
  for_runs(space, 0, Place{}, begin, end - begin,
           [&](const std::int64_t* offsets, std::int64_t, std::int64_t length) HWY_ATTR {
             for (std::int64_t at = 0; at < length; at += kChunk) {
               const auto n = static_cast<std::size_t>(HWY_MIN(kChunk, length - at));
               gather_bits(keep + offsets[1] + at * strides[1], strides[1], n, bits);
               const T* from = x + offsets[0] + at * strides[0];
               T* to = y + offsets[2] + at * strides[2];
               if (strides[0] == 1 && strides[2] == 1) {
                 apply_run<false>(op, from, to, n, bits, 0);
               } else {
                 apply_strided(op, from, strides[0], to, strides[2], n, bits, 0);
               }
             }
           });
}

void masked_dropout(const MaskedDropoutArgs& args, std::int64_t begin, std::int64_t end) {
  visit_floating(args.dtype, [&](auto type) HWY_ATTR {
    using T = typename decltype(type)::type;
    const auto with = [&](auto op) HWY_ATTR {
      if (args.keep_dtype == DType::kInt32) {
        masked_as<T, std::int32_t>(op, args, begin, end);
      } else {
        masked_as<T, std::uint8_t>(op, args, begin, end);
      }
    };
    if (args.copy) {
      with(Copy<T>{});
    } else {
      with(Scale<T>{args.scale});
    }
  });
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "cpu/dispatch.h"
#include "cpu/threads.h"

namespace maskless {
namespace reference {
namespace {

void dropout_any(const DropoutArgs& args, std::int64_t begin, std::int64_t end, bool) {
  visit_floating(args.dtype, [&](auto type) { dropout<typename decltype(type)::type>(args, begin, end); });
}

void masked_dropout_any(const MaskedDropoutArgs& args, std::int64_t begin, std::int64_t end) {
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.keep_dtype == DType::kInt32) {
      masked_dropout<T, std::int32_t>(args, begin, end);
    } else {
      masked_dropout<T, std::uint8_t>(args, begin, end);
    }
  });
}

}  // namespace
}  // namespace reference

namespace cpu {
namespace {

constexpr std::int64_t kGrain = 16384;  // elements below which a second thread costs more than it saves
constexpr std::int64_t kStreamBytes = std::int64_t{16} << 20;  // outputs that would not stay in the cache

using TilesFunction = void (*)(const DropoutArgs&, const Tiling&, std::int64_t, std::int64_t);

}  // namespace

void dropout(const DropoutArgs& args, const Execution& execution) {
  const TilesFunction tiles = MASKLESS_CHOOSE(execution.isa, dropout_tiles, TilesFunction{nullptr});
  if (tiles != nullptr) {
    const Tiling tiling(args.space);
    if (tiling.count > 0) {
      parallel_for(execution.threads, tiling.count, 1,
                   [&](std::int64_t begin, std::int64_t end) { tiles(args, tiling, begin, end); });
      return;
    }
  }
  const auto kernel = MASKLESS_CHOOSE(execution.isa, dropout, &reference::dropout_any);
  const auto item = static_cast<std::int64_t>(dtype_size(args.dtype));
  const bool stream = args.space.contiguous() && args.x != args.y && args.space.size * item >= kStreamBytes &&
                      reinterpret_cast<std::uintptr_t>(args.y) % dtype_size(args.dtype) == 0;
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end, stream); });
}

void keep_mask(const KeepMaskArgs& args, const Execution& execution) {
  const auto kernel = MASKLESS_CHOOSE(execution.isa, keep_mask, &reference::keep_mask);
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
}

void keep_mask_packed(const KeepMaskPackedArgs& args, const Execution& execution) {
  const auto kernel = MASKLESS_CHOOSE(execution.isa, keep_mask_packed, &reference::keep_mask_packed);
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
}

void masked_dropout(const MaskedDropoutArgs& args, const Execution& execution) {
  const auto kernel = MASKLESS_CHOOSE(execution.isa, masked_dropout, &reference::masked_dropout_any);
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { kernel(args, begin, end); });
}

}  // namespace cpu
}  // namespace maskless

#endif  // HWY_ONCE
