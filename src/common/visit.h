// The only dispatch over dtypes: calls f with a Type<T> tag, so that kernels are templates on T alone.
#ifndef MASKLESS_SRC_COMMON_VISIT_H_
#define MASKLESS_SRC_COMMON_VISIT_H_

#include "common/float_types.h"
#include "maskless/tensor.h"

namespace maskless {

template <typename T>
struct Type {
  using type = T;
};

/// float16, bfloat16, float32, float64. The caller has validated the dtype: others do nothing.
template <typename F>
void visit_floating(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f(Type<Float16>{});
    case DType::kBFloat16: return f(Type<BFloat16>{});
    case DType::kFloat32: return f(Type<float>{});
    case DType::kFloat64: return f(Type<double>{});
    default: return;
  }
}

}  // namespace maskless

#endif  // MASKLESS_SRC_COMMON_VISIT_H_
