// SPDX-License-Identifier: Apache-2.0
// One file per program: checksum, a line of JSON, the driver's bytes
// (docs/reference/store_format.md).
#include "platform/program_files.h"

#include <unistd.h>

#include <string_view>

#include <ejk/error.h>
#include <ejk/store.h>
#include <ejk/value.h>

#include "base/digest.h"
#include "base/directory.h"
#include "base/warn.h"

namespace ejk::detail {
namespace {

using base::Absent;
using base::Directory;

constexpr int format = 2;
// Some 100 MB. A search leaves hundreds, of which a few are used again.
constexpr size_t max_files = 1024;
constexpr size_t read_limit = size_t{256} << 20;

void warn(const std::string& problem, const std::string& message) {
  static auto& once = *new base::OnceWarnings({});
  once(problem, message);
}

Directory programs_directory(Absent absent) {
  const Absent own = absent == Absent::made ? Absent::made_private : absent;
  return Directory::at(default_store_path(), absent, base::trust_from_environment())
      .below("programs", absent)
      .below(std::to_string(::geteuid()), own);
}

// Drivers run what is there.
bool is_safe(const Directory& in) {
  if (in.error()) return false;
  if (in.is_private()) return true;
  warn(in.path(), in.path() +
                      ": another user may write there, so no program is read or kept; "
                      "remove it, or `chmod go-w` what is yours");
  return false;
}

constexpr const char* suffix = ".program";
std::string file_of(const std::string& key) { return key + suffix; }

// Any of them can be made again, so it does not matter which ones go.
void make_room(const Directory& in) {
  in.remove_leftovers();
  if (in.names().size() < max_files) return;
  for (const std::string& name : in.some_names(suffix, max_files / 8))
    static_cast<void>(in.remove(name));
}

Value to_value(const KernelFacts& facts) {
  return Value::object({{"kernel", facts.kernel},
                        {"registers", facts.registers},
                        {"spilled_bytes", facts.spilled_bytes},
                        {"local_bytes", facts.local_bytes}});
}

const Value& member(const Value& object, std::string_view name) {
  if (const Value* found = object.find(name)) return *found;
  throw Error(ErrorKind::parse, "the member \"" + std::string(name) + "\" is missing");
}

KernelFacts facts_from(const Value& value) {
  return {member(value, "kernel").as_string(), member(value, "registers").as_int(),
          member(value, "spilled_bytes").as_int(), member(value, "local_bytes").as_int()};
}

std::string header_of(const std::string& key, const StoredProgram& program) {
  Value facts = Value::array(), kernels = Value::array();
  for (const KernelFacts& one : program.facts) facts.push_back(to_value(one));
  for (const std::string& name : program.kernels) kernels.push_back(name);
  return to_json(Value::object({{"format", format},
                                {"key", key},
                                {"kernels", std::move(kernels)},
                                {"facts", std::move(facts)}}));
}

// Throws Error(parse) for a header of another version or program.
StoredProgram parse(const std::string& key, std::string_view text) {
  const size_t end = text.find('\n');
  const Value header = parse_json(text.substr(0, end));
  if (end == text.npos || member(header, "format").as_int() != format ||
      member(header, "key").as_string() != key)
    throw Error(ErrorKind::parse, "not this program");
  StoredProgram out{std::string(text.substr(end + 1)), {}, {}};
  for (const Value& one : member(header, "facts").as_array()) out.facts.push_back(facts_from(one));
  for (const Value& name : member(header, "kernels").as_array())
    out.kernels.push_back(name.as_string());
  return out;
}

}  // namespace

bool programs_have_a_place() { return !default_store_path().empty(); }

std::optional<StoredProgram> read_program(const std::string& key) {
  if (!programs_have_a_place()) return std::nullopt;
  const Directory in = programs_directory(Absent::fails);
  if (!is_safe(in)) return std::nullopt;
  const base::FileText file = in.read(file_of(key), read_limit);
  const std::string_view text = file.text;
  const size_t line = text.find('\n');
  // Drivers do not survive every damage.
  if (file.error || file.strangers || line == text.npos ||
      base::digest_of(text.substr(line + 1)) != text.substr(0, line))
    return std::nullopt;
  try {
    return parse(key, text.substr(line + 1));
  } catch (const Error&) {
    return std::nullopt;  // of a later version, or another program's under this name
  }
}

void write_program(const std::string& key, const StoredProgram& program) {
  if (!programs_have_a_place()) return;
  const Directory in = programs_directory(Absent::made);
  if (!in.error() && !is_safe(in)) return;
  make_room(in);
  const std::string text = header_of(key, program) + "\n" + program.binary;
  const auto error =
      in.replace(file_of(key), base::digest_of(text) + "\n" + text, in, base::Written::unflushed);
  if (error) warn(in.path(), "device programs are not kept for later processes: " + error.text());
}

}  // namespace ejk::detail
