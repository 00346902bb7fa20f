// SPDX-License-Identifier: Apache-2.0
// The extension ejk._core.
#include "bind.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace ejk::python {

namespace {

std::atomic<bool> is_closing{false}, is_closed{false};
std::atomic<std::thread::id> closer;  // it may go on
std::atomic<int> asking{0};           // those that ask for the GIL

// A thread that has called the extension.
struct Visitor {
  unsigned long thread = PyThread_get_thread_ident();
  std::atomic<int> depth{0};  // its calls, and its scopes with the GIL; only it writes
};

// All that are neither gone nor kept.
class Visitors {
 public:
  void add(Visitor* visitor) {
    const std::lock_guard lock(mutex_);
    all_.insert(visitor);
  }
  void remove(Visitor* visitor) {
    const std::lock_guard lock(mutex_);
    all_.erase(visitor);
  }
  struct Others {
    std::vector<unsigned long> threads;
    bool any_inside = false;
  };
  Others others_than(const Visitor* me) {
    const std::lock_guard lock(mutex_);
    Others found;
    for (const Visitor* visitor : all_)
      if (visitor != me) {
        found.threads.push_back(visitor->thread);
        found.any_inside |= visitor->depth.load() > 0;
      }
    return found;
  }

 private:
  std::mutex mutex_;
  std::set<Visitor*> all_;
};
Visitors* visitors = new Visitors;  // never deleted: threads may outlive the end of main

// Every call looks here.
[[gnu::tls_model("initial-exec")]] constinit thread_local Visitor* this_visitor = nullptr;

Visitor& first_visit() {
  thread_local struct Registered {
    Visitor visitor;
    Registered() { visitors->add(this_visitor = &visitor); }
    ~Registered() { visitors->remove(std::exchange(this_visitor, nullptr)); }
  } registered;
  return registered.visitor;
}

Visitor& me() { return this_visitor != nullptr ? *this_visitor : first_visit(); }

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
  visitors->remove(this_visitor);
  if (!is_finalizing() && PyGILState_Check()) PyEval_SaveThread();
  for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

int depth() { return me().depth.load(std::memory_order_relaxed); }
void set_depth(int depth) { me().depth.store(depth, std::memory_order_relaxed); }

// Runs take(), which takes the GIL; after `closed` only the closer does.
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

// Whether one of these threads is in JAX, whose frames do not survive either.
bool any_is_in_jax(const std::vector<unsigned long>& threads) {
  try {
    return nb::cast<bool>(nb::module_::import_("ejk._jax").attr("any_is_inside")(threads));
  } catch (nb::python_error& e) {
    e.discard_as_unraisable("the exit of ejk");
    return false;
  }
}

// Runs at exit, before the interpreter ends, when all threads but daemons have ended. Waits for
// those inside, and for those elsewhere in JAX, which are likely to come back.
void close() {
  constexpr auto patience = std::chrono::seconds(10);
  constexpr int looks = 20;  // compiled functions of JAX are not seen, but end soon
  const auto deadline = std::chrono::steady_clock::now() + patience;
  closer.store(std::this_thread::get_id());
  is_closing.store(true);
  for (int free = 0; free < looks && std::chrono::steady_clock::now() < deadline; ++free) {
    const Visitors::Others others = visitors->others_than(this_visitor);
    if (others.threads.empty()) break;
    if (others.any_inside || any_is_in_jax(others.threads)) free = 0;
    PyThreadState* const thread = PyEval_SaveThread();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(thread);
  }
  is_closed.store(true);
  PyThreadState* const thread = PyEval_SaveThread();
  while (asking.load() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  PyEval_RestoreThread(thread);
}

// The other threads are not there in a child of fork.
void after_fork() {
  asking.store(0);
  visitors = new Visitors;  // the old one may be locked
  if (this_visitor != nullptr) visitors->add(this_visitor);
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
  if (depth() == 0 && Gil::closing()) stay();
  set_depth(depth() + 1);
}

// Also runs when the thread is killed, which only happens to those that took too long.
InCore::~InCore() {
  if (Gil::closed() || (depth() == 1 && Gil::closing())) stay();
  set_depth(depth() - 1);
}

Gil::Gil() {
  if (PyGILState_Check()) return;
  set_depth(depth() + 1);
  ask_for_gil([&] { state_ = PyGILState_Ensure(); });
  taken_ = true;
}

Gil::~Gil() {
  if (!taken_) return;
  if (closed()) stay();
  PyGILState_Release(state_);
  set_depth(depth() - 1);
}

WithoutGil::~WithoutGil() {
  ask_for_gil([&] { PyEval_RestoreThread(thread_); });
}

}  // namespace ejk::python

NB_MODULE(_core, m) {
  m.doc() = "What ejk.ops is made of: keys, caches, stores, the selection chain, warm calls.";
  nb::register_exception_translator(ejk::python::translate_errors);
  // What JAX keeps for good, as a class that is registered as a pytree, keeps the module of the
  // program that made it, and what that has imported: no fault that a user could mend.
  nb::set_leak_warnings(false);
  m.def("set_leak_warnings", &nb::set_leak_warnings, "Whether what is left at exit is told.");
  ejk::python::bind_values(m);
  ejk::python::bind_stores(m);
  ejk::python::bind_fleet(m);
  ejk::python::bind_pins(m);
  ejk::python::bind_chain(m);
  ejk::python::bind_dispatch(m);
  ejk::python::bind_ops(m);
  ejk::python::bind_registered(m);
  // Last: it runs before what the others have for the end.
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&ejk::python::close));
  pthread_atfork(nullptr, nullptr, ejk::python::after_fork);
}
