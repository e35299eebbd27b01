// The only texts of errors about arguments. Every check names operation, argument, rule and value.
#ifndef MASKLESS_SRC_COMMON_VALIDATE_H_
#define MASKLESS_SRC_COMMON_VALIDATE_H_

#include <cstdint>
#include <string>

#include "maskless/error.h"
#include "maskless/tensor.h"

namespace maskless::validate {

std::string text(double value);
std::string text(std::int64_t value);
std::string text(std::uint64_t value);
std::string text(Device device);
std::string shape_text(const ConstTensorView& view);

[[noreturn]] void fail_value(const char* op, const char* argument, const std::string& rule, const std::string& value);
[[noreturn]] void fail_type(const char* op, const char* argument, const std::string& rule, const std::string& value);
[[noreturn]] void fail_runtime(const char* op, const char* argument, const std::string& rule,
                               const std::string& value = {});

/// 0 <= p <= 1, not NaN.
void probability(const char* op, const char* argument, double p);
/// stream < 2^24.
void stream(const char* op, std::uint32_t stream);
/// rank in 0 ... kMaxRank, extents >= 0, size and span below 2^59 elements, data not null unless empty.
void view(const char* op, const char* argument, const ConstTensorView& view);
/// As view, and dtype float16, bfloat16, float32 or float64.
void floating(const char* op, const char* argument, const ConstTensorView& view);
void same_shape(const char* op, const char* a_name, const ConstTensorView& a, const char* b_name,
                const ConstTensorView& b);
void same_dtype(const char* op, const char* a_name, const ConstTensorView& a, const char* b_name,
                const ConstTensorView& b);
void same_device(const char* op, const char* a_name, const ConstTensorView& a, const char* b_name,
                 const ConstTensorView& b);
/// No two coordinates share memory (checked for the common causes: a zero stride, or rows that overlap).
void writable(const char* op, const char* argument, const ConstTensorView& out);
/// `out` is `in` itself (same pointer and strides), or their memory does not overlap.
void no_partial_overlap(const char* op, const char* in_name, const ConstTensorView& in, const char* out_name,
                        const ConstTensorView& out);
/// The memory of `out` and `in` is apart.
void no_overlap(const char* op, const char* in_name, const ConstTensorView& in, const char* out_name,
                const ConstTensorView& out);
/// The shard has the view's rank and contains it.
void shard(const char* op, const ConstTensorView& view, const Shard& shard);

/// For tensors that are on a CUDA device in a build without that backend.
[[noreturn]] void no_cuda(const char* op);

}  // namespace maskless::validate

#endif  // MASKLESS_SRC_COMMON_VALIDATE_H_
