#include "sparse_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli_error.h"

namespace maskless::cli {
namespace {

/// The lines of a text, and the words of a line.
class Lines {
 public:
  explicit Lines(const MappedFile& file) : path_(file.path()), rest_(file.bytes()) {}

  bool next() {
    if (rest_.empty()) return false;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    return true;
  }
  std::string_view line() const { return line_; }
  std::string_view word() {
    const std::size_t begin = std::min(line_.find_first_not_of(" \t\r"), line_.size());
    line_.remove_prefix(begin);
    const std::size_t end = std::min(line_.find_first_of(" \t\r"), line_.size());
    const std::string_view word = line_.substr(0, end);
    line_.remove_prefix(end);
    return word;
  }
  void cut(char mark) { line_ = line_.substr(0, line_.find(mark)); }

  [[noreturn]] void fail(const std::string& what) const {
    throw CliError(path_ + ": line " + std::to_string(number_) + " " + what);
  }
  template <typename T>
  T number(std::string_view text, const char* what) const {
    T value{};
    if (!text.empty() && text.front() == '+') text.remove_prefix(1);
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size())
      fail("must have " + std::string(what) + ", got '" + std::string(text.substr(0, 60)) + "'");
    return value;
  }
  /// The rest of the line must be empty.
  void end() {
    if (const std::string_view more = word(); !more.empty())
      fail("must end there, got '" + std::string(more.substr(0, 60)) + "'");
  }

 private:
  std::string path_;
  std::string_view rest_, line_;
  std::int64_t number_ = 0;
};

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_system(path, "cannot be opened");
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw CliError(path + ": must be a regular file");
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* data = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) fail_system(path, "cannot be mapped", error);
  data_ = static_cast<const char*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<char*>(data_), size_);
}

CsrView SparseRows::view() const {
  static constexpr double kNoValue = 0;
  static constexpr std::int64_t kNoIndex = 0;
  const auto n = static_cast<std::int64_t>(values.size());
  return {rows, cols, contiguous_view(n > 0 ? values.data() : &kNoValue, DType::kFloat64, {n}),
          contiguous_view(n > 0 ? indices.data() : &kNoIndex, DType::kInt64, {n}),
          contiguous_view(indptr.data(), DType::kInt64, {rows + 1})};
}

SparseRows read_matrix_market(const MappedFile& file) {
  Lines lines(file);
  if (!lines.next() || lower(lines.word()) != "%%matrixmarket")
    throw CliError(file.path() + ": must begin with %%MatrixMarket");
  const std::string object = lower(lines.word()), format = lower(lines.word()), field = lower(lines.word()),
                    symmetry = lower(lines.word());
  const bool dense = format == "array", pattern = field == "pattern";
  const bool symmetric = symmetry == "symmetric", skew = symmetry == "skew-symmetric";
  if (object != "matrix" || (!dense && format != "coordinate") ||
      (field != "real" && field != "integer" && field != "double" && !pattern) || (dense && pattern) ||
      (symmetry != "general" && !symmetric && !skew))
    lines.fail("must describe a real, integer or pattern matrix, general, symmetric or skew-symmetric, got '" + object +
               " " + format + " " + field + " " + symmetry + "'");
  std::string_view word;
  do {
    if (!lines.next()) throw CliError(file.path() + ": ends before the size of the matrix");
    if (!lines.line().empty() && lines.line().front() == '%') continue;
    word = lines.word();
  } while (word.empty());
  SparseRows m;
  m.rows = lines.number<std::int64_t>(word, "the number of rows");
  m.cols = lines.number<std::int64_t>(lines.word(), "the number of columns");
  constexpr std::int64_t kMost = INT64_MAX / 16;  // entries, and rows
  if (m.rows < 0 || m.cols < 0 || m.rows > kMost || (m.cols > 0 && m.rows > kMost / m.cols && dense))
    lines.fail("must have a size that is possible");
  if ((symmetric || skew) && m.rows != m.cols) lines.fail("must have as many rows as columns: the matrix is symmetric");
  const std::int64_t entries =
      dense ? m.rows * m.cols : lines.number<std::int64_t>(lines.word(), "the number of entries");
  lines.end();

  struct Entry {
    std::int64_t row, column;
    double value;
  };
  std::vector<Entry> all;
  all.reserve(static_cast<std::size_t>(std::clamp<std::int64_t>(entries, 0, 1 << 24)));
  std::int64_t read = 0, next_row = 0, next_column = 0;  // of a dense matrix: columns one after the other
  const std::int64_t expected = dense && (symmetric || skew) ? m.rows * (m.rows + (skew ? -1 : 1)) / 2 : entries;
  if (dense && skew) next_row = 1;
  while (lines.next()) {
    word = lines.word();
    if (word.empty() || word.front() == '%') continue;
    if (read == expected) lines.fail("must be the end: all " + std::to_string(expected) + " entries were there");
    Entry e{next_row, next_column, 1};
    if (dense) {
      e.value = lines.number<double>(word, "a number");
      if (++next_row == m.rows) {
        ++next_column;
        next_row = symmetric ? next_column : skew ? next_column + 1 : 0;
      }
    } else {
      e.row = lines.number<std::int64_t>(word, "a row");
      e.column = lines.number<std::int64_t>(lines.word(), "a column");
      if (!pattern) e.value = lines.number<double>(lines.word(), "a number");
      if (e.row < 1 || e.row > m.rows || e.column < 1 || e.column > m.cols)
        lines.fail("must be within the matrix, got row " + std::to_string(e.row) + ", column " +
                   std::to_string(e.column));
      --e.row, --e.column;
    }
    lines.end();
    all.push_back(e);
    if ((symmetric || skew) && e.row != e.column) all.push_back({e.column, e.row, skew ? -e.value : e.value});
    ++read;
  }
  if (read != expected)
    throw CliError(file.path() + ": must have " + std::to_string(expected) + " entries, has " + std::to_string(read));

  m.indptr.assign(static_cast<std::size_t>(m.rows) + 1, 0);
  for (const Entry& e : all) ++m.indptr[static_cast<std::size_t>(e.row) + 1];
  for (std::size_t i = 1; i < m.indptr.size(); ++i) m.indptr[i] += m.indptr[i - 1];
  std::vector<std::int64_t> at(m.indptr.begin(), m.indptr.end());
  m.values.resize(all.size());
  m.indices.resize(all.size());
  for (const Entry& e : all) {
    const auto place = static_cast<std::size_t>(at[static_cast<std::size_t>(e.row)]++);
    m.values[place] = e.value;
    m.indices[place] = e.column;
  }
  return m;
}

SparseRows read_svmlight(const MappedFile& file, bool zero_based, std::int64_t cols) {
  SparseRows m;
  Lines lines(file);
  const std::int64_t first = zero_based ? 0 : 1, most = cols > 0 ? cols : std::int64_t{1} << 39;  // no S has more
  while (lines.next()) {
    lines.cut('#');
    std::string_view word = lines.word();
    if (word.empty()) continue;
    while (!(word = lines.word()).empty()) {
      const std::size_t colon = word.find(':');
      if (colon == std::string_view::npos)
        lines.fail("must have index:value after the label, got '" + std::string(word.substr(0, 60)) + "'");
      const std::string_view name = word.substr(0, colon);
      if (name == "qid") continue;
      const auto number = lines.number<std::int64_t>(name, "an index");
      if (number < first || number - first >= most)
        lines.fail("must have indices from " + std::to_string(first) + " to " + std::to_string(most - 1 + first) +
                   ", got " + std::string(name));
      m.indices.push_back(number - first);
      m.values.push_back(lines.number<double>(word.substr(colon + 1), "a number"));
      m.cols = std::max(m.cols, m.indices.back() + 1);
    }
    m.indptr.push_back(static_cast<std::int64_t>(m.values.size()));
    ++m.rows;
  }
  if (cols > 0) m.cols = cols;
  return m;
}

std::vector<StoredTensor> read_safetensors(const MappedFile& file) {
  const std::string_view bytes = file.bytes();
  const auto broken = [&](const std::string& what) { throw CliError(file.path() + ": " + what); };
  std::uint64_t header = 0;
  if (bytes.size() >= 8) std::memcpy(&header, bytes.data(), 8);
  if (bytes.size() < 8 || header > bytes.size() - 8) broken("is no .safetensors file: its header does not fit");
  const auto json = nlohmann::json::parse(bytes.substr(8, header), nullptr, false);
  if (!json.is_object()) broken("is no .safetensors file: its header is not a JSON object");
  const std::string_view data = bytes.substr(8 + header);
  std::vector<StoredTensor> tensors;
  for (const auto& [name, entry] : json.items()) {  // nlohmann's objects are in the order of their keys
    if (name == "__metadata__") continue;
    StoredTensor tensor;
    tensor.name = name;
    std::uint64_t begin = 0, end = 0;
    std::string dtype;
    try {
      dtype = entry.at("dtype").get<std::string>();
      begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
      end = entry.at("data_offsets").at(1).get<std::uint64_t>();
      tensor.size = 1;
      for (const auto& extent : entry.at("shape"))
        if (!extent.is_number_unsigned() ||
            __builtin_mul_overflow(tensor.size, extent.get<std::uint64_t>(), &tensor.size))
          broken("tensor '" + name + "' has an impossible shape");
    } catch (const nlohmann::json::exception&) {
      broken("tensor '" + name + "' has no dtype, shape and data_offsets");
    }
    if (dtype == "F32") {
      tensor.dtype = DType::kFloat32;
    } else if (dtype == "F64") {
      tensor.dtype = DType::kFloat64;
    } else if (dtype == "F16") {
      tensor.dtype = DType::kFloat16;
    } else if (dtype == "BF16") {
      tensor.dtype = DType::kBFloat16;
    } else {
      broken("tensor '" + name + "' must be F16, BF16, F32 or F64, got " + dtype);
    }
    const auto size = static_cast<std::uint64_t>(tensor.size), item = std::uint64_t{dtype_size(tensor.dtype)};
    if (begin > end || end > data.size() || (end - begin) / item != size || (end - begin) % item != 0)
      broken("tensor '" + name + "' does not fit its data");
    tensor.data = data.data() + begin;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace maskless::cli
