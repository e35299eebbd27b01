// What the backends implement for dropout: plain arguments, validated and normalised, no more questions asked.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_KERNELS_H_
#define MASKLESS_SRC_DROPOUT_DROPOUT_KERNELS_H_

#include <cstdint>

#include "common/dropout_mask.h"
#include "common/index_space.h"
#include "maskless/dropout.h"

namespace maskless {

/// y = x * scale where kept, else +0. Operands of the space: x, y.
struct DropoutArgs {
  IndexSpace space;
  DropoutMask mask;
  DType dtype = DType::kFloat32;
  bool copy = false;  // nothing to multiply: kept values pass bit for bit
  double scale = 1.0;
  const void* x = nullptr;
  void* y = nullptr;
};

/// One byte an element, 1 where kept. Operands of the space: the mask.
struct KeepMaskArgs {
  IndexSpace space;
  DropoutMask mask;
  std::uint8_t* keep = nullptr;
};

/// Bit e & 7 of byte e >> 3 is element e in row-major order of the space (which has no operands).
struct KeepMaskPackedArgs {
  IndexSpace space;
  DropoutMask mask;
  std::uint8_t* bits = nullptr;
};

/// y = x * scale where keep is non-zero, else +0. Operands of the space: x, keep, y; positions are not used.
struct MaskedDropoutArgs {
  IndexSpace space;
  DType dtype = DType::kFloat32;
  DType keep_dtype = DType::kBool;
  bool copy = false;
  double scale = 1.0;
  const void* x = nullptr;
  const void* keep = nullptr;
  void* y = nullptr;
};

namespace cpu {
void dropout(const DropoutArgs& args, const Execution& execution);
void keep_mask(const KeepMaskArgs& args, const Execution& execution);
void keep_mask_packed(const KeepMaskPackedArgs& args, const Execution& execution);
void masked_dropout(const MaskedDropoutArgs& args, const Execution& execution);
}  // namespace cpu

namespace cuda {  // defined where the library is built with CUDA
void dropout(const DropoutArgs& args, Device device, void* stream);
void keep_mask(const KeepMaskArgs& args, Device device, void* stream);
void keep_mask_packed(const KeepMaskPackedArgs& args, Device device, void* stream);
void masked_dropout(const MaskedDropoutArgs& args, Device device, void* stream);
}  // namespace cuda

}  // namespace maskless

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_KERNELS_H_
