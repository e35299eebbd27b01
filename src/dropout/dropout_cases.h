// One list of dropout's cases, for every backend's tests, and their oracle: a loop over coordinates that shares nothing
// with the library but the header-only core and the float conversions.
#ifndef MASKLESS_SRC_DROPOUT_DROPOUT_CASES_H_
#define MASKLESS_SRC_DROPOUT_DROPOUT_CASES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/float_types.h"
#include "maskless/core/uniform.h"
#include "maskless/dropout.h"

namespace maskless::cases {

/// How a tensor lies in memory.
enum class Arrangement {
  kContiguous,
  kOffByOne,      // contiguous, one element past an aligned address
  kReversed,      // every stride negative
  kFortran,       // the first dimension is contiguous
  kChannelsLast,  // dimension 1 is contiguous
  kEveryOther,    // last dimension with stride 2
  kPadded,        // rows with a gap of 3 elements between them
  kExpanded,      // dimension 0 has stride 0 (input only)
};

struct DropoutCase {
  std::string name;
  std::vector<std::int64_t> shape;
  Arrangement x = Arrangement::kContiguous, y = Arrangement::kContiguous;
  double p = 0.1;
  std::uint64_t seed = 123;
  std::uint32_t stream = 0;
  std::uint64_t first_index = 0;
  Layout layout = Layout::kPacked;
  bool scale = true;
  Shard shard = {};
  std::int64_t row_seed_stride = 0;  // 0: one seed for all
  bool in_place = false;             // y is x
};

/// Memory of `elements`, element 0 of the tensor at `origin`.
struct Placement {
  std::vector<std::int64_t> strides;
  std::int64_t origin = 0, elements = 0;
};

inline Placement place(const std::vector<std::int64_t>& shape, Arrangement arrangement) {
  const int rank = static_cast<int>(shape.size());
  Placement place;
  place.strides.assign(shape.size(), 0);
  std::vector<int> order;  // dimensions from the innermost in memory to the outermost
  for (int d = rank - 1; d >= 0; --d) order.push_back(d);
  if (arrangement == Arrangement::kFortran) std::reverse(order.begin(), order.end());
  if (arrangement == Arrangement::kChannelsLast && rank > 1) {
    order.erase(std::find(order.begin(), order.end(), 1));
    order.insert(order.begin(), 1);
  }
  std::int64_t stride = arrangement == Arrangement::kEveryOther ? 2 : 1;
  for (int i = 0; i < rank; ++i) {
    const int d = order[static_cast<std::size_t>(i)];
    if (arrangement == Arrangement::kExpanded && d == 0) continue;
    place.strides[static_cast<std::size_t>(d)] = stride;
    stride *= std::max<std::int64_t>(shape[static_cast<std::size_t>(d)], 1);
    if (arrangement == Arrangement::kPadded && i == 0) stride += 3;
  }
  place.elements = stride + 1;
  if (arrangement == Arrangement::kOffByOne) place.origin = 1;
  if (arrangement == Arrangement::kReversed) {
    for (int d = 0; d < rank; ++d) {
      std::int64_t& s = place.strides[static_cast<std::size_t>(d)];
      place.origin += s * std::max<std::int64_t>(shape[static_cast<std::size_t>(d)] - 1, 0);
      s = -s;
    }
  }
  return place;
}

inline TensorView view(void* memory, DType dtype, const std::vector<std::int64_t>& shape, const Placement& place) {
  TensorView v;
  v.data = static_cast<char*>(memory) + place.origin * static_cast<std::int64_t>(dtype_size(dtype));
  v.dtype = dtype;
  v.rank = static_cast<int>(shape.size());
  for (int d = 0; d < v.rank; ++d) {
    v.shape[static_cast<std::size_t>(d)] = shape[static_cast<std::size_t>(d)];
    v.strides[static_cast<std::size_t>(d)] = place.strides[static_cast<std::size_t>(d)];
  }
  return v;
}

/// Seeds of the rows: every stride-th of a list that the caller keeps (and copies to its device).
inline std::vector<std::uint64_t> row_seeds(const DropoutCase& c) {
  std::vector<std::uint64_t> seeds;
  if (c.row_seed_stride == 0) return seeds;
  std::mt19937_64 engine(99);
  for (std::int64_t i = 0; i < c.shape[0] * c.row_seed_stride; ++i) seeds.push_back(engine());
  return seeds;
}

inline DropoutOptions options(const DropoutCase& c, const std::uint64_t* seeds) {
  DropoutOptions o;
  o.p = c.p;
  o.seed = c.seed;
  o.stream = c.stream;
  o.first_index = c.first_index;
  o.layout = c.layout;
  o.scale = c.scale;
  o.shard = c.shard;
  if (c.row_seed_stride != 0) o.row_seeds = {seeds, c.row_seed_stride};
  return o;
}

/// Calls f(element, coordinates) in row-major order.
template <typename F>
void for_each_element(const std::vector<std::int64_t>& shape, F&& f) {
  std::int64_t size = 1;
  for (std::int64_t extent : shape) size *= extent;
  std::vector<std::int64_t> coords(shape.size(), 0);
  for (std::int64_t e = 0; e < size; ++e) {
    f(e, coords);
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (++coords[d] < shape[d]) break;
      coords[d] = 0;
    }
  }
}

/// The oracle's mask, row-major.
inline std::vector<std::uint8_t> expected_keep(const DropoutCase& c, const std::vector<std::uint64_t>& seeds) {
  const std::uint64_t t = threshold(c.p);
  std::vector<std::uint8_t> keep;
  for_each_element(c.shape, [&](std::int64_t, const std::vector<std::int64_t>& coords) {
    std::uint64_t index = 0;
    const std::size_t first = c.row_seed_stride != 0 ? 1 : 0;
    for (std::size_t d = first; d < coords.size(); ++d) {
      const std::int64_t extent = c.shard.rank != 0 ? c.shard.global_shape[d] : c.shape[d];
      const std::int64_t offset = c.shard.rank != 0 ? c.shard.offsets[d] : 0;
      index = index * static_cast<std::uint64_t>(extent) + static_cast<std::uint64_t>(coords[d] + offset);
    }
    index += c.first_index;
    const std::uint64_t seed =
        c.row_seed_stride != 0 ? seeds[static_cast<std::size_t>(coords[0] * c.row_seed_stride)] : c.seed;
    const bool kept = c.layout == Layout::kTriton ? triton_uniform(seed, index) > static_cast<float>(c.p) || c.p == 0.0
                                                  : dropout_uniform(seed, index, c.stream) >= t;
    keep.push_back(kept ? 1 : 0);
  });
  return keep;
}

/// One kept value as the specification says, on raw bits of the dtype.
inline std::uint64_t expected_value(DType dtype, std::uint64_t bits, double p, bool scale) {
  if (!scale || p == 0.0) return bits;
  const double factor = keep_scale(p);
  switch (dtype) {
    case DType::kFloat16:
      return from_float<Float16>(to_float(Float16{static_cast<std::uint16_t>(bits)}) * static_cast<float>(factor)).bits;
    case DType::kBFloat16:
      return from_float<BFloat16>(to_float(BFloat16{static_cast<std::uint16_t>(bits)}) * static_cast<float>(factor))
          .bits;
    case DType::kFloat32:
      return detail::float_bits(detail::bits_float(static_cast<std::uint32_t>(bits)) * static_cast<float>(factor));
    default: {
      double value;
      std::memcpy(&value, &bits, sizeof value);
      value *= factor;
      std::memcpy(&bits, &value, sizeof value);
      return bits;
    }
  }
}

inline std::uint64_t load_bits(const void* memory, std::int64_t element, DType dtype) {
  std::uint64_t bits = 0;
  const std::size_t size = dtype_size(dtype);
  std::memcpy(&bits, static_cast<const char*>(memory) + static_cast<std::size_t>(element) * size, size);
  return bits;
}

inline bool is_nan_bits(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::kFloat16: return (bits & 0x7FFFu) > 0x7C00u;
    case DType::kBFloat16: return (bits & 0x7FFFu) > 0x7F80u;
    case DType::kFloat32: return (bits & 0x7FFFFFFFu) > 0x7F800000u;
    default: return (bits & 0x7FFFFFFFFFFFFFFFu) > 0x7FF0000000000000u;
  }
}

/// Memory filled with random bits, so with NaN, inf, -0 and subnormals too.
inline std::vector<char> random_memory(std::size_t bytes, std::uint64_t seed) {
  std::vector<char> memory(bytes + 8);
  std::mt19937_64 engine(seed);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t bits = engine();
    std::memcpy(memory.data() + i, &bits, 8);
  }
  memory.resize(bytes);
  return memory;
}

inline Shard make_shard(std::vector<std::int64_t> global, std::vector<std::int64_t> offsets) {
  Shard shard;
  shard.rank = static_cast<int>(global.size());
  std::copy(global.begin(), global.end(), shard.global_shape.begin());
  std::copy(offsets.begin(), offsets.end(), shard.offsets.begin());
  return shard;
}

inline const std::vector<DropoutCase>& dropout_cases() {
  static const std::vector<DropoutCase> list = [] {
    using A = Arrangement;
    constexpr std::uint64_t k2to32 = std::uint64_t{1} << 32;
    std::vector<DropoutCase> cases;
    for (std::int64_t n : {0,  1,   2,   3,   7,   8,   9,   15,   16,   17,   31,   32,   33,   63,   64,
                           65, 127, 129, 255, 256, 257, 511, 1023, 1024, 1025, 4095, 4096, 4097, 10007})
      for (A a : {A::kContiguous, A::kOffByOne}) cases.push_back({"length " + std::to_string(n), {n}, a, a, 0.3});
    for (double p : {0.0, 1.0, 0.5, 0.25, 0.1, 0.9, 1e-3, 1e-6, 1e-12, 1.0 - 1e-12, 1.0 / 65536})
      cases.push_back({"probability " + std::to_string(p), {5000}, A::kContiguous, A::kContiguous, p});
    for (bool scale : {true, false})
      for (double p : {0.0, 0.5}) {
        cases.push_back({"in place", {3001}, A::kContiguous, A::kContiguous, p});
        cases.back().scale = scale;
        cases.back().in_place = true;
      }
    for (std::uint64_t seed : {std::uint64_t{0}, k2to32 + 1, ~std::uint64_t{0}})
      for (std::uint64_t first :
           {std::uint64_t{1}, k2to32 - 100, 8 * k2to32 - 1003, 8 * k2to32 * 1000 - 77, ~std::uint64_t{0} - 3000}) {
        cases.push_back({"first index " + std::to_string(first), {3000}, A::kContiguous, A::kContiguous, 0.4, seed});
        cases.back().first_index = first;
        cases.back().stream = kStreamLimit - 1;
      }
    const std::vector<std::vector<std::int64_t>> shapes = {{},
                                                           {1},
                                                           {0, 5},
                                                           {3, 0},
                                                           {5, 7},
                                                           {64, 100},
                                                           {300, 9},
                                                           {9, 600},
                                                           {257, 513},
                                                           {2, 3, 5, 7},
                                                           {2, 9, 11, 13},
                                                           {3, 1, 67},
                                                           {2, 1, 2, 3, 1, 2, 5, 3},
                                                           {40, 8, 3}};
    for (const auto& shape : shapes)
      for (A x :
           {A::kContiguous, A::kReversed, A::kFortran, A::kChannelsLast, A::kEveryOther, A::kPadded, A::kExpanded})
        for (A y : {A::kContiguous, A::kReversed, A::kFortran, A::kChannelsLast, A::kEveryOther, A::kPadded}) {
          if (x != y && x != A::kContiguous && y != A::kContiguous && shape.size() > 2) continue;
          cases.push_back({"arrangements " + std::to_string(static_cast<int>(x)) + std::to_string(static_cast<int>(y)),
                           shape, x, y, 0.4});
          cases.back().first_index = 5;
        }
    for (A a : {A::kFortran, A::kReversed, A::kPadded, A::kEveryOther}) {
      cases.push_back({"in place, strided", {70, 90}, a, a, 0.2});
      cases.back().in_place = true;
    }
    for (A a : {A::kContiguous, A::kFortran}) {
      cases.push_back({"shard of rows", {4, 10}, a, a, 0.5});
      cases.back().shard = make_shard({12, 10}, {5, 0});
      cases.push_back({"shard of columns", {12, 3}, a, a, 0.5});
      cases.back().shard = make_shard({12, 10}, {0, 7});
      cases.push_back({"shard of one column", {300, 1}, a, a, 0.5});
      cases.back().shard = make_shard({300, 10}, {0, 7});
      cases.push_back({"shard of a box", {3, 5, 70}, a, a, 0.5});
      cases.back().shard = make_shard({9, 8, 111}, {2, 3, 41});
      cases.push_back({"shard beyond 2^35", {3, 2000}, a, a, 0.5});
      cases.back().shard = make_shard({std::int64_t{1} << 24, 4099}, {(std::int64_t{1} << 23) - 1, 2000});
      for (std::int64_t stride : {1, 3})
        for (std::int64_t cols : {1, 5, 64, 1000}) {
          cases.push_back({"row seeds", {17, cols}, a, a, 0.5});
          cases.back().row_seed_stride = stride;
          cases.back().first_index = 3;
        }
    }
    for (double p : {0.0, 0.1, 0.5, 1.0}) {
      cases.push_back({"Triton layout", {1027}, A::kContiguous, A::kContiguous, p});
      cases.back().layout = Layout::kTriton;
      cases.push_back({"Triton layout, strided", {33, 65}, A::kFortran, A::kFortran, p});
      cases.back().layout = Layout::kTriton;
      cases.back().first_index = k2to32 - 500;
      cases.push_back({"Triton layout, row seeds", {3, 65}, A::kContiguous, A::kContiguous, p});
      cases.back().layout = Layout::kTriton;
      cases.back().row_seed_stride = 1;
    }
    return cases;
  }();
  return list;
}

}  // namespace maskless::cases

#endif  // MASKLESS_SRC_DROPOUT_DROPOUT_CASES_H_
