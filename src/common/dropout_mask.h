// Dropout's mask as every operation that drops out uses it: the part of the arguments that decisions are a function of.
// C++17, host and device.
#ifndef MASKLESS_SRC_COMMON_DROPOUT_MASK_H_
#define MASKLESS_SRC_COMMON_DROPOUT_MASK_H_

#include <cstdint>

#include "common/float_types.h"
#include "maskless/core/uniform.h"
#include "maskless/dropout.h"

namespace maskless {

struct DropoutMask {
  std::uint64_t threshold = 0;  // packed: dropped iff u < threshold (33 bits). Triton: iff the folded word < threshold
  std::uint64_t seed = 0;
  const std::uint64_t* seed_pointer = nullptr;  // in place of seed, if not null
  const std::uint64_t* row_seeds =
      nullptr;  // in place of both: row r (dimension 0 of the space) has row_seeds[r * stride]
  std::int64_t row_seed_stride = 1;
  std::uint32_t stream = 0;
  Layout layout = Layout::kPacked;
};

/// Validates p, stream, layout and row_seeds for a tensor, and makes the mask of them.
DropoutMask make_dropout_mask(const char* op, const ConstTensorView& tensor, const DropoutOptions& options);

namespace reference {

/// The decision for one position under one seed.
MASKLESS_HOST_DEVICE inline bool keep(const DropoutMask& mask, std::uint64_t seed, std::uint64_t index) {
  if (mask.layout == Layout::kTriton) return triton_word(seed, index) >= mask.threshold;
  return dropout_keep(seed, index, mask.threshold, mask.stream);
}

MASKLESS_HOST_DEVICE inline std::uint64_t seed_of(const DropoutMask& mask, std::int64_t row) {
  if (mask.row_seeds != nullptr) return mask.row_seeds[row * mask.row_seed_stride];
  return mask.seed_pointer != nullptr ? *mask.seed_pointer : mask.seed;
}

/// A kept value: one product in float32 (float64 for float64 data), one rounding.
template <typename T>
MASKLESS_HOST_DEVICE inline T scaled(T x, double scale, bool copy) {
  return copy ? x : from_float<T>(to_float(x) * static_cast<float>(scale));
}
template <>
MASKLESS_HOST_DEVICE inline double scaled<double>(double x, double scale, bool copy) {
  return copy ? x : x * scale;
}

}  // namespace reference
}  // namespace maskless

#endif  // MASKLESS_SRC_COMMON_DROPOUT_MASK_H_
