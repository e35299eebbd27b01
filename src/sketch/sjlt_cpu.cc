// The sjlt on the CPU. Tiles of columns, G vectors side by side, are gathered into the rows that they hit: for each row
// of a block one column of the tile, chosen by the tile's permutation, in the order of the rows.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sketch/sjlt_cpu.cc"
#include <hwy/foreach_target.h>  // this file again for each instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cpu/philox_hwy.h"
#include "sketch/lanes_cpu_hwy.h"
#include "sketch/sjlt_plan.h"
#include "sketch/sketch_reference.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

/// One tile in one block: the column and the sign of each slot.
template <typename S>
struct TileMap {
  std::vector<std::uint32_t> columns;
  std::vector<S> signs;
  SjltKey key{};

  explicit TileMap(const SjltGeometry& g)
      : columns(std::size_t{1} << g.tile_bits), signs(std::size_t{1} << g.tile_bits) {}

  void make(const SjltGeometry& g, std::uint64_t seed, std::uint32_t stream, std::uint32_t block, std::uint64_t tile) {
    key = sjlt_key(seed, stream, g, block, tile);
    const std::uint32_t width = 1u << g.tile_bits;
    for (std::uint32_t slot = 0; slot < width; ++slot) columns[slot] = sjlt_column(g, key, slot);
    const std::uint64_t first = tile << g.tile_bits;
    for (std::uint32_t slot = 0; slot < width;) {
      const std::uint64_t f = first + slot;
      const Words4 words = sjlt_sign_words(seed, stream, block, f >> 7);
      const std::uint32_t stop = std::min<std::uint32_t>(width, slot + 128 - (f & 127));
      for (std::uint32_t at = f & 127; slot < stop; ++slot, ++at)
        signs[slot] = static_cast<S>(1 - 2 * static_cast<int>(words.w[at >> 5] >> (at & 31) & 1));
    }
  }
};

/// The slots whose rows lie in the piece of S, as at most two runs of consecutive rows: f(slot, row, count).
template <typename F>
HWY_INLINE void for_runs(const SketchMatrix& m, const SjltKey& key, std::uint32_t block, F&& f) {
  const std::int64_t width = std::int64_t{1} << m.geometry.tile_bits, window = key.window;
  const std::int64_t block_rows = sjlt_block_rows(m.geometry, block);
  const std::int64_t start = std::int64_t{sjlt_block_start(m.geometry, block)} - m.row_offset;
  const std::int64_t wrap = std::min(width, block_rows - window);  // slots from here on begin again at row 0
  const std::int64_t runs[2][3] = {{0, wrap, start + window}, {wrap, width, start + window - block_rows}};
  for (const auto& [begin, end, shift] : runs) {
    const std::int64_t low = std::max(begin, -shift), high = std::min(end, m.rows - shift);
    if (low < high) f(low, low + shift, high - low);
  }
}

template <int G, typename S>
HWY_INLINE void gather_rows(const S* HWY_RESTRICT packed, const std::uint32_t* HWY_RESTRICT columns,
                            const S* HWY_RESTRICT signs, std::int64_t count, S* HWY_RESTRICT sums) {
  for (std::int64_t i = 0; i < count; ++i) {
    const S* from = packed + static_cast<std::size_t>(columns[i]) * G;
    const S sign = signs[i];
    for (int l = 0; l < G; ++l) sums[i * G + l] += sign * from[l];
  }
}

/// Adds tiles [begin, end) of `lanes` vectors from x on to sums[row * G + lane].
template <int G, typename T>
void project_tiles(const SketchArgs& args, std::uint64_t seed, std::int64_t first_lane, std::int64_t lanes,
                   std::int64_t begin, std::int64_t end, Sum<T>* sums) {
  using S = Sum<T>;
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const std::int64_t width = std::int64_t{1} << g.tile_bits;
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  const T* x = static_cast<const T*>(args.in) + first_lane * args.in_strides[0];
  TileMap<S> map(g);
  const std::int64_t panel = std::max<std::int64_t>(1, 256 >> g.tile_bits);  // tiles that are packed together
  const std::unique_ptr<S[]> packed(new S[static_cast<std::size_t>(panel * width * G)]);
  for (std::int64_t tile = begin; tile < end; tile += panel) {
    const std::int64_t first = tile * width, last = std::min(tile + panel, end) * width;
    const std::int64_t low = std::max(first, offset), high = std::min(last, offset + m.cols);
    std::fill(packed.get(), packed.get() + (low - first) * G, S{0});
    std::fill(packed.get() + (high - first) * G, packed.get() + (last - first) * G, S{0});
    pack_lanes<G>(x + (low - offset) * args.in_strides[1], args.in_strides, lanes, high - low,
                  packed.get() + (low - first) * G);
    for (std::int64_t t = tile; t < std::min(tile + panel, end); ++t) {
      const S* from = packed.get() + (t - tile) * width * G;
      for (std::uint32_t block = 0; block < g.blocks; ++block) {
        map.make(g, seed, m.stream, block, static_cast<std::uint64_t>(t));
        for_runs(m, map.key, block, [&](std::int64_t slot, std::int64_t row, std::int64_t count) {
          gather_rows<G>(from, map.columns.data() + slot, map.signs.data() + slot, count, sums + row * G);
        });
      }
    }
  }
}

/// Columns of tiles [begin, end) from packed y[row * G + lane].
template <int G, typename T, typename Out>
void transpose_tiles(const SketchArgs& args, std::uint64_t seed, std::int64_t first_lane, std::int64_t lanes,
                     std::int64_t begin, std::int64_t end) {
  using S = Sum<T>;
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const std::int64_t width = std::int64_t{1} << g.tile_bits;
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  const std::unique_ptr<S[]> y(new S[static_cast<std::size_t>(m.rows * G)]);
  pack_lanes<G>(static_cast<const T*>(args.in) + first_lane * args.in_strides[0], args.in_strides, lanes, m.rows,
                y.get());
  TileMap<S> map(g);
  const std::unique_ptr<S[]> sums(new S[static_cast<std::size_t>(width * G)]);
  for (std::int64_t tile = begin; tile < end; ++tile) {
    std::fill(sums.get(), sums.get() + width * G, S{0});
    for (std::uint32_t block = 0; block < g.blocks; ++block) {
      map.make(g, seed, m.stream, block, static_cast<std::uint64_t>(tile));
      for_runs(m, map.key, block, [&](std::int64_t slot, std::int64_t row, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          S* to = sums.get() + static_cast<std::size_t>(map.columns[static_cast<std::size_t>(slot + i)]) * G;
          const S sign = map.signs[static_cast<std::size_t>(slot + i)];
          const S* from = y.get() + (row + i) * G;
          for (int l = 0; l < G; ++l) to[l] += sign * from[l];
        }
      });
    }
    const std::int64_t first = tile * width;
    const std::int64_t low = std::max(first, offset), high = std::min(first + width, offset + m.cols);
    unpack_lanes<G>(
        sums.get() + (low - first) * G, lanes, high - low, m.scale, args.accumulate,
        static_cast<Out*>(args.out) + first_lane * args.out_strides[0] + (low - offset) * args.out_strides[1],
        args.out_strides);
  }
}

/// A row of a sparse batch: the entries of up to kPiece nonzeros at a time, block by block.
void sjlt_csr(const SketchCsrArgs& args, std::int64_t i) {
  const SketchMatrix& m = args.base.matrix;
  const SjltGeometry& g = m.geometry;
  const std::uint64_t seed = reference::seed_of(m);
  HWY_ALIGN std::uint32_t rows[kPiece], minus[kPiece];
  const auto add = [&](const auto* values, const auto* columns, std::int64_t begin, std::int64_t end, auto* sums) {
    for (std::int64_t first = begin; first < end; first += kPiece) {
      const std::int64_t count = HWY_MIN(kPiece, end - first);
      for (std::uint32_t block = 0; block < g.blocks; ++block) {
        for (std::int64_t e = 0; e < count; ++e) {
          const SjltEntry entry =
              sjlt_entry(seed, m.stream, g, block, m.column_offset + static_cast<std::uint64_t>(columns[first + e]));
          rows[e] = entry.row - m.row_offset;  // rows outside the piece wrap to large numbers
          minus[e] = entry.minus;
        }
        for (std::int64_t e = 0; e < count; ++e)
          if (rows[e] < static_cast<std::uint64_t>(m.rows)) {
            const auto value = to_sum(values[first + e]);
            sums[rows[e]] += minus[e] != 0 ? -value : value;
          }
      }
    }
  };
  reference::csr_row(args, i, add);
}

/// Calls f with the lanes G that suit a plan as a constant.
template <typename F>
HWY_INLINE void with_lanes(int lanes, F&& f) {
  switch (lanes) {
    case 1: return f(std::integral_constant<int, 1>());
    case 4: return f(std::integral_constant<int, 4>());
    case 8: return f(std::integral_constant<int, 8>());
    default: return f(std::integral_constant<int, 16>());
  }
}

void sjlt_project_unit(const SketchArgs& args, const SjltPlan& plan, std::int64_t unit, void* sums) {
  visit_floating(args.in_dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    with_lanes(plan.lanes, [&](auto lanes) {
      const auto [group, begin, end] = plan.unit(unit);
      const std::int64_t lane = group * plan.lanes, count = std::min<std::int64_t>(plan.lanes, args.batch - lane);
      project_tiles<decltype(lanes)::value, T>(args, reference::seed_of(args.matrix), lane, count, begin, end,
                                               static_cast<Sum<T>*>(sums));
    });
  });
}

void sjlt_transpose_unit(const SketchArgs& args, const SjltPlan& plan, std::int64_t unit) {
  visit_sketch(args.in_dtype, args.out_dtype, [&](auto in, auto out) {
    using T = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    with_lanes(plan.lanes, [&](auto lanes) {
      const auto [group, begin, end] = plan.unit(unit);
      const std::int64_t lane = group * plan.lanes, count = std::min<std::int64_t>(plan.lanes, args.batch - lane);
      transpose_tiles<decltype(lanes)::value, T, Out>(args, reference::seed_of(args.matrix), lane, count, begin, end);
    });
  });
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace maskless::cpu {

SjltFunctions sjlt_functions(Isa at_most) {
  using Project = decltype(SjltFunctions::project);
  using Transpose = decltype(SjltFunctions::transpose);
  using Csr = decltype(SjltFunctions::csr);
  return {MASKLESS_CHOOSE(at_most, sjlt_project_unit, Project{nullptr}),
          MASKLESS_CHOOSE(at_most, sjlt_transpose_unit, Transpose{nullptr}),
          MASKLESS_CHOOSE(at_most, sjlt_csr, Csr{nullptr})};
}

}  // namespace maskless::cpu
#endif  // HWY_ONCE
