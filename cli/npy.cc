#include "npy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "cli_error.h"

namespace maskless::cli {
namespace {

constexpr std::uint64_t kPage = 4096;

void copy_swapped(const std::byte* from, std::int64_t count, std::size_t item, std::byte* to) {
  for (std::int64_t i = 0; i < count; ++i, from += item, to += item) std::reverse_copy(from, from + item, to);
}

template <typename View, typename Pointer>
View dense_view(Pointer data, DType dtype, const Shape& shape, bool fortran_order, const std::string& path) {
  const int rank = static_cast<int>(shape.size());
  if (rank > kMaxRank) throw CliError(path + ": has " + std::to_string(rank) + " dimensions, more than 8");
  View view;
  view.data = data;
  view.dtype = dtype;
  view.rank = rank;
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  std::int64_t stride = 1;
  for (int i = 0; i < rank; ++i) {
    const int d = fortran_order ? i : rank - 1 - i;
    view.shape[d] = shape[static_cast<std::size_t>(d)];
    view.strides[d] = stride;
    if (!empty) stride *= view.shape[d];
  }
  return view;
}

std::uint64_t bytes_of(DType dtype, const Shape& shape, const std::string& path) {
  std::int64_t bytes = static_cast<std::int64_t>(dtype_size(dtype));
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (std::int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, extent, &bytes))
      throw CliError(path + ": shape " + shape_text(shape) + " is 2^63 bytes or more");
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace

NpyInput::NpyInput(const std::string& path, std::string_view as_dtype) : path_(path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) fail_system(path, "cannot be opened");
  if (S_ISDIR(status.st_mode)) throw CliError(path + ": is a directory, not a .npy file");
  if (!S_ISREG(status.st_mode)) throw CliError(path + ": is not a regular file, which memory mapping needs");
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail_system(path, "cannot be opened");
  const bool known = fstat(fd, &status) == 0;
  file_bytes_ = known ? static_cast<std::size_t>(status.st_size) : 0;
  void* const address = file_bytes_ == 0 ? nullptr : mmap(nullptr, file_bytes_, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  close(fd);
  if (address == MAP_FAILED) fail_system(path, "cannot be mapped", error);
  file_ = static_cast<const std::byte*>(address);
  try {
    header_ = parse_npy_header({reinterpret_cast<const char*>(file_), file_bytes_}, file_bytes_, path, as_dtype);
  } catch (...) {
    if (file_ != nullptr) munmap(address, file_bytes_);
    throw;
  }
  madvise(address, file_bytes_, MADV_SEQUENTIAL);
}

NpyInput::~NpyInput() {
  if (file_ != nullptr) munmap(const_cast<std::byte*>(file_), file_bytes_);
}

const void* NpyInput::elements(std::int64_t first, std::int64_t count) {
  const std::size_t item = dtype_size(header_.dtype);
  const std::byte* const from = file_ + header_.data_offset + static_cast<std::uint64_t>(first) * item;
  if (!header_.swapped && header_.data_offset % item == 0) return from;
  copy_.resize(static_cast<std::size_t>(count) * item);
  if (header_.swapped) {
    copy_swapped(from, count, item, copy_.data());
  } else if (count > 0) {
    std::memcpy(copy_.data(), from, copy_.size());
  }
  return copy_.data();
}

ConstTensorView NpyInput::view() {
  return dense_view<ConstTensorView>(elements(0, header_.size), header_.dtype, header_.shape, header_.fortran_order,
                                     path_);
}

void NpyInput::release(std::int64_t end) {
  const std::uint64_t until =
      (header_.data_offset + static_cast<std::uint64_t>(end) * dtype_size(header_.dtype)) / kPage * kPage;
  if (until <= released_) return;
  madvise(const_cast<std::byte*>(file_) + released_, until - released_, MADV_DONTNEED);
  released_ = until;
}

NpyOutput::NpyOutput(const std::string& path, DType dtype, const Shape& shape)
    : NpyOutput(path, npy_descr(dtype), dtype, false, shape) {}

NpyOutput::NpyOutput(const std::string& path, std::string_view descr, DType dtype, bool fortran_order,
                     const Shape& shape)
    : file_(path),
      head_(format_npy_header(descr, fortran_order, shape)),
      dtype_(dtype),
      fortran_order_(fortran_order),
      shape_(shape),
      bytes_left_(bytes_of(dtype, shape, path)) {}

TensorView NpyOutput::map() {
  std::byte* const start = file_.map(head_.size() + bytes_left_);
  std::memcpy(start, head_.data(), head_.size());
  const TensorView view =
      dense_view<TensorView>(static_cast<void*>(start + head_.size()), dtype_, shape_, fortran_order_, "output");
  head_.clear();
  bytes_left_ = 0;
  return view;
}

void NpyOutput::write(const void* data, std::size_t bytes) {
  if (bytes > bytes_left_) throw std::logic_error("more bytes written than the array has");
  if (!head_.empty()) file_.write(head_.data(), head_.size());
  head_.clear();
  file_.write(data, bytes);
  bytes_left_ -= bytes;
}

void NpyOutput::commit() {
  if (!head_.empty()) write(nullptr, 0);
  if (bytes_left_ != 0) throw std::logic_error("fewer bytes written than the array has");
  file_.commit();
}

std::vector<std::uint64_t> read_seeds(const std::string& path) {
  NpyInput input(path);
  const NpyHeader& header = input.header();
  if (header.shape.size() != 1)
    throw CliError(path + ": seeds must have shape (rows,), got " + shape_text(header.shape));
  std::vector<std::uint64_t> seeds(static_cast<std::size_t>(header.size));
  const void* const data = input.elements(0, header.size);
  const auto convert = [&](auto example) {
    const auto* from = static_cast<const decltype(example)*>(data);
    for (std::size_t i = 0; i < seeds.size(); ++i) {
      if (from[i] < decltype(example){0})
        throw CliError(path + ": seeds must not be negative, got " + std::to_string(from[i]) + " at row " +
                       std::to_string(i));
      seeds[i] = static_cast<std::uint64_t>(from[i]);
    }
  };
  switch (header.dtype) {
    case DType::kUint64: convert(std::uint64_t{}); break;
    case DType::kInt64: convert(std::int64_t{}); break;
    case DType::kUint32: convert(std::uint32_t{}); break;
    case DType::kInt32: convert(std::int32_t{}); break;
    default: throw CliError(path + ": seeds must be uint64 (or another integer type), got " + dtype_name(header.dtype));
  }
  return seeds;
}

}  // namespace maskless::cli
