// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <filesystem>

#include <fmt/format.h>

#include <ejk/error.h>
#include <ejk/ops.h>

#include "arguments.h"
#include "base/env.h"
#include "record/reading.h"
#include "store/op_name.h"

namespace ejk::cli {
namespace {

std::string op_known_as(const std::string& name) {
  std::vector<std::string> found;
  const auto known = registered_kernels();
  for (const std::string& op : known)
    if (detail::op_matches(op, name)) found.push_back(op);
  if (found.size() == 1) return found.front();
  std::string list;
  for (const std::string& op : found.empty() ? known : found)
    list += (list.empty() ? "" : ", ") + op;
  if (found.empty())
    throw Failure(exit_nothing, "no kernel is known here as " + name +
                                    "; known: " + (list.empty() ? "none" : list) +
                                    " (--plugin LIB loads kernels of your own)");
  throw Failure(exit_usage, name + " is several kernels: " + list);
}

}  // namespace

void load_plugins(const KernelOptions& options) {
  ops::register_kernels();
  for (const std::string& path : plugin_paths(options)) load_kernels(path);
}

std::vector<std::string> plugin_paths(const KernelOptions& options) {
  std::vector<std::string> out;
  for (const std::string& path : options.plugins) {
    // A bare name would be looked for in the system's folders only.
    const bool bare = path.find('/') == std::string::npos && std::filesystem::exists(path);
    out.push_back(bare ? "./" + path : path);
  }
  return out;
}

std::string recorded_folder(const KernelOptions& options) {
  const std::string shared =
      options.store.empty() ? base::env_or_empty("EJKERNEL_PERSISTENT_CACHE_URL") : options.store;
  if (options.recorded.empty() && is_shared(shared)) return shared;
  const std::string folder =
      options.recorded.empty() ? records_of(options.store) : base::expand_home(options.recorded);
  if (folder.empty())
    throw Failure(exit_failed,
                  "there is no place for recorded calls: give --recorded-in DIR, or set "
                  "EJKERNEL_OPS_RECORD_DIR or HOME");
  return folder;
}

std::string where_to_record(const KernelOptions& options) {
  const std::string folder = recorded_folder(options);
  if (is_shared(folder))
    return shown_store(folder) +
           " (programs record their calls there with EJKERNEL_OPS_RECORD=1 and its URL in " +
           "EJKERNEL_PERSISTENT_CACHE_URL; --recorded-in DIR names a folder)";
  return folder + " (a program records its calls there with EJKERNEL_OPS_RECORD=1 and " +
         "EJKERNEL_OPS_RECORD_DIR=" + folder + "; --recorded-in DIR names another folder)";
}

void check_recorded_folder(const KernelOptions& options) {
  const std::string folder = recorded_folder(options);
  std::error_code error;
  if (!options.recorded.empty() && !std::filesystem::is_directory(folder, error))
    throw Failure(exit_nothing, "there is no folder of recorded calls at " + folder);
}

std::vector<RecordedCall> recorded_calls(const KernelOptions& options, const PersistentCache& store,
                                         const Filter& filter, Problems& problems) {
  check_recorded_folder(options);
  std::vector<RecordedCall> out;
  RecordedCalls all = detail::read_recorded(recorded_folder(options), &store, problems.sink(),
                                            wanted_devices(filter));
  for (auto& [device, ops] : all)
    for (auto& [op, keys] : ops)
      for (auto& [key, call] : keys)
        if (matches(filter, call.id)) out.push_back(std::move(call));
  return out;
}

RecordedCall call_from_line(const std::string& op, const std::vector<std::string>& args,
                            const Device& device) {
  RecordedCall call;
  call.id = {device.fingerprint, op_known_as(op), "", ""};
  call.platform = device.platform;
  call.arguments = Value::array();
  int64_t seed = 1;
  for (const std::string& arg : args) call.arguments.push_back(sketch_from_line(arg, seed++));
  call.calls = 1;
  return call;
}

std::unique_ptr<RebuiltCall> make_line_call(const RecordedCall& call) {
  try {
    return rebuild_call(call);
  } catch (const Error& error) {
    throw Failure(exit_usage, std::string(error.what()) +
                                  " (--arg is given once for each, outputs included; an array is "
                                  "--arg f32[512,512], anything else JSON, as --arg 0.5)");
  }
}

EntryId id_of(const Invocation& inv) {
  const Device& device = inv.device == nullptr ? cpu_device() : *inv.device;
  return {device.fingerprint, inv.op(), inv.call_key(), inv.spec()};
}

std::string progress_text(const TuneProgress& p) {
  std::string line = call_name(p.op, p.key.substr(0, 8)) + ": ";
  if (p.candidates == 0 && !p.message.empty())
    return line + fmt::format("{} ({:.0f} s)", p.message, p.elapsed);
  if (p.candidates == 0) return line + fmt::format("under way for {:.0f} s", p.elapsed);
  line += fmt::format("{} of {} tried", p.tried, p.candidates);
  if (p.rejected > 0) line += fmt::format(", {} rejected", p.rejected);
  if (p.round > 0) line += fmt::format(", {} racing, round {}", p.racing, p.round);
  if (p.clock == Clock::device) line += " by the device's clock";
  if (p.best_seconds > 0) line += ", best " + time_text(p.best_seconds);
  if (p.speedup > 0) line += fmt::format(" ({})", ratio_text(p.speedup));
  return line + fmt::format(", at most {:.0f} s left", p.remaining);
}

std::shared_ptr<ConfigSelectorChain> selector_for(std::shared_ptr<PersistentCache> store,
                                                  const AutotunePolicy& policy,
                                                  Progress& progress) {
  return std::make_shared<ConfigSelectorChain>(SelectorOptions{
      .policy = policy,
      .persistent = std::move(store),
      .on_warning = [](const std::string& message) { say(message); },
      .on_progress = [&progress](const TuneProgress& p) { progress.show(progress_text(p)); },
      .stop = &StopOnInterrupt::requested()});
}

}  // namespace ejk::cli
