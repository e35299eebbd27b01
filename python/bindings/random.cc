#include "maskless/random.h"

#include "common.h"

namespace maskless::python {
namespace {

using Fill = void (*)(const TensorView&, const RandomOptions&, const Execution&);

template <Fill fill>
void bound(const Output& out, std::uint64_t seed, std::uint32_t stream, std::uint64_t first_index,
           const ShardArgument& shard, int threads) {
  const char* op = "random";
  const TensorView view = to_view(op, "out", out);
  const RandomOptions options = {seed, stream, first_index, to_shard(op, view, shard)};
  run(op, "out", [&] { fill(view, options, with_threads(threads)); });
}

void bound_integers(const Output& out, std::int64_t low, std::int64_t high, std::uint64_t seed, std::uint32_t stream,
                    std::uint64_t first_index, const ShardArgument& shard, int threads) {
  const char* op = "random";
  const TensorView view = to_view(op, "out", out);
  const RandomOptions options = {seed, stream, first_index, to_shard(op, view, shard)};
  run(op, "out", [&] { random_integers(view, low, high, options, with_threads(threads)); });
}

template <Fill fill>
void def(nb::module_& m, const char* name) {
  m.def(name, &bound<fill>, "out"_a.noconvert(), "seed"_a, "stream"_a, "first_index"_a, "shard"_a.none(), "threads"_a);
}

}  // namespace

void bind_random(nb::module_& m) {
  def<random_bits>(m, "random_bits");
  def<random_uniform>(m, "random_uniform");
  def<random_uniform_triton>(m, "random_uniform_triton");
  def<random_normal>(m, "random_normal");
  m.def("random_integers", &bound_integers, "out"_a.noconvert(), "low"_a, "high"_a, "seed"_a, "stream"_a,
        "first_index"_a, "shard"_a.none(), "threads"_a);
}

}  // namespace maskless::python
