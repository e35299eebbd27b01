// iid signs on the CPU: bits of 1,024 columns of a row at a time, as masks over vectors of consecutive columns.
#include "cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "sketch/signs_cpu.cc"
#include <hwy/foreach_target.h>  // this file again for each instruction set
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "cpu/philox_hwy.h"
#include "maskless/core/threshold.h"
#include "sketch/lanes_cpu_hwy.h"
#include "sketch/sjlt_plan.h"
#include "sketch/sketch_reference.h"

HWY_BEFORE_NAMESPACE();
namespace maskless {
namespace HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

using cpu::kSignBatch;
using cpu::kSignColumns;
using cpu::kSignRows;

/// The generator of a matrix of signs.
struct SignSource {
  RoundKeys keys;
  std::uint64_t threshold;
  std::uint32_t tag;
  int planes;

  SignSource(const SketchMatrix& m, std::uint64_t seed)
      : keys(round_keys(philox_key(seed))),
        threshold(m.threshold),
        tag(counter_tag(Op::kSigns, m.stream)),
        planes(planes_needed(m.threshold)) {}
  bool dense() const { return threshold >> 32 != 0; }
};

/// u < threshold bit by bit, for the Philox calls in the lanes of (c0, c1): words of ones where true.
HWY_INLINE void nonzero_words(const SignSource& source, V64 c0, V64 c1, V64& n01, V64& n23) {
  const D64 d;
  const V64 ones = hn::Set(d, ~std::uint64_t{0}), zero = hn::Zero(d);
  if (source.dense()) {
    n01 = n23 = ones;
    return;
  }
  V64 equal01 = ones, equal23 = ones;
  n01 = n23 = zero;
  for (int q = 0; q < source.planes; ++q) {
    V64 p01, p23;
    philox10({hn::Or(c0, hn::Set(d, std::uint64_t(q) << 27)), c1, zero, hn::Set(d, source.tag)}, source.keys, p01, p23);
    if (source.threshold >> (31 - q) & 1) {
      n01 = hn::Or(n01, hn::AndNot(p01, equal01));
      n23 = hn::Or(n23, hn::AndNot(p23, equal23));
      equal01 = hn::And(equal01, p01);
      equal23 = hn::And(equal23, p23);
    } else {
      equal01 = hn::AndNot(p01, equal01);
      equal23 = hn::AndNot(p23, equal23);
    }
    if (hn::AllTrue(d, hn::Eq(hn::Or(equal01, equal23), zero))) return;
  }
}

HWY_INLINE void minus_words(const SignSource& source, V64 c0, V64 c1, V64& m01, V64& m23) {
  const D64 d;
  philox10({c0, c1, hn::Set(d, 1), hn::Set(d, source.tag)}, source.keys, m01, m23);
}

/// Bits of columns 128 * block ... of a row, kSignColumns of them.
struct SignBits {
  HWY_ALIGN std::uint32_t nonzero[kSignColumns / 32];
  HWY_ALIGN std::uint32_t minus[kSignColumns / 32];

  void make(const SignSource& source, std::uint32_t row, std::uint32_t block) {
    const D64 d;
    const hn::Repartition<std::uint32_t, D64> d32;
    const auto store = [&](std::uint32_t* to, V64 w01, V64 w23) {
      hn::StoreU(hn::BitCast(d32, hn::InterleaveLower(d, w01, w23)), d32, to);
      hn::StoreU(hn::BitCast(d32, hn::InterleaveUpper(d, w01, w23)), d32, to + 2 * kCalls);
    };
    const V64 c1 = hn::Set(d, row);
    for (std::size_t call = 0; call < kSignColumns / 128; call += kCalls) {
      const V64 c0 = hn::Add(hn::Set(d, std::uint64_t{block} + call), block_lanes());
      V64 w01, w23;
      minus_words(source, c0, c1, w01, w23);
      store(minus + 4 * call, w01, w23);
      if (source.dense()) continue;
      nonzero_words(source, c0, c1, w01, w23);
      store(nonzero + 4 * call, w01, w23);
    }
  }
};

/// The mask of a vector of columns from column `at` on.
template <class D>
HWY_INLINE hn::Mask<D> bits_mask(D d, const std::uint32_t* bits, std::int64_t at) {
  const std::uint32_t word = bits[at >> 5] >> (at & 31);
  std::uint8_t bytes[8] = {};
  std::memcpy(bytes, &word, 4);
  return hn::LoadMaskBits(d, bytes);
}

/// +-x where nonzero.
template <class D, class V>
HWY_INLINE V signed_value(D d, const SignBits& bits, bool dense, std::int64_t at, V x) {
  const V value = hn::IfThenElse(bits_mask(d, bits.minus, at), hn::Neg(x), x);
  return dense ? value : hn::IfThenElseZero(bits_mask(d, bits.nonzero, at), value);
}

/// Vectors [first_lane, first_lane + lanes) of columns [begin, begin + count) of the input, by lane.
template <typename T, typename S>
void load_panel(const SketchArgs& args, std::int64_t first_lane, std::int64_t lanes, std::int64_t begin,
                std::int64_t low, std::int64_t high, S (*panel)[kSignColumns]) {
  for (std::int64_t l = 0; l < lanes; ++l) {
    const T* x = static_cast<const T*>(args.in) + (first_lane + l) * args.in_strides[0];
    std::fill(panel[l], panel[l] + (low - begin), S{0});
    for (std::int64_t j = low; j < high; ++j)
      panel[l][j - begin] = to_sum(x[(j - static_cast<std::int64_t>(args.matrix.column_offset)) * args.in_strides[1]]);
    std::fill(panel[l] + (high - begin), panel[l] + kSignColumns, S{0});
  }
}

/// Rows [begin, end) of the projections of `lanes` vectors.
template <typename T, typename Out, int L>
void project_rows(const SketchArgs& args, std::int64_t first_lane, std::int64_t lanes, std::int64_t begin,
                  std::int64_t end) {
  using S = Sum<T>;
  const hn::ScalableTag<S> d;
  const SketchMatrix& m = args.matrix;
  const SignSource source(m, reference::seed_of(m));
  const auto offset = static_cast<std::int64_t>(m.column_offset), stop = offset + m.cols;
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  const bool sparse = m.threshold < (std::uint64_t{1} << 28);  // density below 1/16: bit by bit
  HWY_ALIGN S panel[L][kSignColumns];
  std::vector<S> sums(static_cast<std::size_t>((end - begin) * L));
  SignBits bits;
  for (std::int64_t first = offset / kSignColumns * kSignColumns; first < stop; first += kSignColumns) {
    load_panel<T>(args, first_lane, lanes, first, std::max(first, offset), std::min(first + kSignColumns, stop), panel);
    for (std::int64_t l = lanes; l < L; ++l) std::fill(panel[l], panel[l] + kSignColumns, S{0});
    for (std::int64_t r = begin; r < end; ++r) {
      bits.make(source, m.row_offset + static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(first >> 7));
      S* sum = sums.data() + (r - begin) * L;
      if (sparse) {
        for (std::int64_t w = 0; w < kSignColumns / 32; ++w)
          for (std::uint32_t rest = bits.nonzero[w]; rest != 0; rest &= rest - 1) {
            const int bit = __builtin_ctz(rest);
            for (int l = 0; l < L; ++l) {
              const S x = panel[l][32 * w + bit];
              sum[l] += bits.minus[w] >> bit & 1 ? -x : x;
            }
          }
        continue;
      }
      hn::Vec<decltype(d)> acc[L];
      for (int l = 0; l < L; ++l) acc[l] = hn::Zero(d);
      const bool dense = source.dense();
      for (std::int64_t c = 0; c < kSignColumns; c += step) {
        const auto minus = bits_mask(d, bits.minus, c);
        const auto nonzero = dense ? minus : bits_mask(d, bits.nonzero, c);
        for (int l = 0; l < L; ++l) {
          const auto x = hn::Load(d, panel[l] + c);
          const auto value = hn::IfThenElse(minus, hn::Neg(x), x);
          acc[l] = hn::Add(acc[l], dense ? value : hn::IfThenElseZero(nonzero, value));
        }
      }
      for (int l = 0; l < L; ++l) sum[l] += hn::GetLane(hn::SumOfLanes(d, acc[l]));
    }
  }
  for (std::int64_t l = 0; l < lanes; ++l)
    for (std::int64_t r = begin; r < end; ++r)
      reference::store_sum(
          static_cast<Out*>(args.out) + (first_lane + l) * args.out_strides[0] + r * args.out_strides[1],
          sums[static_cast<std::size_t>((r - begin) * L + l)], m.scale, args.accumulate);
}

/// One panel of columns of the transposes of `lanes` vectors.
template <typename T, typename Out, int L>
void transpose_panel(const SketchArgs& args, std::int64_t first_lane, std::int64_t lanes, std::int64_t first) {
  using S = Sum<T>;
  const hn::ScalableTag<S> d;
  const SketchMatrix& m = args.matrix;
  const SignSource source(m, reference::seed_of(m));
  const auto offset = static_cast<std::int64_t>(m.column_offset);
  const std::int64_t low = std::max(first, offset), high = std::min(first + kSignColumns, offset + m.cols);
  const auto step = static_cast<std::int64_t>(hn::Lanes(d));
  HWY_ALIGN S sums[L][kSignColumns];
  for (int l = 0; l < L; ++l) std::fill(sums[l], sums[l] + kSignColumns, S{0});
  SignBits bits;
  for (std::int64_t r = 0; r < m.rows; ++r) {
    bits.make(source, m.row_offset + static_cast<std::uint32_t>(r), static_cast<std::uint32_t>(first >> 7));
    S y[L] = {};
    for (std::int64_t l = 0; l < lanes; ++l)
      y[l] = to_sum(static_cast<const T*>(args.in)[(first_lane + l) * args.in_strides[0] + r * args.in_strides[1]]);
    for (std::int64_t c = 0; c < kSignColumns; c += step)
      for (int l = 0; l < L; ++l)
        hn::Store(hn::Add(hn::Load(d, sums[l] + c), signed_value(d, bits, source.dense(), c, hn::Set(d, y[l]))), d,
                  sums[l] + c);
  }
  for (std::int64_t l = 0; l < lanes; ++l)
    for (std::int64_t j = low; j < high; ++j)
      reference::store_sum(
          static_cast<Out*>(args.out) + (first_lane + l) * args.out_strides[0] + (j - offset) * args.out_strides[1],
          sums[l][j - first], m.scale, args.accumulate);
}

/// A row of a sparse batch: for each nonzero, the signs of kCalls rows of S at a time.
void signs_csr(const SketchCsrArgs& args, std::int64_t i) {
  const D64 d;
  const SketchMatrix& m = args.base.matrix;
  const SignSource source(m, reference::seed_of(m));
  HWY_ALIGN std::uint64_t row_numbers[kCalls], nonzero[kCalls], minus[kCalls];
  for (std::size_t n = 0; n < kCalls; ++n) row_numbers[n] = n;
  const auto add = [&](const auto* values, const auto* columns, std::int64_t begin, std::int64_t end, auto* sums) {
    for (std::int64_t e = begin; e < end; ++e) {
      const std::uint64_t j = m.column_offset + static_cast<std::uint64_t>(columns[e]);
      const auto value = to_sum(values[e]);
      const V64 c0 = hn::Set(d, j >> 7);
      const int bit = static_cast<int>(j & 63);
      for (std::int64_t r = 0; r < m.rows; r += static_cast<std::int64_t>(kCalls)) {
        const V64 c1 = hn::Add(hn::Set(d, m.row_offset + static_cast<std::uint64_t>(r)), hn::Load(d, row_numbers));
        V64 w01, w23;
        minus_words(source, c0, c1, w01, w23);
        hn::Store((j & 64) != 0 ? w23 : w01, d, minus);
        nonzero_words(source, c0, c1, w01, w23);
        hn::Store((j & 64) != 0 ? w23 : w01, d, nonzero);
        const auto count = std::min<std::int64_t>(static_cast<std::int64_t>(kCalls), m.rows - r);
        for (std::int64_t n = 0; n < count; ++n)
          if (nonzero[n] >> bit & 1) sums[r + n] += minus[n] >> bit & 1 ? -value : value;
      }
    }
  };
  reference::csr_row(args, i, add);
}

/// The lanes of a unit: `f` is called with how many as a constant.
template <typename F>
HWY_INLINE void with_batch(std::int64_t lanes, F&& f) {
  if (lanes <= 1) return f(std::integral_constant<int, 1>());
  f(std::integral_constant<int, kSignBatch>());
}

void signs_project_unit(const SketchArgs& args, std::int64_t unit) {
  visit_sketch(args.in_dtype, args.out_dtype, [&](auto in, auto out) {
    using T = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    const std::int64_t groups = (args.batch + kSignBatch - 1) / kSignBatch;
    const std::int64_t lane = unit % groups * kSignBatch, begin = unit / groups * kSignRows;
    const std::int64_t lanes = std::min(kSignBatch, args.batch - lane);
    with_batch(lanes, [&](auto constant) {
      project_rows<T, Out, decltype(constant)::value>(args, lane, lanes, begin,
                                                      std::min(begin + kSignRows, args.matrix.rows));
    });
  });
}

void signs_transpose_unit(const SketchArgs& args, std::int64_t unit) {
  visit_sketch(args.in_dtype, args.out_dtype, [&](auto in, auto out) {
    using T = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    const std::int64_t groups = (args.batch + kSignBatch - 1) / kSignBatch;
    const std::int64_t lane = unit % groups * kSignBatch;
    const std::int64_t lanes = std::min(kSignBatch, args.batch - lane);
    const auto panel = static_cast<std::int64_t>(args.matrix.column_offset) / kSignColumns + unit / groups;
    with_batch(lanes, [&](auto constant) {
      transpose_panel<T, Out, decltype(constant)::value>(args, lane, lanes, panel * kSignColumns);
    });
  });
}

#endif  // a target with vectors

}  // namespace HWY_NAMESPACE
}  // namespace maskless
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/dispatch.h"

namespace maskless::cpu {

SignsFunctions signs_functions(Isa at_most) {
  using Project = decltype(SignsFunctions::project);
  using Transpose = decltype(SignsFunctions::transpose);
  using Csr = decltype(SignsFunctions::csr);
  return {MASKLESS_CHOOSE(at_most, signs_project_unit, Project{nullptr}),
          MASKLESS_CHOOSE(at_most, signs_transpose_unit, Transpose{nullptr}),
          MASKLESS_CHOOSE(at_most, signs_csr, Csr{nullptr})};
}

}  // namespace maskless::cpu
#endif  // HWY_ONCE
