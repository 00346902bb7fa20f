// SPDX-License-Identifier: Apache-2.0
// The extension ejk._core.
#include "bind.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace ejk::python {

namespace {

std::atomic<bool> is_closing{false}, is_closed{false};
std::atomic<std::thread::id> closer;  // it may go on
std::atomic<int> threads_inside{0};   // those in the extension that are not kept there
std::atomic<int> asking{0};           // those that ask for the GIL
thread_local int depth = 0;           // calls into the extension, and scopes with the GIL

bool is_closer() { return closer.load() == std::this_thread::get_id(); }

bool is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Until the process ends, without the GIL.
[[noreturn]] void stay() {
  if (depth > 0) --threads_inside;
  if (!is_finalizing() && PyGILState_Check()) PyEval_SaveThread();
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

void enter() {
  if (depth++ == 0) ++threads_inside;
}

void leave() {
  if (--depth == 0) --threads_inside;
}

// Runs take(), which takes the GIL; after `closed` nobody but the closer does.
template <class F>
void ask_for_gil(F&& take) {
  ++asking;
  if (Gil::closed()) {
    --asking;
    stay();
  }
  take();
  --asking;
}

bool others_are_alive() {
  PyThreadState* const first = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
  return first != nullptr && PyThreadState_Next(first) != nullptr;
}

// Runs at exit, before the interpreter ends, when all threads but daemons have ended.
void close() {
  constexpr auto patience = std::chrono::seconds(10);
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  if (others_are_alive()) nb::set_leak_warnings(false);  // what their frames hold is never let go
  closer.store(std::this_thread::get_id());
  is_closing.store(true);
  PyThreadState* const thread = PyEval_SaveThread();
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (threads_inside.load() > (depth > 0) && std::chrono::steady_clock::now() < deadline) wait();
  is_closed.store(true);
  while (asking.load() > 0) wait();
  PyEval_RestoreThread(thread);
}

// The other threads are not there in a child of fork; what their frames hold is.
void after_fork() {
  nb::set_leak_warnings(false);
  threads_inside.store(depth > 0);
  asking.store(0);
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

bool Gil::closing() noexcept { return is_closing.load() && !is_closer(); }
bool Gil::closed() noexcept { return is_closed.load() && !is_closer(); }

InCore::InCore() {
  if (depth == 0 && Gil::closing()) stay();
  enter();
}

// Also runs when the thread is killed, which only happens to those that took too long.
InCore::~InCore() {
  if (Gil::closed() || (depth == 1 && Gil::closing())) stay();
  leave();
}

Gil::Gil() {
  if (PyGILState_Check()) return;
  enter();
  ask_for_gil([&] { state_ = PyGILState_Ensure(); });
  taken_ = true;
}

Gil::~Gil() {
  if (!taken_) return;
  if (closed()) stay();
  PyGILState_Release(state_);
  leave();
}

WithoutGil::~WithoutGil() {
  ask_for_gil([&] { PyEval_RestoreThread(thread_); });
}

}  // namespace ejk::python

NB_MODULE(_core, m) {
  m.doc() = "What ejk.ops is made of: keys, caches, stores, the selection chain, warm calls.";
  nb::register_exception_translator(ejk::python::translate_errors);
  ejk::python::bind_values(m);
  ejk::python::bind_stores(m);
  ejk::python::bind_chain(m);
  ejk::python::bind_dispatch(m);
  ejk::python::bind_ops(m);
  ejk::python::bind_registered(m);
  // Last: it runs before what the others have for the end.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&ejk::python::close));
  pthread_atfork(nullptr, nullptr, ejk::python::after_fork);
}
