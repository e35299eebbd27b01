// maskless dropconnect, maskless dropconnect-backward, maskless bench dropconnect
#include "maskless/dropconnect.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench.h"
#include "cli_error.h"
#include "commands.h"
#include "device.h"
#include "maskless/core/uniform.h"
#include "maskless/core/version.h"
#include "maskless/runtime.h"
#include "npy.h"
#include "options.h"
#include "print_json.h"

namespace maskless::cli {
namespace {

using Json = nlohmann::ordered_json;

struct LayerOptions {
  double p = 0;
  SeedOptions seed;
  std::uint64_t samples = 0, sample_stride = 0, first_sample = 0, first_output = 0, first_input = 0;
  bool shared = false, no_scale = false;
  std::string as_dtype;
  RunOptions run;

  DropconnectOptions dropconnect() const {
    DropconnectOptions o;
    o.p = p;
    o.seed = seed.seed;
    o.stream = seed.stream32();
    o.scale = !no_scale;
    o.shared = shared;
    o.samples = static_cast<std::int64_t>(samples);
    o.sample_stride = static_cast<std::int64_t>(sample_stride);
    o.first_sample = first_sample;
    o.first_output = first_output;
    o.first_input = first_input;
    return o;
  }
  Json record(const char* command, DType dtype, Device device, double seconds) const {
    return {{"command", command},         {"dtype", dtype_name(dtype)},    {"p", p},
            {"seed", seed.seed},          {"stream", seed.stream},         {"samples", samples},
            {"shared", shared},           {"first_sample", first_sample},  {"first_output", first_output},
            {"first_input", first_input}, {"device", device_text(device)}, {"seconds", seconds}};
  }
};

void add_layer_options(CLI::App& app, LayerOptions& options) {
  add_number(app, "-p", options.p, "Required: probability to drop a weight, in [0, 1]; exact to 2^-33")->required();
  add_seed_options(app, options.seed)->required();
  add_integer(app, "--samples", options.samples,
              "Monte-Carlo passes over the same X, each with masks of its own: a first dimension of Y (default none)",
              INT64_MAX);
  add_integer(app, "--sample-stride", options.sample_stride,
              "Positions from one pass to the next (default: the number of rows of X)", INT64_MAX);
  app.add_flag("--shared", options.shared, "One mask for the whole batch (not DropConnect) in place of one a sample");
  add_integer(app, "--first-sample", options.first_sample, "Position of the first row of X (default 0)");
  add_integer(app, "--first-output", options.first_output, "Position of the first row of W (default 0)");
  add_integer(app, "--first-input", options.first_input, "Position of the first column of X and W (default 0)");
  app.add_flag("--no-scale", options.no_scale, "Leave the product as it is, without 1 / (1 - p)");
  add_dtype_option(app, options.as_dtype);
  add_run_options(app, options.run, "the same masks, but the last bits of sums may differ");
}

/// A .npy file as a view where the operation runs.
class Operand {
 public:
  Operand(const std::string& path, const std::string& as_dtype, Device device) : input_(path, as_dtype) {
    view_ = input_.view();
    if (device.type != DeviceType::kCuda) return;
    const auto bytes = static_cast<std::size_t>(view_.size()) * dtype_size(view_.dtype);
    memory_.emplace(device, bytes);
    memory_->upload(view_.data, bytes);  // the file is contiguous, in C or Fortran order
    view_.data = memory_->data();
    view_.device = device;
  }
  const ConstTensorView& view() const { return view_; }
  Shape shape() const { return Shape(view_.shape.begin(), view_.shape.begin() + view_.rank); }

 private:
  NpyInput input_;
  ConstTensorView view_;
  std::optional<DeviceBuffer> memory_;
};

/// A .npy file to be, and its memory where the operation runs.
class Result {
 public:
  Result(const std::string& path, DType dtype, const Shape& shape, Device device) : output_(path, dtype, shape) {
    if (shape.size() > kMaxRank) throw CliError(path + ": would have more than 8 dimensions");
    view_ = output_.map();
    if (device.type != DeviceType::kCuda) return;
    host_ = view_.data;
    memory_.emplace(device, bytes());
    view_.data = memory_->data();
    view_.device = device;
  }
  const TensorView& view() const { return view_; }
  void finish() {
    if (memory_ && bytes() > 0) memory_->download(host_, bytes());
    output_.commit();
  }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(view_.size()) * dtype_size(view_.dtype); }

  NpyOutput output_;
  TensorView view_;
  void* host_ = nullptr;
  std::optional<DeviceBuffer> memory_;
};

// --- forward and backward -------------------------------------------------------------------------------------------

struct ForwardCommand {
  LayerOptions options;
  std::string x, w, y, bias;

  void run() const {
    const auto start = Clock::now();
    const Device device = choose_device(options.run.device);
    const Operand in(x, options.as_dtype, device), weight(w, options.as_dtype, device);
    std::optional<Operand> b;
    if (!bias.empty()) b.emplace(bias, options.as_dtype, device);
    Shape shape = in.shape();
    if (!shape.empty() && weight.view().rank == 2) shape.back() = weight.view().shape[0];
    if (options.samples > 0) shape.insert(shape.begin(), static_cast<std::int64_t>(options.samples));
    Result out(y, in.view().dtype, shape, device);
    maskless::dropconnect(in.view(), weight.view(), b ? &b->view() : nullptr, out.view(), options.dropconnect(),
                          options.run.execution());
    out.finish();
    if (!options.run.json) return;
    Json json = options.record("dropconnect", in.view().dtype, device, seconds_since(start));
    json["output"] = y;
    json["shape"] = shape;
    print_json(json);
  }
};

bool same_file(const std::string& a, const std::string& b) {
  std::error_code none;
  return std::filesystem::weakly_canonical(a, none) == std::filesystem::weakly_canonical(b, none);
}

struct BackwardCommand {
  LayerOptions options;
  std::string x, w, dy, dx, dw, dbias;

  void run() const {
    const auto start = Clock::now();
    if (dx.empty() && dw.empty() && dbias.empty()) throw CliError("one of --dx, --dw and --dbias is required");
    for (const auto& [a, b] : {std::pair{&dx, &dw}, {&dx, &dbias}, {&dw, &dbias}})
      if (!a->empty() && same_file(*a, *b)) throw CliError("--dx, --dw and --dbias must be different files, got " + *b);
    const Device device = choose_device(options.run.device);
    const Operand in(x, options.as_dtype, device), weight(w, options.as_dtype, device),
        gradient(dy, options.as_dtype, device);
    const DType dtype = in.view().dtype;
    std::optional<Result> out_x, out_w, out_b;
    if (!dx.empty()) out_x.emplace(dx, dtype, in.shape(), device);
    if (!dw.empty()) out_w.emplace(dw, dtype, weight.shape(), device);
    if (!dbias.empty()) out_b.emplace(dbias, dtype, Shape{weight.view().rank > 0 ? weight.view().shape[0] : 0}, device);
    maskless::dropconnect_backward(gradient.view(), in.view(), weight.view(), out_x ? &out_x->view() : nullptr,
                                   out_w ? &out_w->view() : nullptr, out_b ? &out_b->view() : nullptr,
                                   options.dropconnect(), options.run.execution());
    for (auto* out : {&out_x, &out_w, &out_b})
      if (*out) (*out)->finish();
    if (options.run.json) print_json(options.record("dropconnect-backward", dtype, device, seconds_since(start)));
  }
};

// --- bench ----------------------------------------------------------------------------------------------------------

struct DropconnectBench {
  std::vector<std::int64_t> sizes;
  std::vector<double> ps = {0.5, 0.125, 0.1};
  double seconds = 0.3;
  std::uint64_t threads = 1;
  std::string device = "auto", dtype = "float32";
  bool json = false;

  /// Forward, dx and dweight of a square layer, beside the same with p = 0, which draws nothing.
  Json measure(std::int64_t n, double p, Device where, DType type) const {
    const auto count = static_cast<std::size_t>(n * n), bytes = count * dtype_size(type);
    std::vector<std::byte> host(bytes, std::byte{0x3C});  // 0x3C3C... is a small number in every dtype
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    void* data[5];
    for (void*& at : data) {
      if (where.type == DeviceType::kCuda) {
        buffers.push_back(std::make_unique<DeviceBuffer>(where, bytes));
        buffers.back()->upload(host.data(), bytes);
        at = buffers.back()->data();
      } else {
        memory.push_back(host);
        at = memory.back().data();
      }
    }
    const auto view = [&](int i) { return contiguous_view(data[i], type, {n, n}, where); };
    Execution execution;
    execution.threads = static_cast<int>(threads);
    const auto with = [](double probability) {
      DropconnectOptions o;
      o.p = probability;
      o.seed = 123;
      return o;
    };
    const auto forward = [&](double probability) {
      dropconnect(view(0), view(1), nullptr, view(2), with(probability), execution);
    };
    const TensorView dx = view(3), dw = view(4);
    const auto backward = [&](bool of_x) {
      dropconnect_backward(view(2), view(0), view(1), of_x ? &dx : nullptr, of_x ? nullptr : &dw, nullptr, with(p),
                           execution);
    };
    forward(p);
    check(n, p, type, where, where.type == DeviceType::kCuda ? buffers[2].get() : nullptr, data[2]);
    const auto medians = median_seconds(
        where, {[&] { forward(p); }, [&] { backward(true); }, [&] { backward(false); }, [&] { forward(0.0); }},
        seconds);
    const double macs = static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    return {{"size", n},
            {"p", p},
            {"forward_seconds", medians[0]},
            {"dx_seconds", medians[1]},
            {"dweight_seconds", medians[2]},
            {"forward_p0_seconds", medians[3]},
            {"forward_macs_per_second", macs / medians[0]}};
  }

  /// x = w = c everywhere: y[m, n] is c^2 / (1 - p) times the number of kept weights.
  static void check(std::int64_t n, double p, DType type, Device, const DeviceBuffer* on_device, const void* y) {
    const auto item = dtype_size(type);
    std::vector<std::byte> rows(static_cast<std::size_t>(n) * item);  // row 0
    if (on_device != nullptr) {
      on_device->download(rows.data(), rows.size());
    } else {
      std::memcpy(rows.data(), y, rows.size());
    }
    if (type != DType::kFloat32) return;  // the kernels are one template; float32 is compared
    const float c = 0.011489f;            // 0x3C3C3C3C
    const std::uint64_t t = threshold(p);
    for (std::int64_t j = 0; j < n; j += std::max<std::int64_t>(n / 7, 1)) {
      std::int64_t kept = 0;
      for (std::int64_t k = 0; k < n; ++k)
        kept += dropconnect_keep(123, 0, static_cast<std::uint32_t>(j), static_cast<std::uint64_t>(k), t) ? 1 : 0;
      float got = 0;
      std::memcpy(&got, rows.data() + static_cast<std::size_t>(j) * item, sizeof got);
      const double want = static_cast<double>(c) * c * keep_scale(p) * static_cast<double>(kept);
      if (!(std::fabs(got - want) <= 1e-3 * want + 1e-12))
        throw CliError("output " + std::to_string(j) + " is wrong: run `maskless selftest`");
    }
  }

  void run() const {
    const Device where = choose_device(device);
    const bool cuda = where.type == DeviceType::kCuda;
    DType type = DType::kFloat32;
    for (DType t : {DType::kBFloat16, DType::kFloat16, DType::kFloat64})
      if (dtype == dtype_name(t)) type = t;
    if (!(seconds >= 0 && seconds <= 3600)) throw CliError("--seconds must be in 0 ... 3600");
    for (double p : ps)
      if (!valid_probability(p)) throw CliError("-p must be in [0, 1], got " + std::to_string(p));
    const std::vector<std::int64_t> the_sizes = !sizes.empty() ? sizes
                                                : cuda         ? std::vector<std::int64_t>{256, 1024, 4096}
                                                               : std::vector<std::int64_t>{256, 512};
    Json rows = Json::array();
    if (!json)
      std::printf(
          "dropconnect, %s on %s, rows = outputs = inputs = size; milliseconds, medians of runs in turn\n\n"
          "%6s %8s  %9s %9s %9s  %12s  %9s\n",
          dtype.c_str(), device_text(where).c_str(), "size", "p", "forward", "dx", "dweight", "forward, p=0",
          "G mul-add/s");
    for (std::int64_t n : the_sizes) {
      if (n < 1 || n > 16384) throw CliError("--sizes must be in 1 ... 16384, got " + std::to_string(n));
      for (double p : ps) {
        rows.push_back(measure(n, p, where, type));
        if (json) continue;
        const Json& r = rows.back();
        std::printf("%6lld %8g  %9.4f %9.4f %9.4f  %12.4f  %9.1f\n", static_cast<long long>(n), p,
                    1e3 * r["forward_seconds"].get<double>(), 1e3 * r["dx_seconds"].get<double>(),
                    1e3 * r["dweight_seconds"].get<double>(), 1e3 * r["forward_p0_seconds"].get<double>(),
                    1e-9 * r["forward_macs_per_second"].get<double>());
        std::fflush(stdout);
      }
    }
    if (json)
      std::cout << Json{{"version", kVersion},          {"benchmark", "dropconnect"}, {"dtype", dtype},
                        {"device", device_text(where)}, {"threads", threads},         {"rows", rows}}
                       .dump(2)
                << "\n";
  }
};

}  // namespace

void add_dropconnect(CLI::App& app) {
  CLI::App* const sub =
      app.add_subcommand("dropconnect", "A linear layer that drops weights, an independent mask for every sample");
  const auto command = std::make_shared<ForwardCommand>();
  sub->add_option("X", command->x, "Input, .npy of shape (*, in_features)")->required();
  sub->add_option("W", command->w, "Weight, .npy of shape (out_features, in_features)")->required();
  sub->add_option("Y", command->y, "Output, .npy of shape (*, out_features)")->required();
  sub->add_option("--bias", command->bias, "Bias, .npy of shape (out_features,); never masked or scaled")
      ->type_name("B.npy");
  add_layer_options(*sub, command->options);
  sub->footer(R"(y[m, n] = 1 / (1 - p) * sum_k x[m, k] w[n, k] D[m, n, k] + bias[n], with D drawn and never stored.

Examples:
  maskless dropconnect x.npy w.npy y.npy -p 0.5 --seed 7
  maskless dropconnect x.npy w.npy y.npy --bias b.npy -p 0.5 --seed 7 --samples 100)");
  sub->callback([command] { command->run(); });
}

void add_dropconnect_backward(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("dropconnect-backward", "The gradients of dropconnect, from the same seed");
  const auto command = std::make_shared<BackwardCommand>();
  sub->add_option("X", command->x, "Input of the forward call, .npy")->required();
  sub->add_option("W", command->w, "Weight of the forward call, .npy")->required();
  sub->add_option("DY", command->dy, "Gradient of the output, .npy of Y's shape")->required();
  sub->add_option("--dx", command->dx, "Where the gradient of X goes")->type_name("DX.npy");
  sub->add_option("--dw", command->dw, "Where the gradient of W goes")->type_name("DW.npy");
  sub->add_option("--dbias", command->dbias, "Where the gradient of the bias goes")->type_name("DB.npy");
  add_layer_options(*sub, command->options);
  sub->footer(R"(Give the options of the forward call: the same weights are dropped, though nothing was stored.

Examples:
  maskless dropconnect-backward x.npy w.npy dy.npy --dx dx.npy --dw dw.npy -p 0.5 --seed 7)");
  sub->callback([command] { command->run(); });
}

void add_bench_dropconnect(CLI::App& bench) {
  CLI::App* const sub = bench.add_subcommand("dropconnect", "DropConnect beside the same layer with p = 0");
  const auto options = std::make_shared<DropconnectBench>();
  sub->add_option("-p", options->ps, "Probabilities (default 0.5,0.125,0.1)")->delimiter(',')->type_name("X,...");
  sub->add_option("--sizes", options->sizes, "Rows, outputs and inputs (default 256,1024,4096 on CUDA, 256,512 else)")
      ->delimiter(',')
      ->type_name("N,...");
  add_choice(*sub, "--dtype", options->dtype, "bfloat16|float16|float32|float64", "Default float32");
  add_integer(*sub, "--threads", options->threads, "CPU threads (default 1; 0: all)", 1024);
  add_number(*sub, "--seconds", options->seconds, "Time for each row (default 0.3)");
  sub->add_option("--device", options->device, "auto, cpu, cuda or cuda:N (default auto)")->type_name("DEVICE");
  sub->add_flag("--json", options->json, "Print the rows as JSON");
  sub->footer(R"(Each row checks the result before it is timed.

Examples:
  maskless bench dropconnect
  maskless bench dropconnect --device cpu --sizes 512 -p 0.5 --json)");
  sub->callback([options] { options->run(); });
}

}  // namespace maskless::cli
