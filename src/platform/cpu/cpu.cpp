// SPDX-License-Identifier: Apache-2.0
// Reads what the CPU is, and how much of it this process may use, from the proc and sys trees.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <thread>

#include <ejk/device.h>

#include "platform/fingerprint.h"

#include "base/format.h"

namespace ejk {
namespace {

// ---- text --------------------------------------------------------------------------------------

// "" if there is no such file. Streaming the buffer turns read errors (a folder, a file of a
// device that is gone) into a stream state instead of an exception.
std::string read_text(const std::string& path) {
  std::ostringstream text;
  if (std::ifstream file{path}) text << file.rdbuf();
  return std::move(text).str();
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  const size_t begin = text.find_first_not_of(blank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blank) - begin + 1);
}

// The non-empty pieces of `text`, without the white space around them.
std::vector<std::string> split(std::string_view text, std::string_view separators) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(separators), text.size());
    const std::string_view piece = trimmed(text.substr(0, end));
    if (!piece.empty()) pieces.emplace_back(piece);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return pieces;
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "KEY : VALUE" lines up to the first empty line, as /proc writes them.
using Fields = std::map<std::string, std::string, std::less<>>;

Fields first_block(std::string_view text) {
  Fields fields;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (trimmed(line).empty() && !fields.empty()) break;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    fields.emplace(trimmed(std::string_view(line).substr(0, colon)),
                   trimmed(std::string_view(line).substr(colon + 1)));
  }
  return fields;
}

// The first of these fields that is there and not empty.
std::optional<std::string> field(const Fields& fields,
                                 std::initializer_list<std::string_view> names) {
  for (std::string_view name : names)
    if (const auto found = fields.find(name); found != fields.end() && !found->second.empty())
      return found->second;
  return std::nullopt;
}

// ---- identity ----------------------------------------------------------------------------------

// Features that change which kernels exist or how fast they are. The rest (security, paging,
// power) differs between kernel versions on one and the same CPU and must not split its identity.
// Two lists, because names mean different things: "sme" on x86 is memory encryption.
using Names = std::initializer_list<std::string_view>;

bool matters(std::string_view feature, Names families, Names single) {
  return std::ranges::any_of(families, [&](auto f) { return feature.starts_with(f); }) ||
         std::ranges::find(single, feature) != single.end();
}

bool matters_on_x86(std::string_view feature) {
  return matters(feature, {"avx", "amx_"},
                 {"ssse3", "sse4_1", "sse4_2", "fma", "f16c", "bmi2", "gfni"});
}

bool matters_on_arm(std::string_view feature) {
  return matters(feature, {"asimd", "sve", "sme"},
                 {"neon", "vfpv4", "fphp", "bf16", "i8mm", "fcma"});
}

Value isa_of(const Fields& cpu) {
  std::set<std::string> features;
  for (std::string& f : split(field(cpu, {"flags"}).value_or(""), " \t"))
    if (matters_on_x86(f)) features.insert(std::move(f));
  for (std::string& f : split(field(cpu, {"Features"}).value_or(""), " \t"))
    if (matters_on_arm(f)) features.insert(std::move(f));
  if (const auto riscv = field(cpu, {"isa"})) features.insert(*riscv);  // one word: rv64imafdcv
  Value list = Value::array();
  for (const std::string& f : features) list.push_back(f);
  return list;
}

// ARM names no model, but a part per core; machines with fast and slow cores have several.
std::string arm_parts(const std::string& cpuinfo) {
  std::set<std::string> parts;
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("CPU part"))
      if (const size_t colon = line.find(':'); colon != std::string::npos)
        parts.insert(std::string(trimmed(std::string_view(line).substr(colon + 1))));
  return parts.empty() ? "" : fmt::format("part {}", fmt::join(parts, "+"));
}

// What the library is compiled for; the kernel's own name for the machine may be another (a
// 32-bit process on a 64-bit kernel).
constexpr std::string_view compiled_arch() {
#if defined(__x86_64__)
  return "x86_64";
#elif defined(__aarch64__)
  return "aarch64";
#elif defined(__riscv)
  return "riscv";
#elif defined(__powerpc64__)
  return "ppc64";
#else
  return "other";
#endif
}

// "48K", "2048K", "32M" in bytes.
std::optional<int64_t> cache_bytes(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const size_t unit = std::string_view("KMG").find(text.back());
  if (unit != std::string_view::npos) text.remove_suffix(1);
  const auto size = number(text);
  constexpr int64_t absurd = int64_t{1} << 30;  // units; keeps garbage from overflowing
  if (!size || *size <= 0 || *size > absurd) return std::nullopt;
  return unit == std::string_view::npos ? *size : *size << (10 * (unit + 1));
}

Value caches_of(const std::string& root) {
  constexpr int max_indices = 16;  // today's CPUs have 3 to 5
  Value caches = Value::object();
  for (int index = 0; index < max_indices; ++index) {
    const std::string at =
        fmt::format("{}/sys/devices/system/cpu/cpu0/cache/index{}/", root, index);
    const std::string size = read_text(at + "size"), type = read_text(at + "type");
    const auto bytes = cache_bytes(trimmed(size));
    const auto level = number(trimmed(read_text(at + "level")));
    if (!bytes || !level || trimmed(type) == "Instruction") continue;
    caches[fmt::format("l{}{}", *level, trimmed(type) == "Data" ? "d" : "")] = *bytes;
  }
  return caches;
}

void add(Value& object, std::string_view name, const std::optional<std::string>& text) {
  if (!text || text->empty()) return;
  if (const auto value = number(*text)) object[name] = *value;
  else object[name] = *text;
}

Value identity_of(const std::string& root) {
  const std::string cpuinfo = read_text(root + "/proc/cpuinfo");
  const Fields cpu = first_block(cpuinfo);
  const auto name = field(cpu, {"model name", "cpu model", "uarch", "cpu", "Processor"});
  Value identity = Value::object({{"kind", "cpu"}, {"arch", compiled_arch()}});
  add(identity, "vendor", field(cpu, {"vendor_id", "CPU implementer", "mvendorid"}));
  add(identity, "model", name ? name : arm_parts(cpuinfo));
  add(identity, "family", field(cpu, {"cpu family", "CPU architecture"}));
  add(identity, "model_number", field(cpu, {"model", "CPU part", "marchid"}));
  // Not a detail: some generations differ in nothing else that is visible here.
  add(identity, "stepping", field(cpu, {"stepping", "CPU variant"}));
  if (Value isa = isa_of(cpu); !isa.as_array().empty()) identity["isa"] = std::move(isa);
  if (Value caches = caches_of(root); !caches.as_object().members.empty())
    identity["caches"] = std::move(caches);
  return identity;
}

// ---- environment -------------------------------------------------------------------------------

// "0-3,8,10-11": how many there are; nullopt if it is not such a list.
std::optional<int64_t> count_cpus(std::string_view list) {
  constexpr int64_t most = 1 << 16;  // CPUs; beyond any machine, keeps garbage harmless
  int64_t count = 0;
  for (const std::string& range : split(list, ",")) {
    const size_t dash = range.find('-');
    const auto first = number(std::string_view(range).substr(0, dash));
    const auto last = dash == std::string::npos ? first : number(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= most) return std::nullopt;
    count += *last - *first + 1;
  }
  return count > 0 ? std::optional(count) : std::nullopt;
}

std::optional<double> quota(std::string_view microseconds, std::string_view period) {
  const auto allowed = number(trimmed(microseconds)), of = number(trimmed(period));
  if (!allowed || !of || *allowed <= 0 || *of <= 0) return std::nullopt;  // "max" or -1: no limit
  return static_cast<double>(*allowed) / static_cast<double>(*of);
}

std::optional<double> quota_v2(const std::string& folder) {
  const std::vector<std::string> words = split(read_text(folder + "/cpu.max"), " \t\n");
  return words.size() == 2 ? quota(words[0], words[1]) : std::nullopt;
}

std::optional<double> quota_v1(const std::string& folder) {
  return quota(read_text(folder + "/cpu.cfs_quota_us"), read_text(folder + "/cpu.cfs_period_us"));
}

std::optional<double> smaller(std::optional<double> a, std::optional<double> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

// Every group above this process's own limits it too. Inside a container the path may name groups
// that are not mounted there; then only the mount point itself answers.
std::optional<double> smallest_quota(const std::string& mount, std::string path,
                                     std::optional<double> (*read)(const std::string&)) {
  std::optional<double> least;
  const bool outside = path.find("..") != std::string::npos;  // of what this process can see
  if (outside || !path.starts_with('/')) path.clear();
  while (path.size() > 1) {
    least = smaller(least, read(mount + path));
    path.erase(path.rfind('/'));
  }
  return smaller(least, read(mount));
}

// As a number of CPUs; nullopt without a limit.
std::optional<double> cpu_quota(const std::string& root) {
  std::optional<double> least;
  std::istringstream lines(read_text(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {  // "ID:CONTROLLERS:PATH"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1),
                      path = line.substr(second + 1), mounts = root + "/sys/fs/cgroup";
    if (controllers.empty()) {
      least = smaller(least, smallest_quota(mounts, path, quota_v2));
      least = smaller(least, smallest_quota(mounts + "/unified", path, quota_v2));
    } else if (const auto names = split(controllers, ",");
               std::ranges::find(names, "cpu") != names.end()) {
      least = smaller(least, smallest_quota(mounts + "/cpu", path, quota_v1));
      least = smaller(least, smallest_quota(mounts + "/" + controllers, path, quota_v1));
    }
  }
  return least;
}

// Threads that can make progress at once. A fraction of a CPU cannot carry another thread without
// throttling all of them, so it is rounded down.
std::optional<int64_t> usable_cores(const std::string& root, std::optional<double> limit) {
  const Fields status = first_block(read_text(root + "/proc/self/status"));
  std::optional<int64_t> cores = count_cpus(field(status, {"Cpus_allowed_list"}).value_or(""));
  if (!cores && root.empty()) cores = std::max(1u, std::thread::hardware_concurrency());
  if (cores && limit && *limit < static_cast<double>(*cores))
    cores = std::max<int64_t>(1, static_cast<int64_t>(std::floor(*limit)));
  return cores;
}

std::string compiler_name() {
#if defined(__clang__)
  return fmt::format("clang {}.{}", __clang_major__, __clang_minor__);
#elif defined(__GNUC__)
  return fmt::format("gcc {}.{}", __GNUC__, __GNUC_MINOR__);
#else
  return "unknown";
#endif
}

Value environment_of(const std::string& root) {
  Value environment = Value::object();
  const std::optional<double> limit = cpu_quota(root);
  if (const auto cores = usable_cores(root, limit)) environment["cores"] = *cores;
  environment["quota"] = limit ? Value(*limit) : Value();
  environment["compiler"] = compiler_name();
  environment["library"] = library_version();
  return environment;
}

}  // namespace

Device probe_cpu(const std::string& root) {
  const std::string base = root == "/" ? "" : root;
  Device device;
  device.identity = identity_of(base);
  device.environment = environment_of(base);
  device.fingerprint = detail::fingerprint_of(Platform::cpu, device.identity);
  return device;
}

const Device& cpu_device() {
  static const Device device = probe_cpu("/");
  return device;
}

int visible_cores() {
  const Value* cores = cpu_device().environment.find("cores");
  return cores == nullptr ? 1 : static_cast<int>(cores->as_int());
}

std::string_view library_version() { return EJK_VERSION; }

}  // namespace ejk
