// What an elementwise kernel loops over: a shape with one memory stride an operand and the position (index) stride of
// the logical tensor, dimensions of one element dropped and neighbours merged where every stride allows it.
#ifndef MASKLESS_SRC_COMMON_INDEX_SPACE_H_
#define MASKLESS_SRC_COMMON_INDEX_SPACE_H_

#include <cstdint>

#include "maskless/tensor.h"

namespace maskless {

inline constexpr int kMaxOperands = 4;

/// Plain data, passed to kernels by value. At rank 0 there is one element; an empty tensor has size 0.
struct IndexSpace {
  int rank = 0;
  int operands = 0;
  std::int64_t size = 1;
  std::int64_t shape[kMaxRank] = {};
  std::int64_t strides[kMaxOperands][kMaxRank] = {};  // in elements
  std::uint64_t index_strides[kMaxRank] = {};
  std::uint64_t first_index = 0;

  /// Operands lie in memory in the order of the positions, without gaps: element e is at e, its position first_index +
  /// e.
  constexpr bool contiguous() const {
    if (rank == 0) return true;
    bool unit = rank == 1 && index_strides[0] == 1;
    for (int o = 0; o < operands; ++o) unit = unit && strides[o][0] == 1;
    return unit;
  }
};

/// The positions of a tensor: row-major in its own shape, or in the shard's global shape at its offsets, from
/// first_index on. A row-seeded matrix counts positions along its columns alone. Throws if a position passes 2^64.
/// `views[o]` all have the shape of views[0]. With row_seeds, dimension 0 stays dimension 0 and rank stays 2.
IndexSpace make_index_space(const char* op, const ConstTensorView* const* views, int operands,
                            std::uint64_t first_index, const Shard& shard, bool row_seeds = false);

}  // namespace maskless

#endif  // MASKLESS_SRC_COMMON_INDEX_SPACE_H_
