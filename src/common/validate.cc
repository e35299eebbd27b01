#include "common/validate.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "maskless/core/threshold.h"
#include "maskless/core/uniform.h"

namespace maskless::validate {
namespace {

template <typename T>
std::string to_text(T value) {
  std::array<char, 64> buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return {buffer.data(), result.ptr};
}

/// The bytes that a view touches: [first, last). Empty views touch none.
std::pair<std::intptr_t, std::intptr_t> extent(const ConstTensorView& v) {
  std::int64_t low = 0, high = 0;
  for (int d = 0; d < v.rank; ++d) {
    if (v.shape[d] == 0) return {0, 0};
    const std::int64_t reach = (v.shape[d] - 1) * v.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<std::intptr_t>(v.data);
  const auto size = static_cast<std::int64_t>(dtype_size(v.dtype));
  return {base + low * size, base + (high + 1) * size};
}

}  // namespace

std::string text(double value) { return std::isnan(value) ? "nan" : to_text(value); }
std::string text(std::int64_t value) { return to_text(value); }
std::string text(std::uint64_t value) { return to_text(value); }
std::string text(Device device) { return device.type == DeviceType::kCpu ? "cpu" : "cuda:" + to_text(device.index); }

std::string shape_text(const ConstTensorView& view) {
  std::string s = "(";
  for (int d = 0; d < view.rank; ++d) s += (d == 0 ? "" : ", ") + text(view.shape[d]);
  return s + (view.rank == 1 ? ",)" : ")");
}

void fail_value(const char* op, const char* argument, const std::string& rule, const std::string& value) {
  throw Error(ErrorKind::kValue, op, argument, rule, value);
}
void fail_type(const char* op, const char* argument, const std::string& rule, const std::string& value) {
  throw Error(ErrorKind::kType, op, argument, rule, value);
}
void fail_runtime(const char* op, const char* argument, const std::string& rule, const std::string& value) {
  throw Error(ErrorKind::kRuntime, op, argument, rule, value);
}

void probability(const char* op, const char* argument, double p) {
  if (!valid_probability(p)) fail_value(op, argument, "must be in [0, 1]", text(p));
}

void stream(const char* op, std::uint32_t stream) {
  if (stream >= kStreamLimit) fail_value(op, "stream", "must be below 2^24", text(std::uint64_t{stream}));
}

void view(const char* op, const char* argument, const ConstTensorView& view) {
  if (view.rank < 0 || view.rank > kMaxRank)
    fail_value(op, argument, "must have at most 8 dimensions", text(std::int64_t{view.rank}));
  bool empty = false;
  for (int d = 0; d < view.rank; ++d) {
    if (view.shape[d] < 0) fail_value(op, argument, "must not have a negative extent", shape_text(view));
    empty = empty || view.shape[d] == 0;
  }
  if (empty) return;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 16;
  std::int64_t size = 1, span = 1;
  for (int d = 0; d < view.rank; ++d) {
    const std::int64_t extent = view.shape[d], stride = view.strides[d];
    if (extent > kMost / size) fail_value(op, argument, "must have fewer than 2^59 elements", shape_text(view));
    size *= extent;
    if (extent == 1) continue;
    const std::int64_t most = (kMost - span) / (extent - 1);
    if (stride < -most || stride > most)
      fail_value(op, argument, "must span fewer than 2^59 elements of memory",
                 "stride " + text(stride) + ", shape " + shape_text(view));
    span += (extent - 1) * std::abs(stride);
  }
  if (view.data == nullptr) fail_value(op, argument, "must not be null", "a null pointer");
}

void floating(const char* op, const char* argument, const ConstTensorView& v) {
  view(op, argument, v);
  switch (v.dtype) {
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64: return;
    default: fail_type(op, argument, "must be float16, bfloat16, float32 or float64", dtype_name(v.dtype));
  }
}

void same_shape(const char* op, const char* a_name, const ConstTensorView& a, const char* b_name,
                const ConstTensorView& b) {
  bool same = a.rank == b.rank;
  for (int d = 0; same && d < a.rank; ++d) same = a.shape[d] == b.shape[d];
  if (!same)
    fail_value(op, b_name, std::string("must have the shape of ") + a_name + ", " + shape_text(a), shape_text(b));
}

void same_dtype(const char* op, const char* a_name, const ConstTensorView& a, const char* b_name,
                const ConstTensorView& b) {
  if (a.dtype != b.dtype)
    fail_type(op, b_name, std::string("must have the dtype of ") + a_name + ", " + dtype_name(a.dtype),
              dtype_name(b.dtype));
}

void same_device(const char* op, const char* a_name, const ConstTensorView& a, const char* b_name,
                 const ConstTensorView& b) {
  if (a.device != b.device)
    fail_value(op, b_name, std::string("must be on the device of ") + a_name + ", " + text(a.device), text(b.device));
}

void writable(const char* op, const char* argument, const ConstTensorView& out) {
  // Sorted by stride, each stride must step over all that the smaller ones reach.
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> dims;  // |stride|, extent
  int rank = 0;
  for (int d = 0; d < out.rank; ++d) {
    if (out.shape[d] == 0) return;
    if (out.shape[d] == 1) continue;
    int at = rank++;  // insertion keeps them sorted
    const std::pair<std::int64_t, std::int64_t> dim = {std::abs(out.strides[d]), out.shape[d]};
    for (; at > 0 && dim < dims[at - 1]; --at) dims[at] = dims[at - 1];
    dims[at] = dim;
  }
  std::int64_t reach = 0;
  for (int d = 0; d < rank; ++d) {
    if (dims[d].first <= reach)
      fail_value(op, argument, "must not have elements that share memory (an expanded or overlapping view)",
                 "strides that overlap, shape " + shape_text(out));
    reach += (dims[d].second - 1) * dims[d].first;
  }
}

void no_partial_overlap(const char* op, const char* in_name, const ConstTensorView& in, const char* out_name,
                        const ConstTensorView& out) {
  const auto [in_first, in_last] = extent(in);
  const auto [out_first, out_last] = extent(out);
  if (in_first == in_last || out_first == out_last || in_last <= out_first || out_last <= in_first) return;
  bool same = in.data == out.data && in.dtype == out.dtype;
  for (int d = 0; same && d < in.rank; ++d) same = in.shape[d] <= 1 || in.strides[d] == out.strides[d];
  if (!same)
    fail_value(op, out_name, std::string("must be ") + in_name + " itself or not overlap it", "memory that overlaps");
}

void no_overlap(const char* op, const char* in_name, const ConstTensorView& in, const char* out_name,
                const ConstTensorView& out) {
  const auto [in_first, in_last] = extent(in);
  const auto [out_first, out_last] = extent(out);
  if (in_first == in_last || out_first == out_last || in_last <= out_first || out_last <= in_first) return;
  fail_value(op, out_name, std::string("must not overlap ") + in_name, "memory that overlaps");
}

void shard(const char* op, const ConstTensorView& view, const Shard& shard) {
  if (shard.rank == 0) return;
  if (shard.rank != view.rank)
    fail_value(op, "shard", "must have as many dimensions as the tensor, " + text(std::int64_t{view.rank}),
               text(std::int64_t{shard.rank}));
  std::uint64_t total = 1;
  for (int d = 0; d < view.rank; ++d) {
    const std::int64_t global = shard.global_shape[d], offset = shard.offsets[d];
    if (offset < 0 || global < 0 || offset > global || view.shape[d] > global - offset)
      fail_value(op, "shard",
                 "must contain the tensor: 0 <= offset and offset + extent <= global extent in dimension " +
                     text(std::int64_t{d}),
                 "offset " + text(offset) + ", extent " + text(view.shape[d]) + ", global extent " + text(global));
    const std::uint64_t extent = global == 0 ? 1 : static_cast<std::uint64_t>(global);
    if (extent > std::numeric_limits<std::uint64_t>::max() / total)
      fail_value(op, "shard", "must have a global shape of fewer than 2^64 elements", "a larger one");
    total *= extent;
  }
}

void no_cuda(const char* op) {
  fail_runtime(op, "device", "cuda needs a library built with CUDA; this one was built without it");
}

}  // namespace maskless::validate
