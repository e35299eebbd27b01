// Projections on the CPU: work cut into units by shape alone, spread over threads, sums put together in a fixed order.
#include <atomic>
#include <memory>
#include <vector>

#include "common/visit.h"
#include "cpu/threads.h"
#include "sketch/sjlt_plan.h"
#include "sketch/sketch_kernels.h"
#include "sketch/sketch_reference.h"

namespace maskless::cpu {
namespace {

/// Units one by one to whichever thread is free.
template <typename F>
void for_units(int threads, std::int64_t units, F&& f) {
  std::atomic<std::int64_t> next{0};
  parallel_for(threads, units, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t unit = next++; unit < units; unit = next++) f(unit);
  });
}

template <typename T, typename Out>
void sjlt_project(const SketchArgs& args, const SjltFunctions& functions, int threads) {
  using S = Sum<T>;
  const SketchMatrix& m = args.matrix;
  const SjltPlan plan = sjlt_plan(args, m.rows * static_cast<std::int64_t>(sizeof(S)));
  const std::size_t size = static_cast<std::size_t>(m.rows) * static_cast<std::size_t>(plan.lanes);
  const auto store = [&](std::int64_t group, const S* sums) {
    const std::int64_t lane = group * plan.lanes, count = std::min<std::int64_t>(plan.lanes, args.batch - lane);
    for (std::int64_t l = 0; l < count; ++l) {
      Out* y = static_cast<Out*>(args.out) + (lane + l) * args.out_strides[0];
      for (std::int64_t r = 0; r < m.rows; ++r)
        reference::store_sum(y + r * args.out_strides[1], sums[r * plan.lanes + l], m.scale, args.accumulate);
    }
  };
  if (plan.chunks == 1) {
    for_units(threads, plan.units(), [&](std::int64_t unit) {
      const std::unique_ptr<S[]> sums(new S[size]());
      functions.project(args, plan, unit, sums.get());
      store(unit, sums.get());
    });
    return;
  }
  std::vector<std::unique_ptr<S[]>> sums(static_cast<std::size_t>(plan.units()));
  for_units(threads, plan.units(), [&](std::int64_t unit) {
    auto& partial = sums[static_cast<std::size_t>(unit)];
    partial.reset(new S[size]());
    functions.project(args, plan, unit, partial.get());
  });
  for_units(threads, plan.groups, [&](std::int64_t group) {
    S* total = sums[static_cast<std::size_t>(group * plan.chunks)].get();
    for (std::int64_t chunk = 1; chunk < plan.chunks; ++chunk) {
      const S* partial = sums[static_cast<std::size_t>(group * plan.chunks + chunk)].get();
      for (std::size_t i = 0; i < size; ++i) total[i] += partial[i];
    }
    store(group, total);
  });
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

void project(const SketchArgs& args, const Execution& execution) {
  const SjltFunctions sjlt = sjlt_functions(execution.isa);
  visit_sketch(args.in_dtype, args.out_dtype, [&](auto in, auto out) {
    using T = typename decltype(in)::type;
    using Out = typename decltype(out)::type;
    if (sjlt.project == nullptr) {
      reference::project<T, Out>(args);
    } else if (!args.matrix.signs) {
      sjlt_project<T, Out>(args, sjlt, execution.threads);
    } else {
      const SignsFunctions signs = signs_functions(execution.isa);
      const std::int64_t units = ceil_div(args.batch, kSignBatch) * ceil_div(args.matrix.rows, kSignRows);
      for_units(execution.threads, units, [&](std::int64_t unit) { signs.project(args, unit); });
    }
  });
}

void project_transpose(const SketchArgs& args, const Execution& execution) {
  const SjltFunctions sjlt = sjlt_functions(execution.isa);
  if (sjlt.transpose == nullptr) {
    visit_sketch(args.in_dtype, args.out_dtype, [&](auto in, auto out) {
      reference::project_transpose<typename decltype(in)::type, typename decltype(out)::type>(args);
    });
  } else if (!args.matrix.signs) {
    const SjltPlan plan = sjlt_plan(args, 0);
    for_units(execution.threads, plan.units(), [&](std::int64_t unit) { sjlt.transpose(args, plan, unit); });
  } else {
    const SignsFunctions signs = signs_functions(execution.isa);
    const auto offset = static_cast<std::int64_t>(args.matrix.column_offset);
    const std::int64_t panels = ceil_div(offset + args.matrix.cols, kSignColumns) - offset / kSignColumns;
    for_units(execution.threads, ceil_div(args.batch, kSignBatch) * panels,
              [&](std::int64_t unit) { signs.transpose(args, unit); });
  }
}

void project_csr(const SketchCsrArgs& args, const Execution& execution) {
  const auto kernel = args.base.matrix.signs ? signs_functions(execution.isa).csr : sjlt_functions(execution.isa).csr;
  for_units(execution.threads, args.base.batch,
            [&](std::int64_t row) { kernel != nullptr ? kernel(args, row) : reference::project_csr(args, row); });
}

void projection_matrix(const SketchMatrixArgs& args, const Execution& execution) {
  parallel_for(execution.threads, args.matrix.cols, 16, [&](std::int64_t begin, std::int64_t end) {
    visit_floating(args.dtype,
                   [&](auto type) { reference::projection_matrix<typename decltype(type)::type>(args, begin, end); });
  });
}

}  // namespace maskless::cpu
