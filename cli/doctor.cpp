// SPDX-License-Identifier: Apache-2.0
// ejk doctor: what is wrong with this machine for measuring, and with the store.
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <sstream>

#include <fmt/format.h>

#include <ejk/device.h>
#include <ejk/executor.h>
#include <ejk/names.h>
#include <ejk/quarantine.h>
#include <ejk/record.h>

#include "doctor.h"
#include "store/drift_notes.h"
#include "store/pins.h"
#include "verbs.h"

extern char** environ;

namespace ejk::cli {
namespace fs = std::filesystem;

namespace {

struct DoctorOptions {
  std::string store;
  double seconds = 1;  // of the noise measurement; 0: none
  std::string root = "/";
  bool selftest = false;  // the library's kernels on devices instead
  std::string platform;   // of them; empty: all
};

// What one look found. States, from good to bad: ok, note, warn, bad.
struct Finding {
  std::string what, state, detail;
  std::string cure = {};
  Value number = {};
};
using Findings = std::vector<Finding>;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<double> number_of(const std::string& text) {
  double out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() ? std::optional(out) : std::nullopt;
}

void look_at_clock_speed(const std::string& root, Findings& out) {
  std::set<std::string> governors;
  std::error_code error;
  for (const auto& cpu : fs::directory_iterator(root + "sys/devices/system/cpu", error)) {
    const auto governor = first_line(cpu.path().string() + "/cpufreq/scaling_governor");
    if (!governor.empty()) governors.insert(governor);
  }
  std::string names;
  for (const std::string& name : governors) names += (names.empty() ? "" : ", ") + name;
  if (governors.empty())
    out.push_back({"governor", "note", "not visible here, as in most virtual machines"});
  else if (names == "performance") out.push_back({"governor", "ok", names});
  else
    out.push_back({"governor", "warn",
                   names + ": the clock follows the load, so times depend on "
                           "what ran before",
                   "cpupower frequency-set -g performance"});
  const std::string no_turbo = first_line(root + "sys/devices/system/cpu/intel_pstate/no_turbo");
  const std::string boost = first_line(root + "sys/devices/system/cpu/cpufreq/boost");
  if (no_turbo == "0" || boost == "1")
    out.push_back({"turbo", "note", "on: the clock falls as the chip gets warm"});
  const std::string source =
      first_line(root + "sys/devices/system/clocksource/clocksource0/current_clocksource");
  if (!source.empty() && source != "tsc" && source != "kvm-clock")
    out.push_back({"clock source", "warn", source + ": reading the clock is slow",
                   "boot with tsc=reliable if the processor's counter is steady"});
}

void look_at_load(const std::string& root, const Device& cpu, Findings& out) {
  const Value* cores = cpu.environment.find("cores");
  const double count = cores != nullptr && cores->is_number() ? cores->as_double() : 1;
  if (const auto load = number_of(first_line(root + "proc/loadavg"))) {
    const double share = *load / count;
    out.push_back({"load",
                   share > 1     ? "bad"
                   : share > 0.5 ? "warn"
                                 : "ok",
                   fmt::format("{:.2f} on {:g} cores", *load, count),
                   share > 0.5 ? "stop what else is running, or tune at another time" : "", *load});
  }
  const Value* quota = cpu.environment.find("quota");
  if (quota != nullptr && quota->is_number())
    out.push_back({"cgroup quota", "warn",
                   fmt::format("{:g} cores: the kernel stops all threads once they used it up",
                               quota->as_double()),
                   "tune without a CPU limit", *quota});
  else out.push_back({"cgroup quota", "ok", "none"});
  if (first_line(root + "sys/devices/system/cpu/smt/active") == "1")
    out.push_back({"hyper-threads", "note", "on: two of them share what a core has"});
  std::ifstream info(root + "proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("flags") && line.find(" hypervisor") != std::string::npos) {
      out.push_back({"virtual machine", "note", "other guests' load is not visible here"});
      break;
    }
}

// Time that another guest had, and all time, in clock ticks.
std::pair<double, double> stolen(const std::string& root) {
  std::istringstream line(first_line(root + "proc/stat"));
  std::string word;
  line >> word;
  std::vector<double> ticks;
  for (double tick = 0; line >> tick;) ticks.push_back(tick);
  if (ticks.size() < 8) return {0, 0};
  return {ticks[7], std::accumulate(ticks.begin(), ticks.begin() + 8, 0.)};
}

// Two configs that do exactly the same: whatever differs is noise.
struct Same {
  static constexpr std::string_view op_id = "ejk.doctor.same", version = "1";
  struct Config {
    int name = 0;
  };
  void run(const Config&, std::span<const float> x, ejk::Out<std::span<float>> y) const {
    for (size_t i = 0; i < x.size(); ++i) (*y)[i] = x[i] * 1.5f + 2.f;
  }
  Config heuristic_cfg(const Invocation&) const { return {}; }
  std::vector<Config> candidate_cfgs(const Invocation&) const { return {{0}, {1}}; }
};

void look_at_noise(const std::string& root, double seconds, Findings& out) {
  const auto before = stolen(root);
  Progress progress;
  const Executor executor(
      SelectorOptions{.policy = AutotunePolicy{.budget_seconds = seconds},
                      .on_warning = [](const std::string& message) { say(message); },
                      .on_progress =
                          [&](const TuneProgress& p) {
                            progress.show(fmt::format("measuring the noise: round {}", p.round));
                          },
                      .stop = &StopOnInterrupt::requested()});
  std::vector<float> x(16384, 1.f), y(x.size());
  const Entry entry = executor.tune(Same{}, x, y).entry;
  const double noise = entry.evidence.noise;
  out.push_back(
      {"noise",
       noise < 0.02  ? "ok"
       : noise < 0.1 ? "warn"
                     : "bad",
       fmt::format("two equal runs of {} differ by up to {} (95 %, {} rounds): smaller "
                   "differences between configs are not seen",
                   time_text(entry.evidence.seconds), percent_text(noise), entry.evidence.samples),
       noise < 0.02 ? "" : "a quieter machine, or a larger budget", noise});
  const bool guarded = is(entry.evidence.guard, FirstRuns::child);
  out.push_back({"first runs", guarded ? "ok" : "warn",
                 guarded ? "in a child process: a crash ends only that"
                         : "in the process itself: a config that crashes ends it"});
  const auto after = stolen(root);
  if (after.second > before.second) {
    const double share = (after.first - before.first) / (after.second - before.second);
    out.push_back({"stolen time",
                   share > 0.05   ? "bad"
                   : share > 0.01 ? "warn"
                                  : "ok",
                   percent_text(share) + " went to other guests of this host", "", share});
  }
}

void look_at_platforms(Findings& out) {
  for (const Device* device : devices())
    out.push_back(
        {"platform " + std::string(platform_name(device->platform)), "ok", device->fingerprint});
  for (const Platform platform : {Platform::opencl, Platform::cuda})
    if (devices(platform).empty())
      out.push_back({"platform " + std::string(platform_name(platform)), "note",
                     "no device: " + why_no_devices(platform)});
}

std::string existing_part(std::string path) {
  std::error_code error;
  while (!path.empty() && !fs::exists(path, error)) path = fs::path(path).parent_path().string();
  return path.empty() ? "." : path;
}

void look_at_store(const std::string& given, Findings& out) {
  const std::string path = store_path(given);
  const std::string there = existing_part(path);
  if (fs::exists(path) && !fs::is_directory(path)) {
    out.push_back({"store", "bad", path + " is not a directory", "--store DIR"});
    return;
  }
  const bool writable = ::access(there.c_str(), W_OK | X_OK) == 0;
  size_t count = 0;
  // What it would warn of are findings below.
  DirectoryStore store(
      path, {.read_only = true, .on_warning = [](const std::string&) {}, .environment = {}});
  store.for_each(
      "", [&](const Entry&) { return ++count, true; }, Detail::choice);
  out.push_back(
      {"store", writable ? "ok" : "warn",
       path +
           (fs::exists(path) ? ": " + count_text(count, "entry", "entries") : ": not there yet") +
           (writable ? "" : ", cannot be written"),
       writable ? "" : "choices are not kept: set EJKERNEL_PERSISTENT_CACHE_DIR to another",
       count});
  struct statvfs space {};
  if (::statvfs(there.c_str(), &space) == 0) {
    const double mib =
        static_cast<double>(space.f_bavail) * static_cast<double>(space.f_frsize) / (1 << 20);
    if (mib < 64)
      out.push_back(
          {"disk", mib < 4 ? "bad" : "warn", fmt::format("{:.0f} MiB free at {}", mib, there)});
  }
  for (const BadFile& file : bad_files(path, records_of(given))) {
    using enum BadFile::Kind;
    const std::string detail = file.path + ": " + file.why;
    if (file.kind == damaged)
      out.push_back({"damaged file", "warn", detail, "ejk prune --damaged removes it"});
    else if (file.kind == altered)
      out.push_back(
          {"altered file", "warn", detail,
           "it is not used: remove its member \"checksum\" if that is meant, else the file"});
    else if (file.kind == newer)
      out.push_back({"newer file", "note", detail, "left alone, for the version that knows it"});
    else out.push_back({"unreadable file", "warn", detail});
  }
  const size_t quarantined = quarantine_list(path, [](const std::string&) {}).size();
  if (quarantined > 0)
    out.push_back({"quarantine", "note",
                   count_text(quarantined, "config", "configs") + " that crashed",
                   "ejk quarantine ls", quarantined});
}

// Calls of programs with `drift_watch`, as long as they were not tuned again, in the environment of
// today.
void look_at_drift(const std::string& path, Findings& out) {
  const auto silent = [](const std::string&) {};
  DirectoryStore store(path, {.read_only = true, .on_warning = silent, .environment = {}});
  for (const detail::DriftNote& note : detail::drift_notes(path, silent)) {
    if (note.environment != cpu_device().environment) continue;
    const auto entry = store.get(note.id, Detail::choice, &note.environment);
    if (!entry || !is_about(note, *entry)) continue;
    out.push_back({"slower call", "warn",
                   fmt::format("{} {}: took {} when it was tuned ({}), and {} in a program ({})",
                               call_name(note.id.op, note.id.key), call_text(note.id.spec),
                               time_text(note.evidence_seconds), note.tuned,
                               time_text(note.now_seconds), note.time),
                   fmt::format("ejk tune --recorded --retune --op {}", note.id.op),
                   note.now_seconds / note.evidence_seconds});
  }
}

void look_at_environment(Findings& out) {
  const std::set<std::string_view> known = {"EJKERNEL_PERSISTENT_CACHE_DIR",
                                            "EJKERNEL_PERSISTENT_CACHE_LAYERS",
                                            "EJKERNEL_PERSISTENT_CACHE_PIN",
                                            "EJKERNEL_PERSISTENT_CACHE_SNAPSHOT",
                                            "EJKERNEL_PERSISTENT_CACHE_URL",
                                            "EJKERNEL_PERSISTENT_CACHE_URL_REQUIRED",
                                            "EJKERNEL_AUTOTUNE_POLICY",
                                            "EJKERNEL_AUTOTUNE_PROGRESS",
                                            "EJKERNEL_LOG",
                                            "EJKERNEL_OPS_PREFIX",
                                            "EJKERNEL_OPS_RECORD",
                                            "EJKERNEL_OPS_RECORD_DIR",
                                            "EJKERNEL_OPS_STAMP",
                                            "EJKERNEL_RUN",
                                            "EJKERNEL_STORE_TRUST"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with("EJKERNEL_") && !known.contains(name))
      out.push_back(
          {"environment", "warn", std::string(name) + " is set, but ejk does not know it"});
  }
  try {
    static_cast<void>(policy_from_environment());
    static_cast<void>(detail::pin_mode_of_launch());
  } catch (const std::exception& error) {
    out.push_back({"environment", "bad", error.what()});
  }
}

int doctor_verb(const DoctorOptions& options, Output& out) {
  const std::string root = options.root.ends_with('/') ? options.root : options.root + "/";
  const Device cpu = root == "/" ? cpu_device() : probe_cpu(root);
  const StopOnInterrupt stop;
  Findings findings;
  look_at_clock_speed(root, findings);
  look_at_load(root, cpu, findings);
  if (options.seconds > 0) look_at_noise(root, options.seconds, findings);
  look_at_platforms(findings);
  look_at_store(options.store, findings);
  look_at_drift(store_path(options.store), findings);
  look_at_environment(findings);

  Table table({{"WHAT"}, {"STATE"}, {"FOUND"}});
  Value list = Value::array();
  bool bad = false;
  for (const Finding& f : findings) {
    bad = bad || f.state == "bad";
    table.add({f.what,
               {f.state, f.state == "bad" ? Tone::bad : Tone::plain},
               f.detail + (f.cure.empty() ? "" : " (" + f.cure + ")")});
    list.push_back(Value::object({{"what", f.what},
                                  {"state", f.state},
                                  {"detail", f.detail},
                                  {"cure", f.cure},
                                  {"number", f.number}}));
  }
  out.table(table);
  out.document(Value::object({{"fit", !bad}, {"findings", std::move(list)}}));
  if (stop.requested()) return exit_interrupted;
  return bad ? exit_unfit : exit_ok;
}

}  // namespace

void add_doctor(Verbs& verbs) {
  verbs.add<DoctorOptions>(
      {"doctor", "Check the store, and whether this machine is fit for measuring",
       "ejk doctor --seconds 5"},
      [](const DoctorOptions& options, Output& out) {
        return options.selftest ? doctor_selftest(options.platform, out)
                                : doctor_verb(options, out);
      },
      [](const VerbLine& line, DoctorOptions& to) {
        line.directory(to.store);
        line.number("--seconds", to.seconds, "S", from_to(0, 600),
                    "How long to measure the noise; 0: not at all")
            .shows_default();
        const OptionLine selftest =
            line.flag("--selftest", to.selftest,
                      "Check the results of the library's kernels on all OpenCL and CUDA devices");
        line.value("--platform", to.platform, "NAME", "Only the devices of this platform")
            .one_of({"opencl", "cuda"})
            .needs(selftest);
        line.value("--root", to.root, "", "").hidden();  // a prepared tree, in tests
      });
}

}  // namespace ejk::cli
