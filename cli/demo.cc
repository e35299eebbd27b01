// maskless demo: what the library promises, shown in a terminal.
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "bench.h"
#include "commands.h"
#include "maskless/dropout.h"
#include "maskless/runtime.h"

namespace maskless::cli {
namespace {

using Floats = std::vector<float>;

DropoutOptions with(double p, std::uint64_t seed) {
  DropoutOptions options;
  options.p = p;
  options.seed = seed;
  return options;
}

ConstTensorView view_of(const Floats& x) {
  return contiguous_view(static_cast<const void*>(x.data()), DType::kFloat32, {static_cast<std::int64_t>(x.size())});
}
TensorView view_of(Floats& x) {
  return contiguous_view(static_cast<void*>(x.data()), DType::kFloat32, {static_cast<std::int64_t>(x.size())});
}

Floats dropped_out(const Floats& x, const DropoutOptions& options, const Execution& execution = {}) {
  Floats y(x.size(), -1.0f);
  dropout(view_of(x), view_of(y), options, execution);
  return y;
}

void title(int number, const char* text) { std::printf("\n%d. %s\n\n", number, text); }

// --- 1: the same seed, the same output
// --------------------------------------------------------------------------------

bool show_seeds() {
  title(1, "The seed is the mask. Dropout of ten numbers, p = 0.5:");
  Floats x;
  for (int i = 1; i <= 10; ++i) x.push_back(static_cast<float>(i));
  const Floats a = dropped_out(x, with(0.5, 123)), b = dropped_out(x, with(0.5, 123)),
               c = dropped_out(x, with(0.5, 512));
  const auto row = [](const char* name, const Floats& values) {
    std::printf("   %-20s", name);
    for (float v : values) std::printf("%5g", v);
    std::printf("\n");
  };
  row("input", x);
  row("output (seed = 123)", a);
  row("output (seed = 123)", b);
  row("output (seed = 512)", c);
  std::printf("\n   Kept numbers are doubled (1 / (1 - p)), so that the sum stays the same on average.\n");
  return a == b && a != c;
}

// --- 2: a picture
// -----------------------------------------------------------------------------------------------------

constexpr const char* kPicture[] = {
    "#   #  ###   #### #   # #     #####  ####  ####",  //
    "## ## #   # #     #  #  #     #     #     #    ",  //
    "# # # #   # #     # #   #     #     #     #    ",  //
    "#   # #####  ###  ##    #     ####   ###   ### ",  //
    "#   # #   #     # # #   #     #         #     #",  //
    "#   # #   #     # #  #  #     #         #     #",  //
    "#   # #   # ####  #   # ##### ##### ####  #### ",
};

void show_picture() {
  title(2, "The same on a picture, p = 0.3 (a dot is what was dropped):");
  constexpr std::int64_t kRows = std::size(kPicture);
  const auto columns = static_cast<std::int64_t>(std::strlen(kPicture[0]));
  std::vector<std::uint8_t> keep(static_cast<std::size_t>(kRows * columns));
  std::printf("   %-*s  %s\n", static_cast<int>(columns), "seed = 123", "seed = 512");
  std::vector<std::string> lines(kRows, "   ");
  for (std::uint64_t seed : {123, 512}) {
    keep_mask(contiguous_view(static_cast<void*>(keep.data()), DType::kUint8, {kRows, columns}), with(0.3, seed));
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const char ink = kPicture[r][c];
        lines[static_cast<std::size_t>(r)] +=
            ink != ' ' && keep[static_cast<std::size_t>(r * columns + c)] == 0 ? '.' : ink;
      }
      lines[static_cast<std::size_t>(r)] += "  ";
    }
  }
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
}

// --- 3: backward drops what forward dropped
// ---------------------------------------------------------------------------

std::int64_t show_backward() {
  title(3, "Backward drops exactly what forward dropped, and no mask was stored:");
  const Floats ones(1000000, 1.0f);
  Floats y(ones.size(), -1.0f), dx(ones.size(), -1.0f);
  dropout(view_of(ones), view_of(y), with(0.1, 123));
  dropout_backward(view_of(ones), view_of(dx), with(0.1, 123));
  std::int64_t dropped = 0, differ = 0;
  for (std::size_t i = 0; i < ones.size(); ++i) {
    dropped += y[i] == 0;
    differ += y[i] != dx[i];
  }
  std::printf("   1,000,000 elements, p = 0.1: forward dropped %lld, backward differs at %lld of them.\n",
              static_cast<long long>(dropped), static_cast<long long>(differ));
  return differ;
}

// --- 4: one mask, however it is computed
// ------------------------------------------------------------------------------

bool show_invariance() {
  title(4, "The mask depends on seed, stream and position alone. 1,000,003 elements, p = 0.1:");
  constexpr std::int64_t kSize = 1000003, kCut = 400001;
  const auto mask = [&](const Execution& execution) {
    std::vector<std::uint8_t> m(kSize, 0xA5);
    keep_mask(contiguous_view(static_cast<void*>(m.data()), DType::kUint8, {kSize}), with(0.1, 123), execution);
    return m;
  };
  const auto first = mask({1, Isa::kScalar, nullptr});
  bool all = true;
  const auto row = [&](const std::string& how, bool same) {
    std::printf("   %-44s %s\n", how.c_str(), same ? "the same mask" : "ANOTHER MASK");
    all = all && same;
  };
  for (Isa isa : instruction_sets())
    row(std::string("instruction set ") + isa_name(isa), mask({1, isa, nullptr}) == first);
  for (int threads : {2, 3, 8})
    row(std::to_string(threads) + " threads", mask({threads, Isa::kBest, nullptr}) == first);
  std::vector<std::uint8_t> joined(kSize, 0xA5);  // two machines, each with a part
  DropoutOptions tail = with(0.1, 123);
  tail.first_index = kCut;
  keep_mask(contiguous_view(static_cast<void*>(joined.data()), DType::kUint8, {kCut}), with(0.1, 123));
  keep_mask(contiguous_view(static_cast<void*>(joined.data() + kCut), DType::kUint8, {kSize - kCut}), tail);
  row("two shards, 400,001 and 600,002, joined", joined == first);
  for (const CudaDevice& device : cuda_devices()) {
    const Device where = {DeviceType::kCuda, device.index};
    DeviceBuffer buffer(where, kSize);
    keep_mask(contiguous_view(buffer.data(), DType::kUint8, {kSize}, where), with(0.1, 123));
    std::vector<std::uint8_t> m(kSize, 0xA5);
    buffer.download(m.data(), kSize);
    row(device_text(where) + ", " + device.name, m == first);
  }
  return all;
}

// --- 5: time and memory
// -----------------------------------------------------------------------------------------------

void show_cost() {
  constexpr std::int64_t kSize = 16 << 20;
  title(5, "What it costs, on this CPU with all threads: 16,777,216 float32, p = 0.1:");
  const Floats x(kSize, 1.0f);
  Floats y(kSize, -1.0f);
  std::vector<std::uint8_t> stored(kSize);
  const auto stored_view = contiguous_view(static_cast<void*>(stored.data()), DType::kUint8, {kSize});
  const auto medians =
      median_seconds({},
                     {[&] { threaded_copy(y.data(), x.data(), kSize * sizeof(float), default_threads()); },
                      [&] { dropout(view_of(x), view_of(y), with(0.1, 123)); },
                      [&] {
                        keep_mask(stored_view, with(0.1, 123));
                        masked_dropout(view_of(x), stored_view, view_of(y), 0.1);
                      }},
                     0.5);
  std::printf("   %-40s %8s  %s\n", "", "ms", "kept for backward");
  const auto row = [](const char* what, double seconds, const char* memory) {
    std::printf("   %-40s %8.2f  %s\n", what, seconds * 1e3, memory);
  };
  row("a plain copy", medians[0], "");
  row("dropout by seed", medians[1], "8 bytes (the seed)");
  row("dropout with a stored mask of bytes", medians[2], "16,777,216 bytes");
}

/// True if everything that was shown held.
bool tour() {
  std::printf("maskless: random masks on linear operations, never stored.\n");
  const bool seeds = show_seeds();
  show_picture();
  const std::int64_t differ = show_backward();
  const bool invariant = show_invariance();
  show_cost();
  const bool good = seeds && differ == 0 && invariant;
  std::printf("\n%s\n", good ? "Next: maskless selftest, maskless bench dropout, maskless dropout --help" : "FAILED");
  std::fflush(stdout);
  return good;
}

}  // namespace

void add_demo(CLI::App& app) {
  CLI::App* const sub = app.add_subcommand("demo", "A tour of what this is about, in half a minute");
  sub->callback([] {
    if (!tour()) throw CLI::RuntimeError(1);
  });
}

}  // namespace maskless::cli
