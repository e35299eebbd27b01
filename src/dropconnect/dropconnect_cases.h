// One list of layers for conformance, gradients and benchmarks, and what runs them on a device of choice.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_CASES_H_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_CASES_H_

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/visit.h"
#include "dropconnect/dropconnect_reference.h"
#include "maskless/dropconnect.h"

namespace maskless::cases {

/// x (rows, inputs), weight (outputs, inputs), with `passes` passes (0: none asked for).
struct Layer {
  std::string name;
  std::int64_t rows, outputs, inputs, passes = 0;
  double p = 0.5;
  std::uint64_t first_sample = 0, first_output = 0, first_input = 0;
  bool shared = false, scale = true, bias = true, strided = false, seed_in_memory = false;
};

/// Shapes around every edge: of a block of 128 inputs, of the tiles of 8, 16, 32, 64 and 128 rows and outputs.
inline std::vector<Layer> layers() {
  return {
      {"one", 1, 1, 1},
      {"one weight row", 3, 1, 130, 0, 0.25},
      {"no rows", 0, 5, 7},
      {"no inputs", 3, 5, 0},
      {"no outputs", 3, 0, 7},
      {"below a block", 5, 7, 127, 0, 0.75},
      {"a block", 8, 16, 128, 0, 0.125},
      {"above a block", 9, 17, 129, 0, 0.1},
      {"two blocks and a bit", 33, 31, 257, 0, 0.5, 7, 11, 0},
      {"primes", 67, 71, 131, 0, 0.9},
      {"tile edges", 65, 129, 256, 0, 0.5},
      {"many inputs, few rows", 2, 33, 1301, 0, 0.3},
      {"positions past 2^31", 5, 9, 200, 0, 0.5, (1ull << 31) - 2, (1ull << 32) - 9, (1ull << 33) + 100},
      {"first input inside a block", 10, 20, 300, 0, 0.1, 0, 0, 93},
      {"first input at four", 10, 20, 300, 0, 0.5, 3, 5, 4},
      {"passes", 5, 21, 140, 3, 0.5, 10, 0, 0},
      {"one pass", 5, 21, 140, 1, 0.2},
      {"shared", 20, 19, 150, 0, 0.5, 0, 3, 0, true},
      {"no scale, no bias", 12, 13, 140, 0, 0.5, 0, 0, 0, false, false, false},
      {"strided", 19, 23, 143, 0, 0.25, 0, 0, 0, false, true, true, true},
      {"strided passes", 9, 23, 143, 2, 0.1, 0, 0, 0, false, true, true, true},
      {"seed in memory", 17, 18, 130, 0, 0.5, 0, 0, 0, false, true, true, false, true},
      {"keeps all", 10, 12, 140, 0, 0.0},
      {"drops all", 10, 12, 140, 0, 1.0},
      {"hardly drops", 10, 12, 140, 0, 1e-9},
      {"hardly keeps", 10, 12, 140, 0, 0.999},
  };
}

inline std::uint64_t constexpr kSeed = 0x9E3779B97F4A7C15ull;
inline std::uint32_t constexpr kStream = 3;

inline DropconnectOptions options(const Layer& layer) {
  DropconnectOptions o;
  o.p = layer.p;
  o.seed = kSeed;
  o.stream = kStream;
  o.scale = layer.scale;
  o.shared = layer.shared;
  o.samples = layer.passes;
  o.sample_stride = layer.passes > 0 ? layer.rows + 2 : 0;
  o.first_sample = layer.first_sample;
  o.first_output = layer.first_output;
  o.first_input = layer.first_input;
  return o;
}

/// Memory on the GPU, by whoever uses the cases there.
void* device_allocate(std::size_t bytes);
void device_free(void* data);
void device_copy(void* to, const void* from, std::size_t bytes);  // waits

/// Memory on a device, with a copy here.
template <typename T>
class Array {
 public:
  Array(std::vector<T> host, Device device) : host_(std::move(host)), on_cuda_(device.type == DeviceType::kCuda) {
    if (!on_cuda_ || host_.empty()) return;
    data_ = device_allocate(host_.size() * sizeof(T));
    device_copy(data_, host_.data(), host_.size() * sizeof(T));
  }
  ~Array() {
    if (data_ != nullptr) device_free(data_);
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T* data() { return on_cuda_ ? static_cast<T*>(data_) : host_.data(); }
  const std::vector<T>& fetch() {
    if (data_ != nullptr) device_copy(host_.data(), data_, host_.size() * sizeof(T));
    return host_;
  }

 private:
  std::vector<T> host_;
  bool on_cuda_;
  void* data_ = nullptr;
};

/// A matrix with spare columns, rows apart, or transposed in memory, as `strided` says. Spare elements hold NaN.
template <typename T>
struct Plane {
  std::int64_t rows, cols, row, col;
  std::vector<T> values;

  Plane(std::int64_t r, std::int64_t c, bool strided)
      : rows(r), cols(c), row(strided ? 1 : c), col(strided ? r + 3 : 1) {
    values.assign(static_cast<std::size_t>(strided ? c * (r + 3) : r * c), nan());
  }
  static T nan() { return reference::from_sum<T>(std::numeric_limits<reference::SumOf<T>>::quiet_NaN()); }
  T& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * row + c * col)]; }
};

/// Values in [-1, 1], a pure function of their place.
template <typename T>
T value(std::uint64_t salt, std::int64_t i) {
  const std::uint32_t u =
      philox4x32(Words4{{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(salt), 0, 0}}, Words2{{1, 2}}).w[0];
  return reference::from_sum<T>(static_cast<reference::SumOf<T>>(u * 0x1p-31 - 1.0));
}

/// All tensors of a layer, and its results by the library (run) or by the scalar reference in double (expect).
template <typename T>
struct Trial {
  Layer layer;
  std::int64_t passes, count;
  Plane<T> x, w, y, dy, dx, dw;
  std::vector<T> bias, dbias;

  explicit Trial(const Layer& l)
      : layer(l),
        passes(l.passes > 0 ? l.passes : 1),
        count(passes * l.rows),
        x(l.rows, l.inputs, l.strided),
        w(l.outputs, l.inputs, l.strided),
        y(count, l.outputs, false),
        dy(count, l.outputs, false),
        dx(l.rows, l.inputs, l.strided),
        dw(l.outputs, l.inputs, l.strided),
        bias(static_cast<std::size_t>(l.outputs)),
        dbias(static_cast<std::size_t>(l.outputs), Plane<T>::nan()) {
    fill(x, 1);
    fill(w, 2);
    fill(dy, 3);
    for (std::int64_t n = 0; n < l.outputs; ++n) bias[static_cast<std::size_t>(n)] = value<T>(4, n);
  }
  static void fill(Plane<T>& plane, std::uint64_t salt) {
    for (std::int64_t r = 0; r < plane.rows; ++r)
      for (std::int64_t c = 0; c < plane.cols; ++c) plane.at(r, c) = value<T>(salt, r * plane.cols + c);
  }
  static constexpr DType dtype() {
    if constexpr (std::is_same_v<T, Float16>) return DType::kFloat16;
    if constexpr (std::is_same_v<T, BFloat16>) return DType::kBFloat16;
    if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
    return DType::kFloat64;
  }

  template <typename View, typename P>
  View view(P* data, const Plane<T>& plane, Device device, bool by_pass) const {
    View v;
    v.data = data;
    v.dtype = dtype();
    v.device = device;
    if (by_pass && layer.passes > 0) {
      v.rank = 3;
      v.shape = {layer.passes, layer.rows, plane.cols};
      v.strides = {layer.rows * plane.row, plane.row, plane.col};
    } else {
      v.rank = 2;
      v.shape = {plane.rows, plane.cols};
      v.strides = {plane.row, plane.col};
    }
    return v;
  }

  void run(Device device, const Execution& execution, DropconnectOptions o) {
    Array<T> ax(x.values, device), aw(w.values, device), ay(y.values, device), ady(dy.values, device),
        adx(dx.values, device), adw(dw.values, device), ab(bias, device), adb(dbias, device);
    Array<std::uint64_t> seed({kSeed}, device);
    if (layer.seed_in_memory) o.seed = Seed::at(seed.data());
    const ConstTensorView vx = view<ConstTensorView>(ax.data(), x, device, false);
    const ConstTensorView vw = view<ConstTensorView>(aw.data(), w, device, false);
    const ConstTensorView vdy = view<ConstTensorView>(ady.data(), dy, device, true);
    const ConstTensorView vb = contiguous_view(static_cast<const void*>(ab.data()), dtype(), {layer.outputs}, device);
    const TensorView vdx = view<TensorView>(adx.data(), dx, device, false),
                     vdw = view<TensorView>(adw.data(), dw, device, false);
    const TensorView vdb = contiguous_view(static_cast<void*>(adb.data()), dtype(), {layer.outputs}, device);
    dropconnect(vx, vw, layer.bias ? &vb : nullptr, view<TensorView>(ay.data(), y, device, true), o, execution);
    dropconnect_backward(vdy, vx, vw, &vdx, &vdw, &vdb, o, execution);
    y.values = ay.fetch();
    dx.values = adx.fetch();
    dw.values = adw.fetch();
    dbias = adb.fetch();
  }

  DropconnectMask mask() const {
    const DropconnectOptions o = options(layer);
    DropconnectMask m;
    m.threshold = threshold(layer.p);
    m.seed = kSeed;
    m.tag = counter_tag(Op::kDropconnect, kStream);
    m.first_input = o.first_input;
    m.first_output = static_cast<std::uint32_t>(o.first_output);
    m.first_sample = layer.shared ? 0 : static_cast<std::uint32_t>(o.first_sample);
    m.sample_stride = layer.shared ? 0 : static_cast<std::uint32_t>(o.sample_stride);
    m.row_stride = layer.shared ? 0 : 1;
    return m;
  }
  double scale() const { return layer.scale ? keep_scale(layer.p) : 1.0; }

  double expected_y(std::int64_t r, std::int64_t n) {
    DropconnectArgs args;
    args.shape = {dtype(), passes, layer.rows, layer.outputs, layer.inputs};
    args.mask = mask();
    args.x = {x.values.data(), x.row, x.col};
    args.w = {w.values.data(), w.row, w.col};
    return reference::product_sum<T, double>(args, kSeed, r / layer.rows, r % layer.rows, n) * scale() +
           (layer.bias ? static_cast<double>(reference::to_sum(bias[static_cast<std::size_t>(n)])) : 0.0);
  }
  GradientArgs gradient(bool of_x) {
    DropconnectBackwardArgs args;
    args.shape = {dtype(), passes, layer.rows, layer.outputs, layer.inputs};
    args.mask = mask();
    args.scale = scale();
    args.dy = {dy.values.data(), dy.row, dy.col};
    args.dy_pass = layer.rows * dy.row;
    args.x = {x.values.data(), x.row, x.col};
    args.w = {w.values.data(), w.row, w.col};
    return of_x ? dx_gradient(args) : dw_gradient(args);
  }
};

}  // namespace maskless::cases

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_CASES_H_
