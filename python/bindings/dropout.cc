#include "maskless/dropout.h"

#include "common.h"

namespace maskless::python {
namespace {

using RowSeedArray = std::optional<nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::device::cpu>>;

DropoutOptions to_options(const char* op, const ConstTensorView& tensor, double p, std::uint64_t seed,
                          std::uint32_t stream, std::uint64_t first_index, const RowSeedArray& row_seeds, bool triton,
                          const ShardArgument& shard) {
  DropoutOptions options;
  options.p = p;
  options.seed = seed;
  options.stream = stream;
  options.first_index = first_index;
  options.layout = triton ? Layout::kTriton : Layout::kPacked;
  options.shard = to_shard(op, tensor, shard);
  if (row_seeds) {
    static const std::uint64_t no_rows = 0;  // an empty array may have no address, but still stands for row seeds
    const auto rows = static_cast<std::int64_t>(row_seeds->shape(0));
    if (tensor.rank == 2 && rows != tensor.shape[0])
      throw Error(ErrorKind::kValue, op, "row_seeds", "must have one seed a row, " + std::to_string(tensor.shape[0]),
                  std::to_string(rows));
    options.row_seeds = {rows == 0 ? &no_rows : row_seeds->data(), row_seeds->stride(0)};
  }
  return options;
}

void bound_dropout(const Input& x, const Output& y, double p, std::uint64_t seed, std::uint32_t stream,
                   std::uint64_t first_index, const RowSeedArray& row_seeds, bool triton, bool scale,
                   const ShardArgument& shard, int threads) {
  const char* op = "dropout";
  const ConstTensorView in = to_view(op, "x", x);
  const TensorView out = to_view(op, "out", y);
  DropoutOptions options = to_options(op, in, p, seed, stream, first_index, row_seeds, triton, shard);
  options.scale = scale;
  run(op, "y", [&] { dropout(in, out, options, with_threads(threads)); });
}

void bound_dropout_backward(const Input& dy, const Output& dx, double p, std::uint64_t seed, std::uint32_t stream,
                            std::uint64_t first_index, const RowSeedArray& row_seeds, bool triton, bool scale,
                            const ShardArgument& shard, int threads) {
  const char* op = "dropout_backward";
  const ConstTensorView in = to_view(op, "dy", dy);
  const TensorView out = to_view(op, "out", dx);
  DropoutOptions options = to_options(op, in, p, seed, stream, first_index, row_seeds, triton, shard);
  options.scale = scale;
  run(op, "dx", [&] { dropout_backward(in, out, options, with_threads(threads)); });
}

void bound_keep_mask(const Output& mask, double p, std::uint64_t seed, std::uint32_t stream, std::uint64_t first_index,
                     const RowSeedArray& row_seeds, bool triton, const ShardArgument& shard, int threads) {
  const char* op = "keep_mask";
  const TensorView out = to_view(op, "out", mask);
  const DropoutOptions options = to_options(op, out, p, seed, stream, first_index, row_seeds, triton, shard);
  run(op, "mask", [&] { keep_mask(out, options, with_threads(threads)); });
}

void bound_keep_mask_packed(const std::vector<std::int64_t>& shape, const Output& bits, double p, std::uint64_t seed,
                            std::uint32_t stream, std::uint64_t first_index, const RowSeedArray& row_seeds, bool triton,
                            const ShardArgument& shard, int threads) {
  const char* op = "keep_mask";
  ConstTensorView tensor;
  if (shape.size() > kMaxRank)
    throw Error(ErrorKind::kValue, op, "shape", "must have at most 8 dimensions", std::to_string(shape.size()));
  tensor.rank = static_cast<int>(shape.size());
  for (int d = 0; d < tensor.rank; ++d) tensor.shape[d] = shape[d];
  const TensorView out = to_view(op, "out", bits);
  const DropoutOptions options = to_options(op, tensor, p, seed, stream, first_index, row_seeds, triton, shard);
  run(op, "bits", [&] { keep_mask_packed(tensor, out, options, with_threads(threads)); });
}

void bound_masked_dropout(const Input& x, const Input& keep, const Output& y, double p, bool scale, int threads) {
  const char* op = "masked_dropout";
  const ConstTensorView in = to_view(op, "x", x);
  const ConstTensorView mask = to_view(op, "keep", keep);
  const TensorView out = to_view(op, "out", y);
  run(op, "y", [&] { masked_dropout(in, mask, out, p, scale, with_threads(threads)); });
}

}  // namespace

void bind_dropout(nb::module_& m) {
  m.def("dropout", &bound_dropout, "x"_a.noconvert(), "out"_a.noconvert(), "p"_a, "seed"_a, "stream"_a, "first_index"_a,
        "row_seeds"_a.none().noconvert(), "triton"_a, "scale"_a, "shard"_a.none(), "threads"_a);
  m.def("dropout_backward", &bound_dropout_backward, "dy"_a.noconvert(), "out"_a.noconvert(), "p"_a, "seed"_a,
        "stream"_a, "first_index"_a, "row_seeds"_a.none().noconvert(), "triton"_a, "scale"_a, "shard"_a.none(),
        "threads"_a);
  m.def("keep_mask", &bound_keep_mask, "out"_a.noconvert(), "p"_a, "seed"_a, "stream"_a, "first_index"_a,
        "row_seeds"_a.none().noconvert(), "triton"_a, "shard"_a.none(), "threads"_a);
  m.def("keep_mask_packed", &bound_keep_mask_packed, "shape"_a, "out"_a.noconvert(), "p"_a, "seed"_a, "stream"_a,
        "first_index"_a, "row_seeds"_a.none().noconvert(), "triton"_a, "shard"_a.none(), "threads"_a);
  m.def("masked_dropout", &bound_masked_dropout, "x"_a.noconvert(), "keep"_a.noconvert(), "out"_a.noconvert(), "p"_a,
        "scale"_a, "threads"_a);
}

}  // namespace maskless::python
