// How near is dropout on the CPU to a plain copy? Every dtype and instruction set beside memcpy of the same arrays, in
// rounds; then all threads beside a copy by as many threads; then arrays that stay in the cache. Each result is checked
// against the plain C++ code before anything is timed.
//
//   dropout_bench [--mib N] [--rounds N] [--p P] [--json FILE]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/rounds.h"
#include "cpu/threads.h"
#include "maskless/dropout.h"
#include "maskless/runtime.h"

namespace maskless {
namespace {

using bench::Contestant;

constexpr DType kFloats[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64};

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Memory = std::unique_ptr<char, Free>;

Memory memory(std::size_t bytes, int fill) {
  Memory m(static_cast<char*>(std::aligned_alloc(4096, (bytes + 8191) / 4096 * 4096)));
  std::memset(m.get(), fill, bytes + 64);
  return m;
}

struct Row {
  std::string group, name;
  double seconds, copy_seconds, elements;
};

void threaded_copy(char* to, const char* from, std::size_t bytes, int threads) {
  cpu::parallel_for(threads, static_cast<std::int64_t>(bytes), 4096, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

class Bench {
 public:
  Bench(std::size_t bytes, int rounds, double p)
      : bytes_(bytes), rounds_(rounds), p_(p), x_(memory(bytes, 0x3C)), y_(memory(bytes, 1)) {}

  /// Stops the program if an instruction set's result is not that of plain C++ code.
  void check() {
    const std::size_t bytes = std::size_t{1} << 16;
    const Memory expected = memory(bytes, 0);
    for (DType dtype : kFloats) {
      run(dtype, Isa::kScalar, x_.get(), expected.get(), bytes, 1);
      for (Isa isa : instruction_sets()) {
        run(dtype, isa, x_.get(), y_.get(), bytes, 1);
        if (std::memcmp(expected.get(), y_.get(), bytes) == 0) continue;
        std::fprintf(stderr, "dropout_bench: %s %s is wrong\n", dtype_name(dtype), isa_name(isa));
        std::exit(1);
      }
    }
  }

  /// `shift` moves the arrays off their alignment; `repeat` calls one timing, for small arrays.
  void group(const std::string& name, std::size_t bytes, int threads, std::size_t shift, int repeat, bool all_isas) {
    std::vector<Contestant> contestants;
    char *x = x_.get() + shift, *y = y_.get() + shift;
    contestants.push_back({"memcpy", [=] {
                             for (int r = 0; r < repeat; ++r) threaded_copy(y, x, bytes, threads);
                           }});
    std::vector<Isa> isas = instruction_sets();
    if (!all_isas) isas = {isas.back()};
    std::vector<double> elements = {0};
    for (DType dtype : kFloats)
      for (Isa isa : isas) {
        if (isa == Isa::kScalar) continue;
        elements.push_back(static_cast<double>(bytes / dtype_size(dtype)));
        contestants.push_back({std::string(dtype_name(dtype)) + " " + isa_name(isa), [=, this] {
                                 for (int r = 0; r < repeat; ++r) run(dtype, isa, x, y, bytes, threads);
                               }});
      }
    bench::run_rounds(contestants, rounds_, threads == 1);
    const double copy = contestants[0].median() / repeat;
    std::printf("\n%s, %.3g MiB\n%-20s %9s %9s %8s %9s\n", name.c_str(), static_cast<double>(bytes) / (1 << 20), "",
                "ms", "GB/s", "x memcpy", "Gelem/s");
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const double t = contestants[i].median() / repeat;
      rows_.push_back({name, contestants[i].name, t, copy, elements[i]});
      std::printf("%-20s %9.4f %9.2f %8.2f %9.2f\n", contestants[i].name.c_str(), t * 1e3,
                  2e-9 * static_cast<double>(bytes) / t, copy / t, elements[i] / t * 1e-9);
    }
  }

  void json(const char* path) const {
    std::FILE* f = std::fopen(path, "w");
    if (f == nullptr) return;
    std::fprintf(f, "[\n");
    for (std::size_t i = 0; i < rows_.size(); ++i)
      std::fprintf(f,
                   "  {\"group\": \"%s\", \"name\": \"%s\", \"seconds\": %.6g, \"memcpy_seconds\": %.6g, "
                   "\"elements\": %.0f, \"p\": %g}%s\n",
                   rows_[i].group.c_str(), rows_[i].name.c_str(), rows_[i].seconds, rows_[i].copy_seconds,
                   rows_[i].elements, p_, i + 1 < rows_.size() ? "," : "");
    std::fprintf(f, "]\n");
    std::fclose(f);
  }

 private:
  void run(DType dtype, Isa isa, const char* x, char* y, std::size_t bytes, int threads) const {
    const auto n = static_cast<std::int64_t>(bytes / dtype_size(dtype));
    DropoutOptions options;
    options.p = p_;
    options.seed = 123;
    Execution execution;
    execution.threads = threads;
    execution.isa = isa;
    dropout(contiguous_view(static_cast<const void*>(x), dtype, {n}),
            contiguous_view(static_cast<void*>(y), dtype, {n}), options, execution);
  }

  std::size_t bytes_;
  int rounds_;
  double p_;
  Memory x_, y_;
  std::vector<Row> rows_;
};

}  // namespace
}  // namespace maskless

int main(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) given[argv[i]] = argv[i + 1];
  const auto number = [&](const char* name, double fallback) {
    return given.count(name) != 0 ? std::atof(given[name].c_str()) : fallback;
  };
  const auto bytes = static_cast<std::size_t>(number("--mib", 64)) << 20;
  maskless::Bench bench(bytes, static_cast<int>(number("--rounds", 11)), number("--p", 0.1));
  const int threads = maskless::default_threads();
  bench.check();
  bench.group("one thread", bytes, 1, 0, 1, true);
  bench.group("one thread, 16 bytes past alignment (as NumPy allocates)", bytes, 1, 16, 1, true);
  bench.group(std::to_string(threads) + " threads", bytes, threads, 0, 1, false);
  bench.group("one thread, in the cache", 128 << 10, 1, 0, 64, true);
  bench.group("one thread, in the second cache", 1 << 20, 1, 0, 8, false);
  if (given.count("--json") != 0) bench.json(given["--json"].c_str());
  return 0;
}
