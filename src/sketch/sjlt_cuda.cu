// The sjlt on CUDA: which kernel, and how work is cut.
//
// Work is cut into splits of the columns by shape alone, as if for kTargetBlocks thread blocks: the same bytes on every
// GPU. Partial sums go through a workspace and are added up in order.
#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"
#include "maskless/core/sjlt.h"
#include "sketch/sjlt_project.cuh"
#include "sketch/sjlt_tiles.cuh"
#include "sketch/sjlt_transpose.cuh"
#include "sketch/sketch_cuda.cuh"
#include "sketch/sketch_kernels.h"

namespace maskless::cuda {
namespace {

using namespace sjlt;  // NOLINT(google-build-using-namespace): what this file launches

// --- Launching ------------------------------------------------------------------------------------------------------
int log2_ceil(std::uint32_t n) {
  int bits = 0;
  while ((1ull << bits) < n) ++bits;
  return bits;
}

/// Without a window, rows are slots; fewer than two of them would not fill a thread.
bool has_window(const SjltGeometry& g) {
  return g.longer != 0 || g.block_rows != 1u << g.tile_bits || g.tile_bits == 0;
}

template <typename T, int NB, int R, int V, bool kWindow>
void launch_project(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  ProjectPlan plan;
  plan.pad_bits = std::max(log2_ceil(sjlt_block_rows(g, 0)), log2_ceil(R));
  plan.slots = kThreads * R >> plan.pad_bits;
  plan.block_groups = static_cast<int>(g.blocks) / NB;
  const std::int64_t pass_columns = std::int64_t{plan.slots} << g.tile_bits;
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  plan.first_pass = offset / pass_columns;
  plan.passes = m.cols == 0 ? 0 : (offset + m.cols - 1) / pass_columns + 1 - plan.first_pass;
  const Splits splits(args, std::min(kTargetBlocks / plan.block_groups, plan.passes / kSplitPasses), 4);
  plan.splits = splits.count;
  const int pass_key_bytes = NB * (plan.slots * static_cast<int>(sizeof(Record)) + static_cast<int>(pass_columns) / 8);
  plan.key_passes = std::max(1, std::min(32, kKeyBytes / pass_key_bytes));
  const int exchange = plan.slots > 1 ? kThreads / plan.slots * NB * R * V * 4 : 0;
  const int buffers = 2 * plane_size<T, V>(static_cast<int>(pass_columns)) * Packed<T, V>::kPlanes;
  const int bytes = std::max(exchange, buffers + plan.key_passes * pass_key_bytes);
  const auto kernel = project_kernel<T, NB, R, V, kWindow>;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  Workspace<float> partials(op, plan.splits > 1 ? plan.splits * std::min(splits.vectors, args.batch) * m.rows : 0,
                            stream);
  for (std::int64_t vector = 0; vector < args.batch; vector += splits.vectors) {
    const SketchArgs some = some_vectors(args, vector, splits.vectors);
    const std::int64_t grid = ceil_div(some.batch, V) * plan.splits * plan.block_groups;
    kernel<<<static_cast<unsigned>(grid), kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(some, plan, Shape(g),
                                                                                                partials.data());
    check(op, cudaGetLastError());
    if (plan.splits > 1) add_partials(op, some, plan.splits, partials.data(), stream);
  }
}

template <typename T, typename S>
void launch_simple(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const std::int64_t tiles = (m.cols >> m.geometry.tile_bits) + 1;
  const Splits splits(args, std::min(kTargetBlocks * 1024 / m.rows, tiles / kSplitPasses), sizeof(S));
  Workspace<S> partials(op, splits.count > 1 ? splits.count * std::min(splits.vectors, args.batch) * m.rows : 0,
                        stream);
  for (std::int64_t vector = 0; vector < args.batch; vector += splits.vectors) {
    const SketchArgs some = some_vectors(args, vector, splits.vectors);
    const std::int64_t blocks = ceil_div(ceil_div(some.batch, 4) * splits.count * m.rows, 128);
    launch(op, project_simple_kernel<T, S>, static_cast<unsigned>(blocks), 128, stream, some, splits.count,
           partials.data());
    if (splits.count > 1) add_partials(op, some, splits.count, partials.data(), stream);
  }
}

template <typename T, bool kWindow>
void launch_short_blocks(const char* op, const SketchArgs& args, void* stream) {
  const std::uint32_t s = args.matrix.geometry.blocks;
  if (s % 4 == 0) {
    if (args.batch >= 5) return launch_project<T, 4, 2, 8, kWindow>(op, args, stream);
    if (args.batch >= 2) return launch_project<T, 4, 2, 4, kWindow>(op, args, stream);
    return launch_project<T, 4, 2, 1, kWindow>(op, args, stream);
  }
  if (s % 2 == 0) {
    args.batch >= 2 ? launch_project<T, 2, 2, 8, kWindow>(op, args, stream)
                    : launch_project<T, 2, 2, 1, kWindow>(op, args, stream);
    return;
  }
  args.batch >= 2 ? launch_project<T, 1, 2, 8, kWindow>(op, args, stream)
                  : launch_project<T, 1, 2, 1, kWindow>(op, args, stream);
}

template <typename T>
void choose_project(const char* op, const SketchArgs& args, void* stream) {
  const SjltGeometry& g = args.matrix.geometry;
  const int pad_bits = log2_ceil(sjlt_block_rows(g, 0));
  const bool window = has_window(g);
  if (pad_bits <= 10) {
    window ? launch_short_blocks<T, true>(op, args, stream) : launch_short_blocks<T, false>(op, args, stream);
  } else if (pad_bits <= 12) {
    args.batch >= 2 ? launch_project<T, 1, 8, 4, true>(op, args, stream)
                    : launch_project<T, 1, 8, 1, true>(op, args, stream);
  } else if (pad_bits <= 14) {
    launch_project<T, 1, 32, 1, true>(op, args, stream);
  } else {
    launch_simple<T, float>(op, args, stream);
  }
}

template <typename T, int V, bool kShared, int kBlocks, int C, bool kWhole>
void launch_transpose_blocks(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const SjltGeometry& g = m.geometry;
  const int blocks = static_cast<int>(g.blocks);
  const std::int64_t groups = (args.batch + V - 1) / V;
  // A unit is a multiple of 128 columns: kUnitColumns where there are enough, fewer where tiles are small.
  const std::int64_t wanted = std::min(kUnitColumns, std::max<std::int64_t>(1024, m.cols / (2 * kTargetBlocks)));
  int unit_tiles = 1;
  while ((std::int64_t{unit_tiles} << g.tile_bits) < wanted) unit_tiles *= 2;
  const auto key_bytes = [&] {
    return blocks * (unit_tiles * static_cast<int>(sizeof(Record)) + (unit_tiles << g.tile_bits) / 8);
  };
  while (unit_tiles << g.tile_bits > 128 && unit_tiles > 1 && key_bytes() > kTransposeKeyBytes) unit_tiles /= 2;
  const std::int64_t unit_columns = std::int64_t{unit_tiles} << g.tile_bits;
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  const std::int64_t units = (offset + m.cols - 1) / unit_columns + 1 - offset / unit_columns;
  const int bytes = key_bytes() + (kShared ? static_cast<int>(m.rows) * V * 4 : 0);
  const auto kernel = transpose_kernel<T, V, kShared, kBlocks, C, kWhole>;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const std::int64_t resident = kTargetBlocks * std::max(1, std::min(2, (220 << 10) / std::max(1, bytes)));
  const std::int64_t each = std::max<std::int64_t>(1, std::min(units, resident / groups));
  kernel<<<static_cast<unsigned>(each * groups), kTransposeThreads, bytes, static_cast<cudaStream_t>(stream)>>>(
      args, Shape(g), groups, units, unit_tiles);
  check(op, cudaGetLastError());
}

template <typename T, int V, int NB, bool kOne>
void launch_transpose_rows(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  constexpr int kUnit = kRowsPasses * 2 * kThreads;
  const std::int64_t groups = ceil_div(args.batch, V);
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  const std::int64_t units = (offset + m.cols - 1) / kUnit + 1 - offset / kUnit;
  const int bytes = kUnit * V * 4 + kRowsUnits * NB * ((kUnit >> m.geometry.tile_bits) * 16 + kUnit / 8);
  const std::int64_t each = std::max<std::int64_t>(1, std::min(units, kTargetBlocks / groups));
  const auto kernel = transpose_rows_kernel<T, V, NB, kOne>;
  check(op, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned>(each * groups), kThreads, bytes, static_cast<cudaStream_t>(stream)>>>(
      args, Shape(m.geometry), groups, units);
  check(op, cudaGetLastError());
}

template <typename T, int V, bool kShared>
void launch_transpose(const char* op, const SketchArgs& args, void* stream) {
  const SketchMatrix& m = args.matrix;
  const std::int64_t width = std::int64_t{1} << m.geometry.tile_bits;
  if constexpr (kShared) {
    constexpr int C = kTransposeColumns;
    const bool whole = !has_window(m.geometry) && m.row_offset == 0 && m.rows == m.geometry.rows;
    if constexpr (V == 8) {
      if (whole && m.geometry.blocks == 4 && width >= 64 && width <= 2 * kThreads && m.cols >= kRowsLeast)
        return width == 2 * kThreads ? launch_transpose_rows<T, V, 4, true>(op, args, stream)
                                     : launch_transpose_rows<T, V, 4, false>(op, args, stream);
    }
    if (whole && width >= 32 * C) {
      if (m.geometry.blocks == 4) return launch_transpose_blocks<T, V, true, 4, C, true>(op, args, stream);
      if (m.geometry.blocks == 1) return launch_transpose_blocks<T, V, true, 1, C, true>(op, args, stream);
    }
    if (width >= 128) return launch_transpose_blocks<T, V, true, 0, 4, false>(op, args, stream);
  }
  launch_transpose_blocks<T, V, kShared, 0, 1, false>(op, args, stream);
}

template <typename T>
void choose_transpose(const char* op, const SketchArgs& args, void* stream) {
  const SjltGeometry& g = args.matrix.geometry;
  if (g.tile_bits > 14) {  // keys and signs of a tile would not fit
    transpose_simple_kernel<T, float><<<kTargetBlocks * 8, 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
    check(op, cudaGetLastError());
    return;
  }
  const auto fits = [&](int v) { return args.matrix.rows * v * 4 <= kTransposeBytes; };
  if (args.batch >= 5 && fits(8)) return launch_transpose<T, 8, true>(op, args, stream);
  if (args.batch >= 2 && fits(4)) return launch_transpose<T, 4, true>(op, args, stream);
  if (fits(1)) return launch_transpose<T, 1, true>(op, args, stream);
  launch_transpose<T, 4, false>(op, args, stream);
}

}  // namespace

void sjlt_project(const SketchArgs& args, void* stream) {
  const char* op = "project";
  switch (args.in_dtype) {
    case DType::kFloat16: return choose_project<Float16>(op, args, stream);
    case DType::kBFloat16: return choose_project<BFloat16>(op, args, stream);
    case DType::kFloat32: return choose_project<float>(op, args, stream);
    default: return launch_simple<double, double>(op, args, stream);
  }
}

void sjlt_transpose(const SketchArgs& args, void* stream) {
  const char* op = "project_transpose";
  switch (args.in_dtype) {
    case DType::kFloat16: return choose_transpose<Float16>(op, args, stream);
    case DType::kBFloat16: return choose_transpose<BFloat16>(op, args, stream);
    case DType::kFloat32: return choose_transpose<float>(op, args, stream);
    default:
      transpose_simple_kernel<double, double><<<kTargetBlocks * 8, 256, 0, static_cast<cudaStream_t>(stream)>>>(args);
      check(op, cudaGetLastError());
  }
}

}  // namespace maskless::cuda
