// SPDX-License-Identifier: Apache-2.0
// What spreading recorded calls over hosts needs: the plan for all devices, a host's worker, and
// keeping what another host measured.
#include "bind.h"

#include <utility>

#include "offline/stored_call.h"
#include "store/op_name.h"

namespace ejk::python {

namespace {

std::shared_ptr<PersistentCache> store_at(const std::string& place) {
  return place.empty() ? std::make_shared<PersistentCache>()
                       : std::make_shared<PersistentCache>(place);
}

// (calls to tune as (device, op, key, record), calls that are tuned, those whose tuning failed as
// (device, op, key)).
nb::object plan_for_all_devices(const std::string& store, const std::string& recorded,
                                const std::vector<std::string>& ops, bool retune) {
  std::vector<std::string> records;
  const TuningPlan plan = without_gil([&] {
    std::vector<RecordedCall> calls;
    for (auto& [device, by_op] : read_recorded(recorded.empty() ? default_recordings() : recorded))
      for (auto& [op, by_key] : by_op)
        for (auto& [key, call] : by_key)
          if (detail::op_matches(op, ops)) calls.push_back(call);
    const auto choices = retune ? nullptr : choices_of(*store_at(store), devices_of(calls));
    TuningPlan made = plan_with_choices(std::move(calls), choices.get());
    for (const PlannedCall& planned : made.to_tune)
      records.push_back(to_json(record_to_document(planned.call)));
    return made;
  });
  nb::list to_tune, in_vain;
  for (size_t i = 0; i < records.size(); ++i) {
    const EntryId& id = plan.to_tune[i].call.id;
    to_tune.append(nb::make_tuple(id.device, id.op, id.key, records[i]));
  }
  for (const EntryId& id : plan.in_vain) in_vain.append(nb::make_tuple(id.device, id.op, id.key));
  return nb::make_tuple(to_tune, plan.tuned.size(), in_vain);
}

// Thrown in place of a second attempt.
struct WorkerEnded {
  std::string message;
};

// A worker of which every loss is told: who asks decides where the next attempt is made.
class HostWorker {
 public:
  HostWorker(std::vector<std::string> command, std::string store, double patience, bool retune,
             bool same_numerics)
      : worker_(options(std::move(command), std::move(store), patience, retune, same_numerics)) {}

  std::string device() {
    return without_gil([&] { return worker_.device(); });
  }

  // ("tuned", the entry), ("failed", why), ("lost", how) if the worker ended, or ("suspect", how)
  // if it did while it ran a config that the journal knows now: going on here leads to leaving that
  // one out.
  std::pair<std::string, std::string> tune(const std::string& record, double budget) {
    return without_gil([&]() -> std::pair<std::string, std::string> {
      RecordedCall call;
      try {
        call = record_from_document(parse_json(record));
      } catch (const Error& error) {  // one that no host can read must not cost every host
        return {"failed", error.what()};
      }
      worker_.device();  // throws if there is no worker to be had, which is not the call's fault
      try {
        Value entry = entry_to_document(worker_.tune(call, budget));
        entry.erase("candidates");
        return {"tuned", to_json(entry)};
      } catch (const WorkerEnded& ended) {
        return {"suspect", ended.message};
      } catch (const WorkerLost& lost) {
        return {"lost", lost.what()};
      } catch (const Error& error) {
        return {"failed", error.what()};
      }
    });
  }

 private:
  static WorkerOptions options(std::vector<std::string> command, std::string store, double patience,
                               bool retune, bool same_numerics) {
    WorkerOptions how;
    how.command = std::move(command), how.store = std::move(store);
    how.patience_seconds = patience, how.retune = retune;
    how.numerics = same_numerics ? Numerics::same : Numerics::any;
    how.on_warning = [](const std::string& message) { throw WorkerEnded{message}; };
    return how;
  }

  Worker worker_;
};

// Whether the store has this entry now, or a better one. One that is there already, with its
// candidates, is left as it is.
bool keep_entry(PersistentCache& store, const std::string& text) {
  return without_gil([&] {
    const auto choice = [](const Entry& entry) {
      Value document = entry_to_document(entry);
      document.erase("candidates");
      return document;
    };
    const Entry entry = entry_from_document(parse_json(text));
    const auto stored = store.get(entry.id, Detail::choice, &entry.environment);
    return (stored && choice(stored->entry) == choice(entry)) || store.put(entry);
  });
}

}  // namespace

void bind_fleet(nb::module_& m) {
  m.def("plan_for_all_devices", &plan_for_all_devices, nb::arg("store"), nb::arg("recorded"),
        nb::arg("ops"), nb::arg("retune"), in_core());
  nb::class_<HostWorker>(m, "HostWorker")
      .def(nb::init<std::vector<std::string>, std::string, double, bool, bool>(),
           nb::arg("command"), nb::arg("store"), nb::arg("patience"), nb::arg("retune"),
           nb::arg("same_numerics") = false)
      .def("device", &HostWorker::device, in_core())
      .def("tune", &HostWorker::tune, nb::arg("record"), nb::arg("budget"), in_core());
  m.def("keep_entry", &keep_entry, nb::arg("store"), nb::arg("entry"), in_core());
}

}  // namespace ejk::python
