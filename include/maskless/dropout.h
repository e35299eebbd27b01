// Dropout whose mask is a pure function of (seed, stream, logical position) and is never stored.
//
// N. Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 2014. The mask's bits
// are those of docs/spec.md: equal on every device, instruction set, thread count, dtype, memory layout and sharding.
#ifndef MASKLESS_DROPOUT_H_
#define MASKLESS_DROPOUT_H_

#include <cstdint>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless {

enum class Layout : std::uint8_t {
  kPacked,  ///< eight decisions a Philox call, exact p (docs/spec.md)
  kTriton,  ///< the mask of Triton's tl.rand(seed, index) > p, bit for bit; no stream
};

/// One seed a row of a matrix: row r has the seed data[r * stride]. Lives on the tensors' device.
struct RowSeeds {
  const std::uint64_t* data = nullptr;
  std::int64_t stride = 1;
};

struct DropoutOptions {
  double p = 0.5;  ///< probability to drop, in [0, 1]
  Seed seed = {};
  std::uint32_t stream = 0;       ///< call site (layer), below 2^24
  std::uint64_t first_index = 0;  ///< position of the first element
  Layout layout = Layout::kPacked;
  bool scale = true;        ///< multiply what is kept by 1 / (1 - p)
  Shard shard = {};         ///< the piece of a global tensor that this one is
  RowSeeds row_seeds = {};  ///< in place of seed, for a matrix: position i is the column
};

/// y = x * scale where kept, +0 where dropped (also for inf, NaN and -0).
///
/// x and y: same shape, dtype (float16, bfloat16, float32, float64) and device; any strides; y == x runs in place; y
/// must not otherwise overlap x, nor itself. Element i is the row-major position in the logical (or the shard's global)
/// tensor. The product is taken in float32 (float64 for float64) and rounded once to the dtype. Uses no memory besides
/// the output. Bit-exact everywhere. Throws Error. On CUDA the work is queued on execution.cuda_stream.
void dropout(const ConstTensorView& x, const TensorView& y, const DropoutOptions& options,
             const Execution& execution = {});

/// dx = dy * scale where forward kept, +0 where it dropped: the same function with the same options.
void dropout_backward(const ConstTensorView& dy, const TensorView& dx, const DropoutOptions& options,
                      const Execution& execution = {});

/// The mask itself: 1 where kept, as bool or uint8 of the logical shape, any strides.
void keep_mask(const TensorView& mask, const DropoutOptions& options, const Execution& execution = {});

/// The mask as bits: element e (row-major) of a tensor of `shape` is bit e & 7 of byte e >> 3; the last byte's spare
/// bits are 0. bits: uint8, contiguous, ceil(size / 8) bytes. `shape.data` and `shape.strides` are not used.
void keep_mask_packed(const ConstTensorView& shape, const TensorView& bits, const DropoutOptions& options,
                      const Execution& execution = {});

/// Classic dropout from a stored mask: y = x / (1 - p) (x when scale is false) where keep is non-zero, else +0.
/// keep: bool, uint8 or int32, of x's shape, any strides.
void masked_dropout(const ConstTensorView& x, const ConstTensorView& keep, const TensorView& y, double p,
                    bool scale = true, const Execution& execution = {});

}  // namespace maskless

#endif  // MASKLESS_DROPOUT_H_
