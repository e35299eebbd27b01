// Philox4x32: a counter-based random generator, one pure function of (counter, key).
//
// Method: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// Ten rounds are the default and what every mask uses. C++17, host and device, no dependency but <cstdint>.
#ifndef MASKLESS_CORE_PHILOX_H_
#define MASKLESS_CORE_PHILOX_H_

#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define MASKLESS_HOST_DEVICE __host__ __device__
#else
#define MASKLESS_HOST_DEVICE
#endif

namespace maskless {

/// Four 32-bit words: a Philox counter, or one call's output.
struct Words4 {
  std::uint32_t w[4];

  MASKLESS_HOST_DEVICE constexpr std::uint32_t operator[](unsigned i) const { return w[i]; }
};

/// Two 32-bit words: a Philox key.
struct Words2 {
  std::uint32_t w[2];
};

inline constexpr std::uint32_t kPhiloxM0 = 0xD2511F53u;  // multipliers of words 0 and 2
inline constexpr std::uint32_t kPhiloxM1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxW0 = 0x9E3779B9u;  // what a round adds to the key
inline constexpr std::uint32_t kPhiloxW1 = 0xBB67AE85u;

/// The key of a seed: its low and its high half, unchanged.
MASKLESS_HOST_DEVICE constexpr Words2 philox_key(std::uint64_t seed) {
  return {{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
}

/// Four random words for a counter under a key. Each (counter, key) gives the same words everywhere.
template <int Rounds = 10>
MASKLESS_HOST_DEVICE constexpr Words4 philox4x32(Words4 counter, Words2 key) {
  std::uint32_t c0 = counter.w[0], c1 = counter.w[1], c2 = counter.w[2], c3 = counter.w[3];
  std::uint32_t k0 = key.w[0], k1 = key.w[1];
  for (int round = 0; round < Rounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxM0} * c0;
    const std::uint64_t b = std::uint64_t{kPhiloxM1} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(a);
    k0 += kPhiloxW0;
    k1 += kPhiloxW1;
  }
  return {{c0, c1, c2, c3}};
}

namespace published {  // the known-answer vectors that the authors ship with Random123
constexpr bool equal(Words4 a, Words4 b) {
  return a.w[0] == b.w[0] && a.w[1] == b.w[1] && a.w[2] == b.w[2] && a.w[3] == b.w[3];
}
constexpr std::uint32_t kOnes = 0xFFFFFFFFu;
constexpr Words4 kPiCounter = {{0x243F6A88u, 0x85A308D3u, 0x13198A2Eu, 0x03707344u}};
constexpr Words2 kPiKey = {{0xA4093822u, 0x299F31D0u}};
static_assert(equal(philox4x32(Words4{{0, 0, 0, 0}}, Words2{{0, 0}}),
                    {{0x6627E8D5u, 0xE169C58Du, 0xBC57AC4Cu, 0x9B00DBD8u}}));
static_assert(equal(philox4x32(Words4{{kOnes, kOnes, kOnes, kOnes}}, Words2{{kOnes, kOnes}}),
                    {{0x408F276Du, 0x41C83B0Eu, 0xA20BC7C6u, 0x6D5451FDu}}));
static_assert(equal(philox4x32(kPiCounter, kPiKey), {{0xD16CFE09u, 0x94FDCCEBu, 0x5001E420u, 0x24126EA1u}}));
static_assert(equal(philox4x32<7>(Words4{{0, 0, 0, 0}}, Words2{{0, 0}}),
                    {{0x5F6FB709u, 0x0D893F64u, 0x4F121F81u, 0x4F730A48u}}));
static_assert(equal(philox4x32<7>(Words4{{kOnes, kOnes, kOnes, kOnes}}, Words2{{kOnes, kOnes}}),
                    {{0x5207DDC2u, 0x45165E59u, 0x4D8EE751u, 0x8C52F662u}}));
static_assert(equal(philox4x32<7>(kPiCounter, kPiKey), {{0x4DFCCABAu, 0x190A87F0u, 0xC47362BAu, 0xB6B5242Au}}));
}  // namespace published

}  // namespace maskless

#endif  // MASKLESS_CORE_PHILOX_H_
