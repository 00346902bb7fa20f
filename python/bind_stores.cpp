// SPDX-License-Identifier: Apache-2.0
// Devices, the memory tier and the persistent tier.
#include "bind.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include <ejk/names.h>
#include <ejk/open_store.h>

#include "store/postgres/address.h"

namespace ejk::python {

namespace {

// The cache file of ejkernel as a layer: "DEVICE|OP|KEY" to config. It is read, never written.
class ImportedFile final : public Store {
 public:
  ImportedFile(std::string path, std::map<std::string, Value> configs,
               std::vector<std::string> devices)
      : path_(std::move(path)), configs_(std::move(configs)), devices_(std::move(devices)) {}

  std::optional<Entry> get(const EntryId& id, Detail, const Value*) override {
    std::vector<std::string> names = devices_;  // what the file may call this device
    names.insert(names.begin(), id.device);
    for (const std::string& device : names) {
      const auto found = configs_.find(device + '|' + id.op + '|' + id.key);
      if (found == configs_.end()) continue;
      Entry entry;
      entry.id = id;
      entry.config = found->second;
      entry.provenance = name_of(
          Provenance::put);  // by a program of ejkernel, into a file that this program names
      return entry;
    }
    return std::nullopt;
  }
  bool put(const Entry&, IfPresent) override { return false; }
  bool erase(const EntryId&) override { return false; }
  void for_each(std::string_view, const std::function<bool(const Entry&)>&, Detail) override {}
  std::unique_ptr<TuningLease> lease(const EntryId&, double) override { return nullptr; }
  std::string where() const override { return path_; }
  bool writable() const override { return false; }

 private:
  std::string path_;
  std::map<std::string, Value> configs_;
  std::vector<std::string> devices_;
};

std::shared_ptr<Device> make_device(const std::string& name, nb::handle identity,
                                    nb::handle environment, bool is_cpu) {
  auto device = std::make_shared<Device>();
  if (is_cpu) *device = cpu_device();
  else {
    device->identity = value_of(identity);
    device->fingerprint = name + "|" + short_hash(device->identity);
  }
  const Value extra = value_of(environment);
  if (extra.is_object())
    for (const auto& [member, value] : extra.as_object().members)
      device->environment[member] = value;
  return device;
}

void bind_devices(nb::module_& m) {
  nb::class_<Device>(m, "Device", "What calls run on: identity, environment, fingerprint.")
      .def_ro("fingerprint", &Device::fingerprint)
      .def_prop_ro("identity", [](const Device& d) { return object_of(d.identity); })
      .def_prop_ro("environment", [](const Device& d) { return object_of(d.environment); });
  m.def(
      "cpu_device",
      [](nb::handle environment) { return make_device({}, nb::none(), environment, true); },
      nb::arg("environment") = nb::none(), in_core(),
      "This CPU; what is given is added to its environment.");
  m.def(
      "make_device",
      [](const std::string& name, nb::handle identity, nb::handle environment) {
        return make_device(name, identity, environment, false);
      },
      nb::arg("name"), nb::arg("identity"), nb::arg("environment") = nb::none(), in_core(),
      "A device that this library does not look at itself.");
}

void bind_cache(nb::module_& m) {
  nb::class_<ConfigCache>(m, "ConfigCache", nb::is_weak_referenceable())
      .def(nb::init<>())
      .def(
          "put",
          [](ConfigCache& cache, const std::string& device, const std::string& op,
             const std::string& key, nb::handle config) {
            AnyConfig made = config_of(config, op);
            without_gil([&] { cache.put_any(entry_id(device, op, key), std::move(made)); });
          },
          nb::arg("device"), nb::arg("op"), nb::arg("key"), nb::arg("config").none(), in_core())
      .def(
          "get",
          [](const ConfigCache& cache, const std::string& device, const std::string& op,
             const std::string& key) -> nb::object {
            const auto found = without_gil([&] { return cache.get(device, op, key); });
            return found ? nb::object(nb::make_tuple(object_of(*found))) : nb::none();
          },
          in_core(), "A tuple of the config, None if there is none.")
      .def("erase",
           [](ConfigCache& cache, const std::string& device, const std::string& op,
              const std::string& key) {
             without_gil([&] { cache.erase(entry_id(device, op, key)); });
           })
      .def("clear", [](ConfigCache& cache) { without_gil([&] { cache.clear(); }); })
      .def("size",
           [](const ConfigCache& cache) { return without_gil([&] { return cache.size(); }); })
      .def("keys",
           [](const ConfigCache& cache) {
             const auto ids = without_gil([&] { return cache.keys(); });
             nb::list out;
             for (const EntryId& id : ids) out.append(nb::make_tuple(id.device, id.op, id.key));
             return out;
           })
      .def_prop_ro("generation", &ConfigCache::generation);
}

Entry entry_to_put(const EntryId& id, const AnyConfig& config) {
  Entry entry;
  entry.id = id;
  entry.config = config.to_value();
  entry.provenance = name_of(Provenance::put);
  if (id.device == cpu_device().fingerprint) {
    entry.device = cpu_device().identity;
    entry.environment = cpu_device().environment;
  }
  return entry;
}

// `behind`: behind these there are the layers that a program gets which names none.
std::shared_ptr<PersistentCache> open_store(const std::string& path, bool read_only,
                                            const std::string& file, nb::dict imported,
                                            std::vector<std::string> devices, bool behind) {
  std::map<std::string, Value> configs;
  for (auto [name, config] : imported)
    configs.emplace(nb::cast<std::string>(name), value_of(config));
  if (path.empty() && file.empty()) return std::make_shared<PersistentCache>();
  std::vector<std::shared_ptr<Store>> layers;
  if (!path.empty()) layers.push_back(ejk::open_store(path, {.read_only = read_only}));
  if (!file.empty())
    layers.push_back(std::make_shared<ImportedFile>(file, std::move(configs), std::move(devices)));
  if (behind) {
    const PersistentCache usual;
    layers.insert(layers.end(), usual.layers().begin(), usual.layers().end());
  }
  return std::make_shared<PersistentCache>(std::move(layers));
}

void bind_store(nb::module_& m) {
  nb::class_<PersistentCache>(m, "PersistentCache")
      .def(nb::new_(&open_store), nb::arg("path") = "", nb::arg("read_only") = false,
           nb::arg("file") = "", nb::arg("imported") = nb::dict(),
           nb::arg("devices") = std::vector<std::string>{}, nb::arg("behind") = false, in_core())
      .def(
          "put",
          [](PersistentCache& store, const std::string& device, const std::string& op,
             const std::string& key, nb::handle config) {
            const AnyConfig made = config_of(config, op);
            return without_gil([&] {
              return store.put(entry_to_put(entry_id(device, op, key), made), IfPresent::replace);
            });
          },
          nb::arg("device"), nb::arg("op"), nb::arg("key"), nb::arg("config").none(), in_core())
      .def(
          "get",
          [](PersistentCache& store, const std::string& device, const std::string& op,
             const std::string& key) -> nb::object {
            const auto found =
                without_gil([&] { return store.get(entry_id(device, op, key), Detail::choice); });
            if (!found || found->entry.outcome == Outcome::failed) return nb::none();
            return nb::make_tuple(object_of(found->entry.config));
          },
          in_core(), "A tuple of the config as it is written, None if there is none.")
      .def(
          "entry",
          [](PersistentCache& store, const std::string& device, const std::string& op,
             const std::string& key) -> nb::object {
            const auto found = without_gil([&] { return store.get(entry_id(device, op, key)); });
            return found ? object_of(found->entry) : nb::none();
          },
          in_core(), "The whole entry with its evidence as a dict, None if there is none.")
      .def("erase",
           [](PersistentCache& store, const std::string& device, const std::string& op,
              const std::string& key) {
             return without_gil([&] { return store.erase(entry_id(device, op, key)); });
           })
      .def("keys",
           [](PersistentCache& store) {
             std::set<std::tuple<std::string, std::string, std::string, std::string>> seen;
             std::vector<EntryId> ids;  // of calls that may have entries of several environments
             without_gil([&] {
               store.for_each(
                   "",
                   [&](const Entry& entry) {
                     const EntryId& id = entry.id;
                     if (seen.emplace(id.device, id.op, id.key, id.spec).second) ids.push_back(id);
                     return true;
                   },
                   Detail::choice);
             });
             nb::list out;
             for (const EntryId& id : ids) out.append(nb::make_tuple(id.device, id.op, id.key));
             return out;
           })
      .def_prop_ro("where", [](PersistentCache& store) {
        std::vector<std::string> places;
        for (const auto& layer : store.layers()) places.push_back(layer->where());
        return places;
      });
  m.def("default_store_path", [] { return default_store_path(); });
  m.def(
      "is_database_url",
      [](const std::string& address) { return detail::postgres::is_database_url(address); },
      nb::arg("address"));
}

// Recorded calls, or those that a lowered computation is labelled with, each tuned by a worker
// process. `on_call(op, key, message)` hears which is next. Ctrl-C ends it with what it has.
nb::object tune_in_workers(std::vector<std::string> command, const std::string& store,
                           const std::string& recorded, const std::string& lowered,
                           std::vector<std::string> ops, double budget, double budget_per_call,
                           double patience, bool retune, bool same_numerics, nb::handle on_call) {
  const auto tell = [&](const TuneProgress& p) {
    const Gil held;
    on_call(std::string(p.op), std::string(p.key), std::string(p.message));
  };
  std::vector<std::string> lost;
  OfflineResult result;
  std::vector<bool> kept;
  bool interrupted = false;
  without_gil([&] {
    const StopOnInterrupt stop;
    WorkerOptions how;
    how.command = std::move(command), how.store = store, how.patience_seconds = patience;
    how.retune = retune;
    how.numerics = same_numerics ? Numerics::same : Numerics::any;
    how.stop = &StopOnInterrupt::requested();
    SelectorOptions options;
    options.policy = AutotunePolicy{.numerics = how.numerics};
    Worker worker(std::move(how));
    options.policy->budget_seconds = budget_per_call;
    options.persistent = store.empty() ? std::make_shared<PersistentCache>()
                                       : std::make_shared<PersistentCache>(store);
    ConfigSelectorChain selector(options);
    OfflineOptions offline;
    offline.folder = recorded, offline.ops = std::move(ops), offline.retune = retune;
    offline.budget_seconds = budget, offline.on_progress = tell;
    offline.device = worker.device();
    offline.tune_call = [&](const RecordedCall& call, double seconds) {
      try {
        return worker.tune(call, seconds);
      } catch (const WorkerLost&) {
        lost.push_back(call.id.op + ":" + call.id.key);
        throw;
      }
    };
    result = lowered.empty() ? autotune_recorded(selector, offline)
                             : autotune_labels(selector, find_labels_in(lowered), offline);
    for (const Entry& entry : result.entries) {
      const auto stored = options.persistent->get(entry.id, Detail::choice, &entry.environment);
      kept.push_back(stored && stored->entry.config == entry.config);
    }
    interrupted = StopOnInterrupt::requested().load();
  });
  Value tuned = Value::array(), skipped = Value::array();
  for (size_t i = 0; i < result.entries.size(); ++i) {
    Value entry = entry_to_document(result.entries[i]);
    entry.erase("candidates");
    entry["already"] = i + result.already >= result.entries.size();
    entry["kept"] = static_cast<bool>(kept[i]);
    tuned.push_back(std::move(entry));
  }
  for (const auto& s : result.skipped)
    skipped.push_back(Value::object(
        {{"op", s.op},
         {"key", s.key},
         {"why", s.why},
         {"lost", std::find(lost.begin(), lost.end(), s.op + ":" + s.key) != lost.end()}}));
  return nb::make_tuple(result.text(), object_of(Value::object({{"tuned", std::move(tuned)},
                                                                {"skipped", std::move(skipped)},
                                                                {"note", result.note},
                                                                {"interrupted", interrupted}})));
}

}  // namespace

nb::object object_of(const Entry& entry) { return object_of(entry_to_document(entry)); }

void bind_stores(nb::module_& m) {
  bind_devices(m);
  bind_cache(m);
  bind_store(m);
  m.def("tune_in_workers", &tune_in_workers, nb::arg("command"), nb::arg("store"),
        nb::arg("recorded"), nb::arg("lowered"), nb::arg("ops"), nb::arg("budget"),
        nb::arg("budget_per_call"), nb::arg("patience"), nb::arg("retune"),
        nb::arg("same_numerics"), nb::arg("on_call"), in_core(),
        "A text and a document of what came out of it.");
}

}  // namespace ejk::python
