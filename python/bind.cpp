// SPDX-License-Identifier: Apache-2.0
// The extension ejk._core.
#include "bind.h"

namespace ejk::python {

namespace {

void translate_errors(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& e) {
    PyObject* kind = PyExc_RuntimeError;
    if (e.kind() == ErrorKind::invalid_argument || e.kind() == ErrorKind::parse)
      kind = PyExc_ValueError;
    if (e.kind() == ErrorKind::io) kind = PyExc_OSError;
    PyErr_SetString(kind, e.what());
  }
}

}  // namespace

}  // namespace ejk::python

NB_MODULE(_core, m) {
  m.doc() = "What ejk.ops is made of: keys, caches, stores, the selection chain, warm calls.";
  nb::register_exception_translator(ejk::python::translate_errors);
  ejk::python::bind_values(m);
  ejk::python::bind_stores(m);
  ejk::python::bind_chain(m);
  ejk::python::bind_dispatch(m);
}
