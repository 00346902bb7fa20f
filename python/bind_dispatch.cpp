// SPDX-License-Identifier: Apache-2.0
// Warm calls: from the arguments to the compiled function, without a step in Python.
//
// An argument counts by its type and shape if it is an array of JAX (its `aval`, which JAX makes
// once per type and shape), by identity if there is only one object of that value (enums, types of
// elements), else by its value. A config counts by its class and its attributes, and so does a
// kernel where these are such values, so that one made for each call is as good as one that is
// kept; other kernels count by identity. Where devices are of several kinds, the kind on which a
// call computes counts too. Everything here is under the GIL.
#include "bind.h"
#include "captured.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include <ejk/detail/hash.h>

namespace ejk::python {

namespace {

// Entries of an earlier epoch are void: a kernel or a policy was changed.
std::atomic<uint64_t> epoch{1};

enum Kind : uint64_t {
  array = 1,
  integer,
  floating,
  text,
  singleton,
  name,
  tuple,
  set,
  parts,
  kernel,
  object,
  end_of_object,
  function,
  globals,
  defaults,
  again,
  site
};

constexpr size_t max_arguments = 64;  // attributes of a kernel among them

// The key of a call: a kind and a word for each argument, and the objects that make the words mean
// the same for as long as they are held.
struct Key {
  std::array<uint64_t, 4 * max_arguments + 2> words;
  std::array<PyObject*, 2 * max_arguments + 1> held;  // new references
  std::array<PyObject*, max_arguments> arrays;        // borrowed: what the function is given
  std::array<PyObject*, max_arguments> captured;      // new references: then these
  std::array<PyObject*, 16> functions;                // borrowed: those that were looked into
  size_t word_count = 0, held_count = 0, array_count = 0, captured_count = 0, function_count = 0;
  size_t depth = 0;  // functions inside of functions

  ~Key() { clear(); }
  Key() = default;
  Key(const Key&) = delete;

  void add(Kind kind, uint64_t word) { words[word_count++] = kind, words[word_count++] = word; }
  void hold(PyObject* object) { held[held_count++] = object; }
  void add_identity(Kind kind, PyObject* new_reference) {
    add(kind, reinterpret_cast<uintptr_t>(new_reference));
    hold(new_reference);
  }
  void add_array(PyObject* array) {
    if (depth == 0) arrays[array_count++] = array;
    else captured[captured_count++] = Py_NewRef(array);
  }
  // An array that functions read under two names, or that is an argument too, is given once. False
  // if there is no room to say so.
  bool join_captured() {
    const size_t count = std::exchange(captured_count, 0);
    bool has_room = true;
    for (size_t i = 0; i < count; ++i) {
      const size_t place = place_of(captured[i]);
      if (place == array_count + captured_count) {
        captured[captured_count++] = captured[i];
        continue;
      }
      Py_DECREF(captured[i]);  // the other one holds it
      has_room = has_room && !is_full();
      if (has_room) add(Kind::again, i << 32 | place);
    }
    return has_room;
  }
  // False if it was there before: it is followed once, and not without end.
  bool enter(PyObject* function) {
    for (size_t i = 0; i < function_count; ++i)
      if (functions[i] == function) return false;
    if (function_count == functions.size()) return false;
    functions[function_count++] = function;
    return ++depth, true;
  }
  bool is_full() const {
    return word_count + 4 > words.size() || held_count + 2 > held.size() ||
           array_count + captured_count == arrays.size();
  }
  uint64_t hash() const { return detail::hash_words(words.data(), word_count); }

  bool counts_by_identity() const { return word_count > 0 && words[0] != Kind::object; }
  // Among the arrays and what was captured so far; behind them if it is not one of those.
  size_t place_of(PyObject* array) const {
    const auto direct = std::find(arrays.begin(), arrays.begin() + array_count, array);
    const auto end = captured.begin() + captured_count;
    if (direct != arrays.begin() + array_count) return static_cast<size_t>(direct - arrays.begin());
    return array_count +
           static_cast<size_t>(std::find(captured.begin(), end, array) - captured.begin());
  }
  // Takes back everything: what it counted by did not do.
  void clear() {
    for (size_t i = 0; i < held_count; ++i) Py_DECREF(held[i]);
    for (size_t i = 0; i < captured_count; ++i) Py_DECREF(captured[i]);
    word_count = held_count = array_count = captured_count = function_count = depth = 0;
  }
};

// A class whose objects are what their attributes are.
struct PlainClass {
  nb::object type;
  nb::object look;    // gives slots and members as they are now, None if the class is not plain
  nb::tuple slots;    // names of attributes that are not in __dict__
  nb::tuple members;  // what else objects have from their class, as methods: these very objects
  unsigned version;   // of the type: another one if an attribute was set since

  bool is_unchanged() const { return version != 0 && version == tag(type); }

  // Looks again. False if it is something else now.
  bool is_same_again() {
    const unsigned now = version_of(type);
    nb::tuple seen_slots, seen_members;
    if (!see(type, look, seen_slots, seen_members) || !seen_slots.equal(slots) ||
        !std::equal(seen_members.begin(), seen_members.end(), members.begin(), members.end(),
                    [](nb::handle a, nb::handle b) { return a.is(b); }))
      return false;
    version = now;
    return true;
  }

  static unsigned tag(nb::handle type) {
    return reinterpret_cast<PyTypeObject*>(type.ptr())->tp_version_tag;
  }
  static unsigned version_of(nb::handle type) {
    PyObject_HasAttrString(type.ptr(), "run");  // a type has a version once it was asked
    return tag(type);
  }
  static bool see(nb::handle type, nb::handle look, nb::tuple& slots, nb::tuple& members) {
    const nb::object found = nb::steal(PyObject_CallOneArg(look.ptr(), type.ptr()));
    if (!found.is_valid()) return PyErr_Clear(), false;
    if (found.is_none()) return false;
    slots = nb::borrow<nb::tuple>(PyTuple_GET_ITEM(found.ptr(), 0));
    members = nb::borrow<nb::tuple>(PyTuple_GET_ITEM(found.ptr(), 1));
    return true;
  }
};

struct Entry {
  std::vector<uint64_t> words;
  std::vector<nb::object> held;
  nb::object target;
  uint64_t hash = 0, generation = 0, epoch = 0;
};

class Dispatcher {
 public:
  // `scopes`: the context variable with the scopes in force, an empty tuple if there are none.
  explicit Dispatcher(nb::object scopes) : scopes_(std::move(scopes)) {}
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // A cache whose changes make entries void; None: nothing is kept warm.
  void watch(std::shared_ptr<ConfigCache> cache) { cache_ = std::move(cache); }
  void add_array_type(nb::type_object type) { array_types_.push_back(std::move(type)); }
  // Objects of this type count by identity.
  void add_constant_type(nb::type_object type) {
    if (contains(constant_types_, type.ptr())) return;
    if (constant_types_.size() >= max_types) begin_again(constant_types_);
    constant_types_.push_back(std::move(type));
  }
  void add_plain_class(nb::type_object type, nb::object look) {
    if (slots_of(type).is_valid()) return;
    const unsigned version = PlainClass::version_of(type);  // before: what changes meanwhile counts
    nb::tuple slots, members;
    if (!PlainClass::see(type, look, slots, members)) return;
    PlainClass fresh{type, look, std::move(slots), std::move(members), version};
    if (PlainClass* known = class_of(type)) {
      std::swap(*known, fresh);  // what it was is let go at the end of this function
      clear();
      return;
    }
    if (plain_classes_.size() >= max_types) begin_again(plain_classes_);
    plain_classes_.push_back(std::move(fresh));
  }
  // What ejk._captured has found out about functions among the arguments.
  void add_code(nb::object code, nb::tuple names) { captured_.add_code(code, names); }
  void add_same(nb::object thing) { captured_.add_same(thing); }
  // From now on calls count by what `where(*arrays)` gives too: one object for each kind of device.
  void count_sites(nb::object where) {
    if (where_.is_valid()) return;
    where_ = std::move(where);
    clear();
  }
  void clear() {
    const auto gone = std::move(entries_);  // their end may run code that comes here
    entries_.clear(), slots_.clear();
  }
  size_t size() const { return entries_.size(); }

  // nullptr without an error if the call is not warm.
  PyObject* call(PyObject* const* args, size_t count, PyObject* kwargs) {
    if (entries_.empty() || in_scope()) return nullptr;
    Key key;
    if (!make_key(args, count, kwargs, key)) return nullptr;
    return call(key);
  }

  // The same for arguments that were published as being those of another call.
  PyObject* call(nb::handle kernel, nb::tuple arrays, nb::tuple rest) {
    if (entries_.empty() || in_scope()) return nullptr;
    Key key;
    if (!make_key(kernel, arrays, rest, key)) return nullptr;
    return call(key);
  }

  // From now on these arguments go to target(arrays...), which was chosen when cache and epoch were
  // these. False if they cannot be kept warm. `by_identity`: it is known of the kernel when it
  // changes, and that it was not made for this call alone.
  // `arrays` are what target was called with.
  bool publish(nb::tuple args, nb::dict kwargs, nb::list arrays, nb::object target,
               uint64_t generation, uint64_t chosen_in, bool by_identity) {
    if (!cache_) return false;
    Key key;
    if (!make_key(&PyTuple_GET_ITEM(args.ptr(), 0), args.size(), kwargs.ptr(), key)) return false;
    if (key.counts_by_identity() && !by_identity) return false;
    if (!std::equal(arrays.begin(), arrays.end(), key.arrays.begin(),
                    key.arrays.begin() + key.array_count + key.captured_count,
                    [](nb::handle a, PyObject* b) { return a.ptr() == b; }))
      return false;
    keep(key, std::move(target), generation, chosen_in);
    return true;
  }

  // From now on (kernel, arrays, rest) is the call with args and kwargs, if that one is warm. Both
  // have the same arrays.
  void publish_as(nb::handle kernel, nb::tuple arrays, nb::tuple rest, nb::tuple args,
                  nb::dict kwargs) {
    if (entries_.empty()) return;
    Key known, key;
    if (!make_key(&PyTuple_GET_ITEM(args.ptr(), 0), args.size(), kwargs.ptr(), known)) return;
    const Entry* entry = find(known);
    if (entry == nullptr) return;
    const nb::object target = entry->target;  // making the key may run code that changes the table
    const uint64_t generation = entry->generation, chosen_in = entry->epoch;
    if (make_key(kernel, arrays, rest, key)) keep(key, target, generation, chosen_in);
  }

  int traverse(visitproc visit, void* arg) const {
    Py_VISIT(scopes_.ptr());
    Py_VISIT(where_.ptr());
    for (const auto& type : array_types_) Py_VISIT(type.ptr());
    for (const auto& type : constant_types_) Py_VISIT(type.ptr());
    for (const auto& known : plain_classes_) {
      Py_VISIT(known.type.ptr());
      Py_VISIT(known.look.ptr());
      Py_VISIT(known.slots.ptr());
      Py_VISIT(known.members.ptr());
    }
    if (const int stopped = captured_.traverse(visit, arg)) return stopped;
    for (const auto& entry : entries_) {
      Py_VISIT(entry->target.ptr());
      for (const auto& object : entry->held) Py_VISIT(object.ptr());
    }
    return 0;
  }
  void drop() {
    const auto entries = std::move(entries_);
    const auto types = std::move(array_types_), constants = std::move(constant_types_);
    const auto classes = std::move(plain_classes_);
    entries_.clear(), slots_.clear();
    array_types_.clear(), constant_types_.clear(), plain_classes_.clear();
    captured_.clear();
    scopes_ = nb::none();
    where_.reset();
  }

 private:
  static constexpr size_t max_entries = 8192, max_types = 256;  // then it begins again

  void begin_again(auto& types) {
    const auto gone = std::move(types);
    types.clear();
    clear();
  }

  PyObject* call(const Key& key) const {
    const Entry* entry = find(key);
    if (entry == nullptr) return nullptr;
    const nb::object target = entry->target;  // the table may change during the call
    const size_t count = key.array_count + key.captured_count;
    return PyObject_Vectorcall(target.ptr(), key.arrays.data(), count, nullptr);
  }

  void keep(const Key& key, nb::object target, uint64_t generation, uint64_t chosen_in) {
    if (entries_.size() >= max_entries) clear();
    auto entry = std::make_unique<Entry>();
    entry->words.assign(key.words.data(), key.words.data() + key.word_count);
    for (size_t i = 0; i < key.held_count; ++i) entry->held.push_back(nb::borrow(key.held[i]));
    entry->target = std::move(target);
    entry->hash = key.hash();
    entry->generation = generation;
    entry->epoch = chosen_in;
    insert(std::move(entry));
  }

  bool in_scope() const {
    PyObject* scopes = nullptr;
    if (PyContextVar_Get(scopes_.ptr(), nullptr, &scopes) < 0) {
      PyErr_Clear();
      return true;
    }
    const bool any =
        scopes != nullptr && PyTuple_CheckExact(scopes) && PyTuple_GET_SIZE(scopes) > 0;
    Py_XDECREF(scopes);
    return any;
  }

  static size_t place_in(const std::vector<nb::object>& types, const void* type) {
    size_t place = 0;
    while (place < types.size() && types[place].ptr() != type) ++place;
    return place;
  }
  static bool contains(const std::vector<nb::object>& types, const void* type) {
    return place_in(types, type) < types.size();
  }

  PlainClass* class_of(nb::handle type) const {
    for (auto& known : plain_classes_)
      if (known.type.is(type)) return &known;
    return nullptr;
  }

  // Not valid if it is no such class, or no longer what it was.
  nb::tuple slots_of(nb::handle type) const {
    PlainClass* known = class_of(type);
    if (known == nullptr) return nb::steal<nb::tuple>(nullptr);
    if (known->is_unchanged()) return known->slots;
    PlainClass copy = *known;  // another thread may make it known again
    if (!copy.is_same_again()) return nb::steal<nb::tuple>(nullptr);
    if (known = class_of(type); known != nullptr) known->version = copy.version;
    return copy.slots;
  }

  // Also classes that cannot change, as float and numpy.float32.
  bool is_constant(PyObject* arg) const {
    if (contains(constant_types_, Py_TYPE(arg))) return true;
    return PyType_Check(arg) &&
           PyType_HasFeature(reinterpret_cast<PyTypeObject*>(arg), Py_TPFLAGS_IMMUTABLETYPE);
  }

  bool add_argument(PyObject* arg, Key& key) const {
    PyTypeObject* type = Py_TYPE(arg);
    if (key.is_full()) return false;
    if (const size_t place = place_in(array_types_, type); place < array_types_.size()) {
      static PyObject* const aval = PyUnicode_InternFromString("aval");
      PyObject* abstract = PyObject_GetAttr(arg, aval);
      if (abstract == nullptr) return PyErr_Clear(), false;
      key.add_identity(static_cast<Kind>(Kind::array | place << 8),
                       abstract);  // a traced one is another
      key.add_array(arg);
      return true;
    }
    if (arg == Py_None || arg == Py_Ellipsis || type == &PyBool_Type) {
      key.add(Kind::singleton, reinterpret_cast<uintptr_t>(arg));
      return true;
    }
    if (type == &PyLong_Type) {
      int overflow = 0;
      const long long value = PyLong_AsLongLongAndOverflow(arg, &overflow);
      if (overflow != 0) return false;
      key.add(Kind::integer, static_cast<uint64_t>(value));
      return true;
    }
    if (type == &PyFloat_Type) {
      const double value = PyFloat_AS_DOUBLE(arg);
      uint64_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      key.add(Kind::floating, bits);
      return true;
    }
    if (type == &PyUnicode_Type) {
      key.add(Kind::text, static_cast<uint64_t>(PyObject_Hash(arg)));
      key.hold(Py_NewRef(arg));
      return true;
    }
    if (type == &PyTuple_Type) return add_parts(arg, key);
    if (type == &PyFrozenSet_Type) return add_members(arg, key);
    if (is_constant(arg) || captured_.is_same(arg))
      return key.add_identity(Kind::singleton, Py_NewRef(arg)), true;
    if (type == &PyFunction_Type) return add_function(arg, key);
    if (key.depth != 0) return false;
    const nb::tuple slots = slots_of(nb::handle(arg).type());
    return slots.is_valid() && add_object(arg, slots, key);
  }

  struct Sink {
    const Dispatcher& dispatcher;
    Key& key;
    bool begin(PyObject* code, PyObject* space) {
      if (!identity(code, Kind::function)) return false;
      return identity(space, Kind::globals);
    }
    bool identity(PyObject* object, Kind kind = Kind::singleton) {
      if (key.is_full()) return false;
      return key.add_identity(kind, Py_NewRef(object)), true;
    }
    bool count(size_t number) {
      if (key.is_full()) return false;
      return key.add(Kind::defaults, number), true;
    }
    bool name(PyObject* text) {
      if (key.is_full() || !PyUnicode_CheckExact(text)) return false;
      key.add(Kind::name, static_cast<uint64_t>(PyObject_Hash(text)));
      return key.hold(Py_NewRef(text)), true;
    }
    bool value(PyObject* object) { return dispatcher.add_argument(object, key); }
  };

  bool add_function(PyObject* function, Key& key) const {
    if (!key.enter(function)) return false;
    Sink sink{*this, key};
    if (!captured_.follow(function, sink)) return false;
    return --key.depth, true;
  }

  // In the order in which it gives them: equal sets of another order are another key.
  bool add_members(PyObject* set, Key& key) const {
    key.add(Kind::set, static_cast<uint64_t>(PySet_GET_SIZE(set)));
    const nb::object members = nb::steal(PyObject_GetIter(set));
    if (!members.is_valid()) return PyErr_Clear(), false;
    while (PyObject* member = PyIter_Next(members.ptr())) {
      const nb::object held = nb::steal(member);
      if (!add_argument(member, key)) return false;
    }
    return true;
  }

  void add_kernel(PyObject* kernel, Key& key) const {
    const nb::tuple slots = slots_of(nb::handle(kernel).type());
    if (slots.is_valid() && add_object(kernel, slots, key)) return;
    key.clear();
    key.add_identity(Kind::kernel, Py_NewRef(kernel));
  }

  // False if an attribute is more than a value: an array, a function in place of a hook.
  bool add_object(PyObject* object, const nb::tuple& slots, Key& key) const {
    key.add_identity(Kind::object, Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(object))));
    for (size_t i = 0; i < slots.size(); ++i) {
      const nb::object value =
          nb::steal(PyObject_GetAttr(object, PyTuple_GET_ITEM(slots.ptr(), i)));
      if (!value.is_valid()) return PyErr_Clear(), false;
      if (!add_attribute(value.ptr(), key)) return false;
    }
    const nb::object attributes = nb::steal(PyObject_GenericGetDict(object, nullptr));
    if (!attributes.is_valid()) return PyErr_Clear(), false;
    PyObject *label, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(attributes.ptr(), &at, &label, &value)) {
      static PyObject* const not_its_own = PyUnicode_InternFromString("_ejk_compiled");
      if (label == not_its_own) continue;
      if (key.is_full() || !PyUnicode_CheckExact(label)) return false;
      key.add(Kind::name, static_cast<uint64_t>(PyObject_Hash(label)));
      key.hold(Py_NewRef(label));
      if (!add_attribute(value, key)) return false;
    }
    if (key.is_full()) return false;
    key.add(Kind::end_of_object, 0);
    return true;
  }

  bool add_attribute(PyObject* value, Key& key) const {
    const nb::object held = nb::borrow(value);  // another thread may set it
    const size_t arrays = key.array_count, functions = key.function_count;
    return add_argument(value, key) && key.array_count == arrays && key.function_count == functions;
  }

  bool add_parts(PyObject* tuple, Key& key) const {
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(tuple));
    key.add(Kind::tuple, count);
    for (size_t i = 0; i < count; ++i)
      if (!add_argument(PyTuple_GET_ITEM(tuple, i), key)) return false;
    return true;
  }

  // args: the kernel first.
  bool make_key(PyObject* const* args, size_t count, PyObject* kwargs, Key& key) const {
    const size_t named = kwargs == nullptr ? 0 : static_cast<size_t>(PyDict_GET_SIZE(kwargs));
    if (count == 0) return false;
    add_kernel(args[0], key);
    for (size_t i = 1; i < count; ++i)
      if (!add_argument(args[i], key)) return false;
    const size_t first_named = key.array_count, first_captured = key.captured_count;
    Names names, names_of_captured;
    PyObject *label, *value;
    Py_ssize_t at = 0;
    while (named != 0 && PyDict_Next(kwargs, &at, &label, &value)) {
      if (key.is_full()) return false;
      key.add(Kind::name, static_cast<uint64_t>(PyObject_Hash(label)));
      key.hold(Py_NewRef(label));
      const size_t before = key.array_count, captured_before = key.captured_count;
      if (!add_argument(value, key)) return false;
      for (size_t i = before; i < key.array_count; ++i) names[i] = label;
      for (size_t i = captured_before; i < key.captured_count; ++i) names_of_captured[i] = label;
    }
    sort_by_name(key.arrays, first_named, key.array_count, names);
    sort_by_name(key.captured, first_captured, key.captured_count, names_of_captured);
    if (!key.join_captured()) return false;
    std::copy_n(key.captured.begin(), key.captured_count, key.arrays.begin() + key.array_count);
    return !where_.is_valid() || add_site(key);
  }

  bool add_site(Key& key) const {
    if (key.is_full()) return false;
    const size_t count = key.array_count + key.captured_count;
    PyObject* const site = PyObject_Vectorcall(where_.ptr(), key.arrays.data(), count, nullptr);
    if (site == nullptr) return PyErr_Clear(), false;
    return key.add_identity(Kind::site, site), true;
  }

  // The function takes arrays in the order in which JAX flattens a dict: that of the names.
  using Names = std::array<PyObject*, max_arguments>;
  static void sort_by_name(Names& arrays, size_t first, size_t end, Names& names) {
    for (size_t i = first + 1; i < end; ++i)
      for (size_t j = i; j > first && PyUnicode_Compare(names[j], names[j - 1]) < 0; --j) {
        std::swap(names[j], names[j - 1]);
        std::swap(arrays[j], arrays[j - 1]);
      }
  }

  bool make_key(nb::handle kernel, nb::tuple arrays, nb::tuple rest, Key& key) const {
    key.add_identity(Kind::parts, Py_NewRef(kernel.ptr()));
    if (!add_parts(arrays.ptr(), key) || !add_parts(rest.ptr(), key)) return false;
    return key.captured_count == 0 && (!where_.is_valid() || add_site(key));
  }

  // Texts are compared as texts, everything else is in the words.
  static bool equal(const Entry& entry, const Key& key) {
    if (entry.words.size() != key.word_count || entry.held.size() != key.held_count) return false;
    if (std::memcmp(entry.words.data(), key.words.data(), key.word_count * sizeof(uint64_t)) != 0)
      return false;
    for (size_t i = 0; i < key.held_count; ++i) {
      PyObject *a = entry.held[i].ptr(), *b = key.held[i];
      if (a == b) continue;
      if (!PyUnicode_CheckExact(a) || !PyUnicode_CheckExact(b) || PyUnicode_Compare(a, b) != 0)
        return false;
    }
    return true;
  }

  const Entry* find(const Key& key) const {
    if (slots_.empty()) return nullptr;  // code that made the key may have cleared it
    const uint64_t hash = key.hash();
    const uint64_t generation = cache_->generation(), now = epoch.load(std::memory_order_relaxed);
    for (uint64_t i = hash;; ++i) {
      const uint32_t slot = slots_[i & (slots_.size() - 1)];
      if (slot == 0) return nullptr;
      const Entry& entry = *entries_[slot - 1];
      if (entry.hash != hash || !equal(entry, key)) continue;
      return entry.generation == generation && entry.epoch == now ? &entry : nullptr;
    }
  }

  void insert(std::unique_ptr<Entry> entry) {
    for (uint64_t i = entry->hash; !slots_.empty(); ++i) {
      const uint32_t slot = slots_[i & (slots_.size() - 1)];
      if (slot == 0) break;
      auto& present = entries_[slot - 1];
      if (present->hash == entry->hash && present->words == entry->words &&
          same_texts(*present, *entry)) {
        present.swap(entry);  // what it held is let go at the end of this function
        return;
      }
    }
    entries_.push_back(std::move(entry));
    if (entries_.size() * 2 > slots_.size()) {
      slots_.assign(slots_.empty() ? 64 : slots_.size() * 2, 0);
      for (size_t i = 0; i < entries_.size(); ++i) place(i);
    } else place(entries_.size() - 1);
  }

  static bool same_texts(const Entry& a, const Entry& b) {
    if (a.held.size() != b.held.size()) return false;
    for (size_t i = 0; i < a.held.size(); ++i) {
      PyObject *x = a.held[i].ptr(), *y = b.held[i].ptr();
      if (x != y &&
          !(PyUnicode_CheckExact(x) && PyUnicode_CheckExact(y) && PyUnicode_Compare(x, y) == 0))
        return false;
    }
    return true;
  }

  void place(size_t index) {
    uint64_t i = entries_[index]->hash;
    while (slots_[i & (slots_.size() - 1)] != 0) ++i;
    slots_[i & (slots_.size() - 1)] = static_cast<uint32_t>(index + 1);
  }

  nb::object scopes_;
  nb::object where_;  // not valid: all devices are alike
  Captured captured_;
  std::shared_ptr<ConfigCache> cache_;
  std::vector<nb::object> array_types_, constant_types_;
  mutable std::vector<PlainClass> plain_classes_;  // their versions, as of the last look
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<uint32_t> slots_;  // open addressing; place of an entry + 1, 0: free
};

// self(*args, **kwargs), as Python's own slot: a bound function would copy both first.
PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const InCore inside;
  if (!nb::inst_ready(self)) {
    PyErr_SetString(PyExc_TypeError, "the executor was not initialised: call super().__init__()");
    return nullptr;
  }
  try {
    PyObject* const result = nb::inst_ptr<Dispatcher>(self)->call(
        &PyTuple_GET_ITEM(args, 0), static_cast<size_t>(PyTuple_GET_SIZE(args)), kwargs);
    if (result != nullptr || PyErr_Occurred()) return result;
    static PyObject* const name = PyUnicode_InternFromString("_call");
    const nb::object method = nb::steal(PyObject_GetAttr(self, name));
    return method.is_valid() ? PyObject_Call(method.ptr(), args, kwargs) : nullptr;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

nb::object warm_call(nb::handle executor, nb::handle kernel, nb::tuple arrays, nb::tuple rest) {
  PyObject* result = nullptr;
  if (nb::isinstance<Dispatcher>(executor))
    result = nb::inst_ptr<Dispatcher>(executor)->call(kernel, arrays, rest);
  if (result != nullptr) return nb::steal(result);
  if (PyErr_Occurred()) throw nb::python_error();
  return nb::borrow(Py_NotImplemented);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<Dispatcher>(self)->traverse(visit, arg);
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Dispatcher>(self)->drop();
  return 0;
}

PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(call)},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {0, nullptr}};

}  // namespace

void bind_dispatch(nb::module_& m) {
  nb::class_<Dispatcher>(m, "Dispatcher", nb::type_slots(slots), nb::is_weak_referenceable(),
                         "Calls what was published for such arguments, else self._call.")
      .def(nb::init<nb::object>(), nb::arg("scopes"))
      .def("_watch", &Dispatcher::watch, nb::arg("cache").none())
      .def("_add_array_type", [](Dispatcher& d, nb::type_object t) { d.add_array_type(t); })
      .def("_add_constant_type", [](Dispatcher& d, nb::type_object t) { d.add_constant_type(t); })
      .def("_add_plain_class", &Dispatcher::add_plain_class, nb::arg("type"), nb::arg("look"))
      .def("_add_code", &Dispatcher::add_code, nb::arg("code"), nb::arg("names"))
      .def("_add_same", &Dispatcher::add_same, nb::arg("thing"))
      .def("_count_sites", &Dispatcher::count_sites, nb::arg("where"))
      .def("_publish", &Dispatcher::publish, nb::arg("args"), nb::arg("kwargs"), nb::arg("arrays"),
           nb::arg("target"), nb::arg("generation"), nb::arg("epoch"), nb::arg("by_identity"),
           in_core())
      .def("_publish_as", &Dispatcher::publish_as, nb::arg("kernel"), nb::arg("arrays"),
           nb::arg("rest"), nb::arg("args"), nb::arg("kwargs"), in_core())
      .def("_forget", &Dispatcher::clear)
      .def_prop_ro("_warm_entries", &Dispatcher::size);
  m.def(
      "warm_call", &warm_call, in_core(),
      "(executor, kernel, arrays, rest): what was published so, NotImplemented if it is not warm.");
  m.def("epoch", [] { return epoch.load(); });
  m.def(
      "new_epoch", [] { epoch.fetch_add(1); }, "What is warm anywhere is asked for again.");
}

}  // namespace ejk::python
