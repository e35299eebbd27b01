// Dropout's decisions for kernels that take many octets (eight positions, one Philox call) with one seed: the round
// keys are made once, ties of several octets are looked for together, and a decision costs half an instruction.
#ifndef MASKLESS_SRC_CUDA_DECIDE_H_
#define MASKLESS_SRC_CUDA_DECIDE_H_

#include <cstdint>

#include "cuda/mask.h"

namespace maskless::cuda {

/// Which of two neighbours are kept.
struct KeptPair {
  bool first, second;
};

/// Eight decisions: a half of word j is at least `least` of the Decider iff its element is kept, the low half that of
/// element 2j and the high half that of element 2j + 1.
struct Halves {
  std::uint32_t word[4];
};

/// The keys of Philox's rounds, for a kernel's parameters: as operands from there they cost nothing.
struct RoundKeys {
  Words2 round[10];
};

MASKLESS_HOST_DEVICE inline RoundKeys round_keys(std::uint64_t seed) {
  RoundKeys keys;
  Words2 k = philox_key(seed);
  for (int round = 0; round < 10; ++round) {
    keys.round[round] = k;
    k.w[0] += kPhiloxW0;
    k.w[1] += kPhiloxW1;
  }
  return keys;
}

/// kGiven: the seed is in the kernel's parameters, and its keys too; else it may be in memory, and they are made.
template <bool kGiven>
class Decider {
 public:
  __device__ Decider(const DeviceMask& mask, const RoundKeys& keys)
      : mask_(mask), seed_(kGiven ? mask.seed : uniform(seed_of(mask))), keys_(kGiven ? keys : round_keys(seed_)) {
    // Halves that tie with the threshold's become 0 or 0xFFFF, so that its low half is in no later comparison; a
    // threshold below 2^16 still drops those that became 0.
    least_ = mask.high == 0 ? 0x00010001u : mask.high;
    minus_high_ = (0u - mask.high & 0xFFFFu) * 0x00010001u;
  }

  /// Of kOctets octets.
  template <int kOctets>
  __device__ void decide(const std::uint64_t (&octet)[kOctets], Halves (&halves)[kOctets]) const {
    std::uint32_t nearest[2] = {0xFFFFFFFFu, 0xFFFFFFFFu};  // packed: the least distance from the threshold upwards
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      Words4 c = {{static_cast<std::uint32_t>(octet[i]), static_cast<std::uint32_t>(octet[i] >> 32), 0, mask_.tag}};
#pragma unroll
      for (int round = 0; round < 10; ++round) {
        std::uint32_t a_high, a_low, b_high, b_low;
        multiply_wide(kPhiloxM0, c.w[0], a_high, a_low);
        multiply_wide(kPhiloxM1, c.w[2], b_high, b_low);
        c = {{b_high ^ c.w[1] ^ keys_.round[round].w[0], b_low, a_high ^ c.w[3] ^ keys_.round[round].w[1], a_low}};
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        halves[i].word[j] = c.w[j];
        nearest[j % 2] = __viaddmin_u16x2(c.w[j], minus_high_, nearest[j % 2]);
      }
    }
    if (has_zero_half(nearest[0]) || has_zero_half(nearest[1])) settle(octet, halves);
  }

  /// kOneInstruction: by an instruction that compares both halves (sm_90), beside which ptxas of CUDA 13.0 leaves three
  /// that do nothing: sometimes faster, sometimes slower. Not beside float16: it has been seen to let it overwrite
  /// 16-bit registers in use.
  template <bool kOneInstruction>
  __device__ KeptPair kept(std::uint32_t word) const {
    KeptPair pair;
    if constexpr (kOneInstruction) {
      __vibmax_u16x2(word, least_, &pair.second, &pair.first);
    } else {
      pair = {word << 16 >= least_ << 16, word >= (least_ & 0xFFFF0000u)};
    }
    return pair;
  }

 private:
  __device__ static bool has_zero_half(std::uint32_t word) {
    return ((word - 0x00010001u) & ~word & 0x80008000u) != 0;  // if one is zero; and else never
  }

  /// Once in 65,536 elements: a second call for the low halves of u.
  template <int kOctets>
  __device__ void settle(const std::uint64_t (&octet)[kOctets], Halves (&halves)[kOctets]) const {
#pragma unroll
    for (int i = 0; i < kOctets; ++i) {
      bool tied = false;
#pragma unroll
      for (int j = 0; j < 4; ++j) tied = tied || has_zero_half(halves[i].word[j] ^ mask_.high);
      if (!tied) continue;
      const Words4 low = philox_rolled(
          {{static_cast<std::uint32_t>(octet[i]), static_cast<std::uint32_t>(octet[i] >> 32), 1, mask_.tag}},
          philox_key(seed_));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t difference = halves[i].word[j] ^ mask_.high;
        if ((difference & 0xFFFFu) == 0)
          halves[i].word[j] = (halves[i].word[j] & 0xFFFF0000u) | ((low.w[j] & 0xFFFFu) >= mask_.low ? 0xFFFFu : 0u);
        if ((difference >> 16) == 0)
          halves[i].word[j] = (halves[i].word[j] & 0xFFFFu) | ((low.w[j] >> 16) >= mask_.low ? 0xFFFF0000u : 0u);
      }
    }
  }

  DeviceMask mask_;
  std::uint64_t seed_;
  RoundKeys keys_;
  std::uint32_t least_, minus_high_;
};

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_CUDA_DECIDE_H_
