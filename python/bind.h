// SPDX-License-Identifier: Apache-2.0
// What the files of the extension share.
//
// The core is never entered with the GIL held, and calls into Python take it: a thread that holds
// a lock of the core may wait for the GIL, so no thread may hold the GIL and wait for such a lock.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <ejk/ejk.h>

namespace nb = nanobind;

namespace ejk::python {

// Python objects as values: None, bools, numbers, strings, lists, tuples and dicts; arrays as their
// type and shape; anything else is first made simpler by ejk._describe.simpler.
Value value_of(nb::handle object);
nb::object object_of(const Value& value);

// The bytes of a text. Half characters, which UTF-8 cannot say, are written as if it could.
std::string text_of(nb::handle text);

// The canonical texts of what becomes a value while this lives, as Python writes them: the core
// takes half characters for bytes that are not text.
class CanonicalTexts {
 public:
  CanonicalTexts();
  ~CanonicalTexts();
  CanonicalTexts(const CanonicalTexts&) = delete;
  bool differ() const;  // from those of the core
  std::string of(std::string core_text) const;

 private:
  bool outer_;  // what is known of one further out, whose objects may ask for texts themselves
};

// A Python object as a configuration of `op`, written by ejk._configs; "": of no op.
AnyConfig config_of(nb::handle object, const std::string& op);
nb::object object_of(const AnyConfig& config);
extern const ConfigType python_config;

// Written configs are made of what this process has used for the kernel that they are for, so only
// a kernel can read them.
class ConfigReader {
 public:
  virtual ~ConfigReader() = default;
  virtual nb::object read(const Value& config) const = 0;  // throws std::exception
};
extern thread_local const ConfigReader* config_reader;  // of the kernel that this thread asks for

// When the interpreter ends it kills threads that ask for the GIL, which C++ frames do not survive.
// So shortly before, threads that are in the extension are asked to come out of it and are kept for
// good where they leave it; those that take too long are kept where they next want the GIL.

// A call from Python into the extension during which Python code may run: a nb::call_guard.
class InCore {
 public:
  InCore();
  ~InCore();
  InCore(const InCore&) = delete;
};
using in_core = nb::call_guard<InCore>;

// The GIL, for a thread of the core.
class Gil {
 public:
  Gil();
  ~Gil();
  Gil(const Gil&) = delete;
  static bool closing() noexcept;  // this thread shall come out: the interpreter is about to end
  static bool closed() noexcept;   // this thread cannot have the GIL any more

 private:
  bool taken_ = false;
  PyGILState_STATE state_ = PyGILState_LOCKED;
};

// Gives the GIL away for as long as it lives. Python objects must not be touched meanwhile.
class WithoutGil {
 public:
  WithoutGil() : thread_(PyEval_SaveThread()) {}
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;

 private:
  PyThreadState* thread_;
};

template <class F>
auto without_gil(F&& f) {
  WithoutGil released;
  return f();
}

EntryId entry_id(const std::string& device, const std::string& op, const std::string& key);
nb::object object_of(const Entry& entry);  // its document, with the config as an object

void bind_values(nb::module_& m);
void bind_stores(nb::module_& m);
void bind_fleet(nb::module_& m);
void bind_pins(nb::module_& m);
void bind_chain(nb::module_& m);
void bind_dispatch(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_registered(nb::module_& m);

}  // namespace ejk::python
