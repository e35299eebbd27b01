#ifndef MASKLESS_CORE_VERSION_H_
#define MASKLESS_CORE_VERSION_H_

namespace maskless {

inline constexpr const char* kVersion = "0.1.0";
/// Version of the mask specification (docs/spec.md). Masks change only with this number.
inline constexpr int kSpecVersion = 1;

}  // namespace maskless

#endif  // MASKLESS_CORE_VERSION_H_
