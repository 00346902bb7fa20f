// SPDX-License-Identifier: Apache-2.0
// The selection chain for kernels that are written in Python.
#include "bind.h"
#include "own_caches.h"

#include <atomic>
#include <exception>
#include <variant>

#include <ejk/names.h>

#include "offline/worker_messages.h"

namespace ejk::python {

namespace {

// ---- a call ------------------------------------------------------------------------------------

// One call without its data. Keeps its device.
struct Call {
  Invocation inv;
  std::shared_ptr<Device> device;
};

Arg arg_of(nb::handle object) {
  Arg arg;
  arg.value = value_of(object);
  return arg;
}

// A method that selects no hooks is a plain call, and counts by its name.
Context context_of(nb::handle method) {
  if (method.is_none()) return Context::plain;
  const auto name = text_of(method);
  for (const Context c : {Context::shard_map, Context::batch})
    if (context_name(c) == name) return c;
  return Context::plain;
}

// The key that ejkernel gives a call which the core has no words for.
std::string key_of(const Call& call, nb::handle method, const CanonicalTexts& texts) {
  const bool unknown_method = !method.is_none() && call.inv.context == Context::plain;
  if (!unknown_method && !texts.differ()) return {};
  std::string text = call.inv.spec();
  constexpr std::string_view no_method = "null}";  // the last of its members
  if (unknown_method && text.ends_with(no_method))
    text.replace(text.size() - no_method.size(), no_method.size(),
                 stable_json(value_of(method)) + "}");
  return short_hash(std::string_view(texts.of(std::move(text))));
}

Call make_call(const std::string& op_id, const std::string& version, std::shared_ptr<Device> device,
               nb::handle method, nb::handle args, nb::dict kwargs, const std::string& key,
               nb::handle batch_axes, const std::string& data) {
  const CanonicalTexts texts;
  Call call;
  call.inv.op_id = op_id, call.inv.version = version;
  call.device = std::move(device);
  call.inv.device = call.device.get();
  call.inv.context = context_of(method);
  for (nb::handle arg : args) call.inv.args.push_back(arg_of(arg));
  for (auto [name, value] : kwargs) call.inv.kwargs.emplace_back(text_of(name), arg_of(value));
  call.inv.batch_axes = value_of(batch_axes);
  call.inv.own_key = key.empty() ? key_of(call, method, texts) : key;
  call.inv.data = data;
  return call;
}

// ---- the kernel and its trials -----------------------------------------------------------------

std::optional<Tolerance> tolerance_of(nb::handle pair) {
  if (pair.is_none()) return std::nullopt;
  const auto [relative, absolute] = nb::cast<std::pair<double, double>>(pair);
  return Tolerance{relative, absolute};
}

// What an exception that is not meant for callers (Ctrl-C, exit) does: it ends the selection and is
// raised when the core has returned.
struct Interruption {
  std::exception_ptr thrown;
  std::atomic<bool>* stop;

  template <class F>
  auto guarded(F&& f) {
    const Gil held;
    if (thrown) std::rethrow_exception(thrown);
    try {
      if (Gil::closing()) {
        PyErr_SetString(PyExc_SystemExit, "the interpreter is about to end");
        throw nb::python_error();
      }
      return f();
    } catch (nb::python_error& e) {
      if (!e.matches(PyExc_Exception)) {
        thrown = std::current_exception();
        stop->store(true);
        throw;
      }
      // The core tells people what was thrown: without the way it came.
      throw std::runtime_error(nb::cast<std::string>(e.type().attr("__name__")) + ": " +
                               nb::cast<std::string>(nb::str(e.value())));
    }
  }
};

// The Python side of each is an object with methods of the same names (ejk.ops.execution.trial).
class PythonTrial final : public Trial {
 public:
  PythonTrial(nb::object trial, Interruption& interruption)
      : trial_(trial.release().ptr()), interruption_(interruption) {}
  ~PythonTrial() override {
    const Gil held;
    Py_DECREF(trial_);
  }
  void reset() override {
    interruption_.guarded([&] { self().attr("reset")(); });
  }
  bool repeatable() const override {
    return interruption_.guarded([&] { return nb::cast<bool>(self().attr("repeatable")); });
  }
  void run(const AnyConfig& config) override {
    interruption_.guarded([&] { self().attr("run")(object_of(config)); });
  }
  bool run_reference() override {
    return interruption_.guarded([&] { return nb::cast<bool>(self().attr("run_reference")()); });
  }
  std::vector<OutputBytes> outputs() override {
    return interruption_.guarded([&] {
      std::vector<OutputBytes> out;
      for (nb::handle item : self().attr("outputs")()) {
        const nb::bytes bytes = nb::cast<nb::bytes>(item[1]);
        const auto* data = reinterpret_cast<const std::byte*>(bytes.c_str());
        out.push_back(
            {dtype_from_name(nb::cast<std::string>(item[0])), {data, data + bytes.size()}});
      }
      return out;
    });
  }
  std::optional<Tolerance> tolerance(DType dtype) const override {
    return interruption_.guarded(
        [&] { return tolerance_of(self().attr("tolerance")(std::string(dtype_name(dtype)))); });
  }
  nb::handle self() const { return trial_; }
  bool interrupted() const { return interruption_.thrown != nullptr; }
  // In a handler of what was thrown.
  void interrupt() {
    interruption_.thrown = std::current_exception(), interruption_.stop->store(true);
  }

 private:
  PyObject* trial_;
  Interruption& interruption_;
};

class PythonKernel final : public AnyKernel, public ConfigReader {
 public:
  PythonKernel(nb::handle kernel, std::atomic<bool>* stop)
      : kernel_(kernel), interruption_{nullptr, stop} {}

  const ConfigType& config_type() const override { return python_config; }
  std::optional<AnyConfig> heuristic_cfg(const Invocation& inv) const override {
    return interruption_.guarded([&]() -> std::optional<AnyConfig> {
      const nb::object found = kernel_.attr("heuristic_cfg")();
      if (found.is_none()) return std::nullopt;
      return config_of(found[0], inv.op());
    });
  }
  std::shared_ptr<const CandidateSet> candidate_cfgs(const Invocation& inv) const override {
    return interruption_.guarded([&]() -> std::shared_ptr<const CandidateSet> {
      const nb::object found = kernel_.attr("candidate_cfgs")();
      if (found.is_none()) return nullptr;
      std::vector<AnyConfig> configs;
      for (nb::handle config : found) configs.push_back(config_of(config, inv.op()));
      return candidate_list(std::move(configs));
    });
  }
  bool is_valid(const AnyConfig& config, const Invocation&) const override {
    return interruption_.guarded(
        [&] { return nb::cast<bool>(kernel_.attr("is_valid")(object_of(config))); });
  }
  Value numerics(const AnyConfig& config, const Invocation&) const override {
    return interruption_.guarded(
        [&] { return value_of(kernel_.attr("numerics")(object_of(config))); });
  }
  std::unique_ptr<Trial> trial(const Invocation& inv) const override {
    return interruption_.guarded([&]() -> std::unique_ptr<Trial> {
      return std::make_unique<PythonTrial>(kernel_.attr("trial")(inv.backward), interruption_);
    });
  }
  Value sketch() const override {
    return interruption_.guarded([&] { return value_of(kernel_.attr("sketch")()); });
  }
  // Its side lets the call wait for `idle`; no process of the core's can run it.
  std::unique_ptr<KeptCall> keep(const Invocation&, size_t) const override {
    interruption_.guarded([&] { kernel_.attr("keep")(); });
    return nullptr;
  }
  // `read` gives a tuple of the config, or a text that says why it cannot be one.
  nb::object read(const Value& config) const override {
    const nb::object found =
        interruption_.guarded([&] { return nb::object(kernel_.attr("read")(object_of(config))); });
    if (PyUnicode_Check(found.ptr())) throw Error(ErrorKind::parse, nb::cast<std::string>(found));
    return found[0];
  }
  const std::exception_ptr& interrupted() const { return interruption_.thrown; }

 private:
  nb::handle kernel_;  // the caller's
  mutable Interruption interruption_;
};

// Of a tuning that was interrupted nothing is kept: a result without a winner, while `stop` is set.
class Race final : public Tuner {
 public:
  using Tuner::Tuner;
  TuneResult tune(const TuneTask& task) override {
    TuneResult result = Tuner::tune(task);
    return static_cast<PythonTrial&>(*task.trial).interrupted() ? TuneResult() : std::move(result);
  }
};

// A tuner of the user's own: asked for one of the candidates.
class PythonTuner final : public Tuner {
 public:
  using Tuner::Tuner;
  TuneResult tune(const TuneTask& task) override {
    try {
      return ask(task);
    } catch (nb::python_error& e) {
      if (e.matches(PyExc_Exception)) throw;
      static_cast<PythonTrial&>(*task.trial).interrupt();
      return {};
    }
  }

 private:
  static TuneResult ask(const TuneTask& task) {
    const Gil held;
    nb::list configs;
    for (uint64_t i = 0; i < task.candidates->size(); ++i)
      configs.append(object_of(task.candidates->config(i)));
    const nb::handle trial = static_cast<PythonTrial&>(*task.trial).self();
    const auto winner = nb::cast<uint64_t>(trial.attr("ask_own_tuner")(configs));
    TuneResult result;
    result.outcome = Outcome::tuned;
    result.winner = winner;
    result.config = task.candidates->config(winner);
    result.evidence.strategy = name_of(Search::race);
    result.evidence.library = library_version();
    for (uint64_t i = 0; i < task.candidates->size(); ++i) {
      Measurement m;
      m.config = task.candidates->config(i).to_value();
      m.status = name_of(i == winner ? CandidateStatus::ok : CandidateStatus::slower);
      result.candidates.push_back(std::move(m));
    }
    return result;
  }
};

// ---- scopes ------------------------------------------------------------------------------------

// A policy as a dict of its fields, all or some.
PolicyUpdates updates_of(nb::handle given) { return from_value<PolicyUpdates>(value_of(given)); }
nb::object dict_of(const AutotunePolicy& policy) { return object_of(to_value(policy)); }

// A fork of a process in which JAX has threads does not run.
AutotunePolicy unguarded(AutotunePolicy policy) {
  policy.guard = false;
  return policy;
}

// Scopes are made in Python, where they follow the context; here they are taken to the thread that
// asks, for as long as it asks.
using ScopeSpec = std::variant<PolicyUpdates, std::shared_ptr<ConfigCache>, bool>;

std::vector<ScopeSpec> scopes_of(nb::handle given) {
  std::vector<ScopeSpec> specs;
  for (nb::handle scope : given) {
    if (nb::isinstance<ConfigCache>(scope))
      specs.emplace_back(nb::cast<std::shared_ptr<ConfigCache>>(scope));
    else if (PyDict_Check(scope.ptr())) specs.emplace_back(updates_of(scope));
    else if (nb::hasattr(scope, "get")) specs.emplace_back(own_overlay(scope));
    else specs.emplace_back(true);
  }
  return specs;
}

Scope enter(const ScopeSpec& spec) {
  if (const auto* updates = std::get_if<PolicyUpdates>(&spec)) return policy_override(*updates);
  if (const auto* cache = std::get_if<std::shared_ptr<ConfigCache>>(&spec))
    return overlay_cache(std::shared_ptr<const ConfigCache>(*cache));
  return forward_autotune_only();
}

template <class F>
void inside(const std::vector<ScopeSpec>& specs, size_t next, F&& f) {
  if (next == specs.size()) return f();
  const Scope scope = enter(specs[next]);
  inside(specs, next + 1, f);
}

// ---- the chain ---------------------------------------------------------------------------------

// Who hears of events: the kernel's side of the selection that this thread is in.
thread_local nb::handle listener;

void tell(const Event& event) {
  if (!listener) return;
  const Gil held;
  nb::dict data;
  data["device"] = std::string(event.device);
  data["op_id"] = std::string(event.op);
  data["call_key"] = std::string(event.key);
  if (!event.tier.empty()) data["level"] = std::string(event.tier);
  if (!event.message.empty()) data["reason"] = std::string(event.message);
  if (is(event.kind, EventKind::autotune_finish)) data["seconds"] = event.seconds;
  data["config"] = object_of(event.config);
  try {
    listener.attr("event")(std::string(event.kind), data);
  } catch (nb::python_error& e) {
    e.discard_as_unraisable("an on_event callback of ejk");
  }
}

// Whether the tuning of the selection that this thread is in is shown, once it was asked.
thread_local std::optional<bool> is_shown;

bool shows_progress() {
  if (!is_shown) {
    const Gil held;
    is_shown = nb::cast<bool>(selection.attr("shows_progress")());
  }
  return *is_shown;
}

void warn(const std::string& message) {
  if (!nb::is_alive() || !Py_IsInitialized()) return;
  if (Gil::closing() && PyGILState_GetThisThreadState() != nullptr) return;  // of a call that ends
  if (Gil::closed()) return stderr_warnings()(message);
  const Gil held;
  try {
    nb::module_::import_("ejk._log").attr("warn")(message);
  } catch (nb::python_error& e) {
    e.discard_as_unraisable("a warning of ejk");
  }
}

struct Selector {
  std::atomic<bool> stop{false};
  nb::object hears;  // is called with what happens in tunings, as workers say it; null: nothing is
  std::unique_ptr<ConfigSelectorChain> chain;

  // Threads of the chain end here, which may wait for the GIL.
  ~Selector() {
    without_gil([this] { chain.reset(); });
  }

  // Calls f(kernel) without the GIL, under these scopes and no others.
  template <class F>
  void ask(nb::handle kernel_side, nb::handle scopes, bool listens, F&& f) {
    const std::vector<ScopeSpec> specs = scopes_of(scopes);
    PythonKernel kernel(kernel_side, &stop);
    std::exception_ptr thrown;
    {
      const WithoutGil released;
      const nb::handle outer = std::exchange(listener, listens ? kernel_side : nb::handle());
      const nb::handle outer_selection = std::exchange(selection, kernel_side);
      const std::optional<bool> outer_is_shown = std::exchange(is_shown, std::nullopt);
      const ConfigReader* const outer_reader = std::exchange(config_reader, &kernel);
      try {
        ScopeSnapshot().run([&] { inside(specs, 0, [&] { f(kernel); }); });
      } catch (...) {
        thrown = std::current_exception();
      }
      listener = outer, selection = outer_selection, config_reader = outer_reader;
      is_shown = outer_is_shown;
    }
    if (kernel.interrupted()) {
      stop.store(false);
      std::rethrow_exception(kernel.interrupted());
    }
    if (thrown) std::rethrow_exception(thrown);
  }
};

void make_selector(Selector* made, std::shared_ptr<ConfigCache> cache, int warmup, int iters,
                   bool own_tuner, std::shared_ptr<PersistentCache> persistent, bool own_persistent,
                   bool persist_autotune, bool forbid_reautotune, bool strict_environment,
                   nb::dict reference_cfgs) {
  new (made) Selector;
  SelectorOptions options;
  options.cache = cache ? std::move(cache) : own_cache();
  options.policy = AutotunePolicy{};  // Python's own comes with every question
  if (own_tuner) options.tuner = std::make_shared<PythonTuner>(warmup, iters);
  else options.tuner = std::make_shared<Race>(warmup, iters);
  options.persistent = own_persistent ? std::make_shared<PersistentCache>(std::vector{own_store()})
                                      : std::move(persistent);
  options.persist_autotune = persist_autotune;
  options.forbid_reautotune = forbid_reautotune;
  options.strict_environment = strict_environment;
  for (auto [op, config] : reference_cfgs)
    options.reference_cfgs[text_of(op)] = config_of(config, text_of(op));
  options.on_event = tell;
  options.on_progress = [made, display = progress_display(),
                         news = detail::ProgressNews()](const TuneProgress& p) mutable {
    if (shows_progress()) display(p);
    if (!made->hears.is_valid() || !news.is_news(p)) return;
    const Gil held;
    made->hears(object_of(detail::progress_to_document(p)));
  };
  options.on_warning = warn;
  options.stop = &made->stop;
  made->chain = std::make_unique<ConfigSelectorChain>(std::move(options));
}

nb::object choose(Selector& s, const Call& call, nb::handle kernel_side, nb::handle given,
                  nb::handle scopes, bool listens) {
  Invocation inv = call.inv;
  if (!given.is_none()) inv.override_cfg = config_of(given[0], inv.op());
  Choice choice;
  s.ask(kernel_side, scopes, listens,
        [&](const PythonKernel& kernel) { choice = s.chain->choose(inv, kernel); });
  return nb::make_tuple(object_of(choice.config), std::string(origin_name(choice.origin)));
}

nb::object tune(Selector& s, const Call& call, nb::handle kernel_side, nb::handle candidates,
                nb::handle scopes, bool listens) {
  std::shared_ptr<const CandidateSet> given;
  if (!candidates.is_none()) {
    std::vector<AnyConfig> configs;
    for (nb::handle config : candidates) configs.push_back(config_of(config, call.inv.op()));
    given = candidate_list(std::move(configs));
  }
  std::pair<Choice, Entry> found;
  s.ask(kernel_side, scopes, listens,
        [&](const PythonKernel& kernel) { found = s.chain->tune(call.inv, kernel, given); });
  return nb::make_tuple(object_of(found.first.config), object_of(found.second));
}

// Goes on with a tuning that is stored.
nb::object resume(Selector& s, const Call& call, nb::handle kernel_side, nb::handle scopes,
                  bool listens) {
  std::pair<Choice, Entry> found;
  s.ask(kernel_side, scopes, listens,
        [&](const PythonKernel& kernel) { found = s.chain->resume(call.inv, kernel); });
  return nb::make_tuple(object_of(found.first.config), object_of(found.second));
}

// The stored tuning of the call, if there is nothing left to do for it; else None.
nb::object tuned(Selector& s, const Call& call, nb::handle kernel_side, nb::handle scopes) {
  std::optional<Entry> found;
  s.ask(kernel_side, scopes, false,
        [&](const PythonKernel& kernel) { found = s.chain->tuned(call.inv, kernel); });
  return found ? object_of(*found) : nb::none();
}

nb::object explain(Selector& s, const Call& call, nb::handle kernel_side, nb::handle given,
                   nb::handle scopes) {
  Invocation inv = call.inv;
  if (!given.is_none()) inv.override_cfg = config_of(given[0], inv.op());
  Explanation found;
  s.ask(kernel_side, scopes, false,
        [&](const PythonKernel& kernel) { found = s.chain->explain(inv, kernel); });
  return nb::make_tuple(found.text(), object_of(found.to_value()));
}

nb::object policy(Selector& s, nb::handle scopes) {
  const std::vector<ScopeSpec> specs = scopes_of(scopes);
  AutotunePolicy now;
  without_gil(
      [&] { ScopeSnapshot().run([&] { inside(specs, 0, [&] { now = s.chain->policy(); }); }); });
  return dict_of(now);
}

// ---- races of plain functions ------------------------------------------------------------------

double seconds_of(nb::handle function, int warmup, int iters) {
  return without_gil([&] {
    return Tuner(warmup, iters).measure([&] {
      const Gil held;
      function();  // what it raises is raised
    });
  });
}

// ---- recorded calls ----------------------------------------------------------------------------

// The last recording that a call went to, kept so that its counts go on. Under the GIL.
std::shared_ptr<Recording>& kept_recording() {
  static auto* const kept = new std::shared_ptr<Recording>;
  return *kept;
}

// In the recording that $EJKERNEL_OPS_RECORD asks for. The number that the call is counted under, 0
// if it is not recorded.
uint32_t record(const Call& call, nb::handle kernel_side) {
  std::atomic<bool> stop{false};
  const PythonKernel kernel(kernel_side, &stop);
  std::shared_ptr<Recording> recording;
  const uint32_t number = without_gil([&] {
    recording = recording_from_environment();
    return recording ? recording->record(call.inv, kernel) : 0;
  });
  kept_recording().swap(recording);
  without_gil([&] { recording.reset(); });  // writes what another one has not yet
  if (kernel.interrupted()) std::rethrow_exception(kernel.interrupted());
  return number;
}

void end_recording() {
  std::shared_ptr<Recording> last;
  kept_recording().swap(last);
  without_gil([&] { last.reset(); });
}

// (op, key, sketch) of the calls of a device that a folder holds.
nb::object recorded_calls(const std::string& folder, const std::string& device) {
  const RecordedCalls all = without_gil([&] {
    if (const std::shared_ptr<Recording> recording = recording_from_environment())
      recording->flush();
    return read_recorded(folder.empty() ? default_recordings() : folder, warn);
  });
  nb::list out;
  const auto found = all.find(device);
  if (found == all.end()) return out;
  for (const auto& [op, calls] : found->second)
    for (const auto& [key, call] : calls)
      out.append(nb::make_tuple(op, key, object_of(call.arguments)));
  return out;
}

// Candidates side by side, as a tuning measures them: the winner's place (None: all are rejected),
// and (status, seconds, why) of each.
nb::object race(nb::handle trial_side, nb::handle configs, int warmup, int iters, double budget) {
  std::atomic<bool> stop{false};
  Interruption interruption{nullptr, &stop};
  PythonTrial trial(nb::borrow(trial_side), interruption);
  std::vector<AnyConfig> list;
  for (nb::handle config : configs) list.push_back(config_of(config, {}));
  TuneTask task;
  task.op = "autotune";
  task.trial = &trial;
  task.candidates = candidate_list(std::move(list));
  task.budget.seconds = budget;
  task.guard = false;
  task.stop = &stop;
  const TuneResult result = without_gil([&] { return Tuner(warmup, iters).tune(task); });
  if (interruption.thrown) std::rethrow_exception(interruption.thrown);
  nb::list measured;
  for (const Measurement& m : result.candidates)
    measured.append(nb::make_tuple(m.status, m.seconds, m.why));
  nb::object winner = nb::none();
  if (result.winner) winner = nb::int_(*result.winner);
  return nb::make_tuple(winner, measured);
}

}  // namespace

void bind_chain(nb::module_& m) {
  nb::class_<Call>(m, "Call", "One call without its data.")
      .def(nb::new_([](const std::string& op_id, const std::string& version,
                       std::shared_ptr<Device> device, nb::handle method, nb::handle args,
                       nb::dict kwargs, const std::string& key, nb::handle batch_axes,
                       const std::string& data) {
             return std::make_shared<Call>(make_call(op_id, version, std::move(device), method,
                                                     args, kwargs, key, batch_axes, data));
           }),
           nb::arg("op_id"), nb::arg("version"), nb::arg("device"), nb::arg("method").none(),
           nb::arg("args"), nb::arg("kwargs"), nb::arg("key") = "",
           nb::arg("batch_axes") = nb::none(), nb::arg("data") = "", in_core())
      .def_prop_ro("op", [](const Call& c) { return c.inv.op(); })
      .def_prop_ro("spec", [](const Call& c) { return c.inv.spec(); })
      .def_prop_ro("key", [](const Call& c) { return c.inv.call_key(); })
      .def_prop_ro("device", [](const Call& c) { return c.device->fingerprint; });

  nb::class_<Selector>(m, "Selector", "The chain that finds configs.")
      .def("__init__", &make_selector, nb::arg("cache").none(), nb::arg("warmup") = 1,
           nb::arg("iters") = 3, nb::arg("own_tuner") = false,
           nb::arg("persistent").none() = nb::none(), nb::arg("own_persistent") = false,
           nb::arg("persist_autotune") = true, nb::arg("forbid_reautotune") = true,
           nb::arg("strict_environment") = false, nb::arg("reference_cfgs") = nb::dict(), in_core())
      .def("choose", &choose, nb::arg("call"), nb::arg("kernel"), nb::arg("given").none(),
           nb::arg("scopes"), nb::arg("listens"), in_core())
      .def("tune", &tune, nb::arg("call"), nb::arg("kernel"), nb::arg("candidates").none(),
           nb::arg("scopes"), nb::arg("listens"), in_core())
      .def("resume", &resume, nb::arg("call"), nb::arg("kernel"), nb::arg("scopes"),
           nb::arg("listens"), in_core())
      .def("tuned", &tuned, nb::arg("call"), nb::arg("kernel"), nb::arg("scopes"), in_core())
      .def("explain", &explain, nb::arg("call"), nb::arg("kernel"), nb::arg("given").none(),
           nb::arg("scopes"), in_core())
      .def("policy", &policy, nb::arg("scopes"), in_core())
      .def(
          "tell", [](Selector& s, nb::object hears) { s.hears = std::move(hears); },
          nb::arg("hears"), "Calls this with what happens in tunings; before the first of them.")
      .def(
          "stop", [](Selector& s) { s.stop.store(true); },
          "Tunings end with what they have, from now on.");

  m.def("seconds_of", &seconds_of, nb::arg("function"), nb::arg("warmup"), nb::arg("iters"),
        in_core(), "Median seconds of function(), measured as a race measures.");
  m.def("record", &record, nb::arg("call"), nb::arg("kernel"), in_core());
  m.def(
      "count_call", [](uint32_t number) { return detail::count_call(detail::call_count(number)); },
      "Counts a call of a record. True if it should be timed.");
  m.def("add_call_seconds", [](uint32_t number, double seconds) {
    detail::call_count(number).add_time(static_cast<uint64_t>(1e9 * seconds));
  });
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&end_recording));
  m.def("recorded_calls", &recorded_calls, nb::arg("folder"), nb::arg("device"), in_core());
  m.def("race", &race, nb::arg("trial"), nb::arg("configs"), nb::arg("warmup"), nb::arg("iters"),
        nb::arg("budget"), in_core());
  m.def(
      "default_policy", [] { return dict_of(unguarded({})); }, "Every field of a policy.");
  m.def("policy_from_environment", [] { return dict_of(unguarded(policy_from_environment())); });
}

}  // namespace ejk::python
