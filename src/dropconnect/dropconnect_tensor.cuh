// Launches of the tensor core kernels: operands are packed into the workspace first, piece by piece where they do not
// fit.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_TENSOR_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_TENSOR_CUH_

#include "dropconnect/dropconnect_forward_mma.cuh"
#include "dropconnect/dropconnect_gradient_mma.cuh"
#include "dropconnect/dropconnect_launch.cuh"

namespace maskless::cuda {

/// The product on tensor cores, in pieces whose packed operands fit in the workspace.
template <typename Tile>
void launch_forward_mma(const char* op, const DropconnectArgs& args, int device, cudaStream_t stream) {
  const DropconnectShape& shape = args.shape;
  const std::int64_t rows = shape.passes * shape.rows, shift = args.mask.first_input % kBlockInputs;
  const std::int64_t tiles_m = ceil_div(rows, Tile::kM), tiles_n = ceil_div(shape.outputs, Tile::kN);
  PackedForward packed;
  packed.blocks = static_cast<int>(ceil_div(shift + shape.inputs, kBlockInputs));
  packed.w_rows = tiles_n * Tile::kN;
  packed.x_rows = tiles_m * Tile::kM;
  const std::int64_t row_bytes = packed.blocks * (2 * kBlockInputs + 1);  // and a flag for eight rows
  const std::int64_t w_bytes = packed.w_rows * row_bytes, x_bytes = packed.x_rows * row_bytes;
  if (w_bytes + x_bytes > kWorkspaceBytes && (tiles_n > 1 || tiles_m > 1)) {
    DropconnectArgs first = args, second = args;
    if (w_bytes >= x_bytes || (tiles_m == 1 && shape.passes == 1)) {
      const std::int64_t n = (tiles_n + 1) / 2 * Tile::kN;
      first.shape.outputs = n;
      second.shape.outputs -= n;
      second.mask.first_output += static_cast<std::uint32_t>(n);
      second.w.data = static_cast<const BFloat16*>(args.w.data) + n * args.w.row;
      if (args.bias != nullptr) second.bias = static_cast<const BFloat16*>(args.bias) + n * args.bias_stride;
      second.y.data = static_cast<BFloat16*>(args.y.data) + n * args.y.col;
    } else if (shape.passes > 1) {
      const std::int64_t s = shape.passes / 2;
      first.shape.passes = s;
      second.shape.passes -= s;
      second.mask.first_sample += static_cast<std::uint32_t>(s) * args.mask.sample_stride;
      second.y.data = static_cast<BFloat16*>(args.y.data) + s * args.y_pass;
    } else {
      const std::int64_t m = (tiles_m + 1) / 2 * Tile::kM;
      first.shape.rows = m;
      second.shape.rows -= m;
      second.mask.first_sample += static_cast<std::uint32_t>(m) * args.mask.row_stride;
      second.x.data = static_cast<const BFloat16*>(args.x.data) + m * args.x.row;
      second.y.data = static_cast<BFloat16*>(args.y.data) + m * args.y.row;
    }
    launch_forward_mma<Tile>(op, first, device, stream);
    launch_forward_mma<Tile>(op, second, device, stream);
    return;
  }

  const std::int64_t size = rows * shape.outputs, bytes = size * static_cast<std::int64_t>(sizeof(float));
  Split split;
  split.count = static_cast<int>(
      parts(tiles_m * tiles_n, packed.blocks, multiprocessors(op, device) * Tile::kBlocksPerSm, bytes));
  split.per_split = (packed.blocks + split.count - 1) / split.count;
  const Workspace operands(op, device, static_cast<std::size_t>(w_bytes + x_bytes), stream);
  const Workspace partial(op, device, split.count > 1 ? static_cast<std::size_t>(split.count * bytes) : 0, stream);
  split.partial = partial.data();
  packed.w = static_cast<uint4*>(operands.data());
  packed.x = packed.w + packed.w_rows * packed.blocks * 16;
  packed.bad_w = reinterpret_cast<unsigned char*>(packed.x + packed.x_rows * packed.blocks * 16);
  packed.bad_x = packed.bad_w + packed.w_rows / 8 * packed.blocks;

  const bool wide_x = wide_rows<BFloat16>(args.x.data, args.x.row, args.x.col, shift);
  const bool wide_w = wide_rows<BFloat16>(args.w.data, args.w.row, args.w.col, shift);
  const std::int64_t threads = (packed.w_rows + packed.x_rows) * packed.blocks * 4;
  pack_forward_kernel<<<grid_size(op, ceil_div(threads, 256)), 256, 0, stream>>>(args, packed, wide_x, wide_w);
  check(op, cudaGetLastError());
  static std::atomic<std::uint64_t> done{0};
  constexpr std::size_t kShared = std::max(sizeof(MmaShared<Tile>), sizeof(ForwardShared<float, typename Tile::Plain>));
  allow_shared(op, forward_mma_kernel<Tile>, device, kShared, done);
  launch_early_shared<forward_mma_kernel<Tile>>(
      op, {DeviceType::kCuda, device}, dim3(grid_size(op, tiles_m * tiles_n), static_cast<unsigned>(split.count)),
      Tile::kThreads, kShared, stream, args, wide_x, wide_w, split, packed);
  if (split.count > 1) add_forward_parts<BFloat16>(op, args, split, stream);
}

/// As above, for a gradient; false where its operands cannot be packed within the workspace.
template <typename Tile>
bool launch_gradient_mma(const char* op, const GradientArgs& args, int device, cudaStream_t stream) {
  const std::int64_t shift = args.mask.first_input % kBlockInputs;
  const std::int64_t tiles = ceil_div(args.size_a, Tile::kA);
  PackedGradient packed;
  packed.blocks = static_cast<int>(ceil_div(shift + args.inputs, kBlockInputs));
  packed.chunks = static_cast<int>(ceil_div(args.size_b, kChunkB));
  packed.s_tiles = tiles * Tile::kWarpsA;
  const std::int64_t v_bytes = std::int64_t{packed.blocks} * packed.chunks * 4100;
  const std::int64_t s_bytes = packed.s_tiles * packed.chunks * 257;
  if (v_bytes + s_bytes > kWorkspaceBytes) {
    if (packed.chunks * (4100 + Tile::kWarpsA * 257) > kWorkspaceBytes) return false;
    GradientArgs first = args, second = args;
    if (packed.blocks > 1 && (v_bytes >= s_bytes || tiles == 1)) {
      const std::int64_t k = (packed.blocks + 1) / 2 * kBlockInputs - shift;
      first.inputs = k;
      second.inputs -= k;
      second.mask.first_input += static_cast<std::uint64_t>(k);
      second.v.data = static_cast<const BFloat16*>(args.v.data) + k * args.v.col;
      second.out.data = static_cast<BFloat16*>(args.out.data) + k * args.out.col;
    } else {
      const std::int64_t a = (tiles + 1) / 2 * Tile::kA;
      first.size_a = a;
      second.size_a -= a;
      if (args.a_is_row) {
        second.mask.first_sample += static_cast<std::uint32_t>(a) * args.mask.row_stride;
      } else {
        second.mask.first_output += static_cast<std::uint32_t>(a);
      }
      second.s = static_cast<const BFloat16*>(args.s) + a * args.s_a;
      second.out.data = static_cast<BFloat16*>(args.out.data) + a * args.out.row;
    }
    return launch_gradient_mma<Tile>(op, first, device, stream) &&
           launch_gradient_mma<Tile>(op, second, device, stream);
  }

  const std::int64_t size = args.size_a * args.inputs, bytes = size * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t count =
      parts(tiles * packed.blocks, packed.chunks, multiprocessors(op, device) * Tile::kBlocksPerSm, bytes);
  const std::int64_t per_split = ceil_div(packed.chunks, count);
  const Workspace operands(op, device, static_cast<std::size_t>(v_bytes + s_bytes), stream);
  const Workspace partial(op, device, count > 1 ? static_cast<std::size_t>(count * bytes) : 0, stream);
  packed.v = static_cast<uint4*>(operands.data());
  packed.s = reinterpret_cast<uint2*>(packed.v + std::int64_t{packed.blocks} * packed.chunks * 256);
  packed.bad_v = reinterpret_cast<unsigned char*>(packed.s + packed.s_tiles * packed.chunks * 32);
  packed.bad_s = packed.bad_v + std::int64_t{packed.blocks} * packed.chunks * 4;

  const bool wide = wide_rows<BFloat16>(args.v.data, args.v.row, args.v.col, shift);
  const std::int64_t warps = (packed.blocks * (kSteps / 2) + packed.s_tiles) * packed.chunks;
  pack_gradient_kernel<<<grid_size(op, ceil_div(warps, 8)), 256, 0, stream>>>(args, packed, wide);
  check(op, cudaGetLastError());
  static std::atomic<std::uint64_t> done{0};
  constexpr std::size_t kShared =
      std::max(sizeof(GradientMmaShared<Tile>), sizeof(BackwardShared<float, typename Tile::Plain>));
  allow_shared(op, gradient_mma_kernel<Tile>, device, kShared, done);
  launch_early_shared<gradient_mma_kernel<Tile>>(
      op, {DeviceType::kCuda, device}, dim3(grid_size(op, tiles * packed.blocks), static_cast<unsigned>(count)),
      Tile::kThreads, kShared, stream, args, wide, wide_gradient<BFloat16>(args, shift, count > 1), partial.data(),
      per_split, packed);
  if (count > 1) add_gradient_parts<BFloat16>(op, args, partial.data(), count, stream);
  return true;
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_TENSOR_CUH_
