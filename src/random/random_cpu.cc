// Random numbers on the CPU: words of a chunk of positions by vectors, turned into numbers where they lie, then put
// where the output has them.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "random/random_cpu.cc"
#include <hwy/foreach_target.h>  // this file again for each instruction set
#include <hwy/highway.h>

#include <cstring>

#include "cpu/philox_hwy.h"
#include "random/random_kernels.h"
#include "random/random_reference.h"

#ifndef MASKLESS_RANDOM_WORD_KERNELS_
#define MASKLESS_RANDOM_WORD_KERNELS_
namespace maskless::cpu {

inline constexpr std::size_t kSpareWords = 64;  // behind a buffer of words: written past the last

/// Buffers have room for kSpareWords more than n.
struct WordKernels {
  /// Words 4 * block ... 4 * block + n - 1 of draw `attempt`.
  void (*words)(const KeySchedule& keys, std::uint32_t tag, std::uint32_t attempt, std::uint64_t block, std::size_t n,
                std::uint32_t* out);
  /// Word 0 of n calls at counters (lo32 index, hi32 index, 0, 0) ...: tl.rand's.
  void (*first_words)(const KeySchedule& keys, std::uint64_t index, std::size_t n, std::uint32_t* out);
  /// Words to numbers, in place.
  void (*uniform)(std::uint32_t* words, std::size_t n);
  void (*triton)(std::uint32_t* words, std::size_t n);
  void (*normal)(std::uint32_t* words, std::size_t n);
};

}  // namespace maskless::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

using DW = hn::ScalableTag<std::uint32_t>;
using DI = hn::ScalableTag<std::int32_t>;
using DR = hn::ScalableTag<float>;
using VW = hn::Vec<DW>;
using VR = hn::Vec<DR>;

void random_words(const cpu::KeySchedule& schedule, std::uint32_t tag, std::uint32_t attempt, std::uint64_t block,
                  std::size_t n, std::uint32_t* out) {
  const RoundKeys keys = {schedule};
  const D64 d;
  const DW dw;
  const V64 c2 = hn::Set(d, attempt), c3 = hn::Set(d, tag), step = hn::Set(d, std::uint64_t{kCalls});
  V64 blocks = hn::Add(hn::Set(d, block), block_lanes());
  for (std::size_t i = 0; i < n; i += 4 * kCalls) {
    V64 w01, w23;
    philox10({blocks, hn::ShiftRight<32>(blocks), c2, c3}, keys, w01, w23);
    hn::StoreU(hn::BitCast(dw, hn::InterleaveLower(d, w01, w23)), dw, out + i);
    hn::StoreU(hn::BitCast(dw, hn::InterleaveUpper(d, w01, w23)), dw, out + i + 2 * kCalls);
    blocks = hn::Add(blocks, step);
  }
}

void random_first_words(const cpu::KeySchedule& schedule, std::uint64_t index, std::size_t n, std::uint32_t* out) {
  const RoundKeys keys = {schedule};
  const D64 d;
  const DW dw;
  const V64 lanes = hn::Iota(d, 0), zero = hn::Zero(d);
  const auto word0 = [&](std::uint64_t first) HWY_ATTR {
    const V64 at = hn::Add(hn::Set(d, first), lanes);
    Counters c = {at, hn::ShiftRight<32>(at), zero, zero};
    philox10(c, keys);
    return hn::BitCast(dw, c.c0);
  };
  for (std::size_t i = 0; i < n; i += 2 * kCalls)
    hn::StoreU(hn::ConcatEven(dw, word0(index + i + kCalls), word0(index + i)), dw, out + i);
}

template <class F>
HWY_INLINE void for_words(std::uint32_t* words, std::size_t n, F&& f) {
  const DW d;
  for (std::size_t i = 0; i < n; i += hn::MaxLanes(d))
    hn::StoreU(hn::BitCast(d, f(hn::LoadU(d, words + i))), d, words + i);
}

void random_uniform(std::uint32_t* words, std::size_t n) {
  for_words(words, n, [](VW w) HWY_ATTR {
    return hn::Mul(hn::ConvertTo(DR(), hn::BitCast(DI(), hn::ShiftRight<8>(w))), hn::Set(DR(), 0x1p-24f));
  });
}

void random_triton(std::uint32_t* words, std::size_t n) {
  for_words(words, n, [](VW w) HWY_ATTR {
    const auto x = hn::BitCast(DI(), w);
    const auto folded = hn::Xor(x, hn::ShiftRight<31>(x));  // x < 0 ? ~x : x
    return hn::Mul(hn::ConvertTo(DR(), folded), hn::Set(DR(), 4.6566127342e-10f));
  });
}

#if HWY_TARGET == HWY_SSE4  // has no fused multiply-add

void random_normal(std::uint32_t* words, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 2) {
    const Normal2 pair = normal_pair(words[i], words[i + 1]);
    words[i] = detail::as_bits(pair.first);
    words[i + 1] = detail::as_bits(pair.second);
  }
}

#else  // the vectors of core/normal.h, operation by operation

HWY_INLINE VR radius(VW word) {
  const DW d;
  const DI di;
  const DR df;
  const VR high = hn::ConvertTo(df, hn::BitCast(di, hn::ShiftRight<16>(word)));
  const VR low = hn::ConvertTo(df, hn::BitCast(di, hn::And(word, hn::Set(d, 0xFFFFu))));
  const VR rounded = hn::MulAdd(high, hn::Set(df, 65536.0f), low);  // float32(word)
  const VR u = hn::MulAdd(rounded, hn::Set(df, 0x1p-32f), hn::Set(df, 0x1p-33f));
  const VW bits = hn::BitCast(d, u);
  const auto exponent = hn::ShiftRight<23>(hn::BitCast(di, hn::Sub(bits, hn::Set(d, normal::kRootHalf))));
  const VW mantissa = hn::Sub(bits, hn::BitCast(d, hn::ShiftLeft<23>(exponent)));
  const VR f = hn::Sub(hn::BitCast(df, mantissa), hn::Set(df, 1.0f));
  VR q = hn::Set(df, normal::log_term(7));
  for (int i = 6; i >= 0; --i) q = hn::MulAdd(q, f, hn::Set(df, normal::log_term(i)));
  const VR log_mantissa = hn::MulAdd(hn::Mul(f, f), hn::MulAdd(f, q, hn::Set(df, -0.5f)), f);
  const VR log_u = hn::MulAdd(hn::ConvertTo(df, exponent), hn::Set(df, normal::kLog2), log_mantissa);
  return hn::Sqrt(hn::Abs(hn::Mul(hn::Set(df, 2.0f), log_u)));
}

/// Pairs of words lie in the 64-bit lanes; two vectors of them are unzipped and zipped without crossing lanes.
void random_normal(std::uint32_t* words, std::size_t n) {
  const D64 d64;
  const DW d;
  const DI di;
  const DR df;
  constexpr std::size_t kLanes = hn::MaxLanes(DW());
  const auto up = [&](VW v) HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<32>(hn::BitCast(d64, v))); };
  const auto down = [&](VW v) HWY_ATTR { return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, v))); };
  for (std::size_t i = 0; i < n; i += 2 * kLanes) {
    const VW v0 = hn::LoadU(d, words + i), v1 = hn::LoadU(d, words + i + kLanes);
    const VW a = hn::OddEven(up(v1), v0), b = hn::OddEven(v1, down(v0));
    const VR r = radius(a);
    const VW quarter = hn::ShiftRight<30>(hn::Add(b, hn::Set(d, 0x20000000u)));
    const auto rest = hn::BitCast(di, hn::Sub(b, hn::ShiftLeft<30>(quarter)));
    const VR s = hn::Mul(hn::ConvertTo(df, rest), hn::Set(df, 0x1p-29f)), t = hn::Mul(s, s);
    VR p = hn::Set(df, normal::sin_term(3));
    for (int k = 2; k >= 0; --k) p = hn::MulAdd(p, t, hn::Set(df, normal::sin_term(k)));
    VR q = hn::Set(df, normal::cos_term(4));
    for (int k = 3; k >= 0; --k) q = hn::MulAdd(q, t, hn::Set(df, normal::cos_term(k)));
    const VR sine = hn::Mul(s, p);
    const auto odd = hn::MaskFromVec(hn::BitCast(df, hn::ShiftRight<31>(hn::BitCast(di, hn::ShiftLeft<31>(quarter)))));
    // Signs: cos is negative in quarters 1 and 2, sin in 2 and 3.
    const VW cos_sign = hn::ShiftLeft<31>(hn::Xor(quarter, hn::ShiftRight<1>(quarter)));
    const VW sin_sign = hn::ShiftLeft<31>(hn::ShiftRight<1>(quarter));
    const VW cosine = hn::Xor(hn::BitCast(d, hn::IfThenElse(odd, sine, q)), cos_sign);
    const VW sinus = hn::Xor(hn::BitCast(d, hn::IfThenElse(odd, q, sine)), sin_sign);
    const VW first = hn::BitCast(d, hn::Mul(r, hn::BitCast(df, cosine)));
    const VW second = hn::BitCast(d, hn::Mul(r, hn::BitCast(df, sinus)));
    hn::StoreU(hn::OddEven(up(second), first), d, words + i);
    hn::StoreU(hn::OddEven(second, down(first)), d, words + i + kLanes);
  }
}

#endif  // fused multiply-add

extern const cpu::WordKernels kWordKernels;
const cpu::WordKernels kWordKernels = {random_words, random_first_words, random_uniform, random_triton, random_normal};

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "cpu/dispatch.h"
#include "cpu/runs.h"
#include "cpu/threads.h"

namespace maskless::cpu {
namespace {

constexpr std::int64_t kChunk = 2048;
constexpr std::int64_t kGrain = 16384;

void scalar_words(const KeySchedule& keys, std::uint32_t tag, std::uint32_t attempt, std::uint64_t block, std::size_t n,
                  std::uint32_t* out) {
  const Words2 key = {{static_cast<std::uint32_t>(keys.k0[0]), static_cast<std::uint32_t>(keys.k1[0])}};
  for (std::size_t i = 0; i < n; i += 4, ++block) {
    const Words4 words = philox4x32(
        Words4{{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), attempt, tag}}, key);
    std::memcpy(out + i, words.w, sizeof words.w);
  }
}

void scalar_first_words(const KeySchedule& keys, std::uint64_t index, std::size_t n, std::uint32_t* out) {
  const Words2 key = {{static_cast<std::uint32_t>(keys.k0[0]), static_cast<std::uint32_t>(keys.k1[0])}};
  for (std::size_t i = 0; i < n; ++i, ++index)
    out[i] =
        philox4x32(Words4{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}}, key)[0];
}

void scalar_uniform(std::uint32_t* words, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) words[i] = detail::as_bits(reference::uniform_of(words[i]));
}

void scalar_triton(std::uint32_t* words, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    words[i] = detail::as_bits(triton_word_to_float((words[i] >> 31) != 0 ? ~words[i] : words[i]));
}

void scalar_normal(std::uint32_t* words, std::size_t n) {
  for (std::size_t i = 0; i < n; i += 2) {
    const Normal2 pair = normal_pair(words[i], words[i + 1]);
    words[i] = detail::as_bits(pair.first);
    words[i + 1] = detail::as_bits(pair.second);
  }
}

constexpr WordKernels kScalar = {scalar_words, scalar_first_words, scalar_uniform, scalar_triton, scalar_normal};

/// The 32-bit numbers at positions index ... index + n - 1; returns where they begin in the buffer.
const std::uint32_t* numbers(const WordKernels& kernels, const RandomArgs& args, const KeySchedule& keys,
                             std::uint64_t index, std::size_t n, std::uint32_t* buffer) {
  if (args.kind == RandomKind::kUniformTriton) {
    kernels.first_words(keys, index, n, buffer);
    kernels.triton(buffer, n);
    return buffer;
  }
  const std::size_t before = static_cast<std::size_t>(index & 3);
  kernels.words(keys, counter_tag(Op::kRandom, args.stream), 0, index >> 2, before + n, buffer);
  if (args.kind == RandomKind::kUniform) kernels.uniform(buffer, before + n);
  if (args.kind == RandomKind::kNormal) kernels.normal(buffer, before + n);
  return buffer + before;
}

template <typename T>
void put(const T* from, std::size_t n, T* to, std::int64_t stride) {
  if (stride == 1) {
    std::memcpy(to, from, n * sizeof(T));
    return;
  }
  for (std::size_t i = 0; i < n; ++i, to += stride) *to = from[i];
}

/// Integers low + below(range), redrawn where the product's low part is below `unfair`.
template <typename T>
void integers(const WordKernels& kernels, const RandomArgs& args, std::uint64_t seed, const KeySchedule& keys,
              std::uint64_t index, std::size_t n, std::uint32_t* buffer, T* to, std::int64_t stride) {
  const auto low = static_cast<std::uint64_t>(args.low);
  if (args.kind == RandomKind::kWideIntegers) {
    const std::size_t before = static_cast<std::size_t>(index & 1) * 2;
    kernels.words(keys, counter_tag(Op::kRandom, args.stream), reference::kWide, index >> 1, before + 2 * n, buffer);
    for (std::size_t i = 0; i < n; ++i, to += stride) {
      const std::uint32_t* pair = buffer + before + 2 * i;
      const std::uint64_t x = std::uint64_t{pair[1]} << 32 | pair[0];
      *to = static_cast<T>(low + reference::multiply_high(x, args.range));
      if (x * args.range < args.unfair)
        *to = static_cast<T>(low + reference::random_below_wide(seed, args.stream, index + i, args.range, args.unfair));
    }
    return;
  }
  const std::uint32_t* words = numbers(kernels, args, keys, index, n, buffer);
  for (std::size_t i = 0; i < n; ++i, to += stride) {
    const std::uint64_t product = words[i] * args.range;
    *to = static_cast<T>(low + (product >> 32));
    if (static_cast<std::uint32_t>(product) < args.unfair)
      *to = static_cast<T>(low + reference::random_below(seed, args.stream, index + i, args.range, args.unfair));
  }
}

void random_range(const WordKernels& kernels, const RandomArgs& args, std::int64_t begin, std::int64_t end) {
  const IndexSpace& space = args.space;
  const std::uint64_t seed = args.seed_pointer != nullptr ? *args.seed_pointer : args.seed;
  const KeySchedule keys(seed);
  const std::int64_t stride = space.rank == 0 ? 1 : space.strides[0][space.rank - 1];
  const bool steps = space.rank == 0 || space.index_strides[space.rank - 1] == 1;  // else: element by element
  std::uint32_t buffer[2 * kChunk + 4 + kSpareWords];                              // two words an element at most
  for (std::int64_t e = begin; e < end;) {
    Place place;
    place.index = space.first_index;
    descend(space, 0, space.rank, e, place);
    std::int64_t length = 1;  // up to the end of the row
    if (steps && space.rank > 0) length = space.shape[space.rank - 1] - place.coords[space.rank - 1];
    length = std::min({length, kChunk, end - e});
    const auto n = static_cast<std::size_t>(length);
    switch (args.dtype) {
      case DType::kInt32:
        integers(kernels, args, seed, keys, place.index, n, buffer,
                 static_cast<std::int32_t*>(args.out) + place.offsets[0], stride);
        break;
      case DType::kInt64:
        integers(kernels, args, seed, keys, place.index, n, buffer,
                 static_cast<std::int64_t*>(args.out) + place.offsets[0], stride);
        break;
      default:
        put(numbers(kernels, args, keys, place.index, n, buffer), n,
            static_cast<std::uint32_t*>(args.out) + place.offsets[0], stride);
    }
    e += length;
  }
}

}  // namespace

void random(const RandomArgs& args, const Execution& execution) {
  const WordKernels& kernels = *MASKLESS_CHOOSE(execution.isa, kWordKernels, &kScalar);
  parallel_for(execution.threads, args.space.size, kGrain,
               [&](std::int64_t begin, std::int64_t end) { random_range(kernels, args, begin, end); });
}

}  // namespace maskless::cpu

#endif  // HWY_ONCE
