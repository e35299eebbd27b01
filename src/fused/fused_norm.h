#ifndef MASKLESS_SRC_FUSED_FUSED_NORM_H_
#define MASKLESS_SRC_FUSED_FUSED_NORM_H_

#include <cstdint>

namespace maskless::cuda {

/// Numbers (of the arithmetic's type) that fused_norm_backward needs in its workspace.
std::int64_t fused_norm_sums(std::int64_t rows, std::int64_t cols);

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_FUSED_FUSED_NORM_H_
