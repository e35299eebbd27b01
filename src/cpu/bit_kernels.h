// What the CPU kernels are made of, one table an instruction set: keep bits from positions or from stored masks, and
// their use on runs of memory. Bit j & 7 of byte j >> 3 belongs to element j of a run; strides count elements.
#ifndef MASKLESS_SRC_CPU_BIT_KERNELS_H_
#define MASKLESS_SRC_CPU_BIT_KERNELS_H_

#include <cstddef>
#include <cstdint>

#include "common/dropout_mask.h"
#include "cpu/schedule.h"

namespace maskless::cpu {

inline constexpr std::size_t kSpareBytes = 64;  // behind a buffer of bits: written and read past the last bit

/// Memory that the user of the bits will read: fetched while bits are made, `bytes` for each 64 of them.
struct Ahead {
  const char* from = nullptr;
  std::size_t bytes = 0;
};

struct BitKernels {
  /// Keep bits of `n` elements from position `index` on. Returns the number of the bit that is element 0, below 8.
  std::size_t (*keep_bits)(const DropoutMask& mask, std::uint64_t seed, const KeySchedule& keys, std::uint64_t index,
                           std::size_t n, std::uint8_t* bits, Ahead ahead);

  /// y = x * scale (or x, for `copy`) where the bit is 1, else +0. x == y is allowed, with equal strides.
  using Apply = void (*)(double scale, const void* x, std::int64_t x_stride, void* y, std::int64_t y_stride,
                         std::size_t n, const std::uint8_t* bits, std::size_t first_bit);
  Apply copy16, copy32, copy64, scale_f16, scale_bf16, scale_f32, scale_f64;

  /// keep_bits and apply at once, for the packed layout with 0 < threshold < 2^32 and contiguous memory: of the n
  /// elements from position `index` on, does as many as it can and returns how many (none for few, or where the block
  /// number nears a multiple of 2^32). `bypass` the caches for outputs
  /// that would not stay there; needs y at a multiple of 64 bytes.
  using Flat = std::size_t (*)(const DropoutMask& mask, std::uint64_t seed, const KeySchedule& keys,
                               std::uint64_t index, double scale, const void* x, void* y, std::size_t n, bool bypass);
  Flat flat_copy16, flat_copy32, flat_copy64, flat_f16, flat_bf16, flat_f32, flat_f64;

  /// keep[j * stride] = bit.
  void (*expand)(const std::uint8_t* bits, std::size_t first_bit, std::uint8_t* keep, std::int64_t stride,
                 std::size_t n);
  /// bit = keep[j * stride] != 0.
  void (*gather8)(const void* keep, std::int64_t stride, std::size_t n, std::uint8_t* bits);
  void (*gather32)(const void* keep, std::int64_t stride, std::size_t n, std::uint8_t* bits);

  Apply apply(DType dtype, bool copy) const {
    switch (dtype) {
      case DType::kFloat16: return copy ? copy16 : scale_f16;
      case DType::kBFloat16: return copy ? copy16 : scale_bf16;
      case DType::kFloat32: return copy ? copy32 : scale_f32;
      default: return copy ? copy64 : scale_f64;
    }
  }

  Flat flat(DType dtype, bool copy) const {
    switch (dtype) {
      case DType::kFloat16: return copy ? flat_copy16 : flat_f16;
      case DType::kBFloat16: return copy ? flat_copy16 : flat_bf16;
      case DType::kFloat32: return copy ? flat_copy32 : flat_f32;
      default: return copy ? flat_copy64 : flat_f64;
    }
  }
};

/// The table of the best instruction set that the processor runs and the caller allows.
const BitKernels& bit_kernels(Isa at_most);

/// One block of eight positions in the packed layout: bit h is element 8 * block + h.
std::uint8_t block_bits(const DropoutMask& mask, std::uint64_t seed, std::uint64_t block);

/// Where the high half of u equals the threshold's (bits of `equal`), the low half decides.
std::uint8_t settle(const DropoutMask& mask, std::uint64_t seed, std::uint64_t block, unsigned keep, unsigned equal);

}  // namespace maskless::cpu

#endif  // MASKLESS_SRC_CPU_BIT_KERNELS_H_
