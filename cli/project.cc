// maskless project
#include <chrono>
#include <cmath>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli_error.h"
#include "commands.h"
#include "device.h"
#include "maskless/sketch.h"
#include "npy.h"
#include "options.h"
#include "print_json.h"
#include "progress.h"
#include "sparse_files.h"

namespace maskless::cli {
namespace {

constexpr std::int64_t kPieceBytes = 64 << 20;  // of input that is worked on at a time
constexpr std::int64_t kPieceRows = 64;         // vectors that are worked on at a time, where they are long

/// The part of a matrix with rows [row, row + rows) and columns [col, col + cols).
template <typename View>
View part(View view, std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) {
  const auto item = static_cast<std::int64_t>(dtype_size(view.dtype));
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, char, const char>;
  view.data = static_cast<Byte*>(view.data) + (row * view.strides[0] + col * view.strides[1]) * item;
  view.shape = {rows, cols};
  return view;
}

struct ProjectCommand {
  std::string in, out, as_dtype, kind = "sjlt", density, format = "auto";
  std::uint64_t components = 0, nonzeros = 4, columns = 0, column_offset = 0, samples = 0;
  double eps = 0.1;
  bool transpose = false, suggest = false, zero_based = false;
  SeedOptions seed;
  RunOptions run_options;

  void run(const CLI::App& app) const {
    if (suggest) return print_suggestion(app);
    if (in.empty() || out.empty()) throw CliError("IN and OUT are required (or --suggest)");
    if (app.count("--seed") == 0)
      throw CliError("--seed is required: the same seed gives the same matrix, everywhere (for example --seed 7)");
    if (app.count("-k") == 0)
      throw CliError("-k is required: the number of components (maskless project --suggest finds one)");
    const auto start = std::chrono::steady_clock::now();
    const std::string input_format = format == "auto" ? format_of(in) : format;
    if (transpose && input_format != "npy") throw CliError("--transpose needs a .npy file, got " + in);
    Shape shape;
    DType dtype = DType::kFloat32;
    if (input_format == "npy") {
      run_npy(shape, dtype);
    } else if (input_format == "safetensors") {
      run_safetensors(shape, dtype);
    } else {
      run_sparse(input_format == "mtx", shape, dtype);
    }
    if (!run_options.json) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    nlohmann::ordered_json json = {{"command", "project"}, {"output", out},        {"dtype", dtype_name(dtype)},
                                   {"shape", shape},       {"kind", kind},         {"n_components", components},
                                   {"seed", seed.seed},    {"stream", seed.stream}};
    kind == "sjlt" ? json["nonzeros"] = nonzeros : json["density"] = density.empty() ? "1" : density;
    json["column_offset"] = column_offset;
    json["transpose"] = transpose;
    json["seconds"] = seconds;
    print_json(json);
  }

 private:
  static std::string format_of(const std::string& path) {
    const auto ends = [&](const std::string& end) {
      return path.size() >= end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
    };
    if (ends(".npy")) return "npy";
    if (ends(".mtx") || ends(".mm")) return "mtx";
    if (ends(".svm") || ends(".svmlight") || ends(".libsvm")) return "svmlight";
    if (ends(".safetensors")) return "safetensors";
    throw CliError(path +
                   ": must end in .npy, .mtx, .svm, .svmlight, .libsvm or .safetensors, or --format says what it is");
  }

  void print_suggestion(const CLI::App& app) const {
    if (app.count("--samples") == 0) throw CliError("--suggest needs --samples: how many points there are");
    const std::int64_t k = min_components(static_cast<std::int64_t>(samples), eps);
    if (run_options.json) {
      print_json({{"samples", samples}, {"eps", eps}, {"n_components", k}});
    } else {
      std::cout << k << "\n";
    }
  }

  ProjectionOptions options(std::int64_t features) const {
    ProjectionOptions o;
    o.kind = kind == "sjlt" ? SketchKind::kSjlt : SketchKind::kSigns;
    o.n_components = static_cast<std::int64_t>(components);
    o.nonzeros = static_cast<int>(nonzeros);
    o.seed = seed.seed;
    o.stream = seed.stream32();
    o.column_offset = column_offset;
    if (!density.empty()) {
      if (o.kind == SketchKind::kSjlt) throw CliError("--density is for --kind signs");
      if (density == "auto") {
        o.density = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(features, 1)));
      } else {
        char* end = nullptr;
        o.density = std::strtod(density.c_str(), &end);
        if (end == density.c_str() || *end != '\0')
          throw CliError("--density must be a number or auto, got " + density);
      }
    }
    return o;
  }

  /// The library's own checks, before any work is done and any file is made.
  static void check(const ProjectionOptions& o, std::int64_t features) {
    TensorView x = contiguous_view(static_cast<void*>(nullptr), DType::kFloat32, {0, features});
    project(x, contiguous_view(static_cast<void*>(nullptr), DType::kFloat32, {0, o.n_components}), o);
  }

  void run_npy(Shape& shape, DType& dtype) const {
    NpyInput input(in, as_dtype);
    const NpyHeader& header = input.header();
    const bool half = header.dtype == DType::kFloat16 || header.dtype == DType::kBFloat16;
    if (!half && header.dtype != DType::kFloat32 && header.dtype != DType::kFloat64)
      throw CliError(in + ": dtype must be float16, bfloat16, float32 or float64, got " + dtype_name(header.dtype));
    if (header.shape.empty() || header.shape.size() > 2)
      throw CliError(in + ": must be a vector or a matrix whose rows are vectors, got shape " +
                     shape_text(header.shape));
    ConstTensorView x = input.view();
    if (x.rank == 1) {  // one vector
      x.rank = 2;
      x.shape = {1, x.shape[0]};
      x.strides = {0, x.strides[0]};
    }
    if (transpose && columns == 0) throw CliError("--transpose needs --columns: the length of the vectors to make");
    const std::int64_t features = transpose ? static_cast<std::int64_t>(columns) : x.shape[1];
    const ProjectionOptions o = options(features);
    check(o, features);
    if (transpose && x.shape[1] != o.n_components)
      throw CliError(in + ": must have rows of -k = " + std::to_string(components) + " components, got shape " +
                     shape_text(header.shape));
    const Device device = choose_device(run_options.device);
    dtype = half ? DType::kFloat32 : header.dtype;  // what sums are taken in
    shape = header.shape;
    shape.back() = transpose ? features : o.n_components;
    NpyOutput output(out, dtype, shape);
    TensorView y = output.map();
    if (y.rank == 1) {
      y.rank = 2;
      y.shape = {1, y.shape[0]};
      y.strides = {0, 1};
    }
    const auto item = static_cast<std::int64_t>(dtype_size(header.dtype));
    Progress progress("project", static_cast<std::uint64_t>((transpose ? y : x).size() * item), run_options.quiet);
    const std::int64_t batch = x.shape[0];
    const std::int64_t row_bytes = std::max<std::int64_t>(1, features * item);
    const std::int64_t rows = std::max(std::min(batch, kPieceRows), std::min(batch, kPieceBytes / row_bytes));
    const std::int64_t cols = std::max<std::int64_t>(1, kPieceBytes / (std::max<std::int64_t>(rows, 1) * item));
    for (std::int64_t row = 0; row < batch; row += rows) {
      const std::int64_t count = std::min(rows, batch - row);
      for (std::int64_t col = 0; col < std::max<std::int64_t>(features, 1); col += cols) {
        const std::int64_t width = std::min(cols, features - col);
        ProjectionOptions piece = o;
        piece.column_offset += static_cast<std::uint64_t>(col);
        piece.accumulate = !transpose && col > 0;
        if (transpose) {
          apply(part(x, row, count, 0, x.shape[1]), part(y, row, count, col, width), piece, device);
        } else {
          apply(part(x, row, count, col, width), part(y, row, count, 0, y.shape[1]), piece, device);
        }
        progress.advance(static_cast<std::uint64_t>(count * width * item));
      }
      if (!transpose && !header.fortran_order) input.release((row + count) * features);
    }
    output.commit();
  }

  /// One call, on the device by way of its memory.
  void apply(const ConstTensorView& x, const TensorView& y, const ProjectionOptions& o, Device device) const {
    const auto call = transpose ? project_transpose : project;
    if (device.type == DeviceType::kCpu) return call(x, y, o, run_options.execution());
    const auto item = dtype_size(x.dtype), out_item = dtype_size(y.dtype);
    std::vector<char> staged(static_cast<std::size_t>(x.size()) * item);
    copy(x, staged.data());
    DeviceBuffer on_x(device, staged.size()), on_y(device, static_cast<std::size_t>(y.size()) * out_item);
    on_x.upload(staged.data(), staged.size());
    std::vector<char> result(static_cast<std::size_t>(y.size()) * out_item);
    if (o.accumulate) {
      copy(y, result.data());
      on_y.upload(result.data(), result.size());
    }
    call(contiguous_view(static_cast<const void*>(on_x.data()), x.dtype, {x.shape[0], x.shape[1]}, device),
         contiguous_view(on_y.data(), y.dtype, {y.shape[0], y.shape[1]}, device), o, run_options.execution());
    on_y.download(result.data(), result.size());
    for (std::int64_t i = 0; i < y.shape[0]; ++i)  // rows of the output are contiguous
      std::memcpy(static_cast<char*>(y.data) + i * y.strides[0] * static_cast<std::int64_t>(out_item),
                  result.data() + i * y.shape[1] * static_cast<std::int64_t>(out_item),
                  static_cast<std::size_t>(y.shape[1]) * out_item);
  }

  static void copy(const ConstTensorView& view, char* to) {
    const auto item = static_cast<std::int64_t>(dtype_size(view.dtype));
    for (std::int64_t i = 0; i < view.shape[0]; ++i) {
      const char* from = static_cast<const char*>(view.data) + i * view.strides[0] * item;
      if (view.strides[1] == 1 || view.shape[1] <= 1) {
        std::memcpy(to, from, static_cast<std::size_t>(view.shape[1] * item));
        to += view.shape[1] * item;
        continue;
      }
      for (std::int64_t j = 0; j < view.shape[1]; ++j, to += item)
        std::memcpy(to, from + j * view.strides[1] * item, static_cast<std::size_t>(item));
    }
  }

  void run_sparse(bool market, Shape& shape, DType& dtype) const {
    const MappedFile file(in);
    const SparseRows rows =
        market ? read_matrix_market(file) : read_svmlight(file, zero_based, static_cast<std::int64_t>(columns));
    const ProjectionOptions o = options(rows.cols);
    check(o, rows.cols);
    shape = {rows.rows, o.n_components};
    dtype = DType::kFloat64;
    NpyOutput output(out, dtype, shape);
    project_csr(rows.view(), output.map(), o, run_options.execution());
    output.commit();
  }

  void run_safetensors(Shape& shape, DType& dtype) const {
    const MappedFile file(in);
    const std::vector<StoredTensor> tensors = read_safetensors(file);
    std::int64_t features = 0;
    for (const StoredTensor& tensor : tensors) {
      features += tensor.size;
      if (tensor.dtype == DType::kFloat64) dtype = DType::kFloat64;
    }
    ProjectionOptions o = options(features);
    check(o, features);
    shape = {o.n_components};
    NpyOutput output(out, dtype, shape);
    std::vector<float> sum(components);
    std::vector<double> wide_sum(dtype == DType::kFloat64 ? components : 0);
    Progress progress("project", file.bytes().size(), run_options.quiet);
    o.accumulate = true;
    for (const StoredTensor& tensor : tensors) {
      const auto item = static_cast<std::int64_t>(dtype_size(tensor.dtype));
      const bool wide = tensor.dtype == DType::kFloat64;
      std::vector<char> aligned;
      for (std::int64_t first = 0; first < tensor.size; first += kPieceBytes / item) {
        const std::int64_t count = std::min(kPieceBytes / item, tensor.size - first);
        const char* data = tensor.data + first * item;
        if (reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(item) != 0) {
          aligned.assign(data, data + count * item);
          data = aligned.data();
        }
        project(contiguous_view(static_cast<const void*>(data), tensor.dtype, {1, count}),
                wide ? contiguous_view(wide_sum.data(), DType::kFloat64, {1, o.n_components})
                     : contiguous_view(sum.data(), DType::kFloat32, {1, o.n_components}),
                o, run_options.execution());
        o.column_offset += static_cast<std::uint64_t>(count);
        progress.advance(static_cast<std::uint64_t>(count * item));
      }
    }
    for (std::size_t r = 0; r < wide_sum.size(); ++r) wide_sum[r] += static_cast<double>(sum[r]);
    if (dtype == DType::kFloat64) {
      output.write(wide_sum.data(), wide_sum.size() * sizeof(double));
    } else {
      output.write(sum.data(), sum.size() * sizeof(float));
    }
    output.commit();
  }
};

}  // namespace

void add_project(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("project", "Project vectors to few dimensions, keeping distances");
  auto command = std::make_shared<ProjectCommand>();
  sub->add_option("IN", command->in,
                  "Vectors to read: .npy (rows), .mtx, .svm (sparse rows), .safetensors (one vector)");
  sub->add_option("OUT", command->out, "Projections to write (.npy)");
  add_integer(*sub, "-k", command->components, "Required: components, the dimension to project to",
              (std::uint64_t{1} << 31) - 1);
  add_choice(*sub, "--kind", command->kind, "sjlt|signs",
             "sjlt (default): a few nonzeros a column, fast for any -k; signs: independent +-1");
  add_integer(*sub, "--nonzeros", command->nonzeros, "sjlt: nonzeros in each column, 1 to 16 (default 4)", 1000);
  sub->add_option("--density", command->density,
                  "signs: probability of a nonzero, or auto: 1 / sqrt(columns) (default 1)")
      ->type_name("Q|auto");
  add_seed_options(*sub, command->seed);
  add_integer(*sub, "--column-offset", command->column_offset,
              "Number of the first column: a piece of longer vectors; projections of all pieces add up (default 0)",
              std::uint64_t{1} << 39);
  sub->add_flag("--transpose", command->transpose, "The transpose: from k components back to --columns");
  add_integer(*sub, "--columns", command->columns, "Length of the vectors (--transpose, svmlight)",
              std::uint64_t{1} << 39);
  add_choice(*sub, "--format", command->format, "auto|npy|mtx|svmlight|safetensors",
             "What IN is (default: by its name)");
  sub->add_flag("--zero-based", command->zero_based, "svmlight: indices count from 0");
  sub->add_flag("--suggest", command->suggest, "Print how many components --samples and --eps ask for, and exit");
  add_integer(*sub, "--samples", command->samples, "Points whose distances are to be kept", INT64_MAX);
  add_number(*sub, "--eps", command->eps, "Distances are kept to a factor 1 +- EPS (default 0.1)");
  add_dtype_option(*sub, command->as_dtype);
  add_run_options(*sub, command->run_options, "the same matrix, but the last bits of sums may differ");
  sub->footer(R"(Multiplies each vector by a random matrix that is never stored. Distances and inner products are kept:
with the components that --suggest prints, all distances to a factor 1 +- EPS (Johnson-Lindenstrauss).
The matrix depends on the seed, the stream, -k and the kind (with its --nonzeros or --density) alone, so
projections made on different machines, from different files and from pieces of vectors belong together.

Examples:
  maskless project --suggest --samples 100000 --eps 0.2
  maskless project x.npy y.npy -k 4096 --seed 7                  each row of x, (n, d) to (n, 4096)
  maskless project x.npy y.npy -k 512 --kind signs --seed 7      a dense matrix of +-1 / sqrt(512)
  maskless project docs.svm y.npy -k 1024 --seed 7               sparse rows; also Matrix Market (.mtx)
  maskless project grad.safetensors y.npy -k 8192 --seed 7       all tensors, in the order of their names
  maskless project tail.npy y2.npy -k 4096 --seed 7 --column-offset 1000000
                                                                 columns from 1000000 on; add to the rest
  maskless project y.npy x2.npy -k 4096 --seed 7 --transpose --columns 1000000

Results are float32, or float64 for float64 and for text files.)");
  sub->callback([command, sub] { command->run(*sub); });
}

}  // namespace maskless::cli
