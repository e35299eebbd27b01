// Dropout, one element at a time: the oracle of the tests, the tail of the vector loops, and the code for machines
// without vectors. C++17, host and device.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_REFERENCE_H_
#define MASKLESS_SRC_DROPOUT_DROPOUT_REFERENCE_H_

#include <cstdint>

#include "dropout/dropout_kernels.h"

namespace maskless::reference {

/// Calls f(element, row, position, offsets) for elements [begin, end) of the space in row-major order; offsets[o] is
/// where operand o has the element.
template <typename F>
void for_each(const IndexSpace& space, std::int64_t begin, std::int64_t end, F&& f) {
  std::int64_t coords[kMaxRank] = {}, offsets[kMaxOperands] = {};
  std::uint64_t index = space.first_index;
  std::int64_t rest = begin;
  for (int d = space.rank - 1; d >= 0; --d) {
    coords[d] = rest % space.shape[d];
    rest /= space.shape[d];
    index += space.index_strides[d] * static_cast<std::uint64_t>(coords[d]);
    for (int o = 0; o < space.operands; ++o) offsets[o] += space.strides[o][d] * coords[d];
  }
  for (std::int64_t e = begin; e < end; ++e) {
    f(e, coords[0], index, offsets);
    for (int d = space.rank - 1; d >= 0; --d) {  // step to the next coordinates
      const std::int64_t step = ++coords[d] < space.shape[d] ? 1 : 1 - space.shape[d];
      index += space.index_strides[d] * static_cast<std::uint64_t>(step);
      for (int o = 0; o < space.operands; ++o) offsets[o] += space.strides[o][d] * step;
      if (step == 1) break;
      coords[d] = 0;
    }
  }
}

template <typename T>
void dropout(const DropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  T* y = static_cast<T*>(args.y);
  for_each(args.space, begin, end, [&](std::int64_t, std::int64_t row, std::uint64_t index, const std::int64_t* at) {
    y[at[1]] = keep(args.mask, seed_of(args.mask, row), index) ? scaled(x[at[0]], args.scale, args.copy) : T{};
  });
}

inline void keep_mask(const KeepMaskArgs& args, std::int64_t begin, std::int64_t end) {
  for_each(args.space, begin, end, [&](std::int64_t, std::int64_t row, std::uint64_t index, const std::int64_t* at) {
    args.keep[at[0]] = keep(args.mask, seed_of(args.mask, row), index) ? 1 : 0;
  });
}

/// begin must be a multiple of 8: whole bytes are written, spare bits of the last one as 0.
inline void keep_mask_packed(const KeepMaskPackedArgs& args, std::int64_t begin, std::int64_t end) {
  for_each(args.space, begin, end, [&](std::int64_t e, std::int64_t row, std::uint64_t index, const std::int64_t*) {
    if ((e & 7) == 0) args.bits[e >> 3] = 0;
    if (keep(args.mask, seed_of(args.mask, row), index))
      args.bits[e >> 3] = static_cast<std::uint8_t>(args.bits[e >> 3] | 1u << (e & 7));
  });
}

template <typename T, typename K>
void masked_dropout(const MaskedDropoutArgs& args, std::int64_t begin, std::int64_t end) {
  const T* x = static_cast<const T*>(args.x);
  const K* keep = static_cast<const K*>(args.keep);
  T* y = static_cast<T*>(args.y);
  for_each(args.space, begin, end, [&](std::int64_t, std::int64_t, std::uint64_t, const std::int64_t* at) {
    y[at[2]] = keep[at[1]] != K{0} ? scaled(x[at[0]], args.scale, args.copy) : T{};
  });
}

}  // namespace maskless::reference

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_REFERENCE_H_
