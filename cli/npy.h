// NumPy's .npy files: memory-mapped for reading, of any size; written whole or not at all (output_file.h).
//
// Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0, 2.0 and 3.0.
#ifndef MASKLESS_CLI_NPY_H_
#define MASKLESS_CLI_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "maskless/tensor.h"
#include "output_file.h"

namespace maskless::cli {

using Shape = std::vector<std::int64_t>;

struct NpyHeader {
  std::string descr;  ///< as in the file: "<f4"
  DType dtype = DType::kFloat32;
  bool swapped = false;  ///< byte order other than this machine's
  bool fortran_order = false;
  Shape shape;
  std::int64_t size = 1;  ///< number of elements
  std::uint64_t data_offset = 0;
};

/// Reads the header at the start of a file of `file_size` bytes, of which `start` has as many as the header needs.
/// as_dtype "bfloat16" takes 2-byte void or uint16 data as bfloat16; "" goes by the file ('<V2', as ml_dtypes' arrays
/// are saved, is bfloat16). Throws CliError "PATH: …" for anything that is not a whole, plain array.
NpyHeader parse_npy_header(std::string_view start, std::uint64_t file_size, const std::string& path,
                           std::string_view as_dtype = "");

/// The bytes of a version 1.0 (or 2.0, if long) header, padded so that the data start at a multiple of 64.
std::string format_npy_header(std::string_view descr, bool fortran_order, const Shape& shape);

/// The descr that numpy.save writes for a dtype here; '<V2' for bfloat16.
std::string npy_descr(DType dtype);

/// "(1000, 20)", as NumPy shows a shape.
std::string shape_text(const Shape& shape);

/// A memory-mapped .npy file.
class NpyInput {
 public:
  explicit NpyInput(const std::string& path, std::string_view as_dtype = "");
  ~NpyInput();
  NpyInput(const NpyInput&) = delete;
  NpyInput& operator=(const NpyInput&) = delete;

  const std::string& path() const { return path_; }
  const NpyHeader& header() const { return header_; }
  std::int64_t size() const { return header_.size; }

  /// The whole array with its shape and strides, for operations that want it all. Data in another byte order, or not
  /// aligned in the file, are copied to memory once; otherwise this is the file itself. Throws above 8 dimensions.
  ConstTensorView view();

  /// Elements first … first + count - 1 in the order of the file, in this machine's byte order: the mapped file itself
  /// where possible, else a copy that the next call overwrites.
  const void* elements(std::int64_t first, std::int64_t count);

  /// Says that elements before `end` are not needed soon: their pages leave this process's memory.
  void release(std::int64_t end);

 private:
  std::string path_;
  NpyHeader header_;
  const std::byte* file_ = nullptr;
  std::size_t file_bytes_ = 0;
  std::uint64_t released_ = 0;
  std::vector<std::byte> copy_;
};

/// A .npy file to be. Nothing is at `path` before commit(), and nothing but the whole array after it.
class NpyOutput {
 public:
  NpyOutput(const std::string& path, DType dtype, const Shape& shape);
  NpyOutput(const std::string& path, std::string_view descr, DType dtype, bool fortran_order, const Shape& shape);

  /// Either: the array as mapped memory, to be filled in any order (at most 8 dimensions)…
  TensorView map();
  /// … or its elements' bytes, piece after piece, in the order of the file.
  void write(const void* data, std::size_t bytes);

  /// Throws std::logic_error unless every byte was written or mapped.
  void commit();

 private:
  OutputFile file_;
  std::string head_;
  DType dtype_;
  bool fortran_order_;
  Shape shape_;
  std::uint64_t bytes_left_ = 0;
};

/// Seeds, one a row: uint64, or another integer type without negative values; 1-D.
std::vector<std::uint64_t> read_seeds(const std::string& path);

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_NPY_H_
