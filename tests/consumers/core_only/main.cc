#include <maskless/core/threshold.h>
#include <maskless/core/uniform.h>

static_assert(__cplusplus < 202002L, "the core is C++17");

int main() {
  int kept = 0;
  for (unsigned i = 0; i < 1000; ++i) kept += maskless::dropout_keep(123, i, maskless::threshold(0.5));
  return kept == 509 ? 0 : 1;
}
