// A first, simple backend: one element a thread, by its coordinates.
#include "common/visit.h"
#include "cuda/launch.h"
#include "dropout/dropout_kernels.h"
#include "dropout/dropout_reference.h"

namespace maskless::cuda {
namespace {

constexpr int kThreads = 256;

struct Element {
  std::int64_t row = 0;
  std::uint64_t index = 0;
  std::int64_t at[kMaxOperands] = {};
};

__device__ Element locate(const IndexSpace& space, std::int64_t e) {
  Element element;
  element.index = space.first_index;
  for (int d = space.rank - 1; d >= 0; --d) {
    const std::int64_t coord = e % space.shape[d];
    e /= space.shape[d];
    element.index += space.index_strides[d] * static_cast<std::uint64_t>(coord);
    for (int o = 0; o < space.operands; ++o) element.at[o] += space.strides[o][d] * coord;
    element.row = coord;
  }
  return element;
}

template <typename F>
__global__ void for_each_kernel(IndexSpace space, F f) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t e = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; e < space.size; e += step)
    f(e, locate(space, e));
}

template <typename F>
void for_each(const char* op, const IndexSpace& space, Device device, void* stream, F f) {
  DeviceGuard guard(op, device);
  const std::int64_t blocks = (space.size + kThreads - 1) / kThreads;
  const auto grid = static_cast<unsigned>(blocks < 65536 ? blocks : 65536);
  for_each_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(space, f);
  check(op, cudaGetLastError());
}

template <typename T>
struct DropoutElement {
  DropoutArgs args;
  __device__ void operator()(std::int64_t, const Element& e) const {
    const bool kept = reference::keep(args.mask, reference::seed_of(args.mask, e.row), e.index);
    static_cast<T*>(args.y)[e.at[1]] =
        kept ? reference::scaled(static_cast<const T*>(args.x)[e.at[0]], args.scale, args.copy) : T{};
  }
};

struct KeepMaskElement {
  KeepMaskArgs args;
  __device__ void operator()(std::int64_t, const Element& e) const {
    args.keep[e.at[0]] = reference::keep(args.mask, reference::seed_of(args.mask, e.row), e.index) ? 1 : 0;
  }
};

}  // namespace

void dropout(const DropoutArgs& args, Device device, void* stream) {
  visit_floating(args.dtype, [&](auto type) {
    for_each("dropout", args.space, device, stream, DropoutElement<typename decltype(type)::type>{args});
  });
}

void keep_mask(const KeepMaskArgs& args, Device device, void* stream) {
  for_each("keep_mask", args.space, device, stream, KeepMaskElement{args});
}

void keep_mask_packed(const KeepMaskPackedArgs&, Device, void*) {
  throw Error(ErrorKind::kRuntime, "keep_mask_packed", "device", "cuda is not supported yet", "");
}

void masked_dropout(const MaskedDropoutArgs&, Device, void*) {
  throw Error(ErrorKind::kRuntime, "masked_dropout", "device", "cuda is not supported yet", "");
}

}  // namespace maskless::cuda
