// Vectors in other files than .npy: Matrix Market and svmlight (text, sparse rows) and .safetensors (a model's
// tensors).
#ifndef MASKLESS_CLI_SPARSE_FILES_H_
#define MASKLESS_CLI_SPARSE_FILES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "maskless/sketch.h"
#include "maskless/tensor.h"

namespace maskless::cli {

/// A file mapped for reading.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {data_, size_}; }

 private:
  std::string path_;
  const char* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Sparse rows in memory.
struct SparseRows {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;
  std::vector<std::int64_t> indices, indptr = {0};

  CsrView view() const;
};

/// https://math.nist.gov/MatrixMarket/formats.html: coordinate or array; real, integer or pattern; general, symmetric
/// or skew-symmetric. Rows are vectors. Throws CliError "PATH: line N …" for what is not that.
SparseRows read_matrix_market(const MappedFile& file);

/// "label index:value …" lines of svmlight and libsvm, indices from 1 on (from 0 on if zero_based), "#" begins a
/// comment. `cols` is the number of columns, or 0: the highest index there is.
SparseRows read_svmlight(const MappedFile& file, bool zero_based, std::int64_t cols);

/// One tensor of a .safetensors file, as bytes of the mapped file.
struct StoredTensor {
  std::string name;
  DType dtype = DType::kFloat32;
  std::int64_t size = 0;
  const char* data = nullptr;
};

/// https://huggingface.co/docs/safetensors: all tensors in the order of their names. Throws CliError for a broken file
/// or a tensor that is not of a floating dtype.
std::vector<StoredTensor> read_safetensors(const MappedFile& file);

}  // namespace maskless::cli

#endif  // MASKLESS_CLI_SPARSE_FILES_H_
