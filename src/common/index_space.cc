#include "common/index_space.h"

#include <limits>

#include "common/validate.h"

namespace maskless {
namespace {

void copy_dim(IndexSpace& space, int to, int from) {
  space.shape[to] = space.shape[from];
  space.index_strides[to] = space.index_strides[from];
  for (int o = 0; o < space.operands; ++o) space.strides[o][to] = space.strides[o][from];
}

/// Can dimension `outer` step over all of `inner`, in every operand and in the positions?
bool mergeable(const IndexSpace& space, int outer, int inner) {
  const std::int64_t extent = space.shape[inner];
  if (space.index_strides[outer] != space.index_strides[inner] * static_cast<std::uint64_t>(extent)) return false;
  for (int o = 0; o < space.operands; ++o)
    if (space.strides[o][outer] != space.strides[o][inner] * extent) return false;
  return true;
}

}  // namespace

IndexSpace make_index_space(const char* op, const ConstTensorView* const* views, int operands,
                            std::uint64_t first_index, const Shard& shard, bool row_seeds) {
  const ConstTensorView& first = *views[0];
  validate::shard(op, first, shard);

  IndexSpace space;
  space.rank = first.rank;
  space.operands = operands;
  space.size = first.size();
  std::uint64_t stride = 1, offset = 0, last = 0;
  for (int d = first.rank - 1; d >= 0; --d) {
    if (row_seeds && d == 0) stride = 0;
    space.shape[d] = first.shape[d];
    space.index_strides[d] = stride;
    for (int o = 0; o < operands; ++o) space.strides[o][d] = views[o]->strides[d];
    if (first.shape[d] > 0) last += stride * static_cast<std::uint64_t>(first.shape[d] - 1);
    if (shard.rank != 0) offset += stride * static_cast<std::uint64_t>(shard.offsets[d]);
    stride *= static_cast<std::uint64_t>(shard.rank != 0 ? shard.global_shape[d] : first.shape[d]);
  }
  if (space.size == 0) return space;
  if (first_index > std::numeric_limits<std::uint64_t>::max() - offset ||
      first_index + offset > std::numeric_limits<std::uint64_t>::max() - last)
    validate::fail_value(op, "first_index", "must leave every position below 2^64", validate::text(first_index));
  space.first_index = first_index + offset;

  if (row_seeds) return space;
  int kept = 0;
  for (int d = 0; d < space.rank; ++d) {
    if (space.shape[d] == 1) continue;
    copy_dim(space, kept, d);
    if (kept > 0 && mergeable(space, kept - 1, kept)) {
      const std::int64_t outer = space.shape[kept - 1];
      copy_dim(space, kept - 1, kept);
      space.shape[kept - 1] *= outer;
    } else {
      ++kept;
    }
  }
  space.rank = kept;
  return space;
}

}  // namespace maskless
