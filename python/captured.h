// SPDX-License-Identifier: Apache-2.0
// What a Python function reads besides its arguments, looked up for one call: closure cells,
// defaults, globals, attributes of modules. The fast half of ejk._captured, which says what code
// reads and which objects of libraries count by their identity.
#pragma once

#include "bind.h"

#include <unordered_map>

namespace ejk::python {

class Captured {
 public:
  // `names`: of (global name, ((attribute, ...), ...)), the attributes that follow it at once.
  void add_code(nb::object code, nb::tuple names) {
    if (codes_.size() >= most) clear();
    PyObject* const known = code.ptr();
    codes_.insert_or_assign(known, Reads{std::move(code), std::move(names)});
  }
  void add_same(nb::object thing) {
    if (same_.size() >= most) clear();
    PyObject* const known = thing.ptr();
    same_.insert_or_assign(known, std::move(thing));
  }
  bool is_same(PyObject* thing) const { return same_.contains(thing); }

  void clear() {
    const auto codes = std::move(codes_);  // their end may run code that comes here
    const auto same = std::move(same_);
    codes_.clear(), same_.clear();
  }
  int traverse(visitproc visit, void* arg) const {
    for (const auto& [code, reads] : codes_) {
      Py_VISIT(code);
      Py_VISIT(reads.names.ptr());
    }
    for (const auto& [thing, held] : same_) Py_VISIT(thing);
    return 0;
  }

  // Tells `sink` of everything that the function is and reads, in the order of ejk._captured. False
  // if something cannot be told, or the sink says so.
  template <class Sink>
  bool follow(PyObject* object, Sink& sink) const {
    const auto* function = reinterpret_cast<PyFunctionObject*>(object);
    const auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
    const auto found = codes_.find(function->func_code);
    if (found == codes_.end() || function->func_name != code->co_name ||
        function->func_qualname != code->co_qualname || function->func_builtins != builtins() ||
        (function->func_dict != nullptr && PyDict_GET_SIZE(function->func_dict) != 0))
      return false;
    const nb::tuple names = found->second.names;  // the table may change meanwhile
    const nb::object space = nb::borrow(function->func_globals);
    return sink.begin(function->func_code, space.ptr()) && cells(function->func_closure, sink) &&
           defaults(function->func_defaults, function->func_kwdefaults, sink) &&
           (is_same(space.ptr()) || globals(space.ptr(), names, sink));
  }

 private:
  static constexpr size_t most = 4096;  // then it begins again

  struct Reads {
    nb::object code;
    nb::tuple names;
  };

  static PyObject* builtins() {
    static PyObject* const found = PyModule_GetDict(PyImport_AddModule("builtins"));
    return found;
  }

  template <class Sink>
  static bool value(PyObject* object, Sink& sink) {
    if (object == nullptr) return false;
    const nb::object held = nb::borrow(object);  // the sink may run code that lets it go
    return sink.value(object);
  }

  template <class Sink>
  static bool cells(PyObject* given, Sink& sink) {
    if (given == nullptr) return true;
    const nb::object closure = nb::borrow(given);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given); ++i)
      if (!value(PyCell_GET(PyTuple_GET_ITEM(given, i)), sink)) return false;
    return true;
  }

  template <class Sink>
  static bool defaults(PyObject* given, PyObject* given_by_name, Sink& sink) {
    const nb::object positional = nb::borrow(given), named = nb::borrow(given_by_name);
    const auto count = given == nullptr ? 0 : PyTuple_GET_SIZE(given);
    if (!sink.count(static_cast<size_t>(count))) return false;
    for (Py_ssize_t i = 0; i < count; ++i)
      if (!value(PyTuple_GET_ITEM(given, i), sink)) return false;
    PyObject *name, *object;
    Py_ssize_t at = 0;
    while (given_by_name != nullptr && PyDict_Next(given_by_name, &at, &name, &object))
      if (!sink.name(name) || !value(object, sink)) return false;
    return true;
  }

  template <class Sink>
  bool globals(PyObject* space, const nb::tuple& names, Sink& sink) const {
    for (const nb::handle read : names) {
      PyObject* const name = PyTuple_GET_ITEM(read.ptr(), 0);
      PyObject* object = PyDict_GetItemWithError(space, name);
      if (object == nullptr) object = PyDict_GetItemWithError(builtins(), name);
      if (object == nullptr) return PyErr_Clear(), false;
      if (!PyModule_Check(object)) {
        if (!value(object, sink)) return false;
        continue;
      }
      const nb::object module = nb::borrow(object);
      const nb::handle chains = PyTuple_GET_ITEM(read.ptr(), 1);
      for (const nb::handle chain : nb::borrow<nb::tuple>(chains))
        if (!attribute(object, nb::borrow<nb::tuple>(chain), sink)) return false;
    }
    return true;
  }

  // What a chain of attributes leads to from a module: through modules to something else.
  template <class Sink>
  bool attribute(PyObject* module, const nb::tuple& chain, Sink& sink) const {
    nb::object at = nb::borrow(module);
    for (const nb::handle name : chain) {
      if (!is_same(at.ptr())) return false;
      PyObject* const next = PyDict_GetItemWithError(PyModule_GetDict(at.ptr()), name.ptr());
      if (next == nullptr) return PyErr_Clear(), false;
      if (!PyModule_Check(next)) return sink.identity(at.ptr()) && value(next, sink);
      at = nb::borrow(next);
    }
    return false;  // the module itself: what is read of it is not known
  }

  std::unordered_map<PyObject*, Reads> codes_;
  std::unordered_map<PyObject*, nb::object> same_;
};

}  // namespace ejk::python
