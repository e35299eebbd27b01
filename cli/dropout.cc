// maskless dropout, maskless mask
#include "maskless/dropout.h"

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli_error.h"
#include "commands.h"
#include "device.h"
#include "npy.h"
#include "options.h"
#include "pieces.h"
#include "print_json.h"
#include "progress.h"

namespace maskless::cli {
namespace {

constexpr std::int64_t kCpuPieceBytes = 8 << 20;  // stays in the caches between the operation and the write
constexpr std::int64_t kCudaPieceBytes = 64 << 20;

struct MaskOptions {
  double p = 0;
  SeedOptions seed;
  std::uint64_t first_index = 0;
  std::string row_seeds_path;
  std::string layout = "packed";
  RunOptions run;
};

void add_mask_options(CLI::App& app, MaskOptions& options) {
  add_number(app, "-p", options.p, "Required: probability to drop, in [0, 1]; exact to 2^-33")->required();
  CLI::Option* const seed = add_seed_options(app, options.seed);
  add_integer(app, "--first-index", options.first_index,
              "Position of the first element: a piece of a larger array gets its piece of the mask (default 0)");
  CLI::Option* const rows =
      app.add_option("--row-seeds", options.row_seeds_path,
                     "In place of --seed: one seed a row of a matrix, .npy of shape (rows,), uint64")
          ->type_name("S.npy");
  seed->excludes(rows);
  add_choice(app, "--layout", options.layout, "packed|triton",
             "packed (default): 8 decisions a Philox call; triton: the mask of tl.rand(seed, i) > p, bit for bit");
}

/// The mask's options as the library takes them, with the seeds of the rows where the operation runs.
class Mask {
 public:
  /// `shape` is the array's. Throws for whatever is wrong with the options before any work is done.
  Mask(const CLI::App& app, const MaskOptions& options, Device device, const Shape& shape, const std::string& name)
      : device_(device) {
    if (app.count("--seed") == 0 && options.row_seeds_path.empty())
      throw CliError("--seed is required: the same seed gives the same mask, everywhere (for example --seed 123)");
    options_.p = options.p;
    options_.seed = options.seed.seed;
    options_.stream = options.seed.stream32();
    options_.first_index = options.first_index;
    options_.layout = options.layout == "triton" ? Layout::kTriton : Layout::kPacked;

    std::uint64_t positions = 1;
    for (std::int64_t extent : shape) positions *= static_cast<std::uint64_t>(extent);
    if (!options.row_seeds_path.empty()) {
      seeds_ = read_seeds(options.row_seeds_path);
      if (shape.size() != 2) throw CliError("--row-seeds needs a matrix; " + name + " has shape " + shape_text(shape));
      if (static_cast<std::int64_t>(seeds_->size()) != shape[0])
        throw CliError(options.row_seeds_path + ": has " + std::to_string(seeds_->size()) + " seeds, but " + name +
                       " has " + std::to_string(shape[0]) + " rows");
      positions = positions == 0 ? 0 : static_cast<std::uint64_t>(shape[1]);
      if (device_.type == DeviceType::kCuda) {
        on_device_.emplace(device_, seeds_->size() * sizeof(std::uint64_t));
        on_device_->upload(seeds_->data(), seeds_->size() * sizeof(std::uint64_t));
      }
    }
    if (positions > 0 && options.first_index > UINT64_MAX - (positions - 1))
      throw CliError("--first-index must leave every position below 2^64, got " + std::to_string(options.first_index));
    keep_mask(contiguous_view(static_cast<void*>(nullptr), DType::kBool, {0}), options_);  // the library's own checks
  }

  bool by_rows() const { return seeds_.has_value(); }

  DropoutOptions at(const Piece& piece) const {
    DropoutOptions options = options_;
    options.shard = piece.shard;
    if (seeds_)
      options.row_seeds.data = (on_device_ ? static_cast<const std::uint64_t*>(on_device_->data()) : seeds_->data()) +
                               piece.shard.offsets[0];
    return options;
  }
  DropoutOptions& options() { return options_; }

 private:
  Device device_;
  DropoutOptions options_;
  std::optional<std::vector<std::uint64_t>> seeds_;
  std::optional<DeviceBuffer> on_device_;
};

/// What --json prints, for both commands.
nlohmann::ordered_json record(const char* command, const MaskOptions& options, const std::string& output, DType dtype,
                              const Shape& shape, Device device, double seconds) {
  nlohmann::ordered_json json = {{"command", command},
                                 {"output", output},
                                 {"dtype", dtype_name(dtype)},
                                 {"shape", shape},
                                 {"p", options.p},
                                 {"stream", options.seed.stream},
                                 {"layout", options.layout},
                                 {"first_index", options.first_index},
                                 {"device", device_text(device)},
                                 {"seconds", seconds}};
  if (options.row_seeds_path.empty()) {
    json["seed"] = options.seed.seed;
  } else {
    json["row_seeds"] = options.row_seeds_path;
  }
  return json;
}

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// --- dropout
// ----------------------------------------------------------------------------------------------------------

struct DropoutCommand {
  MaskOptions mask;
  std::string in, out, as_dtype;
  bool no_scale = false;

  void run(const CLI::App& app) const {
    const Stopwatch watch;
    NpyInput input(in, as_dtype);
    const NpyHeader& header = input.header();
    const DType dtype = header.dtype;
    if (dtype != DType::kFloat16 && dtype != DType::kBFloat16 && dtype != DType::kFloat32 && dtype != DType::kFloat64)
      throw CliError(in + ": dtype must be float16, bfloat16, float32 or float64, got " + dtype_name(dtype));
    const Device device = choose_device(mask.run.device);
    const bool cuda = device.type == DeviceType::kCuda;
    Mask the_mask(app, mask, device, header.shape, in);
    the_mask.options().scale = !no_scale;

    // In row-major order an array without row seeds is one long vector, whatever its shape.
    const bool flat = !header.fortran_order && !the_mask.by_rows();
    const Shape shape = flat ? Shape{header.size} : header.shape;
    if (shape.size() > kMaxRank)
      throw CliError(in + ": is Fortran-ordered with " + std::to_string(shape.size()) + " dimensions, more than 8");
    NpyOutput output(out, header.swapped ? npy_descr(dtype) : header.descr, dtype, header.fortran_order, header.shape);

    const auto item = static_cast<std::int64_t>(dtype_size(dtype));
    const std::int64_t most =
        std::min((cuda ? kCudaPieceBytes : kCpuPieceBytes) / item, std::max<std::int64_t>(header.size, 1));
    const auto most_bytes = static_cast<std::size_t>(most * item);
    const std::unique_ptr<std::byte[]> buffer(new std::byte[most_bytes]);
    std::optional<DeviceBuffer> on_device;
    if (cuda) on_device.emplace(device, most_bytes);
    Progress progress("dropout", static_cast<std::uint64_t>(header.size * item), mask.run.quiet);

    for_each_piece(shape, header.fortran_order, most, [&](const Piece& piece) {
      const std::int64_t count = piece.box.size();
      const auto bytes = static_cast<std::size_t>(count * item);
      const void* const x = input.elements(piece.first, count);
      if (cuda) {
        on_device->upload(x, bytes);
        const TensorView y = piece.view<TensorView>(on_device->data(), dtype, device);
        dropout(y, y, the_mask.at(piece), mask.run.execution());
        on_device->download(buffer.get(), bytes);
      } else {
        dropout(piece.view<ConstTensorView>(x, dtype), piece.view<TensorView>(static_cast<void*>(buffer.get()), dtype),
                the_mask.at(piece), mask.run.execution());
      }
      output.write(buffer.get(), bytes);
      input.release(piece.first + count);
      progress.advance(bytes);
    });
    output.commit();
    if (mask.run.json) print_json(record("dropout", mask, out, dtype, header.shape, device, watch.seconds()));
  }
};

// --- mask
// -------------------------------------------------------------------------------------------------------------

struct MaskCommand {
  MaskOptions mask;
  std::string out;
  Shape shape;
  bool packed = false;

  void run(const CLI::App& app) const {
    const Stopwatch watch;
    const Device device = choose_device(mask.run.device);
    std::int64_t size = 1;
    for (std::int64_t extent : shape)
      if (__builtin_mul_overflow(size, extent, &size) || size > INT64_MAX / 16)
        throw CliError("--shape must have fewer than 2^59 elements, got " + shape_text(shape));
    Mask the_mask(app, mask, device, shape, "the mask");

    const Shape file_shape = packed ? Shape{(size + 7) / 8} : shape;
    const DType dtype = packed ? DType::kUint8 : DType::kBool;
    NpyOutput output(out, dtype, file_shape);
    Progress progress("mask", static_cast<std::uint64_t>(packed ? (size + 7) / 8 : size), mask.run.quiet);
    if (packed) {
      write_bits(the_mask, device, size, output, progress);
    } else {
      write_bytes(the_mask, device, size, output, progress);
    }
    output.commit();
    if (mask.run.json) {
      auto json = record("mask", mask, out, dtype, file_shape, device, watch.seconds());
      json["packed"] = packed;
      print_json(json);
    }
  }

 private:
  /// Runs f(pointer, device) for `bytes` of memory where the operation runs, then appends them to the output.
  template <typename F>
  static void fill(Device device, std::byte* host, std::optional<DeviceBuffer>& on_device, std::size_t bytes,
                   NpyOutput& output, F&& f) {
    if (device.type == DeviceType::kCuda) {
      f(on_device->data());
      on_device->download(host, bytes);
    } else {
      f(host);
    }
    output.write(host, bytes);
  }

  void write_bytes(const Mask& the_mask, Device device, std::int64_t size, NpyOutput& output,
                   Progress& progress) const {
    const std::int64_t most = std::min(kCpuPieceBytes, std::max<std::int64_t>(size, 1));
    const std::unique_ptr<std::byte[]> buffer(new std::byte[static_cast<std::size_t>(most)]);
    std::optional<DeviceBuffer> on_device;
    if (device.type == DeviceType::kCuda) on_device.emplace(device, static_cast<std::size_t>(most));
    for_each_piece(the_mask.by_rows() ? shape : Shape{size}, false, most, [&](const Piece& piece) {
      const auto bytes = static_cast<std::size_t>(piece.box.size());
      fill(device, buffer.get(), on_device, bytes, output, [&](void* data) {
        keep_mask(piece.view<TensorView>(data, DType::kBool, device), the_mask.at(piece), mask.run.execution());
      });
      progress.advance(bytes);
    });
  }

  void write_bits(const Mask& the_mask, Device device, std::int64_t size, NpyOutput& output, Progress& progress) const {
    if (size == 0) return;
    // A piece must end on a byte: 8 rows at a time if the rows have their own seeds.
    const bool by_rows = the_mask.by_rows();
    const std::int64_t unit = by_rows ? std::max<std::int64_t>(8 * shape[1], 1) : 8;
    const std::int64_t most = std::min(std::max<std::int64_t>(kCpuPieceBytes * 8 / unit, 1), size / unit + 1) * unit;
    const std::unique_ptr<std::byte[]> buffer(new std::byte[static_cast<std::size_t>(most / 8)]);
    std::optional<DeviceBuffer> on_device;
    if (device.type == DeviceType::kCuda) on_device.emplace(device, static_cast<std::size_t>(most / 8));
    for_each_piece(by_rows ? shape : Shape{size}, false, most, [&](const Piece& piece) {
      const std::int64_t bytes = (piece.box.size() + 7) / 8;
      fill(device, buffer.get(), on_device, static_cast<std::size_t>(bytes), output, [&](void* data) {
        keep_mask_packed(piece.box, contiguous_view(data, DType::kUint8, {bytes}, device), the_mask.at(piece),
                         mask.run.execution());
      });
      progress.advance(static_cast<std::uint64_t>(bytes));
    });
  }
};

}  // namespace

void add_dropout(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("dropout", "Drop elements of an array at random, by seed");
  auto command = std::make_shared<DropoutCommand>();
  sub->add_option("IN", command->in, "Array to read (.npy: float16, bfloat16, float32, float64)")->required();
  sub->add_option("OUT", command->out, "Array to write; may be IN itself")->required();
  add_mask_options(*sub, command->mask);
  sub->add_flag("--no-scale", command->no_scale, "Do not multiply what is kept by 1 / (1 - p)");
  add_dtype_option(*sub, command->as_dtype);
  add_run_options(*sub, command->mask.run);
  sub->footer(R"(Each element is dropped (set to +0) with probability p; what is kept is multiplied by 1 / (1 - p).
Whether element i is dropped depends on the seed, the stream and i alone: not on the device, the
threads, the dtype or the memory order. So backward is the same command on the gradient, with the
same seed: it drops exactly what forward dropped, and no mask was ever stored.

Examples:
  maskless dropout x.npy y.npy -p 0.1 --seed 123           forward
  maskless dropout dy.npy dx.npy -p 0.1 --seed 123         backward: the same elements
  maskless dropout x.npy y.npy -p 0.1 --seed 123 --stream 1   another layer, an independent mask
  maskless dropout tail.npy out.npy -p 0.1 --seed 123 --first-index 1000000
                                                           the part of an array from element 1000000 on
  maskless dropout x.npy y.npy -p 0.5 --row-seeds s.npy    each row of a matrix with its own seed

Files are memory-mapped and written beside OUT, then renamed: arrays may be larger than memory, and
OUT is never half written.)");
  sub->callback([command, sub] { command->run(*sub); });
}

void add_mask(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("mask", "Write the mask itself: True where kept");
  auto command = std::make_shared<MaskCommand>();
  sub->add_option("OUT", command->out, "Array to write (.npy: bool of the shape, or uint8 with --packed)")->required();
  add_shape(*sub, "--shape", command->shape, "Required: shape of the array that the mask is for, for example 1000,20")
      ->required();
  add_mask_options(*sub, command->mask);
  sub->add_flag("--packed", command->packed, "8 decisions a byte: element e is bit e % 8 of byte e / 8");
  add_run_options(*sub, command->mask.run);
  sub->footer(R"(The mask that `maskless dropout` with the same options applies without ever storing it.

Examples:
  maskless mask keep.npy --shape 1000,20 -p 0.1 --seed 123
  maskless mask bits.npy --shape 1000,20 -p 0.1 --seed 123 --packed
      in NumPy: np.unpackbits(np.load("bits.npy"), bitorder="little")[:20000].reshape(1000, 20))");
  sub->callback([command, sub] { command->run(*sub); });
}

}  // namespace maskless::cli
