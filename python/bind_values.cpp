// SPDX-License-Identifier: Apache-2.0
// Python objects as values and configurations, and back.
#include "bind.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <regex>
#include <unordered_set>
#include <utility>

namespace ejk::python {

namespace {

thread_local bool met_half_characters = false;

std::string escaped(int unit) {
  std::array<char, 8> text;
  std::snprintf(text.data(), text.size(), "\\u%04x", static_cast<unsigned>(unit));
  return text.data();
}

}  // namespace

std::string text_of(nb::handle text) {
  Py_ssize_t size = 0;
  if (const char* utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &size))
    return {utf8, static_cast<size_t>(size)};
  PyErr_Clear();  // lone surrogates: file names that are not UTF-8, or half a character
  for (const char* way : {"surrogateescape", "surrogatepass"}) {
    const nb::object bytes = nb::steal(PyUnicode_AsEncodedString(text.ptr(), "utf-8", way));
    if (bytes.is_valid())
      return {PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
    PyErr_Clear();
    met_half_characters = true;
  }
  throw Error(ErrorKind::invalid_argument, "a text that cannot be encoded");
}

CanonicalTexts::CanonicalTexts() : outer_(std::exchange(met_half_characters, false)) {}

CanonicalTexts::~CanonicalTexts() { met_half_characters = outer_; }

bool CanonicalTexts::differ() const { return met_half_characters; }

// Three bytes of half a character, each \udcXX in the core's text, are that half.
std::string CanonicalTexts::of(std::string text) const {
  if (!differ()) return text;
  static const std::regex bytes(R"(\\udced\\udc([ab][0-9a-f])\\udc([89ab][0-9a-f]))");
  std::string out;
  auto at = text.cbegin();
  for (std::sregex_iterator match(text.cbegin(), text.cend(), bytes), end; match != end; ++match) {
    const int high = std::stoi((*match)[1], nullptr, 16), low = std::stoi((*match)[2], nullptr, 16);
    out.append(at, (*match)[0].first);
    out += escaped(0xd000 | ((high & 0x3f) << 6) | (low & 0x3f));
    at = (*match)[0].second;
  }
  return out.append(at, text.cend());
}

namespace {

constexpr int max_depth = 100;

Value value_at(nb::handle object, int depth);

Value integer(nb::handle object) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
  if (overflow == 0) return static_cast<int64_t>(small);
  // By way of its hex digits: decimal conversion of huge integers is limited in Python.
  const nb::object digits = nb::steal(PyNumber_ToBase(object.ptr(), 10));
  if (!digits.is_valid()) throw nb::python_error();
  return parse_json(text_of(digits));
}

// What json.dumps writes for a key that is not a string.
std::string key_text(nb::handle key, int depth) {
  if (PyUnicode_Check(key.ptr())) return text_of(key);
  if (key.is_none()) return "null";
  if (PyBool_Check(key.ptr())) return key.ptr() == Py_True ? "true" : "false";
  const Value value = value_at(key, depth + 1);
  return value.is_string() ? value.as_string() : stable_json(value);
}

// Names sort by themselves; other keys as Python sorts them, numbers before they become text.
Value object_value(nb::handle dict, int depth) {
  Value::Object out;
  nb::list items = nb::steal<nb::list>(PyDict_Items(dict.ptr()));
  const bool named = std::all_of(items.begin(), items.end(), [](nb::handle item) {
    return PyUnicode_Check(PyTuple_GET_ITEM(item.ptr(), 0)) != 0;
  });
  if (!named) {
    out.ordered = true;
    const nb::object keys = nb::steal(PyDict_Keys(dict.ptr()));
    if (PyList_Sort(keys.ptr()) == 0) {
      for (nb::handle key : nb::borrow<nb::list>(keys)) {
        const nb::object item = nb::borrow(PyDict_GetItemWithError(dict.ptr(), key.ptr()));
        out.members.emplace_back(key_text(key, depth), value_at(item, depth + 1));
      }
      return out;
    }
    PyErr_Clear();  // kinds that do not compare: by kind, then by text
    std::vector<std::pair<std::string, Value::Member>> members;
    for (nb::handle item : items) {
      const nb::handle key = PyTuple_GET_ITEM(item.ptr(), 0);
      members.push_back(
          {Py_TYPE(key.ptr())->tp_name,
           {key_text(key, depth), value_at(PyTuple_GET_ITEM(item.ptr(), 1), depth + 1)}});
    }
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) {
      return std::tie(a.first, a.second.first) < std::tie(b.first, b.second.first);
    });
    for (auto& [kind, member] : members) out.members.push_back(std::move(member));
    return out;
  }
  for (nb::handle item : items)
    out.members.emplace_back(text_of(PyTuple_GET_ITEM(item.ptr(), 0)),
                             value_at(PyTuple_GET_ITEM(item.ptr(), 1), depth + 1));
  return out;
}

// An array or anything that stands for one, by type and shape; null for anything else.
Value array_value(nb::handle object) {
  const nb::object shape = nb::getattr(object, "shape", nb::none());
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  if (dtype.is_none() || !PyTuple_Check(shape.ptr())) return {};
  Value dimensions = Value::array();
  for (nb::handle d : shape) {
    const nb::object number = nb::steal(PyNumber_Index(d.ptr()));
    if (!number.is_valid()) {  // a dimension that is not known yet
      PyErr_Clear();
      dimensions.push_back(text_of(nb::str(d)));
    } else dimensions.push_back(integer(number));
  }
  const nb::object name = nb::getattr(dtype, "name", nb::none());
  return Value::object({{"dtype", text_of(name.is_none() ? nb::str(dtype) : nb::str(name))},
                        {"shape", std::move(dimensions)}});
}

// The objects that are being made simpler, outermost first: what an object holds may lead back to
// it.
class Described {
 public:
  explicit Described(nb::handle object) { path().push_back(object.ptr()); }
  ~Described() { path().pop_back(); }
  Described(const Described&) = delete;

  // How many objects further out the same one is; 0: it is not.
  static int64_t above(nb::handle object) {
    const auto found = std::find(path().rbegin(), path().rend(), object.ptr());
    return found == path().rend() ? 0 : found - path().rbegin() + 1;
  }

 private:
  static std::vector<PyObject*>& path() {
    thread_local std::vector<PyObject*> objects;
    return objects;
  }
};

Value value_at(nb::handle object, int depth) {
  if (depth > max_depth)
    throw Error(ErrorKind::invalid_argument, "an argument or config is nested deeper than " +
                                                 std::to_string(max_depth) +
                                                 " levels, or contains itself");
  PyObject* p = object.ptr();
  if (p == Py_None) return {};
  if (PyBool_Check(p)) return p == Py_True;
  if (PyLong_Check(p)) return integer(object);
  if (PyFloat_Check(p)) return PyFloat_AS_DOUBLE(p);
  if (PyUnicode_Check(p)) return text_of(object);
  if (PyDict_Check(p)) return object_value(object, depth);
  if (PyTuple_Check(p) || PyList_Check(p)) {
    Value out = Value::array();
    // By index: making an item's value runs Python code, which may change a list.
    for (Py_ssize_t i = 0; i < Py_SIZE(p); ++i) {
      const nb::object item =
          nb::borrow(PyTuple_Check(p) ? PyTuple_GET_ITEM(p, i) : PyList_GET_ITEM(p, i));
      out.push_back(value_at(item, depth + 1));
    }
    return out;
  }
  const nb::module_ describe = nb::module_::import_("ejk._describe");
  if (!nb::cast<bool>(describe.attr("is_scalar")(object)))
    if (Value array = array_value(object); !array.is_null()) return array;
  if (const int64_t levels = Described::above(object))
    return Value::object({{"__again__", levels}});
  const Described described(object);
  return value_at(describe.attr("simpler")(object), depth + 1);
}

// A config that the core holds: the object, and what it is as a value.
struct Held {
  PyObject* object;  // nullptr: let go, can be made again from the value
  Value value;
};

// All of them, under the GIL. The core keeps configs where the garbage collector cannot see them,
// and a config's class often leads back to the cache that holds it: at exit they are let go.
std::unordered_set<Held*>& all_held() {
  static auto* const held = new std::unordered_set<Held*>;
  return *held;
}

void release(const void* pointer) {
  auto* held = static_cast<Held*>(const_cast<void*>(pointer));
  const bool reachable = nb::is_alive() && Py_IsInitialized();
  if (reachable && (PyGILState_Check() || !Gil::closed())) {
    const Gil lock;
    all_held().erase(held);
    Py_XDECREF(held->object);
  }
  delete held;
}

std::shared_ptr<const void> hold(nb::handle object, Value value) {
  auto* held = new Held{object.inc_ref().ptr(), std::move(value)};
  all_held().insert(held);
  return std::shared_ptr<const void>(static_cast<const void*>(held), release);
}

void let_go() {
  std::vector<PyObject*> objects;
  for (Held* held : all_held()) objects.push_back(std::exchange(held->object, nullptr));
  for (PyObject* object : objects) Py_XDECREF(object);
}

nb::object read(const Value& value) {
  if (config_reader != nullptr) return config_reader->read(value);
  throw Error(ErrorKind::parse, "there is no kernel at hand that could read a config");
}

std::shared_ptr<const void> read_config(const Value& value, std::string& why) {
  const Gil held;
  try {
    return hold(read(value), value);
  } catch (const std::exception& e) {
    why = e.what();
  }
  return nullptr;
}

}  // namespace

thread_local const ConfigReader* config_reader = nullptr;

const ConfigType python_config = {"a Python object",
                                  [](const void* c) { return static_cast<const Held*>(c)->value; },
                                  read_config};

Value value_of(nb::handle object) { return value_at(object, 0); }

nb::object object_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::null:
      return nb::none();
    case Value::Kind::boolean:
      return nb::bool_(value.as_bool());
    case Value::Kind::integer:
      return nb::int_(value.as_int());
    case Value::Kind::unsigned_integer:
      return nb::int_(value.as_uint());
    case Value::Kind::big_integer: {
      nb::object number =
          nb::steal(PyLong_FromString(value.as_big_int().digits.c_str(), nullptr, 10));
      if (!number.is_valid()) throw nb::python_error();
      return number;
    }
    case Value::Kind::floating:
      return nb::float_(value.as_double());
    case Value::Kind::string: {
      const std::string& text = value.as_string();
      nb::object made = nb::steal(PyUnicode_DecodeUTF8(
          text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape"));
      if (!made.is_valid()) throw nb::python_error();
      return made;
    }
    case Value::Kind::array: {
      nb::list out;
      for (const Value& item : value.as_array()) out.append(object_of(item));
      return out;
    }
    case Value::Kind::object: {
      nb::dict out;
      for (const auto& [name, item] : value.as_object().members)
        out[object_of(Value(name))] = object_of(item);
      return out;
    }
  }
  return nb::none();
}

AnyConfig config_of(nb::handle object, const std::string& op) {
  Value value = value_of(nb::module_::import_("ejk._configs").attr("encode")(object, op));
  return {hold(object, std::move(value)), &python_config};
}

nb::object object_of(const AnyConfig& config) {
  if (config.type() == &python_config)
    if (PyObject* object = static_cast<const Held*>(config.get())->object)
      return nb::borrow(object);
  return read(config.to_value());
}

EntryId entry_id(const std::string& device, const std::string& op, const std::string& key) {
  return {device, op, key, {}};
}

void bind_values(nb::module_& m) {
  m.def(
      "stable_json",
      [](nb::handle object) {
        const CanonicalTexts texts;
        return texts.of(stable_json(value_of(object)));
      },
      nb::arg("object").none(), in_core(),
      "The canonical text of plain data, arrays and what describes itself.");
  m.def(
      "short_hash",
      [](nb::handle object) {
        const CanonicalTexts texts;
        return short_hash(std::string_view(texts.of(stable_json(value_of(object)))));
      },
      nb::arg("object").none(), in_core(), "The first 16 hex digits of SHA-256 over stable_json.");
  m.def(
      "plain", [](nb::handle object) { return object_of(value_of(object)); },
      nb::arg("object").none(), in_core(), "The same as lists and dicts of plain data.");
  m.def("parse_json", [](const std::string& text) { return object_of(parse_json(text)); });
  m.def("make_label", [](const std::string& op, const std::string& key, const std::string& prefix) {
    return make_label(op, key, prefix);
  });
  m.def("scope_label", [](const std::string& label) { return scope_label(label); });
  m.def(
      "parse_label",
      [](const std::string& label) -> nb::object {
        const auto parts = parse_label(label);
        if (!parts) return nb::none();
        return nb::make_tuple(parts->prefix, parts->op, parts->key);
      },
      "(prefix, op, key) of a label, None for any other text.");
  m.def(
      "find_labels",
      [](nb::handle lowered, std::vector<std::string> prefixes) {
        std::string text;
        if (PyBytes_Check(lowered.ptr()))
          text.assign(PyBytes_AS_STRING(lowered.ptr()),
                      static_cast<size_t>(PyBytes_GET_SIZE(lowered.ptr())));
        else text = text_of(lowered);
        const FoundLabels found =
            without_gil([&] { return find_labels(text, {.prefixes = std::move(prefixes)}); });
        nb::list out;
        for (const Label& label : found.labels)
          if (!label.truncated)
            out.append(nb::make_tuple(label.text, label.op, label.key, label.count));
        return out;
      },
      nb::arg("lowered"), nb::arg("prefixes") = std::vector<std::string>{}, in_core(),
      "(label, op, key, count) of every label in a lowered computation, text or bytes.");
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&let_go));
  m.attr("__version__") = std::string(library_version());
  m.attr("label_attribute") = std::string(label_attribute);
}

}  // namespace ejk::python
