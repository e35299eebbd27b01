// The fused operations on the CPU: rows over threads, scalar loops that compilers vectorise.
#include <algorithm>
#include <vector>

#include "common/visit.h"
#include "cpu/threads.h"
#include "fused/fused_kernels.h"
#include "fused/fused_reference.h"

namespace maskless::cpu {
namespace {

using reference::narrow;
using reference::widen;

// Sums over rows: the rows in at most kGroups groups whose bounds depend on the shape alone, each summed in order, and
// then the groups in order. So threads do not matter.
constexpr std::int64_t kGroups = 32;

std::int64_t group_count(std::int64_t rows) { return std::min(rows, kGroups); }

template <typename T>
const T* row(const ConstRows& rows, std::int64_t r) {
  return rows.data == nullptr ? nullptr : static_cast<const T*>(rows.data) + r * rows.stride;
}
template <typename T>
T* row(const Rows& rows, std::int64_t r) {
  return rows.data == nullptr ? nullptr : static_cast<T*>(rows.data) + r * rows.stride;
}
template <typename T>
ArithmeticType<T> at(const T* vector, std::int64_t c, ArithmeticType<T> absent = 0) {
  return vector == nullptr ? absent : widen(vector[c]);
}

/// The mask of row r: 1 where kept.
void mask_row(const FusedArgs& args, std::int64_t r, std::uint8_t* keep) {
  const std::uint64_t seed = reference::seed_of(args.mask, r), t = args.mask.threshold;
  const std::uint64_t first = args.first_index + args.row_index * static_cast<std::uint64_t>(r);
  std::int64_t c = 0;
  while (c < args.cols) {
    const std::uint64_t index = first + static_cast<std::uint64_t>(c);
    const unsigned phase = static_cast<unsigned>(index & 7);
    const Words4 words = dropout_words(seed, index >> 3, 0, args.mask.stream);
    const std::int64_t end = std::min<std::int64_t>(args.cols, c + 8 - phase);
    for (unsigned h = phase; c < end; ++c, ++h) {
      const std::uint64_t high = half_word(words, h);
      keep[c] = high != t >> 16 ? high > t >> 16
                                : dropout_keep(seed, first + static_cast<std::uint64_t>(c), t, args.mask.stream);
    }
  }
}

/// dropout of one value: 0 where dropped, whatever the value.
template <typename A>
A drop(A v, std::uint8_t keep, A scale) {
  return keep != 0 ? v * scale : A(0);
}

/// A thread should have at least this many elements.
constexpr std::int64_t kGrain = 16384;
std::int64_t row_grain(const FusedArgs& args) {
  return std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(args.cols, 1));
}

/// Calls f(r, keep) for every row on threads; keep is the row's mask.
template <typename F>
void for_rows(const FusedArgs& args, const Execution& execution, F&& f) {
  parallel_for(execution.threads, args.rows, row_grain(args), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::uint8_t> keep(static_cast<std::size_t>(args.cols));
    for (std::int64_t r = begin; r < end; ++r) {
      mask_row(args, r, keep.data());
      f(r, keep.data());
    }
  });
}

/// As for_rows, by groups: f(r, keep, sums), where sums are `count` rows of cols numbers, 0 at a group's start. Then
/// outputs[i] = the i-th row's sum over groups.
template <typename T, typename F>
void for_rows_with_sums(const FusedArgs& args, const Execution& execution, void* const* outputs, int count, F&& f) {
  using A = ArithmeticType<T>;
  bool any = false;
  for (int i = 0; i < count; ++i) any = any || outputs[i] != nullptr;
  if (!any) {
    for_rows(args, execution, [&](std::int64_t r, const std::uint8_t* keep) { f(r, keep, static_cast<A*>(nullptr)); });
    return;
  }
  const std::int64_t groups = group_count(args.rows), width = args.cols * count;
  A* all = static_cast<A*>(args.workspace);
  const std::int64_t rows_a_group = groups == 0 ? 1 : args.rows / groups;
  parallel_for(execution.threads, groups, std::max<std::int64_t>(1, row_grain(args) / rows_a_group),
               [&](std::int64_t begin, std::int64_t end) {
                 std::vector<std::uint8_t> keep(static_cast<std::size_t>(args.cols));
                 for (std::int64_t g = begin; g < end; ++g) {
                   A* sums = all + g * width;
                   std::fill(sums, sums + width, A(0));
                   for (std::int64_t r = args.rows * g / groups; r < args.rows * (g + 1) / groups; ++r) {
                     mask_row(args, r, keep.data());
                     f(r, keep.data(), sums);
                   }
                 }
               });
  for (int i = 0; i < count; ++i) {
    if (outputs[i] == nullptr) continue;
    parallel_for(execution.threads, args.cols, kGrain / kGroups, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        A sum = 0;
        for (std::int64_t g = 0; g < groups; ++g) sum += all[g * width + i * args.cols + c];
        static_cast<T*>(outputs[i])[c] = narrow<T>(sum);
      }
    });
  }
}

template <typename T>
void forward(const FusedForwardArgs& args, const Execution& execution) {
  using A = ArithmeticType<T>;
  const T* bias = static_cast<const T*>(args.bias);
  const A scale = static_cast<A>(args.scale);
  for_rows(args, execution, [&](std::int64_t r, const std::uint8_t* keep) {
    const T *x = row<T>(args.x, r), *residual = row<T>(args.residual, r);
    T* y = row<T>(args.y, r);
    for (std::int64_t c = 0; c < args.cols; ++c) {
      const A v = reference::activate(args.activation, widen(x[c]) + at(bias, c));
      const A dropped = drop(v, keep[c], scale);
      y[c] = narrow<T>(residual == nullptr ? dropped : widen(residual[c]) + dropped);
    }
  });
}

template <typename T>
void backward(const FusedBackwardArgs& args, const Execution& execution) {
  using A = ArithmeticType<T>;
  const T* bias = static_cast<const T*>(args.bias);
  const A scale = static_cast<A>(args.scale);
  for_rows_with_sums<T>(args, execution, &args.dbias, 1, [&](std::int64_t r, const std::uint8_t* keep, A* sums) {
    const T *dy = row<T>(args.dy, r), *x = row<T>(args.x, r);
    T* dx = row<T>(args.dx, r);
    for (std::int64_t c = 0; c < args.cols; ++c) {
      A g = drop(widen(dy[c]), keep[c], scale);
      if (x != nullptr && keep[c] != 0) g *= reference::activate_derivative(args.activation, widen(x[c]) + at(bias, c));
      dx[c] = narrow<T>(g);
      if (sums != nullptr) sums[c] += g;
    }
  });
}

template <typename T>
void norm(const FusedNormArgs& args, const Execution& execution) {
  using A = ArithmeticType<T>;
  const T *bias = static_cast<const T*>(args.bias), *weight = static_cast<const T*>(args.weight),
          *norm_bias = static_cast<const T*>(args.norm_bias);
  const A scale = static_cast<A>(args.scale);
  const double count = static_cast<double>(args.cols);
  const bool centred = args.norm == Norm::kLayer;
  for_rows(args, execution, [&](std::int64_t r, const std::uint8_t* keep) {
    const T *x = row<T>(args.x, r), *residual = row<T>(args.residual, r);
    T *sum = row<T>(args.sum, r), *y = row<T>(args.y, r);
    double total = 0;  // rows may be long
    for (std::int64_t c = 0; c < args.cols; ++c) {
      const A dropped = drop(widen(x[c]) + at(bias, c), keep[c], scale);
      sum[c] = narrow<T>(at(residual, c) + dropped);
      total += widen(sum[c]);
    }
    const A mean = centred ? static_cast<A>(total / count) : A(0);
    double squares = 0;
    for (std::int64_t c = 0; c < args.cols; ++c) {
      const A d = widen(sum[c]) - mean;
      squares += d * d;
    }
    const A rstd = static_cast<A>(1 / std::sqrt(squares / count + args.eps));
    for (std::int64_t c = 0; c < args.cols; ++c)
      y[c] = narrow<T>((widen(sum[c]) - mean) * rstd * at(weight, c, A(1)) + at(norm_bias, c));
    if (centred) static_cast<A*>(args.mean)[r] = mean;
    static_cast<A*>(args.rstd)[r] = rstd;
  });
}

template <typename T>
void norm_backward(const FusedNormBackwardArgs& args, const Execution& execution) {
  using A = ArithmeticType<T>;
  const T* weight = static_cast<const T*>(args.weight);
  const A scale = static_cast<A>(args.scale);
  const double count = static_cast<double>(args.cols);
  const bool centred = args.norm == Norm::kLayer;
  void* const outputs[] = {args.dbias, args.dweight, args.dnorm_bias};
  for_rows_with_sums<T>(args, execution, outputs, 3, [&](std::int64_t r, const std::uint8_t* keep, A* sums) {
    const T *dy = row<T>(args.dy, r), *dsum = row<T>(args.dsum, r), *sum = row<T>(args.sum, r);
    T *dresidual = row<T>(args.dresidual, r), *dx = row<T>(args.dx, r);
    const A mean = centred ? static_cast<const A*>(args.mean)[r] : A(0), rstd = static_cast<const A*>(args.rstd)[r];
    double total = 0, product = 0;  // whose means are those of dy * weight, and of that times the normalised sum
    for (std::int64_t c = 0; c < args.cols; ++c) {
      const A g = widen(dy[c]) * at(weight, c, A(1));
      total += g;
      product += g * ((widen(sum[c]) - mean) * rstd);
    }
    const A first = centred ? static_cast<A>(total / count) : A(0), second = static_cast<A>(product / count);
    for (std::int64_t c = 0; c < args.cols; ++c) {
      const A d = widen(dy[c]), normal = (widen(sum[c]) - mean) * rstd;
      const A ds = rstd * (d * at(weight, c, A(1)) - first - normal * second) + at(dsum, c);
      const A g = drop(ds, keep[c], scale);
      if (dresidual != nullptr) dresidual[c] = narrow<T>(ds);
      dx[c] = narrow<T>(g);
      if (sums != nullptr) {
        sums[c] += g;
        sums[args.cols + c] += d * normal;
        sums[2 * args.cols + c] += d;
      }
    }
  });
}

}  // namespace

std::int64_t fused_workspace_bytes(DType dtype, std::int64_t rows, std::int64_t cols) {
  return group_count(rows) * cols * 3 * (dtype == DType::kFloat64 ? 8 : 4);
}

void fused_forward(const FusedForwardArgs& args, const Execution& execution) {
  visit_floating(args.dtype, [&](auto type) { forward<typename decltype(type)::type>(args, execution); });
}
void fused_backward(const FusedBackwardArgs& args, const Execution& execution) {
  visit_floating(args.dtype, [&](auto type) { backward<typename decltype(type)::type>(args, execution); });
}
void fused_norm(const FusedNormArgs& args, const Execution& execution) {
  visit_floating(args.dtype, [&](auto type) { norm<typename decltype(type)::type>(args, execution); });
}
void fused_norm_backward(const FusedNormBackwardArgs& args, const Execution& execution) {
  visit_floating(args.dtype, [&](auto type) { norm_backward<typename decltype(type)::type>(args, execution); });
}

}  // namespace maskless::cpu
