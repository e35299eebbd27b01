// Dropout's decisions on the device, eight at a time: one Philox call for the eight high halves of u, and a second one
// only where a high half ties with the threshold's (once in 65,536 elements).
#ifndef MASKLESS_SRC_CUDA_MASK_H_
#define MASKLESS_SRC_CUDA_MASK_H_

#include <cstdint>

#include "common/dropout_mask.h"
#include "cuda/philox.h"
#include "cuda/triton.h"

namespace maskless::cuda {

/// What a kernel needs of a DropoutMask, small enough for the parameters of a kernel of a microsecond.
struct DeviceMask {
  std::uint64_t seed = 0;
  const std::uint64_t* seed_pointer = nullptr;
  std::uint32_t high = 0;  // packed: T's high half, in both halves. Triton: unused
  std::uint32_t low = 0;   // packed: T's low half, or 2^16 if T is 2^32. Triton: the threshold
  std::uint32_t tag = 0;   // counter word 3
};

inline DeviceMask device_mask(const DropoutMask& mask) {
  DeviceMask device;
  device.seed = mask.seed;
  device.seed_pointer = mask.seed_pointer;
  device.tag = counter_tag(Op::kDropout, mask.stream);
  if (mask.layout == Layout::kTriton) {
    device.low = static_cast<std::uint32_t>(mask.threshold);
    return device;
  }
  // T = 2^32 as 0xFFFF with a low half that no 16 bits reach: the code below needs no case for p = 1.
  const bool all = mask.threshold >> 32 != 0;
  device.high = (all ? 0xFFFFu : static_cast<std::uint32_t>(mask.threshold >> 16)) * 0x00010001u;
  device.low = all ? 0x10000u : static_cast<std::uint32_t>(mask.threshold & 0xFFFFu);
  return device;
}

/// A value that all threads of a warp have in common, in the warp's own (uniform) registers. The round keys of a seed
/// there cost half as much; the compiler does it by itself for a seed from the parameters alone.
__device__ inline std::uint64_t uniform(std::uint64_t value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const unsigned active = __activemask();
  const std::uint64_t low = __reduce_or_sync(active, static_cast<std::uint32_t>(value));
  return std::uint64_t{__reduce_or_sync(active, static_cast<std::uint32_t>(value >> 32))} << 32 | low;
#else
  return value;
#endif
}

__device__ inline std::uint64_t seed_of(const DeviceMask& mask) {
  return mask.seed_pointer != nullptr ? *mask.seed_pointer : mask.seed;
}

/// Eight decisions as flags: bit 15 of word j is 1 if element 2j is kept, bit 31 if element 2j + 1 is. Other bits: any.
struct Flags {
  std::uint32_t word[4];
};

inline constexpr std::uint32_t kFlagBits = 0x80008000u;

/// Decisions of positions 8 * block ... 8 * block + 7.
__device__ inline Flags keep_flags(const DeviceMask& mask, std::uint64_t seed, std::uint64_t block) {
  Words4 counter = {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, mask.tag}};
  const Words4 words = philox(counter, philox_key(seed));
  // A half h is above the threshold's half t iff h + (0xFFFF - t) carries out of 16 bits. The low 15 bits are added
  // apart, so that no carry crosses; the carry out of the top bit is a majority of three.
  const std::uint32_t addend = ~mask.high, addend15 = addend & ~kFlagBits;
  Flags flags;
  std::uint32_t tied = 0;  // a superset of h == t: the 15-bit sum is then all ones
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t h = words.w[j];
    const std::uint32_t sum = (h & ~kFlagBits) + addend15;
    flags.word[j] = (h & addend) | (h & sum) | (addend & sum);
    tied |= sum ^ (sum + 0x00010001u);
  }
  if ((tied & kFlagBits) != 0) {
    counter.w[2] = 1;
    const Words4 low = philox_rolled(counter, philox_key(seed));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t difference = words.w[j] ^ mask.high;
      if ((difference & 0xFFFFu) == 0 && (low.w[j] & 0xFFFFu) >= mask.low) flags.word[j] |= 0x8000u;
      if ((difference >> 16) == 0 && (low.w[j] >> 16) >= mask.low) flags.word[j] |= 0x80000000u;
    }
  }
  return flags;
}

/// Bytes 1 and 3 of a word by their sign: 0xFFFF in each half whose top bit (a flag) is set, else 0.
__device__ inline std::uint32_t spread_flags(std::uint32_t word) {
  std::uint32_t mask;
  asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(mask) : "r"(word));
  return mask;
}

/// The same of one flag (bit 31 if `top`, else bit 15) of each of two words.
__device__ inline std::uint32_t spread_flag_of_each(std::uint32_t low, std::uint32_t high, bool top) {
  std::uint32_t mask;
  if (top) {
    asm("prmt.b32 %0, %1, %2, 0xFFBB;" : "=r"(mask) : "r"(low), "r"(high));
  } else {
    asm("prmt.b32 %0, %1, %2, 0xDD99;" : "=r"(mask) : "r"(low), "r"(high));
  }
  return mask;
}

/// Eight flags as a byte: bit j is position j.
__device__ inline std::uint32_t to_byte(const Flags& flags) {
  std::uint32_t spread = 0;  // even positions in bits 0, 2, 4, 6, odd ones 16 above
#pragma unroll
  for (int j = 0; j < 4; ++j) spread |= flags.word[j] >> (15 - 2 * j) & (0x00010001u << (2 * j));
  return (spread | spread >> 15) & 0xFFu;
}

/// Triton layout: is the element with this word 0 kept? The folded word is below t iff the word, as a signed number, is
/// in [-t, t), 0 < t <= 2^31. `zero` is 0 (see triton_words).
__device__ inline bool triton_keep(const DeviceMask& mask, std::uint32_t word, std::uint32_t zero = 0) {
  return word * (1 + zero) + mask.low > 2 * mask.low - 1;
}

/// Decisions of positions 8 * block ... + 7 in either layout, as a byte. For kernels bound by their access pattern.
__device__ inline std::uint32_t keep_byte(const DeviceMask& mask, bool triton, std::uint64_t seed,
                                          std::uint64_t block) {
  if (!triton) return to_byte(keep_flags(mask, seed, block));
  if (mask.low == 0) return 0xFFu;
  std::uint32_t byte = 0;
#pragma unroll 1
  for (std::uint32_t j = 0; j < 8; ++j) {
    std::uint32_t word[1];
    triton_words(seed, static_cast<std::uint32_t>(block >> 29), static_cast<std::uint32_t>(block << 3) | j, 0, word);
    byte |= static_cast<std::uint32_t>(triton_keep(mask, word[0])) << j;
  }
  return byte;
}

/// Decisions of positions index ... index + 7, whatever the index.
__device__ inline std::uint32_t keep_byte_at(const DeviceMask& mask, bool triton, std::uint64_t seed,
                                             std::uint64_t index) {
  const unsigned phase = static_cast<unsigned>(index & 7);
  std::uint32_t byte = keep_byte(mask, triton, seed, index >> 3) >> phase;
  if (phase != 0) byte |= keep_byte(mask, triton, seed, (index >> 3) + 1) << (8 - phase);
  return byte & 0xFFu;
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_MASK_H_
