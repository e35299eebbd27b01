#include "maskless/dropout.h"

#include <gtest/gtest.h>

#include <vector>

namespace maskless {
namespace {

TEST(Dropout, KeepsWhatTheSpecificationKeeps) {
  std::vector<std::uint8_t> mask(1000, 0xCC);
  DropoutOptions options;
  options.p = 0.5;
  options.seed = 123;
  keep_mask(contiguous_view(mask.data(), DType::kBool, {1000}), options);
  int kept = 0;
  for (std::uint8_t keep : mask) kept += keep;
  EXPECT_EQ(kept, 509);
}

TEST(Dropout, RefusesAProbabilityAboveOne) {
  float x = 1, y = 0;
  DropoutOptions options;
  options.p = 1.5;
  try {
    dropout(contiguous_view(&x, DType::kFloat32, {1}), contiguous_view(&y, DType::kFloat32, {1}), options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "dropout: p must be in [0, 1], got 1.5");
  }
}

}  // namespace
}  // namespace maskless
