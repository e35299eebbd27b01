// The extension maskless._core: one bind_<operation> for each file beside this one. It checks what only C++ can check;
// the package's Python files check and document the rest.
#include "common.h"
#include "maskless/core/version.h"
#include "maskless/runtime.h"

namespace maskless::python {

void bind_dropconnect(nb::module_& m);
void bind_dropout(nb::module_& m);
void bind_exchange(nb::module_& m);
void bind_random(nb::module_& m);
void bind_sketch(nb::module_& m);

namespace {

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    switch (error.kind()) {
      case ErrorKind::kValue: return PyErr_SetString(PyExc_ValueError, error.what());
      case ErrorKind::kType: return PyErr_SetString(PyExc_TypeError, error.what());
      case ErrorKind::kRuntime: return PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::register_exception_translator(translate);
  m.attr("version") = kVersion;
  m.attr("spec_version") = kSpecVersion;
  m.def("default_threads", &default_threads);
  m.def("built_with_cuda", &built_with_cuda);
  m.def("instruction_sets", [] {
    nb::list names;
    for (Isa isa : instruction_sets()) names.append(isa_name(isa));
    return names;
  });
  bind_dropconnect(m);
  bind_dropout(m);
  bind_exchange(m);
  bind_random(m);
  bind_sketch(m);
}

}  // namespace maskless::python
