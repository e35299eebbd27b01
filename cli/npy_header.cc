// The .npy header: a Python dict literal of three keys, read with a small strict parser.
#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <limits>
#include <optional>

#include "cli_error.h"
#include "npy.h"

namespace maskless::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::uint64_t kLongestHeader = 1 << 20;  // NumPy itself refuses to parse beyond 10,000 by default
constexpr std::size_t kMostDims = 64;              // NumPy's own limit

/// Text from a file, safe for a terminal and short.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text.substr(0, 60)) out += std::isprint(static_cast<unsigned char>(c)) != 0 ? c : '?';
  return out + (text.size() > 60 ? "...'" : "'");
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw CliError(path_ + ": the .npy header is malformed: " + what);
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(std::string("expected '") + c + "' at byte " + std::to_string(at_));
  }
  bool at_end() {
    skip_space();
    return at_ == text_.size();
  }

  std::string string() {
    skip_space();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail("expected a string at byte " + std::to_string(at_));
    const auto end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail("a string without an end");
    const std::string_view s = text_.substr(at_ + 1, end - at_ - 1);
    if (s.find('\\') != std::string_view::npos) fail("a string with an escape");
    at_ = end + 1;
    return std::string(s);
  }

  /// The descr of a structured dtype is a list; it is skipped here and refused by the caller.
  std::optional<std::string> descr() {
    skip_space();
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(')) return std::nullopt;
    return string();
  }

  bool boolean() {
    skip_space();
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    fail("fortran_order must be True or False");
  }

  Shape shape() {
    Shape shape;
    expect('(');
    while (!take(')')) {
      skip_space();
      std::int64_t extent = 0;
      const char* const begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), extent);
      if (error == std::errc::result_out_of_range) throw CliError(path_ + ": the shape has an extent of 2^63 or more");
      if (error != std::errc()) fail("expected an integer in the shape at byte " + std::to_string(at_));
      if (extent < 0) throw CliError(path_ + ": the shape has a negative extent, " + std::to_string(extent));
      at_ += static_cast<std::size_t>(end - begin);
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // a long of Python 2
      if (shape.size() == kMostDims) throw CliError(path_ + ": the shape has more than 64 dimensions");
      shape.push_back(extent);
      if (take(',')) continue;
      expect(')');
      if (shape.size() == 1) fail("a shape of one dimension needs a comma: (n,)");
      break;
    }
    return shape;
  }

 private:
  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
};

/// dtype and byte order of a descr; nullopt if it is none that the library has.
std::optional<std::pair<DType, bool>> dtype_of(std::string_view descr, std::string_view as_dtype) {
  if (descr.size() < 3) return std::nullopt;
  constexpr bool kLittle = std::endian::native == std::endian::little;
  const char order = descr[0];
  if (order != '<' && order != '>' && order != '=' && order != '|') return std::nullopt;
  const std::string_view kind = descr.substr(1);
  const bool swapped = order == (kLittle ? '>' : '<');
  if (as_dtype == "bfloat16") {
    if (kind == "V2" || kind == "u2") return std::pair{DType::kBFloat16, swapped && kind == "u2"};
    return std::nullopt;
  }
  if (descr == "<V2") return std::pair{DType::kBFloat16, false};  // ml_dtypes.bfloat16; plain 2-byte void is '|V2'
  constexpr std::pair<std::string_view, DType> kKinds[] = {
      {"f2", DType::kFloat16}, {"f4", DType::kFloat32}, {"f8", DType::kFloat64},
      {"b1", DType::kBool},    {"u1", DType::kUint8},   {"i4", DType::kInt32},
      {"u4", DType::kUint32},  {"i8", DType::kInt64},   {"u8", DType::kUint64}};
  for (const auto& [name, dtype] : kKinds)
    if (kind == name) return std::pair{dtype, swapped && dtype_size(dtype) > 1};
  return std::nullopt;
}

[[noreturn]] void refuse_dtype(const std::string& path, const std::string& descr, std::string_view as_dtype) {
  if (!as_dtype.empty())
    throw CliError(path + ": --dtype " + std::string(as_dtype) + " takes 2-byte void or uint16 data, got " +
                   quoted(descr));
  if (descr.find('O') != std::string::npos)
    throw CliError(path + ": holds pickled Python objects (dtype object), not numbers");
  if (descr == "|V2")
    throw CliError(path + ": dtype '|V2' says 2 bytes of anything; pass --dtype bfloat16 if that is what they are");
  throw CliError(path + ": dtype " + quoted(descr) +
                 " is not one of float16, bfloat16, float32, float64, bool, uint8, (u)int32, (u)int64");
}

}  // namespace

std::string shape_text(const Shape& shape) {
  std::string s = "(";
  for (std::size_t d = 0; d < shape.size(); ++d) s += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return s + (shape.size() == 1 ? ",)" : ")");
}

NpyHeader parse_npy_header(std::string_view start, std::uint64_t file_size, const std::string& path,
                           std::string_view as_dtype) {
  if (!start.starts_with(kMagic)) {
    if (start.empty()) throw CliError(path + ": is empty, not a .npy file");
    if (start.starts_with("PK\x03\x04"))
      throw CliError(path + ": is an .npz (zip) archive; extract the .npy file first");
    if (kMagic.starts_with(start)) throw CliError(path + ": is truncated inside the .npy header");
    throw CliError(path + ": is not a .npy file (its first bytes are not \\x93NUMPY)");
  }
  const auto byte = [&](std::size_t i) { return static_cast<std::uint64_t>(static_cast<unsigned char>(start[i])); };
  const bool has_version = start.size() >= 8;
  const auto major = has_version ? byte(6) : 0, minor = has_version ? byte(7) : 0;
  if (has_version && (major < 1 || major > 3 || minor != 0))
    throw CliError(path + ": .npy format version " + std::to_string(major) + "." + std::to_string(minor) +
                   " is not known");
  const std::size_t preamble = major == 1 ? 10 : 12;
  if (!has_version || start.size() < preamble) throw CliError(path + ": is truncated inside the .npy header");
  std::uint64_t length = byte(8) | byte(9) << 8;
  if (major > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > kLongestHeader) throw CliError(path + ": the .npy header claims " + std::to_string(length) + " bytes");
  if (start.size() - preamble < length) throw CliError(path + ": is truncated inside the .npy header");

  NpyHeader header;
  header.data_offset = preamble + length;
  Parser parser(start.substr(preamble, length), path);
  std::optional<std::string> descr;
  bool have_descr = false, have_order = false, have_shape = false;
  parser.expect('{');
  while (!parser.take('}')) {
    const std::string key = parser.string();
    parser.expect(':');
    if (key == "descr" && !have_descr) {
      descr = parser.descr();
      if (!descr) throw CliError(path + ": holds records (a structured dtype), not plain numbers");
      have_descr = true;
    } else if (key == "fortran_order" && !have_order) {
      header.fortran_order = parser.boolean();
      have_order = true;
    } else if (key == "shape" && !have_shape) {
      header.shape = parser.shape();
      have_shape = true;
    } else {
      parser.fail("key " + quoted(key) + " is unknown or there twice");
    }
    if (!parser.take(',')) {
      parser.expect('}');
      break;
    }
  }
  if (!have_descr || !have_order || !have_shape) parser.fail("it needs the keys descr, fortran_order and shape");
  if (!parser.at_end()) parser.fail("something follows the closing brace");

  header.descr = *descr;
  const auto dtype = dtype_of(header.descr, as_dtype);
  if (!dtype) refuse_dtype(path, header.descr, as_dtype);
  header.dtype = dtype->first;
  header.swapped = dtype->second;

  const bool empty = std::find(header.shape.begin(), header.shape.end(), 0) != header.shape.end();
  const auto item = static_cast<std::int64_t>(dtype_size(header.dtype));
  const std::int64_t most = std::numeric_limits<std::int64_t>::max() / item;
  header.size = empty ? 0 : 1;
  for (std::int64_t extent : header.shape) {
    if (empty) break;
    if (extent > most / header.size)
      throw CliError(path + ": the header claims a shape of 2^63 bytes or more, " + shape_text(header.shape));
    header.size *= extent;
  }
  const auto claimed = static_cast<std::uint64_t>(header.size * item), there = file_size - header.data_offset;
  if (claimed != there)
    throw CliError(path + ": " + (claimed > there ? "is truncated" : "has bytes after the array") + ": shape " +
                   shape_text(header.shape) + " of " + dtype_name(header.dtype) + " needs " + std::to_string(claimed) +
                   " bytes of data, the file has " + std::to_string(there));
  return header;
}

std::string npy_descr(DType dtype) {
  const std::string order = std::endian::native == std::endian::little ? "<" : ">";
  switch (dtype) {
    case DType::kFloat16: return order + "f2";
    case DType::kBFloat16: return "<V2";
    case DType::kFloat32: return order + "f4";
    case DType::kFloat64: return order + "f8";
    case DType::kBool: return "|b1";
    case DType::kUint8: return "|u1";
    case DType::kInt32: return order + "i4";
    case DType::kUint32: return order + "u4";
    case DType::kInt64: return order + "i8";
    case DType::kUint64: return order + "u8";
  }
  return {};
}

std::string format_npy_header(std::string_view descr, bool fortran_order, const Shape& shape) {
  std::string dict = "{'descr': '" + std::string(descr) + "', 'fortran_order': " + (fortran_order ? "True" : "False") +
                     ", 'shape': " + shape_text(shape) + ", }";
  const bool is_long = 10 + dict.size() + 64 > 65535;
  const std::size_t preamble = is_long ? 12 : 10;
  dict.append(63 - (preamble + dict.size()) % 64, ' ');
  dict += '\n';
  std::string out(kMagic);
  out += is_long ? '\2' : '\1';
  out += '\0';
  for (std::size_t i = 0; i < preamble - 8; ++i) out += static_cast<char>(dict.size() >> (8 * i) & 0xFF);
  return out + dict;
}

}  // namespace maskless::cli
