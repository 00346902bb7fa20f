// SPDX-License-Identifier: Apache-2.0
// The extension ejk._core.
#include "bind.h"

#include <atomic>
#include <chrono>
#include <thread>

namespace ejk::python {

namespace {

std::atomic<bool> is_closing{false};
std::atomic<int> inside{0};  // threads of the core that have the GIL or wait for it

[[noreturn]] void wait_for_the_end() {
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

void enter_python() {
  ++inside;
  if (!is_closing.load()) return;
  --inside;
  wait_for_the_end();
}

// Runs at exit, before the interpreter ends: those inside may come out.
void close() {
  is_closing.store(true);
  const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  PyThreadState* const thread = PyEval_SaveThread();
  while (inside.load() > 0 && std::chrono::steady_clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  PyEval_RestoreThread(thread);
}

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

bool Gil::closing() noexcept { return is_closing.load(); }

Gil::Gil() {
  if (PyGILState_Check()) return;
  enter_python();
  state_ = PyGILState_Ensure();
  taken_ = true;
}

Gil::~Gil() {
  if (!taken_) return;
  PyGILState_Release(state_);
  --inside;
}

WithoutGil::~WithoutGil() {
  enter_python();
  PyEval_RestoreThread(thread_);
  --inside;
}

}  // namespace ejk::python

NB_MODULE(_core, m) {
  m.doc() = "What ejk.ops is made of: keys, caches, stores, the selection chain, warm calls.";
  nb::register_exception_translator(ejk::python::translate_errors);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&ejk::python::close));
  ejk::python::bind_values(m);
  ejk::python::bind_stores(m);
  ejk::python::bind_chain(m);
  ejk::python::bind_dispatch(m);
  ejk::python::bind_ops(m);
  ejk::python::bind_registered(m);
}
