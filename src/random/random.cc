// The public functions of random numbers: validate, normalise, choose the backend.
#include "maskless/random.h"

#include "common/backend.h"
#include "common/validate.h"
#include "random/random_kernels.h"

namespace maskless {
namespace {

void run(const char* op, const TensorView& out, RandomArgs args, const RandomOptions& options,
         const Execution& execution) {
  validate::view(op, "out", out);
  validate::writable(op, "out", out);
  validate::stream(op, options.stream);
  const ConstTensorView view = out;
  const ConstTensorView* views[] = {&view};
  args.space = make_index_space(op, views, 1, options.first_index, options.shard);
  args.dtype = out.dtype;
  args.seed = options.seed.value;
  args.seed_pointer = options.seed.pointer;
  args.stream = options.stream;
  args.out = out.data;
  if (args.space.size == 0) return;
  run_on(op, out.device, args, execution, cpu::random, MASKLESS_CUDA_KERNEL(random));
}

void require(const char* op, const TensorView& out, DType dtype) {
  if (out.dtype != dtype)
    validate::fail_type(op, "out", std::string("must be ") + dtype_name(dtype), dtype_name(out.dtype));
}

}  // namespace

void random_bits(const TensorView& out, const RandomOptions& options, const Execution& execution) {
  require("random_bits", out, DType::kUint32);
  RandomArgs args;
  args.kind = RandomKind::kBits;
  run("random_bits", out, args, options, execution);
}

void random_uniform(const TensorView& out, const RandomOptions& options, const Execution& execution) {
  require("random_uniform", out, DType::kFloat32);
  RandomArgs args;
  args.kind = RandomKind::kUniform;
  run("random_uniform", out, args, options, execution);
}

void random_uniform_triton(const TensorView& out, const RandomOptions& options, const Execution& execution) {
  const char* op = "random_uniform_triton";
  require(op, out, DType::kFloat32);
  if (options.stream != 0)
    validate::fail_value(op, "stream", "must be 0, for tl.rand has none",
                         validate::text(std::uint64_t{options.stream}));
  RandomArgs args;
  args.kind = RandomKind::kUniformTriton;
  run(op, out, args, options, execution);
}

void random_integers(const TensorView& out, std::int64_t low, std::int64_t high, const RandomOptions& options,
                     const Execution& execution) {
  const char* op = "random_integers";
  constexpr std::int64_t k2to31 = std::int64_t{1} << 31;
  if (out.dtype != DType::kInt32 && out.dtype != DType::kInt64)
    validate::fail_type(op, "out", "must be int32 or int64", dtype_name(out.dtype));
  if (low >= high) validate::fail_value(op, "high", "must be above low, " + validate::text(low), validate::text(high));
  if (out.dtype == DType::kInt32 && low < -k2to31)
    validate::fail_value(op, "low", "must fit int32", validate::text(low));
  if (out.dtype == DType::kInt32 && high > k2to31)
    validate::fail_value(op, "high", "must be at most 2^31 for int32", validate::text(high));
  RandomArgs args;
  args.low = low;
  args.range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  const bool wide = args.range > std::uint64_t{1} << 32;
  args.kind = wide ? RandomKind::kWideIntegers : RandomKind::kIntegers;
  args.unfair = wide ? (0 - args.range) % args.range : (std::uint64_t{1} << 32) % args.range;
  run(op, out, args, options, execution);
}

void random_normal(const TensorView& out, const RandomOptions& options, const Execution& execution) {
  require("random_normal", out, DType::kFloat32);
  RandomArgs args;
  args.kind = RandomKind::kNormal;
  run("random_normal", out, args, options, execution);
}

}  // namespace maskless
