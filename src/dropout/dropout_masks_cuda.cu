// The mask itself on the device, and dropout from a stored one.
#include "common/visit.h"
#include "dropout/dropout_kernels.h"
#include "dropout/dropout_strided.cuh"

namespace maskless::cuda {
namespace {

constexpr int kThreads = 256;

/// Eight decisions of position first_index + 8 * i a thread, as eight bytes.
__global__ void __launch_bounds__(kThreads)
    keep_mask_kernel(std::uint8_t* keep, std::int64_t octets, std::uint64_t first_index, DeviceMask mask, bool triton) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const std::uint64_t seed = seed_of(mask);
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < octets; i += step) {
    const std::uint32_t byte = keep_byte_at(mask, triton, seed, first_index + 8 * i);
    // Bit j of a nibble to byte j: the copies of the nibble that a product makes do not overlap at bits 0, 8, 16, 24.
    reinterpret_cast<uint2*>(keep)[i] =
        make_uint2((byte & 15u) * 0x00204081u & 0x01010101u, (byte >> 4) * 0x00204081u & 0x01010101u);
  }
}

/// A byte of bits a thread. Positions run on from first_index (`run`), or are found element by element.
__global__ void __launch_bounds__(kThreads)
    keep_mask_packed_kernel(IndexSpace space, std::uint8_t* bits, bool run, StridedMask mask) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads, bytes = (space.size + 7) / 8;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < bytes; i += step) {
    const int count = static_cast<int>(space.size - 8 * i < 8 ? space.size - 8 * i : 8);
    std::uint32_t byte = 0;
    if (run) {
      byte = keep_byte_at(mask.mask, mask.triton, mask.seed(0), space.first_index + 8 * i) & ((1u << count) - 1);
    } else {
      for (int j = 0; j < count; ++j) {
        const Place<1> place = locate<1>(space, 8 * i + j, space.rank);
        const std::uint32_t octet = keep_byte(mask.mask, mask.triton, mask.seed(place.row), place.index >> 3);
        byte |= (octet >> (place.index & 7) & 1u) << j;
      }
    }
    bits[i] = static_cast<std::uint8_t>(byte);
  }
}

/// Contiguous x, keep and y, vectors of x and y aligned, and K's of as many elements: a vector a thread.
template <typename T, typename K>
__global__ void __launch_bounds__(kThreads)
    masked_dropout_kernel(const T* x, const K* keep, T* y, std::int64_t size, Scale<T> scale) {
  constexpr int kSize = kVectorSize<T>;
  struct alignas(kSize * sizeof(K) < 16 ? kSize * sizeof(K) : 16) Kept {
    K element[kSize];
  };
  struct alignas(kVectorBytes) Elements {
    T element[kSize];
  };
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads, vectors = size / kSize;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < vectors; i += step) {
    Elements v = reinterpret_cast<const Elements*>(x)[i];
    const Kept k = reinterpret_cast<const Kept*>(keep)[i];
#pragma unroll
    for (int j = 0; j < kSize; ++j) v.element[j] = k.element[j] != K{0} ? scale_element(v.element[j], scale) : T{};
    reinterpret_cast<Elements*>(y)[i] = v;
  }
  const std::int64_t e = vectors * kSize + first;
  if (e < size) y[e] = keep[e] != K{0} ? scale_element(x[e], scale) : T{};
}

template <typename T, typename K>
__global__ void __launch_bounds__(kThreads)
    masked_dropout_strided_kernel(IndexSpace space, const T* x, const K* keep, T* y, Scale<T> scale) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < space.size; e += step) {
    const Place<3> place = locate<3>(space, e, space.rank);
    y[place.at[2]] = keep[place.at[1]] != K{0} ? scale_element(x[place.at[0]], scale) : T{};
  }
}

template <typename T, typename K>
void masked(const char* op, const MaskedDropoutArgs& args, void* stream) {
  const T* x = static_cast<const T*>(args.x);
  const K* keep = static_cast<const K*>(args.keep);
  T* y = static_cast<T*>(args.y);
  const Scale<T> scale = {static_cast<ArithmeticType<T>>(args.scale), args.copy};
  if (args.space.contiguous() && aligned(x) && aligned(keep) && aligned(y)) {
    launch(op, masked_dropout_kernel<T, K>, blocks_for(args.space.size, kThreads * kVectorSize<T>), kThreads, stream, x,
           keep, y, args.space.size, scale);
  } else {
    launch(op, masked_dropout_strided_kernel<T, K>, blocks_for(args.space.size, kThreads), kThreads, stream, args.space,
           x, keep, y, scale);
  }
}

}  // namespace

void keep_mask(const KeepMaskArgs& args, Device device, void* stream) {
  const char* op = "keep_mask";
  DeviceGuard guard(op, device);
  const IndexSpace& space = args.space;
  if (args.mask.row_seeds == nullptr && space.contiguous() && space.size % 8 == 0 &&
      reinterpret_cast<std::uintptr_t>(args.keep) % 8 == 0) {
    launch(op, keep_mask_kernel, blocks_for(space.size / 8, kThreads), kThreads, stream, args.keep, space.size / 8,
           space.first_index, device_mask(args.mask), args.mask.layout == Layout::kTriton);
  } else {
    launch_any(op, space, args.mask, stream, KeepElement{args.keep});
  }
}

void keep_mask_packed(const KeepMaskPackedArgs& args, Device device, void* stream) {
  const char* op = "keep_mask_packed";
  DeviceGuard guard(op, device);
  const bool run = args.mask.row_seeds == nullptr && args.space.contiguous();
  launch(op, keep_mask_packed_kernel, blocks_for((args.space.size + 7) / 8, kThreads), kThreads, stream, args.space,
         args.bits, run, strided_mask(args.mask));
}

void masked_dropout(const MaskedDropoutArgs& args, Device device, void* stream) {
  const char* op = "masked_dropout";
  DeviceGuard guard(op, device);
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.keep_dtype == DType::kInt32) {
      masked<T, std::int32_t>(op, args, stream);
    } else {
      masked<T, std::uint8_t>(op, args, stream);
    }
  });
}

}  // namespace maskless::cuda
