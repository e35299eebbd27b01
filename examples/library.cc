// The library from C++: dropout, its backward pass without a stored mask, a shard, an error.
//
// Build it in a project of your own with
//   find_package(maskless REQUIRED)
//   target_link_libraries(my_program PRIVATE maskless::maskless)
#include <cstdio>
#include <vector>

#include "maskless/dropout.h"

int main() {
  using maskless::DType;
  constexpr std::int64_t kRows = 6, kCols = 10;
  std::vector<float> x(kRows * kCols, 1.0f), y(x.size()), dx(x.size());

  // A view names memory that you own; nothing is copied or kept.
  const auto in = maskless::contiguous_view(static_cast<const void*>(x.data()), DType::kFloat32, {kRows, kCols});
  const auto out = maskless::contiguous_view(y.data(), DType::kFloat32, {kRows, kCols});

  maskless::DropoutOptions options;
  options.p = 0.25;                     // probability to drop
  options.seed = 123;                   // the mask is a function of this ...
  options.stream = 7;                   // ... of the call site, say the number of the layer ...
  maskless::dropout(in, out, options);  // ... and of each element's position

  // Backward drops exactly what forward dropped: the same options are all there is to remember.
  const auto gradient = maskless::contiguous_view(dx.data(), DType::kFloat32, {kRows, kCols});
  maskless::dropout_backward(in, gradient, options);
  if (dx != y) return std::puts("backward dropped something else"), 1;

  // Rows 4 and 5 alone, as another machine would hold them, get their part of the same mask.
  std::vector<float> shard(2 * kCols);
  maskless::DropoutOptions part = options;
  part.shard.rank = 2;
  part.shard.global_shape = {kRows, kCols};
  part.shard.offsets = {4, 0};
  maskless::dropout(
      maskless::contiguous_view(static_cast<const void*>(x.data() + 4 * kCols), DType::kFloat32, {2, kCols}),
      maskless::contiguous_view(shard.data(), DType::kFloat32, {2, kCols}), part);
  for (std::int64_t i = 0; i < 2 * kCols; ++i)
    if (shard[i] != y[4 * kCols + i]) return std::puts("the shard differs"), 1;

  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t c = 0; c < kCols; ++c) std::printf("%5.2f", static_cast<double>(y[r * kCols + c]));
    std::puts("");
  }

  // Whatever is wrong with the arguments is an exception that names operation, argument, rule and value.
  try {
    options.p = 1.5;
    maskless::dropout(in, out, options);
  } catch (const maskless::Error& error) {
    std::puts(error.what());  // dropout: p must be in [0, 1], got 1.5
    return 0;
  }
  return 1;
}
