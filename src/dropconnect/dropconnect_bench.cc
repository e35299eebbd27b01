// How far is DropConnect on one CPU thread from a plain matrix product? Square layers, float32, beside OpenBLAS's sgemm
// where the loader finds it or OPENBLAS names it, also as SciPy's wheel brings it (unset OPENBLAS_CORETYPE). Times are
// CPU time of the thread, the best of several rounds in which all take turns, so that a busy machine disturbs least.
//
//     dropconnect_bench [SIZE [OPENBLAS]]
#include <dlfcn.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include "dropconnect/dropconnect_cases.h"
#include "maskless/dropconnect.h"
#include "maskless/runtime.h"

namespace maskless::cases {
void* device_allocate(std::size_t) { return nullptr; }
void device_free(void*) {}
void device_copy(void*, const void*, std::size_t) {}
}  // namespace maskless::cases

namespace {

using namespace maskless;

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct Floats {
  explicit Floats(std::size_t n) : data(static_cast<float*>(::operator new (n * sizeof(float), std::align_val_t{64}))) {
    for (std::size_t i = 0; i < n; ++i) data[i] = cases::value<float>(1, static_cast<std::int64_t>(i));
  }
  ~Floats() { ::operator delete (data, std::align_val_t{64}); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* data;
};

struct Blas {
  using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  Sgemm sgemm = nullptr;
  std::string name = "no OpenBLAS";
};

/// With one thread. In SciPy's library the names have a prefix.
Blas find_blas(const char* named) {
  for (const char* name : {named, "libopenblas.so.0", "libopenblas.so"}) {
    void* library = name != nullptr ? dlopen(name, RTLD_NOW) : nullptr;
    if (library == nullptr) continue;
    for (const std::string prefix : {"", "scipy_"}) {
      const auto symbol = [&](const char* f) { return dlsym(library, (prefix + f).c_str()); };
      Blas blas;
      blas.sgemm = reinterpret_cast<Blas::Sgemm>(symbol("cblas_sgemm"));
      if (blas.sgemm == nullptr) continue;
      if (void* f = symbol("openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(f)(1);
      if (void* f = symbol("openblas_get_config")) blas.name = reinterpret_cast<const char* (*)()>(f)();
      return blas;
    }
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  const int n = argc > 1 ? std::atoi(argv[1]) : 512;
  if (n < 1 || n > 8192) {
    std::fprintf(stderr, "dropconnect_bench: SIZE must be in 1 ... 8192\n");
    return 2;
  }
  const auto count = static_cast<std::size_t>(n) * static_cast<std::size_t>(n);
  Floats x(count), w(count), y(count), gradient(count);
  const auto in = [&](const Floats& f) {
    return contiguous_view(static_cast<const void*>(f.data), DType::kFloat32, {n, n});
  };
  const auto out = [&](Floats& f) { return contiguous_view(static_cast<void*>(f.data), DType::kFloat32, {n, n}); };
  const Blas blas = find_blas(argc > 2 ? argv[2] : nullptr);

  struct Row {
    std::string name;
    std::function<void()> run;
    double best = INFINITY;
  };
  std::vector<Row> rows;
  if (blas.sgemm != nullptr)
    rows.push_back(
        {"OpenBLAS sgemm", [&] { blas.sgemm(101, 111, 112, n, n, n, 1, x.data, n, w.data, n, 0, y.data, n); }});
  for (Isa isa : instruction_sets()) {
    if (isa == Isa::kScalar) continue;
    for (double p : {0.5, 0.25, 0.125, 0.1})
      for (int what = 0; what < (p == 0.5 || p == 0.1 ? 3 : 1); ++what) {
        const std::string name = std::string(isa_name(isa)) + ", p = " + std::to_string(p).substr(0, 5) +
                                 (what == 0   ? ", forward"
                                  : what == 1 ? ", dx"
                                              : ", dweight");
        rows.push_back({name, [&, isa, p, what] {
                          Execution execution;
                          execution.threads = 1;
                          execution.isa = isa;
                          DropconnectOptions options;
                          options.p = p;
                          const TensorView to = out(what == 0 ? y : gradient);
                          if (what == 0) {
                            dropconnect(in(x), in(w), nullptr, to, options, execution);
                          } else {
                            dropconnect_backward(in(x), in(x), in(w), what == 1 ? &to : nullptr,
                                                 what == 2 ? &to : nullptr, nullptr, options, execution);
                          }
                        }});
      }
  }
  {  // right first
    DropconnectOptions options;
    dropconnect(in(x), in(w), nullptr, out(y), options);
    double want = 0;
    for (int k = 0; k < n; ++k)
      if (dropconnect_keep(0, 0, 1, static_cast<std::uint64_t>(k), threshold(0.5)) && n > 1)
        want += 2.0 * x.data[k] * w.data[static_cast<std::size_t>(n) + static_cast<std::size_t>(k)];
    if (n > 1 && !(std::fabs(y.data[1] - want) < 1e-3)) {
      std::fprintf(stderr, "dropconnect_bench: wrong result, %g for %g\n", static_cast<double>(y.data[1]), want);
      return 1;
    }
  }
  for (int round = 0; round < 15; ++round)
    for (Row& row : rows) {
      const double start = cpu_seconds();
      row.run();
      row.best = std::min(row.best, cpu_seconds() - start);
    }
  std::printf("%d x %d x %d, float32, one thread, best of 15; %s\n%-30s %10s %12s %9s\n", n, n, n, blas.name.c_str(),
              "", "ms", "GMAC/s", "of sgemm");
  for (const Row& row : rows)
    std::printf("%-30s %10.3f %12.2f %9.3f\n", row.name.c_str(), 1e3 * row.best,
                1e-9 * static_cast<double>(count) * n / row.best,
                blas.sgemm != nullptr ? rows[0].best / row.best : NAN);
}
