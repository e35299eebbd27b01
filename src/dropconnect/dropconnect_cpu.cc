// DropConnect on the CPU: panels of x, weight and dy in float (double for float64), masks drawn 16 outputs at a time
// and handed to masked multiply-adds bit by bit. Every sum has one order, whatever the threads.
//
// AVX-512, one product vector: 1 FMA, 1 load of a mask register (port 5), 0.8 operations of the generator at p = 0.5,
// all on two ports: 1.4 cycles where a plain product takes 0.5.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "dropconnect/dropconnect_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/visit.h"
#include "cpu/threads.h"
#include "dropconnect/dropconnect_kernels.h"
#include "dropconnect/dropconnect_reference.h"
#include "dropconnect/dropconnect_words_hwy.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

inline constexpr std::int64_t kBlock = 128;  // inputs of one Philox call

#if HWY_TARGET == HWY_AVX3

/// acc + x * w where the bits of `bits`, from bit `first` on, are set, else acc.
template <typename D>
HWY_INLINE hn::Vec<D> masked_mul_add(D, hn::Vec<D> x, hn::Vec<D> w, hn::Vec<D> acc, const std::uint64_t* bits,
                                     int first) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(bits) + (first / 8 ^ 4);
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    std::uint16_t mask;
    std::memcpy(&mask, bytes, sizeof mask);
    return hn::Vec<D>{_mm512_mask3_fmadd_ps(x.raw, w.raw, acc.raw, mask)};
  } else {
    return hn::Vec<D>{_mm512_mask3_fmadd_pd(x.raw, w.raw, acc.raw, *bytes)};
  }
}

/// Lane 4 i + j: the sum of the lanes of v[i][j]. A third of the instructions of 16 sums one by one.
template <typename V>
HWY_INLINE __m512 sums_of_lanes(const V (&v)[4][4]) {
  __m512 row[4];  // of v[i][0 ... 3] over the lanes of each quarter
  for (int i = 0; i < 4; ++i) {
    const auto pair = [&](int j) {
      const __m512 a = v[i][j].raw, b = v[i][j + 1].raw;
      return _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    };
    const __m512d a = pair(0), b = pair(2);
    row[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  const auto halves = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  };
  const __m512 a = halves(row[0], row[1]), b = halves(row[2], row[3]);
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

#elif HWY_TARGET == HWY_AVX2

/// A mask word in every lane.
template <typename D>
HWY_INLINE __m256i word_lanes(D, std::uint32_t word) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) return _mm256_set1_epi32(static_cast<int>(word));
  return _mm256_set1_epi64x(static_cast<long long>(word));
}
/// acc + x * w where the bits of `word`, from bit `first` on, are set, else acc + x * 0: the lane's bit goes to its
/// sign, which the load of w takes as a mask.
template <typename D>
HWY_INLINE hn::Vec<D> masked_mul_add(D, hn::Vec<D> x, const hn::TFromD<D>* w, hn::Vec<D> acc, __m256i word, int first) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const __m256i counts = _mm256_setr_epi32(31 - first, 30 - first, 29 - first, 28 - first, 27 - first, 26 - first,
                                             25 - first, 24 - first);
    return hn::Vec<D>{_mm256_fmadd_ps(x.raw, _mm256_maskload_ps(w, _mm256_sllv_epi32(word, counts)), acc.raw)};
  } else {
    const __m256i counts = _mm256_setr_epi64x(63 - first, 62 - first, 61 - first, 60 - first);
    return hn::Vec<D>{_mm256_fmadd_pd(x.raw, _mm256_maskload_pd(w, _mm256_sllv_epi64(word, counts)), acc.raw)};
  }
}

#else

template <typename D>
HWY_INLINE std::uint32_t word_lanes(D, std::uint32_t word) {
  return word;
}
template <typename D>
HWY_INLINE hn::Vec<D> masked_mul_add(D d, hn::Vec<D> x, const hn::TFromD<D>* w, hn::Vec<D> acc, std::uint32_t word,
                                     int first) {
  const std::uint64_t bits = word >> first;
  const auto mask = hn::LoadMaskBits(d, reinterpret_cast<const unsigned char*>(&bits));
  return hn::IfThenElse(mask, hn::MulAdd(x, hn::Load(d, w), acc), acc);
}

#endif

/// A panel: rows of inputs in whole blocks, aligned, zero where the layer has none.
template <typename S>
struct Panel {
  const S* data;
  std::int64_t pitch;
};

/// Copies rows [row, row + rows) x positions [at, at + width) of a matrix, whose input 0 has position `shift`.
template <typename T, typename S>
void pack(const Matrix<const void*>& from, std::int64_t row, std::int64_t rows, std::int64_t padded_rows,
          std::int64_t at, std::int64_t width, std::int64_t shift, std::int64_t inputs, S* to) {
  const T* data = static_cast<const T*>(from.data);
  const std::int64_t first = std::clamp<std::int64_t>(shift - at, 0, width);
  const std::int64_t last = std::clamp<std::int64_t>(shift + inputs - at, first, width);
  for (std::int64_t r = 0; r < padded_rows; ++r, to += width) {
    if (r >= rows) {
      std::fill_n(to, width, S{0});
      continue;
    }
    const T* line = data + (row + r) * from.row + (at - shift) * from.col;
    std::fill_n(to, first, S{0});
    if (from.col == 1) {
      for (std::int64_t i = first; i < last; ++i) to[i] = reference::to_sum(line[i]);
    } else {
      for (std::int64_t i = first; i < last; ++i) to[i] = reference::to_sum(line[i * from.col]);
    }
    std::fill(to + last, to + width, S{0});
  }
}

/// Memory of a thread, aligned for any vector.
template <typename S>
class Buffer {
 public:
  explicit Buffer(std::int64_t size) : memory_(static_cast<std::size_t>(size) + 64 / sizeof(S)) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    data_ = memory_.data() + (64 - address % 64) % 64 / sizeof(S);
  }
  S* data() { return data_; }

 private:
  std::vector<S> memory_;
  S* data_;
};

template <typename T>
bool packed_already(const Matrix<const void*>& m, std::int64_t shift, std::int64_t inputs) {
  return std::is_same_v<T, reference::SumOf<T>> && m.col == 1 && shift == 0 && inputs % kBlock == 0 &&
         m.row % (64 / static_cast<std::int64_t>(sizeof(T))) == 0 && reinterpret_cast<std::uintptr_t>(m.data) % 64 == 0;
}

// --- Forward --------------------------------------------------------------------------------------------------------
inline constexpr int kTileOutputs = kGroupCalls, kMicroOutputs = 4;
inline constexpr int kMicroRows = HWY_TARGET == HWY_AVX3 ? 4 : 2;
inline constexpr std::int64_t kTileRows = 32, kChunkBlocks = 8;

/// sums[m][n] = x[m] . (w[n] * bits) for kMicroRows rows and kMicroOutputs outputs over `blocks` blocks.
template <typename S>
HWY_INLINE void forward_micro(Panel<S> x, Panel<S> w, const GroupBits* bits, std::int64_t blocks, int n,
                              S (&sums)[kMicroRows][kMicroOutputs]) {
  using D = hn::ScalableTag<S>;
  const D d;
  using V = hn::Vec<D>;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  V acc[kMicroRows][kMicroOutputs];
  for (int i = 0; i < kMicroRows; ++i)
    for (int j = 0; j < kMicroOutputs; ++j) acc[i][j] = hn::Zero(d);
  for (std::int64_t b = 0; b < blocks; ++b) {
    const S* xb = x.data + b * kBlock;
    const S* wb = w.data + b * kBlock;
#if HWY_TARGET == HWY_AVX3
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 32
#endif
    for (int k = 0; k < kBlock; k += kLanes) {
      V wv[kMicroOutputs];
      for (int j = 0; j < kMicroOutputs; ++j) wv[j] = hn::Load(d, wb + j * w.pitch + k);
      for (int i = 0; i < kMicroRows; ++i) {
        const V xv = hn::Load(d, xb + i * x.pitch + k);
        for (int j = 0; j < kMicroOutputs; ++j)
          acc[i][j] = masked_mul_add(d, xv, wv[j], acc[i][j], &bits[i * kChunkBlocks + b].word[k / 64][n + j], k % 64);
      }
    }
#else  // few registers: one mask word at a time
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 1
#endif
    for (int word = 0; word < kBlock; word += 32)
      for (int i = 0; i < kMicroRows; ++i)
        for (int j = 0; j < kMicroOutputs; ++j) {
          const auto* words =
              reinterpret_cast<const std::uint32_t*>(&bits[i * kChunkBlocks + b].word[word / 64][n + j]);
          const auto mask = word_lanes(d, words[1 - word / 32 % 2]);
          for (int k = 0; k < 32; k += kLanes)
            acc[i][j] = masked_mul_add(d, hn::Load(d, xb + i * x.pitch + word + k), wb + j * w.pitch + word + k,
                                       acc[i][j], mask, k);
        }
#endif
  }
#if HWY_TARGET == HWY_AVX3
  if constexpr (std::is_same_v<S, float>) {
    static_assert(kMicroRows == 4 && kMicroOutputs == 4);
    _mm512_storeu_ps(&sums[0][0], sums_of_lanes(acc));
    return;
  }
#endif
  for (int i = 0; i < kMicroRows; ++i)
    for (int j = 0; j < kMicroOutputs; ++j) sums[i][j] = hn::GetLane(hn::SumOfLanes(d, acc[i][j]));
}

template <typename T>
void forward_tiles(const DropconnectArgs& args, std::int64_t begin, std::int64_t end) {
  using S = reference::SumOf<T>;
  const DropconnectShape& shape = args.shape;
  const std::int64_t rows = shape.passes * shape.rows,
                     shift = static_cast<std::int64_t>(args.mask.first_input % kBlock);
  const std::int64_t blocks = shape.inputs == 0 ? 0 : (shift + shape.inputs + kBlock - 1) / kBlock;
  const std::int64_t row_tiles = (rows + kTileRows - 1) / kTileRows;
  const std::uint64_t seed = reference::seed_of(args.mask);
  const WordsPlan plan = make_plan(seed, args.mask.threshold, args.mask.tag, args.mask.first_output,
                                   static_cast<std::uint32_t>(args.mask.first_input / kBlock));
  const bool direct_x = packed_already<T>(args.x, shift, shape.inputs) && shape.passes == 1;
  const bool direct_w = packed_already<T>(args.w, shift, shape.inputs);
  const T* bias = static_cast<const T*>(args.bias);
  T* y = static_cast<T*>(args.y.data);

  const std::int64_t width = std::min(blocks, kChunkBlocks) * kBlock;
  Buffer<S> x_panel(kMicroRows * width), w_panel(kTileOutputs * width);
  std::vector<GroupBits> bits(static_cast<std::size_t>(kMicroRows * kChunkBlocks));
  std::vector<BlockPart> parts(static_cast<std::size_t>(kChunkBlocks * kMaxPlanes));
  S sums[kTileRows][kTileOutputs];
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const std::int64_t n0 = tile / row_tiles * kTileOutputs, r0 = tile % row_tiles * kTileRows;
    const std::int64_t tile_rows = std::min(kTileRows, rows - r0);
    const std::int64_t tile_outputs = std::min<std::int64_t>(kTileOutputs, shape.outputs - n0);
    std::fill_n(&sums[0][0], kTileRows * kTileOutputs, S{0});
    for (std::int64_t b0 = 0; b0 < blocks; b0 += kChunkBlocks) {
      const std::int64_t count = std::min(kChunkBlocks, blocks - b0), at = b0 * kBlock;
      for (std::int64_t b = 0; b < count; ++b)
        make_block_parts(plan, static_cast<std::uint32_t>(b0 + b), parts.data() + b * kMaxPlanes);
      Panel<S> w{reinterpret_cast<const S*>(static_cast<const T*>(args.w.data)) + n0 * args.w.row + at, args.w.row};
      if (!direct_w || tile_outputs < kTileOutputs) {
        pack<T>(args.w, n0, tile_outputs, kTileOutputs, at, count * kBlock, shift, shape.inputs, w_panel.data());
        w = {w_panel.data(), count * kBlock};
      }
      for (std::int64_t r = 0; r < tile_rows; r += kMicroRows) {
        const std::int64_t micro_rows = std::min<std::int64_t>(kMicroRows, tile_rows - r);
        Panel<S> x{reinterpret_cast<const S*>(static_cast<const T*>(args.x.data)) + (r0 + r) * args.x.row + at,
                   args.x.row};
        if (!direct_x || micro_rows < kMicroRows) {
          std::fill_n(x_panel.data(), kMicroRows * count * kBlock, S{0});
          for (std::int64_t i = 0; i < micro_rows; ++i)
            pack<T>(args.x, (r0 + r + i) % shape.rows, 1, 1, at, count * kBlock, shift, shape.inputs,
                    x_panel.data() + i * count * kBlock);
          x = {x_panel.data(), count * kBlock};
        }
        Pairs pairs[kMicroRows];
        for (std::int64_t i = 0; i < micro_rows; ++i) {
          const std::int64_t row = r0 + r + i;
          const std::uint32_t sample = args.mask.sample(row / shape.rows, row % shape.rows);
          pairs[i] = make_pairs(plan, sample, static_cast<std::uint32_t>(n0));
        }
        static_assert(kMicroRows <= kRowsTogether);
        for (std::int64_t b = 0; b < count; ++b)
          keep_bits(plan, pairs, static_cast<int>(micro_rows), parts.data() + b * kMaxPlanes, bits.data() + b,
                    static_cast<int>(kChunkBlocks));
        for (int n = 0; n < kTileOutputs; n += kMicroOutputs) {
          if (n >= tile_outputs) break;
          S micro[kMicroRows][kMicroOutputs];
          forward_micro<S>(x, {w.data + n * w.pitch, w.pitch}, bits.data(), count, n, micro);
          for (std::int64_t i = 0; i < micro_rows; ++i)
            for (int j = 0; j < kMicroOutputs; ++j) sums[r + i][n + j] += micro[i][j];
        }
      }
    }
    for (std::int64_t i = 0; i < tile_rows; ++i) {
      const std::int64_t pass = (r0 + i) / shape.rows, m = (r0 + i) % shape.rows;
      for (std::int64_t j = 0; j < tile_outputs; ++j) {
        S sum = sums[i][j];
        if (HWY_TARGET != HWY_AVX3 && !std::isfinite(sum))  // x * 0 of an infinite x is not nothing
          sum = reference::product_sum<T>(args, seed, pass, m, n0 + j);
        sum *= static_cast<S>(args.scale);
        if (bias != nullptr) sum += reference::to_sum(bias[(n0 + j) * args.bias_stride]);
        y[pass * args.y_pass + m * args.y.row + (n0 + j) * args.y.col] = reference::from_sum<T>(sum);
      }
    }
  }
}

// --- Gradients ------------------------------------------------------------------------------------------------------
inline constexpr std::int64_t kTileA = 16, kTileB = 16;
inline constexpr int kMicroA = 2;

/// acc[a][k] += s[a][b] * v[b][k] where bits(a, b) has k, for kMicroA of a, kTileB of b and the 128 inputs of a block.
/// bits: [a][.] if a is a row, whose group is along b; else [b][.], whose group is along a.
template <typename S>
HWY_INLINE void gradient_micro(const S* v, const S* s, const GroupBits* bits, bool a_is_row, int a, int count_b,
                               S* acc) {
  using D = hn::ScalableTag<S>;
  const D d;
  using V = hn::Vec<D>;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  constexpr int kStep = HWY_TARGET == HWY_AVX3 ? 8 : 4;  // vectors at a time, within one word or in whole words
  for (int k0 = 0; k0 < kBlock; k0 += kStep * kLanes) {
    V sums[kMicroA][kStep];
    for (int i = 0; i < kMicroA; ++i)
      for (int j = 0; j < kStep; ++j) sums[i][j] = hn::Load(d, acc + (a + i) * kBlock + k0 + j * kLanes);
    for (int b = 0; b < count_b; ++b) {
      for (int i = 0; i < kMicroA; ++i) {
        const V factor = hn::Set(d, s[(a + i) * kTileB + b]);
        const std::uint64_t* words = a_is_row ? &bits[a + i].word[0][b] : &bits[b].word[0][a + i];
#if HWY_TARGET == HWY_AVX3
        for (int j = 0; j < kStep; ++j) {
          const int k = k0 + j * kLanes;
          sums[i][j] = masked_mul_add(d, factor, hn::Load(d, v + b * kBlock + k), sums[i][j],
                                      words + k / 64 * kGroupCalls, k % 64);
        }
#else
        constexpr int kPerWord = 32 / kLanes;
        for (int j0 = 0; j0 < kStep; j0 += kPerWord) {
          const int k = k0 + j0 * kLanes;
          const auto* halves = reinterpret_cast<const std::uint32_t*>(words + k / 64 * kGroupCalls);
          const auto mask = word_lanes(d, halves[1 - k / 32 % 2]);
          for (int j = j0; j < j0 + kPerWord && j < kStep; ++j)
            sums[i][j] =
                masked_mul_add(d, factor, v + b * kBlock + k0 + j * kLanes, sums[i][j], mask, (k0 + j * kLanes) % 32);
        }
#endif
      }
    }
    for (int i = 0; i < kMicroA; ++i)
      for (int j = 0; j < kStep; ++j) hn::Store(sums[i][j], d, acc + (a + i) * kBlock + k0 + j * kLanes);
  }
}

template <typename T>
void gradient_tiles(const GradientArgs& g, std::int64_t begin, std::int64_t end) {
  using S = reference::SumOf<T>;
  static_assert(kTileA == kGroupCalls && kTileB == kGroupCalls);
  const std::int64_t shift = static_cast<std::int64_t>(g.mask.first_input % kBlock);
  const std::int64_t tiles_a = (g.size_a + kTileA - 1) / kTileA;
  const std::uint64_t seed = reference::seed_of(g.mask);
  const WordsPlan plan = make_plan(seed, g.mask.threshold, g.mask.tag, g.mask.first_output,
                                   static_cast<std::uint32_t>(g.mask.first_input / kBlock));
  const T* s_data = static_cast<const T*>(g.s);
  T* out = static_cast<T*>(g.out.data);
  Buffer<S> acc(kTileA * kBlock), v(kTileB * kBlock);
  std::vector<GroupBits> bits(static_cast<std::size_t>(kGroupCalls));
  BlockPart parts[kMaxPlanes];
  S s[kTileA * kTileB];
  for (std::int64_t tile = begin; tile < end; ++tile) {
    const std::int64_t block = tile / tiles_a, a0 = tile % tiles_a * kTileA, at = block * kBlock;
    const int count_a = static_cast<int>(std::min(kTileA, g.size_a - a0));
    std::fill_n(acc.data(), kTileA * kBlock, S{0});
    make_block_parts(plan, static_cast<std::uint32_t>(block), parts);
    for (std::int64_t pass = 0; pass < g.passes; ++pass)
      for (std::int64_t b0 = 0; b0 < g.size_b; b0 += kTileB) {
        const int count_b = static_cast<int>(std::min(kTileB, g.size_b - b0));
        Matrix<const void*> v_from = g.v;
        v_from.data = static_cast<const T*>(g.v.data) + pass * g.v_pass;
        pack<T>(v_from, b0, count_b, count_b, at, kBlock, shift, g.inputs, v.data());
        for (int a = 0; a < kTileA; ++a)
          for (int b = 0; b < count_b; ++b)
            s[a * kTileB + b] =
                a < count_a ? reference::to_sum(s_data[pass * g.s_pass + (a0 + a) * g.s_a + (b0 + b) * g.s_b]) : S{0};
        const int groups = g.a_is_row ? count_a : count_b;
        const std::int64_t row0 = g.a_is_row ? a0 : b0, n0 = g.a_is_row ? b0 : a0;
        for (int i = 0; i < groups; i += kRowsTogether) {
          Pairs pairs[kRowsTogether];
          const int rows = std::min(groups - i, kRowsTogether);
          for (int j = 0; j < rows; ++j)
            pairs[j] = make_pairs(plan, g.mask.sample(pass, row0 + i + j), static_cast<std::uint32_t>(n0));
          keep_bits(plan, pairs, rows, parts, bits.data() + i, 1);
        }
        for (int a = 0; a < count_a; a += kMicroA)
          gradient_micro<S>(v.data(), s, bits.data(), g.a_is_row, a, count_b, acc.data());
      }
    const std::int64_t first = std::max<std::int64_t>(shift - at, 0), last = std::min(shift + g.inputs - at, kBlock);
    for (int a = 0; a < count_a; ++a)
      for (std::int64_t k = first; k < last; ++k) {
        S sum = acc.data()[a * kBlock + k];
        if (HWY_TARGET != HWY_AVX3 && !std::isfinite(sum))
          sum = reference::gradient_sum<T>(g, seed, a0 + a, at + k - shift);
        out[(a0 + a) * g.out.row + (at + k - shift) * g.out.col] =
            reference::from_sum<T>(sum * static_cast<S>(g.scale));
      }
  }
}

void forward_any(const DropconnectArgs& args, std::int64_t begin, std::int64_t end) {
  visit_floating(args.shape.dtype, [&](auto type) { forward_tiles<typename decltype(type)::type>(args, begin, end); });
}
void gradient_any(DType dtype, const GradientArgs& args, std::int64_t begin, std::int64_t end) {
  visit_floating(dtype, [&](auto type) { gradient_tiles<typename decltype(type)::type>(args, begin, end); });
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace maskless::cpu {
namespace {

constexpr std::int64_t kTile = 16;      // outputs of a tile, a of a gradient's tile
constexpr std::int64_t kTileRow = 32;   // rows of a tile
constexpr std::int64_t kBlockOf = 128;  // inputs of one Philox call

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

using ForwardFunction = void (*)(const DropconnectArgs&, std::int64_t, std::int64_t);
using GradientFunction = void (*)(DType, const GradientArgs&, std::int64_t, std::int64_t);

void run_gradient(DType dtype, const GradientArgs& g, const Execution& execution) {
  const GradientFunction tiles = MASKLESS_CHOOSE(execution.isa, gradient_any, GradientFunction{nullptr});
  if (tiles != nullptr) {
    const std::int64_t shift = static_cast<std::int64_t>(g.mask.first_input % kBlockOf);
    const std::int64_t count = ceil_div(g.size_a, kTile) * ceil_div(shift + g.inputs, kBlockOf);
    parallel_for(execution.threads, g.inputs == 0 ? 0 : count, 1,
                 [&](std::int64_t begin, std::int64_t end) { tiles(dtype, g, begin, end); });
    return;
  }
  visit_floating(dtype, [&](auto type) {
    parallel_for(execution.threads, g.size_a, 1, [&](std::int64_t begin, std::int64_t end) {
      reference::gradient<typename decltype(type)::type>(g, begin, end);
    });
  });
}

}  // namespace

void dropconnect(const DropconnectArgs& args, const Execution& execution) {
  const DropconnectShape& shape = args.shape;
  const std::int64_t rows = shape.passes * shape.rows;
  const ForwardFunction tiles = MASKLESS_CHOOSE(execution.isa, forward_any, ForwardFunction{nullptr});
  if (tiles != nullptr) {
    parallel_for(execution.threads, ceil_div(rows, kTileRow) * ceil_div(shape.outputs, kTile), 1,
                 [&](std::int64_t begin, std::int64_t end) { tiles(args, begin, end); });
    return;
  }
  visit_floating(shape.dtype, [&](auto type) {
    parallel_for(execution.threads, rows, 1, [&](std::int64_t begin, std::int64_t end) {
      reference::dropconnect<typename decltype(type)::type>(args, begin, end);
    });
  });
}

void dropconnect_backward(const DropconnectBackwardArgs& args, const Execution& execution) {
  if (args.dx.data != nullptr) run_gradient(args.shape.dtype, dx_gradient(args), execution);
  if (args.dw.data != nullptr) run_gradient(args.shape.dtype, dw_gradient(args), execution);
  if (args.dbias == nullptr) return;
  visit_floating(args.shape.dtype, [&](auto type) {
    parallel_for(execution.threads, args.shape.outputs, 16, [&](std::int64_t begin, std::int64_t end) {
      reference::bias_gradient<typename decltype(type)::type>(args, begin, end);
    });
  });
}

void dropconnect_mask(const DropconnectMaskArgs& args, const Execution& execution) {
  parallel_for(execution.threads, args.shape.rows, 1,
               [&](std::int64_t begin, std::int64_t end) { reference::dropconnect_mask(args, begin, end); });
}

}  // namespace maskless::cpu

#endif  // HWY_ONCE
