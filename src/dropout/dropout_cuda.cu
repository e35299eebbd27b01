// Dropout's CUDA backend: which kernel takes which memory.
#include <algorithm>

#include "common/visit.h"
#include "dropout/dropout_kernels.h"
#include "dropout/dropout_planes.cuh"

namespace maskless::cuda {
namespace {

// Tuning, measured on an H200 (bench/results/). A block of 128 threads that moves 2 or 4 KiB each way is best: more
// bytes a thread or larger blocks cost 1 to 3 %.
template <typename T>
constexpr unsigned kThreads = sizeof(T) == 8 ? 64 : 128;
/// Octets (eight positions, one Philox call) a thread, two for 16-bit elements of large tensors. In the Triton layout
/// more: there what a thread does once is in the way of what it does for each element.
template <typename T>
constexpr int kUnroll = sizeof(T) == 2 ? 2 : 1;
template <typename T>
constexpr int kTritonUnroll = sizeof(T) == 8 ? 1 : 4;
/// Of a row, each thread of which first has to find where it is.
template <typename T>
constexpr int kRowUnroll = sizeof(T) == 2   ? 4
                           : sizeof(T) == 4 ? 2
                                            : 1;
constexpr std::int64_t kManyOctets = 1 << 18;   // below, one octet a thread, to fill the chip
constexpr std::int64_t kSmallOctets = 1 << 14;  // up to here the next kernel may start beside this one
constexpr std::int64_t kMaxGridY = 65535;
constexpr std::int64_t kShortRow = 256;  // rows shorter than this are not worth a block
/// Calls f with std::bool_constant: the Triton layout has kernels of its own where the generator is the limit.
template <typename F>
void visit_layout(bool triton, F&& f) {
  if (triton) {
    f(std::true_type{});
  } else {
    f(std::false_type{});
  }
}

template <typename T>
Scale<T> scale_of(const DropoutArgs& args) {
  return {static_cast<ArithmeticType<T>>(args.scale), args.copy};
}

template <typename T>
DropElement<T> element_of(const DropoutArgs& args) {
  return {static_cast<const T*>(args.x), static_cast<T*>(args.y), scale_of<T>(args)};
}

/// Contiguous memory. False if y and the positions have no alignment in common: then it is a line.
template <typename T>
bool flat(const char* op, const DropoutArgs& args, Device device, void* stream) {
  const IndexSpace& space = args.space;
  FlatArgs<T> flat;
  flat.x = static_cast<const T*>(args.x);
  flat.y = static_cast<T*>(args.y);
  std::int64_t head = std::min<std::int64_t>(static_cast<std::int64_t>((8 - space.first_index % 8) % 8), space.size);
  flat.octets = (space.size - head) / 8;
  const bool shifted = flat.octets > 0 && !aligned(flat.x + head);
  if (flat.octets > 0 && !aligned(flat.y + head)) return false;
  if (shifted) {  // the aligned vectors around the octets must be within x
    const auto before = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(flat.x + head) % 16 / sizeof(T));
    if (head < before) {
      head += 8;
      --flat.octets;
    }
    if (flat.octets > 0 && space.size - head - 8 * flat.octets < kVectorSize<T> - before) --flat.octets;
    if (flat.octets == 0) return false;
  }
  flat.head = static_cast<std::uint8_t>(head);
  flat.tail = static_cast<std::uint8_t>(space.size - head - 8 * flat.octets);
  flat.first_index = space.first_index;
  flat.mask = device_mask(args.mask);
  flat.scale = scale_of<T>(args).value;
  flat.copy = args.copy;
  flat.small = flat.octets <= kSmallOctets;
  visit_layout(args.mask.layout == Layout::kTriton, [&](auto triton) {
    const auto run = [&](auto octets, auto vectors) {
      using Vectors = typename decltype(vectors)::type;
      const unsigned blocks = std::max(1u, blocks_for(flat.octets, kThreads<T> * octets.value));
      launch_early<dropout_flat_kernel<T, octets.value, triton.value, Vectors>>(op, device, blocks, kThreads<T>, stream,
                                                                                flat);
    };
    constexpr std::integral_constant<int, 1> one;
    constexpr std::integral_constant<int, kUnroll<T>> few;
    constexpr std::integral_constant<int, triton.value ? kTritonUnroll<T> : kUnroll<T>> many;
    if (shifted) {
      run(few, Type<ShiftedVectors>{});
    } else if (flat.octets < kManyOctets) {
      run(one, Type<AlignedVectors>{});
    } else {
      run(many, Type<AlignedVectors>{});
    }
  });
  return true;
}

/// Do all rows of the space start at positions of a multiple of 8, and in operands of aligned memory?
template <typename T>
bool rows_aligned(const IndexSpace& space, const T* x, const T* y) {
  bool all = space.first_index % 8 == 0 && aligned(x) && aligned(y);
  for (int d = 0; d < space.rank - 1; ++d)
    all = all && space.index_strides[d] % 8 == 0 && space.strides[0][d] % kVectorSize<T> == 0 &&
          space.strides[1][d] % kVectorSize<T> == 0;
  return all;
}

template <typename T>
void rows(const char* op, const DropoutArgs& args, void* stream) {
  const IndexSpace& space = args.space;
  const std::int64_t size = space.shape[space.rank - 1], octets = size / 8, count = space.size / size;
  visit_layout(args.mask.layout == Layout::kTriton, [&](auto triton) {
    constexpr int kOctets = triton.value ? kUnroll<T> : kRowUnroll<T>;
    const auto threads =
        static_cast<unsigned>(std::min<std::int64_t>(ceil_div(octets, 32 * kOctets) * 32, kThreads<T>));
    const std::int64_t planes = ceil_div(count, kMaxGridY);
    const dim3 grid(blocks_for(octets, threads * kOctets), static_cast<unsigned>(ceil_div(count, planes)),
                    static_cast<unsigned>(planes));
    launch(op, dropout_rows_kernel<T, kOctets, triton.value>, grid, threads, stream, space, element_of<T>(args),
           strided_mask(args.mask));
  });
}

/// The dimension, other than the last, in which operand o's elements lie side by side; -1 if there is none.
int dense_dim(const IndexSpace& space, int o) {
  for (int d = 0; d < space.rank - 1; ++d)
    if (space.strides[o][d] == 1) return d;
  return -1;
}

Plane make_plane(const IndexSpace& space, int along, std::int64_t tile_along, std::int64_t tile_across) {
  const int last = space.rank - 1;
  Plane plane;
  plane.along = space.shape[along];
  plane.across = space.shape[last];
  plane.along_index = space.index_strides[along];
  for (int o = 0; o < 2; ++o) {
    plane.along_stride[o] = space.strides[o][along];
    plane.across_stride[o] = space.strides[o][last];
  }
  plane.outer.operands = space.operands;
  plane.outer.first_index = space.first_index;
  for (int d = 0; d < last; ++d) {
    if (d == along) continue;
    const int to = plane.outer.rank++;
    plane.outer.shape[to] = space.shape[d];
    plane.outer.index_strides[to] = space.index_strides[d];
    for (int o = 0; o < 2; ++o) plane.outer.strides[o][to] = space.strides[o][d];
  }
  plane.tiles_along = ceil_div(plane.along, tile_along);
  plane.tiles_across = ceil_div(plane.across, tile_across);
  plane.tiles = space.size / plane.along / plane.across * plane.tiles_along * plane.tiles_across;
  return plane;
}

/// 16-bit elements in whole vectors along, whose positions fall into whole octets across.
template <typename T>
bool octet_columns(const char* op, const DropoutArgs& args, int along, void* stream) {
  if constexpr (sizeof(T) == 2) {
    const IndexSpace& space = args.space;
    bool whole = args.mask.layout == Layout::kPacked && args.mask.row_seeds == nullptr && aligned(args.x) &&
                 aligned(args.y) && space.first_index % 8 == 0 && space.shape[along] % 8 == 0 &&
                 space.shape[space.rank - 1] % 8 == 0;
    for (int d = 0; d < space.rank; ++d) {
      whole = whole && (d == along || (space.strides[0][d] % 8 == 0 && space.strides[1][d] % 8 == 0));
      whole = whole && (d == space.rank - 1 || space.index_strides[d] % 8 == 0);
    }
    if (!whole) return false;
    int lanes = 32;
    while (lanes > 1 && 4 * lanes >= space.shape[along]) lanes /= 2;
    const Plane plane = make_plane(space, along, 8 * lanes, kStridedThreads / lanes * 8);
    launch(op, dropout_octet_columns_kernel<T>, blocks_for(plane.tiles, 1), kStridedThreads, stream, plane,
           element_of<T>(args), device_mask(args.mask), lanes);
    return true;
  }
  return false;
}

template <typename T>
void columns(const char* op, const DropoutArgs& args, int along, void* stream) {
  if (octet_columns<T>(op, args, along, stream)) return;
  const IndexSpace& space = args.space;
  bool pairs = sizeof(T) == 2 && space.shape[along] % 2 == 0 && reinterpret_cast<std::uintptr_t>(args.x) % 4 == 0 &&
               reinterpret_cast<std::uintptr_t>(args.y) % 4 == 0;
  for (int d = 0; d < space.rank; ++d)
    pairs = pairs && (d == along || (space.strides[0][d] % 2 == 0 && space.strides[1][d] % 2 == 0));
  constexpr int kWide = sizeof(T) == 2 ? 2 : 1;
  const Plane plane = make_plane(space, along, kColumnLanes * (pairs ? kWide : 1), kColumnPositions);
  launch(op, pairs ? dropout_columns_kernel<T, kWide> : dropout_columns_kernel<T, 1>, blocks_for(plane.tiles, 1),
         kStridedThreads, stream, plane, element_of<T>(args), strided_mask(args.mask));
}

/// `out`: y's memory is the one that does not run with the positions.
template <typename T>
void transpose(const char* op, const DropoutArgs& args, int along, bool out, void* stream) {
  const IndexSpace& space = args.space;
  const int straight = out ? 0 : 1;  // the operand whose memory runs with the positions; the other is crossed
  bool vectors = aligned(out ? args.x : args.y);
  bool pairs =
      sizeof(T) == 2 && space.shape[along] % 2 == 0 && reinterpret_cast<std::uintptr_t>(out ? args.y : args.x) % 4 == 0;
  for (int d = 0; d < space.rank; ++d) {
    vectors = vectors && (d == space.rank - 1 || space.strides[straight][d] % kVectorSize<T> == 0);
    pairs = pairs && (d == along || space.strides[1 - straight][d] % 2 == 0);
  }
  const Plane plane = make_plane(space, along, kTile, kTile);
  constexpr int kWide = sizeof(T) == 2 ? 2 : 1;
  const auto kernel = out ? (pairs ? dropout_transpose_kernel<T, true, kWide> : dropout_transpose_kernel<T, true, 1>)
                          : (pairs ? dropout_transpose_kernel<T, false, kWide> : dropout_transpose_kernel<T, false, 1>);
  launch(op, kernel, blocks_for(plane.tiles, 1), kStridedThreads, stream, plane, element_of<T>(args),
         strided_mask(args.mask), vectors);
}

template <typename T>
void strided(const char* op, const DropoutArgs& args, void* stream) {
  const IndexSpace& space = args.space;
  const int last = space.rank - 1;
  const auto general = [&] { launch_any(op, space, args.mask, stream, element_of<T>(args)); };
  if (space.rank == 0 || space.index_strides[last] != 1) return general();
  const std::int64_t size = space.shape[last];
  const bool x_straight = space.strides[0][last] == 1, y_straight = space.strides[1][last] == 1;
  if (x_straight && y_straight) {
    const bool fits = space.size / size <= kMaxGridY * kMaxGridY && size >= kShortRow;
    if (fits && rows_aligned(space, static_cast<const T*>(args.x), static_cast<const T*>(args.y)))
      return rows<T>(op, args, stream);
    return general();
  }
  const int x_along = dense_dim(space, 0), y_along = dense_dim(space, 1);
  const auto wide = [&](int along) { return along >= 0 && space.shape[along] >= 16 && size >= 8; };
  if (x_along == y_along && wide(x_along)) return columns<T>(op, args, x_along, stream);
  if (y_straight && wide(x_along)) return transpose<T>(op, args, x_along, false, stream);
  if (x_straight && wide(y_along)) return transpose<T>(op, args, y_along, true, stream);
  general();
}

}  // namespace

void dropout(const DropoutArgs& args, Device device, void* stream) {
  const char* op = "dropout";
  DeviceGuard guard(op, device);
  DropoutArgs plain = args;
  if (args.mask.threshold == 0) plain.mask.layout = Layout::kPacked;  // all is kept in either layout
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool one_row = args.space.contiguous() && args.mask.row_seeds == nullptr;
    if (!one_row || !flat<T>(op, plain, device, stream)) strided<T>(op, plain, stream);
  });
}

}  // namespace maskless::cuda
