// Mask words on the GPU. A Philox call for (plane q, block of 128 inputs, output n, sample m) is cut where its inputs
// meet: of the first two rounds' four products, two depend on (q, block) alone and are shared by a tile, one on m and
// one on (m, n). Sixteen products a call are left of twenty.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_WORDS_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_WORDS_CUH_

#include <cstdint>
#include <type_traits>

#include "dropconnect/dropconnect_kernels.h"
#include "maskless/core/uniform.h"

namespace maskless::cuda {

inline constexpr int kBlockInputs = 128;  // inputs of one Philox call
inline constexpr int kMaxPlanes = 32;
/// Up to this depth all lanes walk through all planes together; beyond, each stops where its own block is decided.
inline constexpr int kLockstepPlanes = 10;

struct Key {
  std::uint32_t k0, k1;
};

/// The seed's halves, in uniform registers also where the seed lies in memory.
__device__ __forceinline__ Key load_key(const DropconnectMask& mask) {
  const std::uint64_t seed = mask.seed_pointer != nullptr ? *mask.seed_pointer : mask.seed;
  Key key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
#if __CUDA_ARCH__ >= 800
  key.k0 = __reduce_or_sync(0xFFFFFFFFu, key.k0);
  key.k1 = __reduce_or_sync(0xFFFFFFFFu, key.k1);
#endif
  return key;
}

/// What (q, block) gives to a call.
__device__ __forceinline__ uint4 block_part(std::uint32_t plane, std::uint32_t block, std::uint32_t tag, Key key) {
  const std::uint64_t a = std::uint64_t{kPhiloxM0} * (plane << 27 | block);
  const std::uint64_t b = std::uint64_t{kPhiloxM1} * (static_cast<std::uint32_t>(a >> 32) ^ tag ^ key.k1);
  return make_uint4(static_cast<std::uint32_t>(b >> 32) ^ (key.k0 + kPhiloxW0), static_cast<std::uint32_t>(b),
                    static_cast<std::uint32_t>(a) ^ (key.k1 + kPhiloxW1), 0);
}

/// What (m, n) gives to a call.
struct PairPart {
  std::uint32_t sample_low, low, high;
};
__device__ __forceinline__ PairPart pair_part(std::uint32_t m, std::uint32_t n, Key key) {
  const std::uint64_t b = std::uint64_t{kPhiloxM1} * m;
  const std::uint64_t a = std::uint64_t{kPhiloxM0} * (static_cast<std::uint32_t>(b >> 32) ^ n ^ key.k0);
  return {static_cast<std::uint32_t>(b), static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(a >> 32)};
}

/// The call: rounds three to ten.
struct Call {
  std::uint32_t c0, c1, c2, c3;

  __device__ __forceinline__ Call(uint4 block, PairPart pair)
      : c0(block.x ^ pair.sample_low), c1(block.y), c2(pair.high ^ block.z), c3(pair.low) {}
  __device__ __forceinline__ void round(std::uint32_t r, Key key) {
    const std::uint64_t a = std::uint64_t{kPhiloxM0} * c0, b = std::uint64_t{kPhiloxM1} * c2;
    c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ (key.k0 + r * kPhiloxW0);
    c1 = static_cast<std::uint32_t>(b);
    c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ (key.k1 + r * kPhiloxW1);
    c3 = static_cast<std::uint32_t>(a);
  }
  __device__ __forceinline__ uint4 words() const { return make_uint4(c0, c1, c2, c3); }
};
__device__ __forceinline__ uint4 call(uint4 block, PairPart pair, Key key) {
  Call c(block, pair);
#pragma unroll
  for (std::uint32_t r = 2; r < 10; ++r) c.round(r, key);
  return c.words();
}

/// What decides the 128 bits of a block, the same for all pairs.
struct Decider {
  const uint4* table;  // block_part of each plane, in shared memory
  Key key;
  std::uint32_t threshold;
  int planes;
};

__device__ __forceinline__ Decider make_decider(const DropconnectMask& mask, Key key) {
  const auto threshold = static_cast<std::uint32_t>(mask.threshold);
  const int planes = threshold == 0 ? 0 : 33 - __ffs(static_cast<int>(threshold));  // planes_needed, without its loop
  return {nullptr, key, threshold, planes};
}

/// Fills the table for a block; call with all threads, synchronise before use.
__device__ __forceinline__ void fill_table(uint4* table, std::uint32_t block, const DropconnectMask& mask, Key key,
                                           int thread) {
  if (thread < kMaxPlanes) table[thread] = block_part(static_cast<std::uint32_t>(thread), block, mask.tag, key);
}

/// Keep words of kGroup pairs, all planes: from the last plane up, keep = bit ? (t ? below : 1) : (t ? 0 : below).
/// Below the last plane, whose t is 1, everything is kept.
template <int kGroup>
__device__ __forceinline__ void keep_lockstep(const Decider& d, const PairPart (&pair)[kGroup], uint4 (&keep)[kGroup]) {
  if (d.planes == 0) {
#pragma unroll
    for (int g = 0; g < kGroup; ++g) keep[g] = make_uint4(~0u, ~0u, ~0u, ~0u);
    return;
  }
  const uint4 last = d.table[d.planes - 1];
#pragma unroll
  for (int g = 0; g < kGroup; ++g) keep[g] = call(last, pair[g], d.key);
#pragma unroll 1
  for (int q = d.planes - 2; q >= 0; --q) {
    const std::uint32_t t = ~static_cast<std::uint32_t>(static_cast<std::int32_t>(d.threshold << q) >> 31);
    const uint4 block = d.table[q];
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      const uint4 u = call(block, pair[g], d.key);
      keep[g].x = (u.x & keep[g].x) | (t & (u.x | keep[g].x));
      keep[g].y = (u.y & keep[g].y) | (t & (u.y | keep[g].y));
      keep[g].z = (u.z & keep[g].z) | (t & (u.z | keep[g].z));
      keep[g].w = (u.w & keep[g].w) | (t & (u.w | keep[g].w));
    }
  }
}

/// Keep words of pairs 0 ... items - 1 of this lane, each given to store(item, words). pair(item) makes the PairPart.
/// A lane goes on to its next pair as soon as the present one is decided, whatever the others do.
template <int kMaxItem, typename PairOf, typename Store>
__device__ __forceinline__ void keep_each(const Decider& d, int items, PairOf&& pair_of, Store&& store) {
  constexpr int kPlanesPerCheck = 4;
  int item = 0, q = 0;
  PairPart pair = pair_of(0);
  std::uint32_t t = d.threshold;
  uint4 open = make_uint4(~0u, ~0u, ~0u, ~0u), bits = open;
  // The vote keeps the warp together: without it the compiler lets lanes wait for the slowest one at every item.
#pragma unroll 1
  while (__any_sync(0xFFFFFFFFu, item < items)) {
#pragma unroll
    for (int i = 0; i < kPlanesPerCheck; ++i) {  // planes beyond the last 1 bit of T are harmless: both values keep
      const uint4 u = call(d.table[q + i], pair, d.key);
      const auto tt = static_cast<std::uint32_t>(static_cast<std::int32_t>(t << i) >> 31);
      bits.x = (open.x & u.x) | (~open.x & bits.x);  // the last bit seen while open decides: 1 is above T, 0 below
      bits.y = (open.y & u.y) | (~open.y & bits.y);
      bits.z = (open.z & u.z) | (~open.z & bits.z);
      bits.w = (open.w & u.w) | (~open.w & bits.w);
      open.x &= ~(u.x ^ tt);
      open.y &= ~(u.y ^ tt);
      open.z &= ~(u.z ^ tt);
      open.w &= ~(u.w ^ tt);
    }
    q += kPlanesPerCheck;
    t <<= kPlanesPerCheck;
    const bool decided = (open.x | open.y | open.z | open.w) == 0 || q >= d.planes;
    if (decided && item < items)
      store(item, make_uint4(bits.x | open.x, bits.y | open.y, bits.z | open.z, bits.w | open.w));
    if (decided) {
      item = min(item + 1, items);
      t = d.threshold;
      q = 0;
      open = make_uint4(~0u, ~0u, ~0u, ~0u);
    }
    pair = pair_of(min(item, kMaxItem));
  }
}

/// As above, in lockstep where that is faster. items is a multiple of kGroup.
template <int kGroup, int kMaxItem, typename PairOf, typename Store>
__device__ __forceinline__ void keep_words(const Decider& d, int items, PairOf&& pair_of, Store&& store) {
  if (d.planes > kLockstepPlanes) {
    keep_each<kMaxItem>(d, items, pair_of, store);
    return;
  }
#pragma unroll 1
  for (int item = 0; item < items; item += kGroup) {
    PairPart pairs[kGroup];
    uint4 keep[kGroup];
#pragma unroll
    for (int g = 0; g < kGroup; ++g) pairs[g] = pair_of(item + g);
    keep_lockstep(d, pairs, keep);
#pragma unroll
    for (int g = 0; g < kGroup; ++g) store(item + g, keep[g]);
  }
}

/// f(integral_constant<int, 0>), f(4), ..., f(28): the nibbles of a word, until one returns false.
template <typename F>
__device__ __forceinline__ void for_each_nibble(F&& f) {
  if (!f(std::integral_constant<int, 0>{})) return;
  f(std::integral_constant<int, 4>{});
  f(std::integral_constant<int, 8>{});
  f(std::integral_constant<int, 12>{});
  if (!f(std::integral_constant<int, 16>{})) return;
  f(std::integral_constant<int, 20>{});
  f(std::integral_constant<int, 24>{});
  f(std::integral_constant<int, 28>{});
}

/// acc[i] += x[i] * w[i] for the bits kShift ... kShift + 3 of `word` that are set. Written as PTX because the compiler
/// then takes four predicates from one R2P; as C++ it tests most bits one by one.
template <int kShift, int kSums>
__device__ __forceinline__ void masked_fma4(float (&acc)[kSums], const float (&x)[4], const float (&w)[4],
                                            std::uint32_t word) {
  const std::uint32_t bits = (kShift & 4) != 0 ? word >> 4 : word;
  constexpr std::uint32_t kBit = 1u << (kShift & 24);
  if constexpr (kSums == 4) {
    asm volatile(
        "{.reg .pred p0, p1, p2, p3; .reg .b32 t0, t1, t2, t3;\n"
        "and.b32 t0, %12, %13; and.b32 t1, %12, %14; and.b32 t2, %12, %15; and.b32 t3, %12, %16;\n"
        "setp.ne.u32 p0, t0, 0; setp.ne.u32 p1, t1, 0; setp.ne.u32 p2, t2, 0; setp.ne.u32 p3, t3, 0;\n"
        "@p0 fma.rn.f32 %0, %4, %8, %0; @p1 fma.rn.f32 %1, %5, %9, %1;\n"
        "@p2 fma.rn.f32 %2, %6, %10, %2; @p3 fma.rn.f32 %3, %7, %11, %3;}"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(w[0]), "f"(w[1]), "f"(w[2]), "f"(w[3]), "r"(bits), "n"(kBit),
          "n"(kBit << 1), "n"(kBit << 2), "n"(kBit << 3));
  } else {
    static_assert(kSums == 2);
    asm volatile(
        "{.reg .pred p0, p1, p2, p3; .reg .b32 t0, t1, t2, t3;\n"
        "and.b32 t0, %10, %11; and.b32 t1, %10, %12; and.b32 t2, %10, %13; and.b32 t3, %10, %14;\n"
        "setp.ne.u32 p0, t0, 0; setp.ne.u32 p1, t1, 0; setp.ne.u32 p2, t2, 0; setp.ne.u32 p3, t3, 0;\n"
        "@p0 fma.rn.f32 %0, %2, %6, %0; @p1 fma.rn.f32 %1, %3, %7, %1;\n"
        "@p2 fma.rn.f32 %0, %4, %8, %0; @p3 fma.rn.f32 %1, %5, %9, %1;}"
        : "+f"(acc[0]), "+f"(acc[1])
        : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "f"(w[0]), "f"(w[1]), "f"(w[2]), "f"(w[3]), "r"(bits), "n"(kBit),
          "n"(kBit << 1), "n"(kBit << 2), "n"(kBit << 3));
  }
}
template <int kShift, int kSums>
__device__ __forceinline__ void masked_fma4(double (&acc)[kSums], const double (&x)[4], const double (&w)[4],
                                            std::uint32_t word) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if ((word >> (kShift + i) & 1) != 0) acc[i % kSums] = fma(x[i], w[i], acc[i % kSums]);
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_WORDS_CUH_
