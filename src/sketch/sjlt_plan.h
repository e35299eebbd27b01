// How the CPU cuts a projection into pieces. It depends on shapes alone, so that sums have the same order for any
// number of threads.
#ifndef MASKLESS_SRC_SKETCH_SJLT_PLAN_H_
#define MASKLESS_SRC_SKETCH_SJLT_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "sketch/sketch_kernels.h"

namespace maskless {

/// Units of work: a group of `lanes` vectors and a chunk of tiles each. All chunks of a group are neighbours.
struct SjltPlan {
  int lanes = 16;
  std::int64_t groups = 0, chunks = 1;
  std::int64_t first_tile = 0, last_tile = 0;

  std::int64_t units() const { return groups * chunks; }
  /// group, first tile, tile after the last
  std::tuple<std::int64_t, std::int64_t, std::int64_t> unit(std::int64_t u) const {
    const std::int64_t chunk = u % chunks, tiles = last_tile - first_tile;
    const std::int64_t each = tiles / chunks, rest = tiles % chunks;
    const std::int64_t begin = first_tile + chunk * each + std::min(chunk, rest);
    return {u / chunks, begin, begin + each + (chunk < rest ? 1 : 0)};
  }
};

/// `sums` is the size of one unit's partial sums a lane, in bytes; 0 where chunks need none.
inline SjltPlan sjlt_plan(const SketchArgs& args, std::int64_t sums) {
  SjltPlan plan;
  const bool wide = args.in_dtype == DType::kFloat64;  // 8 lanes of float64 fill what 16 of float32 do
  plan.lanes = args.batch <= 1 ? 1 : args.batch <= 4 ? 4 : args.batch <= 8 || wide ? 8 : 16;
  plan.groups = (args.batch + plan.lanes - 1) / plan.lanes;
  const SketchMatrix& m = args.matrix;
  plan.first_tile = static_cast<std::int64_t>(m.column_offset >> m.geometry.tile_bits);
  plan.last_tile = m.cols == 0 ? plan.first_tile
                               : static_cast<std::int64_t>((m.column_offset + static_cast<std::uint64_t>(m.cols) - 1) >>
                                                           m.geometry.tile_bits) +
                                     1;
  constexpr std::int64_t kUnits = 64, kColumns = 16384, kBytes = std::int64_t{32} << 20;
  std::int64_t chunks = std::max<std::int64_t>(1, kUnits / plan.groups);
  chunks = std::min({chunks, std::max<std::int64_t>(1, m.cols / std::max(kColumns, 4 * m.rows)),
                     std::max<std::int64_t>(1, plan.last_tile - plan.first_tile)});
  if (sums > 0) chunks = std::min(chunks, std::max<std::int64_t>(1, kBytes / (sums * plan.groups * plan.lanes)));
  plan.chunks = chunks;
  return plan;
}

namespace cpu {

/// The kernels of an instruction set; null where there are none.
struct SjltFunctions {
  void (*project)(const SketchArgs&, const SjltPlan&, std::int64_t unit, void* sums);  // adds to sums[row * lanes + l]
  void (*transpose)(const SketchArgs&, const SjltPlan&, std::int64_t unit);
  void (*csr)(const SketchCsrArgs&, std::int64_t row);
};
SjltFunctions sjlt_functions(Isa at_most);

/// Likewise for iid signs: a unit is kSignRows rows (project) or kSignColumns columns (transpose) of one group of the
/// batch.
inline constexpr std::int64_t kSignRows = 64, kSignColumns = 1024, kSignBatch = 8;
struct SignsFunctions {
  void (*project)(const SketchArgs&, std::int64_t unit);
  void (*transpose)(const SketchArgs&, std::int64_t unit);
  void (*csr)(const SketchCsrArgs&, std::int64_t row);
};
SignsFunctions signs_functions(Isa at_most);

}  // namespace cpu
}  // namespace maskless

#endif  // MASKLESS_SRC_SKETCH_SJLT_PLAN_H_
