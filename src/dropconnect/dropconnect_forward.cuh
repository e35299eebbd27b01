// y[s, m, n] = scale * sum_k x[m, k] w[n, k] D + bias[n]: a thread holds a small tile of (row, output) pairs, draws the
// words of its own pairs for 128 inputs at a time, parks them in shared memory that no other thread touches, and spends
// them on predicated multiply-adds. No two threads need the same word, so drawing and multiplying of different warps
// overlap freely.
//
// Floor at 1024^3, float32, one H200: 1 FFMA, 0.25 R2P, 0.12 LDS a product, plus 1/128 of a call (16 IMAD.WIDE, 17
// LOP3, 12 others): 1.75 issue slots a product, 0.056 ms at p = 0.5.
#ifndef MASKLESS_SRC_DROPCONNECT_DROPCONNECT_FORWARD_CUH_
#define MASKLESS_SRC_DROPCONNECT_DROPCONNECT_FORWARD_CUH_

#include "dropconnect/dropconnect_tile.cuh"
#include "dropconnect/dropconnect_words.cuh"

namespace maskless::cuda {

/// A warp covers 8 * kRows rows (lane % 8 + 8 i) and 4 * kCols outputs (lane / 8 + 4 j) of the block's tile.
/// More than kRows x kCols = 16 pairs do not fit in registers; fewer are for layers too small to fill the GPU.
template <int kRows_, int kCols_, int kWarpsM_, int kWarpsN_, int kBlocksPerSm_, int kChains_ = 2>
struct ForwardTile {
  static constexpr int kRows = kRows_, kCols = kCols_, kWarpsM = kWarpsM_, kWarpsN = kWarpsN_;
  static constexpr int kBlocksPerSm = kBlocksPerSm_;
  static constexpr int kChains = kChains_;  // sums a pair, so that multiply-adds need not wait for each other
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kM = 8 * kRows * kWarpsM, kN = 4 * kCols * kWarpsN;
};

inline constexpr int kChunk = 32;          // inputs in shared memory at a time: one mask word
inline constexpr int kPitch = kChunk + 4;  // so that eight rows lie in different banks

template <typename S, typename Tile>
struct ForwardShared {
  S x[2][Tile::kM][kPitch];
  S w[2][Tile::kN][kPitch];
  std::uint32_t words[Tile::kRows * Tile::kCols][4][Tile::kThreads];
  uint4 table[2][kMaxPlanes];
  const void* x_row[Tile::kM];  // where input begin_at - shift of the row would be
  const void* w_row[Tile::kN];
  std::int64_t y_row[Tile::kM];
  std::uint32_t sample[Tile::kM];
};

/// A split of the sum: partial[z] (rows x outputs, float or double) holds what blocks of inputs [z * per_split, ...)
/// give.
struct Split {
  void* partial = nullptr;  // null: no split
  int count = 1;
  int per_split = 0;
};

/// The product of one block: tile blockIdx.x, part blockIdx.y of the sum.
template <typename T, typename Tile>
__device__ __forceinline__ void forward_tile(const DropconnectArgs& args, bool wide_x, bool wide_w, const Split& split,
                                             ForwardShared<SumOf<T>, Tile>& shared) {
  using S = SumOf<T>;
  constexpr int kRows = Tile::kRows, kCols = Tile::kCols, kChains = sizeof(S) == 8 ? 1 : Tile::kChains;
  const DropconnectShape& shape = args.shape;
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31, warp = thread >> 5;
  const auto tiles_n = static_cast<unsigned>((shape.outputs + Tile::kN - 1) / Tile::kN);
  const std::int64_t row0 = std::int64_t{blockIdx.x / tiles_n} * Tile::kM;
  const std::int64_t n0 = std::int64_t{blockIdx.x % tiles_n} * Tile::kN;
  const std::int64_t rows = shape.passes * shape.rows;
  const Key key = load_key(args.mask);

  const int my_m = lane % 8 + warp / Tile::kWarpsN * (8 * kRows), my_n = lane / 8 + warp % Tile::kWarpsN * (4 * kCols);
  const std::uint32_t first_n = args.mask.first_output + static_cast<std::uint32_t>(n0) + my_n;
  int my_rows = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) my_rows += row0 + my_m + 8 * i < rows ? 1 : 0;
  const int items = n0 + my_n < shape.outputs ? my_rows * kCols : 0;

  // Positions of inputs count from the first block: input k is at shift + k.
  const auto first_block = static_cast<std::uint32_t>(args.mask.first_input / kBlockInputs);
  const int shift = static_cast<int>(args.mask.first_input % kBlockInputs);
  const std::int64_t end = shift + shape.inputs;
  const std::int64_t block0 = static_cast<std::int64_t>(blockIdx.y) * split.per_split;
  const std::int64_t blocks = min((end + kBlockInputs - 1) / kBlockInputs - block0, std::int64_t{split.per_split});
  const std::int64_t begin_at = block0 * kBlockInputs;

  // Rows beyond the last one repeat it; their sums are not stored.
  for (int i = thread; i < Tile::kM; i += Tile::kThreads) {
    const std::int64_t r = min(row0 + i, rows - 1), pass = shape.passes > 1 ? r / shape.rows : 0;
    const std::int64_t m = r - pass * shape.rows;
    shared.x_row[i] = static_cast<const T*>(args.x.data) + m * args.x.row + (begin_at - shift) * args.x.col;
    shared.y_row[i] = pass * args.y_pass + m * args.y.row;
    shared.sample[i] = args.mask.sample(pass, m);
  }
  for (int i = thread; i < Tile::kN; i += Tile::kThreads)
    shared.w_row[i] = static_cast<const T*>(args.w.data) + min(n0 + i, shape.outputs - 1) * args.w.row +
                      (begin_at - shift) * args.w.col;

  // Inputs of this split, counted from its first block: [from, to) exist.
  const int from = static_cast<int>(max(shift - begin_at, std::int64_t{0}));
  const int to = static_cast<int>(min(end, begin_at + blocks * kBlockInputs) - begin_at);
  const int chunk_end = blocks > 0 ? (to + kChunk - 1) / kChunk : 0;
  const int load_row = thread / (kChunk / 4), load_col = thread % (kChunk / 4) * 4;
  const auto load_rows = [&](auto rows_tag, const void* const* row, std::int64_t col, bool wide, S(*tile)[kPitch],
                             int at) {
    constexpr int kTileRows = decltype(rows_tag)::value, kStep = Tile::kThreads / (kChunk / 4);
    const int count = at < from ? 0 : min(max(to - at, 0), 4);
    const int at_wide = count > 0 ? at : from;
    const bool inside = at - load_col >= from && at - load_col + kChunk <= to;
#pragma unroll
    for (int i = 0; i < (kTileRows + kStep - 1) / kStep; ++i) {
      const int r = load_row + i * kStep;
      if (kTileRows % kStep != 0 && r >= kTileRows) break;
      const T* p = static_cast<const T*>(row[r]);
      if (wide && inside) {
        load_four_inside<T>(&tile[r][load_col], p + at);
      } else if (wide) {
        load_four_wide<T>(&tile[r][load_col], p + at_wide, count);
      } else {
        load_four<T>(&tile[r][load_col], p + at * col, col, from - at, to - at);
      }
    }
  };
  // 16-bit tiles are converted on their way: fetched into registers before a chunk is computed, stored after it.
  constexpr int kLoadStep = Tile::kThreads / (kChunk / 4);
  constexpr int kFetchX = (Tile::kM + kLoadStep - 1) / kLoadStep, kFetchW = (Tile::kN + kLoadStep - 1) / kLoadStep;
  constexpr bool kFetch = sizeof(T) == 2;
  uint2 fetched[kFetch ? kFetchX + kFetchW : 1];
  const auto for_each_fetch = [&](auto&& f) {
#pragma unroll
    for (int i = 0; i < kFetchX + kFetchW; ++i) {
      const bool of_x = i < kFetchX;
      const int r = load_row + (of_x ? i : i - kFetchX) * kLoadStep;
      if (r < (of_x ? Tile::kM : Tile::kN)) f(i, of_x, r);
    }
  };
  const auto fetch = [&](int chunk) {
    if (!kFetch || !wide_x || !wide_w || chunk * kChunk < from || chunk * kChunk + kChunk > to) return false;
    for_each_fetch([&](int i, bool of_x, int r) {
      const auto* row = static_cast<const T*>(of_x ? shared.x_row[r] : shared.w_row[r]);
      if constexpr (kFetch) fetched[i] = *reinterpret_cast<const uint2*>(row + chunk * kChunk + load_col);
    });
    return true;
  };
  const auto store_fetched = [&](int chunk) {
    for_each_fetch([&](int i, bool of_x, int r) {
      if constexpr (kFetch) {
        const T* elements = reinterpret_cast<const T*>(&fetched[i]);
        Four<S> four;
#pragma unroll
        for (int e = 0; e < 4; ++e) four.v[e] = load_sum(elements + e);
        S* to_tile = of_x ? &shared.x[chunk & 1][r][load_col] : &shared.w[chunk & 1][r][load_col];
        *reinterpret_cast<Four<S>*>(to_tile) = four;
      }
    });
  };
  const auto load = [&](int chunk) {
    const int at = chunk * kChunk + load_col, buffer = chunk & 1;
    load_rows(std::integral_constant<int, Tile::kM>{}, shared.x_row, args.x.col, wide_x, shared.x[buffer], at);
    load_rows(std::integral_constant<int, Tile::kN>{}, shared.w_row, args.w.col, wide_w, shared.w[buffer], at);
  };

  Decider decider = make_decider(args.mask, key);
  S acc[kRows][kCols][kChains] = {};
  __syncthreads();
  if (chunk_end > 0) {
    load(0);
    fill_table(shared.table[0], first_block + static_cast<std::uint32_t>(block0), args.mask, key, thread);
  }
#pragma unroll 1
  for (int chunk = 0; chunk < chunk_end; ++chunk) {
    const int word = chunk & 3;
    copies_arrived();
    __syncthreads();
    const bool later = chunk + 1 < chunk_end && fetch(chunk + 1);
    if (chunk + 1 < chunk_end && !later) load(chunk + 1);
    if (word == 0) {
      const int block = chunk / 4;
      decider.table = shared.table[block & 1];
      keep_words<kCols, kRows * kCols - 1>(
          decider, items,
          [&](int item) {
            return pair_part(shared.sample[my_m + 8 * (item / kCols)], first_n + 4 * (item % kCols), key);
          },
          [&](int item, uint4 keep) {
            shared.words[item][0][thread] = keep.x;
            shared.words[item][1][thread] = keep.y;
            shared.words[item][2][thread] = keep.z;
            shared.words[item][3][thread] = keep.w;
          });
      if (chunk + 4 < chunk_end)
        fill_table(shared.table[(block + 1) & 1], first_block + static_cast<std::uint32_t>(block0 + block + 1),
                   args.mask, key, thread);
    }
    std::uint32_t words[kRows][kCols];
#pragma unroll
    for (int i = 0; i < kRows * kCols; ++i) words[i / kCols][i % kCols] = shared.words[i][word][thread];
    const int buffer = chunk & 1;
    const int left = to - chunk * kChunk;
    const auto step = [&](auto shift_tag) {
      constexpr int kShift = decltype(shift_tag)::value;
      if (kShift % 16 == 0 && kShift >= left) return false;  // half a word at a time: layers of few inputs end early
      Four<S> xs[kRows], ws[kCols];
#pragma unroll
      for (int i = 0; i < kRows; ++i)
        xs[i] = *reinterpret_cast<const Four<S>*>(&shared.x[buffer][my_m + 8 * i][kShift]);
#pragma unroll
      for (int j = 0; j < kCols; ++j)
        ws[j] = *reinterpret_cast<const Four<S>*>(&shared.w[buffer][my_n + 4 * j][kShift]);
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kCols; ++j) masked_fma4<kShift>(acc[i][j], xs[i].v, ws[j].v, words[i][j]);
      return true;
    };
    for_each_nibble(step);
    if (later) store_fetched(chunk + 1);
  }

  T* y = static_cast<T*>(args.y.data);
  const T* bias = static_cast<const T*>(args.bias);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t r = row0 + my_m + 8 * i;
    if (r >= rows) continue;
#pragma unroll
    for (int j = 0; j < kCols; ++j) {
      const std::int64_t n = n0 + my_n + 4 * j;
      if (n >= shape.outputs) continue;
      S sum = acc[i][j][0];
#pragma unroll
      for (int c = 1; c < kChains; ++c) sum += acc[i][j][c];
      if (split.partial != nullptr) {
        static_cast<S*>(split.partial)[(blockIdx.y * rows + r) * shape.outputs + n] = sum;
      } else {
        sum *= static_cast<S>(args.scale);
        if (bias != nullptr) sum += load_sum(bias + n * args.bias_stride);
        store_sum(y + shared.y_row[my_m + 8 * i] + n * args.y.col, sum);
      }
    }
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, sizeof(T) == 8 ? 1 : Tile::kBlocksPerSm)
    forward_kernel(DropconnectArgs args, bool wide_x, bool wide_w, Split split) {
  extern __shared__ __align__(16) unsigned char raw[];
  forward_tile<T, Tile>(args, wide_x, wide_w, split, *reinterpret_cast<ForwardShared<SumOf<T>, Tile>*>(raw));
}

}  // namespace maskless::cuda

#endif  // MASKLESS_SRC_DROPCONNECT_DROPCONNECT_FORWARD_CUH_
