// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>

#include <fmt/format.h>

#include <ejk/error.h>
#include <ejk/ops.h>

namespace ejk::cli {
namespace {

[[noreturn]] void refuse_argument(const std::string& text, const std::string& why) {
  throw Failure(exit_usage,
                "--arg " + text + ": " + why +
                    " (an array is f32[512,512] or i32[64]:0..1023, anything else JSON)");
}

std::string full_dtype_name(const std::string& name) {
  static const std::map<std::string, std::string> short_names = {
      {"f16", "float16"},   {"bf16", "bfloat16"},  {"f32", "float32"}, {"f64", "float64"},
      {"i8", "int8"},       {"i16", "int16"},      {"i32", "int32"},   {"i64", "int64"},
      {"u8", "uint8"},      {"u16", "uint16"},     {"u32", "uint32"},  {"u64", "uint64"},
      {"c64", "complex64"}, {"c128", "complex128"}};
  const auto found = short_names.find(name);
  return std::string(
      dtype_name(dtype_from_name(found == short_names.end() ? name : found->second)));
}

bool is_dtype(const std::string& name) {
  try {
    return !full_dtype_name(name).empty();
  } catch (const Error&) {
    return false;
  }
}

template <class T>
T number_from(std::string_view text, const std::string& argument) {
  T out{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc() || end != text.data() + text.size())
    refuse_argument(argument, "\"" + std::string(text) + "\" is no number");
  return out;
}

Value shape_from(std::string_view text, const std::string& argument) {
  Value out = Value::array();
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const auto size = number_from<int64_t>(text.substr(0, comma), argument);
    if (size < 0) refuse_argument(argument, "a size is negative");
    out.push_back(size);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return out;
}

// Elements between two bounds, floating-point ones around their middle.
Value range_from(std::string_view text, bool floating, const std::string& argument) {
  const size_t dots = text.find("..");
  if (dots == std::string_view::npos) refuse_argument(argument, "a range is LOW..HIGH");
  const std::string_view low_text = text.substr(0, dots), high_text = text.substr(dots + 2);
  if (!floating) {
    const auto low = number_from<int64_t>(low_text, argument);
    const auto high = number_from<int64_t>(high_text, argument);
    if (low > high) refuse_argument(argument, "the range is empty");
    return Value::object({{"min", low}, {"max", high}});
  }
  const auto low = number_from<double>(low_text, argument);
  const auto high = number_from<double>(high_text, argument);
  if (!(low <= high)) refuse_argument(argument, "the range is empty");
  return Value::object(
      {{"min", low}, {"max", high}, {"mean", (low + high) / 2}, {"deviation", (high - low) / 4}});
}

// The sketch of an argument, as records hold them.
Value sketch_from(const std::string& text, int64_t seed) {
  if (text.starts_with("some(") && text.ends_with(')'))
    return Value::object({{"some", sketch_from(text.substr(5, text.size() - 6), seed)}});
  const size_t open = text.find('['), close = text.find(']');
  if (open != 0 && open != std::string::npos && close != std::string::npos && close > open &&
      text.find_first_of("\"{ ") == std::string::npos) {
    std::string dtype;
    try {
      dtype = full_dtype_name(text.substr(0, open));
    } catch (const Error& error) {
      refuse_argument(text, error.what());
    }
    const std::string rest = text.substr(close + 1);
    const bool floating = !(dtype.starts_with("int") || dtype.starts_with("uint"));
    Value data = Value::object();
    if (rest.starts_with(':')) data = range_from(std::string_view(rest).substr(1), floating, text);
    else if (!rest.empty()) refuse_argument(text, "\"" + rest + "\" behind the shape");
    data["seed"] = seed;
    return Value::object(
        {{"dtype", dtype},
         {"shape", shape_from(std::string_view(text).substr(open + 1, close - open - 1), text)},
         {"data", std::move(data)}});
  }
  try {
    return parse_json(text);
  } catch (const Error&) {
    if (open != std::string::npos && close == std::string::npos && is_dtype(text.substr(0, open)))
      refuse_argument(text, "its shape has no ']'");
    return Value(text);
  }
}

std::string op_known_as(const std::string& name) {
  std::vector<std::string> found;
  const auto known = registered_kernels();
  for (const std::string& op : known)
    if (op_matches({name}, op)) found.push_back(op);
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
  const std::string folder = options.recorded.empty() ? default_recording_path() : options.recorded;
  if (folder.empty())
    throw Failure(exit_failed,
                  "there is no place for recorded calls: give --recorded-in DIR, or set "
                  "EJKERNEL_OPS_RECORD_DIR or HOME");
  return folder;
}

std::vector<RecordedCall> recorded_calls(const KernelOptions& options, const Filter& filter,
                                         Problems& problems) {
  const std::string folder = recorded_folder(options);
  std::error_code error;
  if (!options.recorded.empty() && !std::filesystem::is_directory(folder, error))
    throw Failure(exit_nothing, "there is no folder of recorded calls at " + folder);
  std::vector<RecordedCall> out;
  for (auto& [device, ops] : read_recorded(folder, problems.sink()))
    for (auto& [op, keys] : ops)
      for (auto& [key, call] : keys)
        if (matches(filter, call.id)) out.push_back(call);
  return out;
}

RecordedCall call_from_line(const std::string& op, const std::vector<std::string>& args) {
  RecordedCall call;
  call.id = {cpu_device().fingerprint, op_known_as(op), "", ""};
  call.arguments = Value::array();
  int64_t seed = 1;
  for (const std::string& arg : args) call.arguments.push_back(sketch_from(arg, seed++));
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
  std::string line = fmt::format("{} {}: ", p.op, p.key.substr(0, 8));
  if (p.candidates == 0 && !p.message.empty())
    return line + fmt::format("{} ({:.0f} s)", p.message, p.elapsed);
  if (p.candidates == 0) return line + fmt::format("under way for {:.0f} s", p.elapsed);
  line += fmt::format("{} of {} tried", p.tried, p.candidates);
  if (p.rejected > 0) line += fmt::format(", {} rejected", p.rejected);
  if (p.round > 0) line += fmt::format(", {} racing, round {}", p.racing, p.round);
  if (p.best_seconds > 0) line += ", best " + time_text(p.best_seconds);
  if (p.speedup > 0) line += fmt::format(" ({})", ratio_text(p.speedup));
  return line + fmt::format(", at most {:.0f} s left", p.remaining);
}

std::shared_ptr<ConfigSelectorChain> selector_for(std::shared_ptr<PersistentCache> store,
                                                  double budget_seconds, Progress& progress) {
  return std::make_shared<ConfigSelectorChain>(SelectorOptions{
      .policy = AutotunePolicy{.budget_seconds = budget_seconds},
      .persistent = std::move(store),
      .on_warning = [](const std::string& message) { say(message); },
      .on_progress = [&progress](const TuneProgress& p) { progress.show(progress_text(p)); },
      .stop = &StopOnInterrupt::requested()});
}

}  // namespace ejk::cli
