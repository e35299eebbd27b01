// What another project would write first. Fails if the masks are not those of the specification.
#include <maskless/core/version.h>
#include <maskless/dropout.h>
#include <maskless/runtime.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<float> x(1000, 1.0f), y(1000);
  maskless::DropoutOptions options;
  options.p = 0.5;
  options.seed = 123;
  maskless::dropout(maskless::contiguous_view(static_cast<const void*>(x.data()), maskless::DType::kFloat32, {1000}),
                    maskless::contiguous_view(y.data(), maskless::DType::kFloat32, {1000}), options);
  int kept = 0;
  for (float v : y) kept += v == 2.0f;
  std::printf("maskless %s: kept %d of 1000\n", maskless::kVersion, kept);
  options.p = 2;
  try {
    maskless::dropout(maskless::contiguous_view(static_cast<const void*>(x.data()), maskless::DType::kFloat32, {1000}),
                      maskless::contiguous_view(y.data(), maskless::DType::kFloat32, {1000}), options);
  } catch (const maskless::Error&) {  // thrown in the library, caught here
    return kept == 509 ? 0 : 1;
  }
  return 1;
}
