#include "common/visit.h"
#include "dropout/dropout_kernels.h"
#include "dropout/dropout_reference.h"

namespace maskless::cpu {

void dropout(const DropoutArgs& args, const Execution&) {
  visit_floating(args.dtype,
                 [&](auto type) { reference::dropout<typename decltype(type)::type>(args, 0, args.space.size); });
}

void keep_mask(const KeepMaskArgs& args, const Execution&) { reference::keep_mask(args, 0, args.space.size); }

void keep_mask_packed(const KeepMaskPackedArgs& args, const Execution&) {
  reference::keep_mask_packed(args, 0, args.space.size);
}

void masked_dropout(const MaskedDropoutArgs& args, const Execution&) {
  visit_floating(args.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (args.keep_dtype == DType::kInt32) {
      reference::masked_dropout<T, std::int32_t>(args, 0, args.space.size);
    } else {
      reference::masked_dropout<T, std::uint8_t>(args, 0, args.space.size);
    }
  });
}

}  // namespace maskless::cpu
