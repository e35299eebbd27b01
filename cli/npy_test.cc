// .npy files as operations use them: headers (also damaged ones), mapped input and output.
#include "npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "cli_error.h"
#include "pieces.h"

namespace maskless::cli {
namespace {

namespace fs = std::filesystem;

class NpyTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "maskless-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  void TearDown() override { fs::remove_all(directory_); }
  std::string path(const char* name) const { return (directory_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }

  fs::path directory_;
};

TEST_F(NpyTest, HeadersAreReadAsTheyWereWritten) {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{7}, Shape{1000, 20}, Shape{0, 5}, Shape(64, 1)}) {
    for (DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kBool,
                        DType::kUint8, DType::kInt32, DType::kUint32, DType::kInt64, DType::kUint64}) {
      for (bool fortran : {false, true}) {
        const std::string text = format_npy_header(npy_descr(dtype), fortran, shape);
        EXPECT_EQ(text.size() % 64, 0u);
        std::int64_t size = 1;
        for (std::int64_t extent : shape) size *= extent;
        const NpyHeader header =
            parse_npy_header(text, text.size() + static_cast<std::uint64_t>(size) * dtype_size(dtype), "x.npy");
        EXPECT_EQ(header.dtype, dtype);
        EXPECT_EQ(header.shape, shape);
        EXPECT_EQ(header.size, size);
        EXPECT_EQ(header.fortran_order, fortran);
        EXPECT_FALSE(header.swapped);
        EXPECT_EQ(header.data_offset, text.size());
      }
    }
  }
}

/// Random damage: an answer whose numbers add up, or CliError in one line; never anything else.
TEST_F(NpyTest, DamagedHeadersAreRefusedOrConsistent) {
  std::mt19937_64 random(20240229);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::string pieces[] = {"(",
                                ")",
                                ",",
                                "'",
                                "{",
                                "}",
                                ":",
                                "-1",
                                "9223372036854775807",
                                "0",
                                "True",
                                "'descr'",
                                "'<f8'",
                                "'|O'",
                                "L",
                                " ",
                                "\n",
                                std::string(1, '\0'),
                                "99999999999999999999"};
  int accepted = 0;
  for (int i = 0; i < 10000; ++i) {
    const Shape shape(below(5), 1 + static_cast<std::int64_t>(below(9)));
    std::uint64_t bytes = i % 2 == 0 ? 4 : 8;
    std::string text = format_npy_header(bytes == 4 ? "<f4" : ">f8", i % 3 == 0, shape);
    for (std::int64_t extent : shape) bytes *= static_cast<std::uint64_t>(extent);
    for (std::size_t edits = 1 + below(4); edits > 0 && !text.empty(); --edits) {
      const std::size_t at = below(std::min<std::size_t>(text.size(), 90));
      switch (below(5)) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + below(4)); break;
        case 2: text.insert(at, pieces[below(std::size(pieces))]); break;
        case 3: text[at] = static_cast<char>(text[at] ^ (1 << below(8))); break;
        case 4: text.resize(at + 1); break;
      }
    }
    const std::string copy(text.data(), text.size());  // a buffer without slack, for the sanitizers
    for (const std::uint64_t data : {std::uint64_t{0}, bytes, std::uint64_t{4096}}) {
      try {
        const NpyHeader header = parse_npy_header(copy, copy.size() + data, "x.npy", i % 7 == 0 ? "bfloat16" : "");
        ++accepted;
        std::int64_t size = 1;
        for (std::int64_t extent : header.shape) size *= extent;
        EXPECT_EQ(header.size, size);
        EXPECT_EQ(header.data_offset + static_cast<std::uint64_t>(size) * dtype_size(header.dtype), copy.size() + data);
      } catch (const CliError& error) {
        const std::string line = error.what();
        EXPECT_TRUE(line.starts_with("x.npy: ")) << line;
        for (char c : line) EXPECT_TRUE(c >= ' ' && c <= '~') << line;
      }
    }
  }
  EXPECT_GT(accepted, 0);  // some damage is harmless
}

TEST_F(NpyTest, MappedOutputIsReadBack) {
  for (const Shape& shape : {Shape{}, Shape{5}, Shape{0, 3}, Shape{100, 333}}) {
    {
      NpyOutput output(path("x.npy"), DType::kInt32, shape);
      const TensorView view = output.map();
      for (std::int64_t i = 0; i < view.size(); ++i) static_cast<std::int32_t*>(view.data)[i] = static_cast<int>(i);
      output.commit();
    }
    EXPECT_EQ(files(), 1u);
    NpyInput input(path("x.npy"));
    const ConstTensorView view = input.view();
    ASSERT_EQ(view.rank, static_cast<int>(shape.size()));
    for (int d = 0; d < view.rank; ++d) EXPECT_EQ(view.shape[d], shape[static_cast<std::size_t>(d)]);
    for (std::int64_t i = 0; i < view.size(); ++i) EXPECT_EQ(static_cast<const std::int32_t*>(view.data)[i], i);
  }
}

TEST_F(NpyTest, ViewsOfFortranAndBigEndianFiles) {
  const std::string head = format_npy_header(">i4", true, {2, 3});
  std::ofstream(path("x.npy"), std::ios::binary)
      << head << std::string("\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\6", 24);
  NpyInput input(path("x.npy"));
  const ConstTensorView view = input.view();
  EXPECT_EQ(view.strides[0], 1);
  EXPECT_EQ(view.strides[1], 2);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(static_cast<const std::int32_t*>(view.data)[i], i + 1);
}

TEST_F(NpyTest, AnOutputThatIsNotCommittedIsNotThere) {
  { NpyOutput(path("x.npy"), DType::kFloat32, {1000}).map(); }
  { NpyOutput output(path("y.npy"), DType::kFloat32, {1000}); }
  EXPECT_EQ(files(), 0u);
  NpyOutput output(path("x.npy"), DType::kFloat32, {4});
  const float values[4] = {};
  output.write(values, 8);
  EXPECT_THROW(output.commit(), std::logic_error);  // half of it is missing
  EXPECT_THROW(output.write(values, 16), std::logic_error);
}

TEST_F(NpyTest, SeveralOutputsAtATime) {
  {
    NpyOutput a(path("a.npy"), DType::kFloat32, {4}), b(path("b.npy"), DType::kFloat32, {4});
    a.map();
    b.map();
    EXPECT_EQ(files(), 2u);
    b.commit();
    EXPECT_TRUE(fs::exists(path("b.npy")));
  }
  EXPECT_EQ(files(), 1u);
}

TEST(Pieces, CoverEveryElementOnceInMemoryOrder) {
  for (const Shape& shape :
       {Shape{}, Shape{1}, Shape{0}, Shape{10}, Shape{4, 5}, Shape{3, 1, 7}, Shape{2, 3, 4, 5}, Shape{3, 0, 2}}) {
    std::int64_t size = 1;
    for (std::int64_t extent : shape) size *= extent;
    for (bool fortran : {false, true}) {
      for (std::int64_t most = 1; most <= size + 1; ++most) {
        std::int64_t next = 0;
        for_each_piece(shape, fortran, most, [&](const Piece& piece) {
          EXPECT_EQ(piece.first, next);
          EXPECT_LE(piece.box.size(), most);
          // Each element of the box, by its coordinates in the whole, must lie where the whole array has it.
          for (std::int64_t e = 0; e < piece.box.size(); ++e) {
            std::int64_t rest = e, in_box = 0, in_whole = 0, stride = 1;
            std::array<std::int64_t, kMaxRank> coords = {};
            for (int d = piece.box.rank - 1; d >= 0; --d) {
              coords[d] = rest % piece.box.shape[d];
              rest /= piece.box.shape[d];
              in_box += coords[d] * piece.box.strides[d];
            }
            for (int k = 0; k < piece.box.rank; ++k) {
              const int d = fortran ? k : piece.box.rank - 1 - k;
              in_whole += (coords[d] + piece.shard.offsets[d]) * stride;
              stride *= shape[static_cast<std::size_t>(d)];
            }
            EXPECT_EQ(piece.first + in_box, in_whole);
          }
          next += piece.box.size();
        });
        EXPECT_EQ(next, size);
      }
    }
  }
}

}  // namespace
}  // namespace maskless::cli
