// SPDX-License-Identifier: Apache-2.0
#include "store/outbox.h"

#include <ejk/error.h>
#include <ejk/value.h>

#include "base/directory.h"

namespace ejk::detail {
namespace {

using base::Absent;
using base::Directory;

constexpr const char* outbox_folder = "outbox";
constexpr std::string_view note_suffix = ".json";
constexpr size_t max_notes = 10'000, max_note_bytes = size_t{1} << 20;

Directory open(const std::string& store, Absent absent) {
  return Directory::at(store, absent, base::trust_from_environment()).below(outbox_folder, absent);
}

std::optional<Outbox::Note> read_note(const std::string& name, const std::string& text) {
  try {
    const Value value = parse_json(text);
    const auto word = [&](const char* member) {
      const Value* found = value.is_object() ? value.find(member) : nullptr;
      return found == nullptr ? throw Error(ErrorKind::parse, "no note") : found->as_string();
    };
    const Value* replace = value.find("replace");
    const Value* environment = value.find("environment");
    return Outbox::Note{
        name,
        {word("device"), word("op"), word("key"), word("spec")},
        replace != nullptr && replace->as_bool() ? IfPresent::replace : IfPresent::keep_better,
        environment == nullptr ? std::string() : environment->as_string()};
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::string Outbox::add(const Entry& entry, IfPresent if_present) const {
  const Directory out = open(store_, Absent::made);
  const Directory temporary = Directory::at(store_, Absent::made, base::trust_from_environment())
                                  .below("tmp", Absent::made);
  const std::string name = base::random_digits().append(note_suffix);
  const Value note = Value::object({{"device", entry.id.device},
                                    {"op", entry.id.op},
                                    {"key", entry.id.key},
                                    {"spec", entry.id.spec},
                                    {"environment", environment_id(entry)},
                                    {"replace", if_present == IfPresent::replace}});
  if (out.error() || temporary.error() || name == note_suffix) return "";
  // Not flushed: a machine that stops loses the note, not the entry, and `ejk store push --all`
  // sends that too.
  return out.replace(name, stable_json(note), temporary, base::Written::unflushed) ? "" : name;
}

void Outbox::remove(const std::string& name) const {
  if (!name.empty()) static_cast<void>(!open(store_, Absent::fails).remove(name));
}

std::vector<Outbox::Note> Outbox::notes() const {
  const Directory out = open(store_, Absent::fails);
  std::vector<Note> notes;
  if (out.error()) return notes;
  for (const std::string& name : out.some_names(note_suffix, max_notes)) {
    const auto read = out.read(name, max_note_bytes);
    if (read.error) continue;  // another process has sent it, or a later one can read it
    if (auto note = read_note(name, read.text)) notes.push_back(std::move(*note));
    else static_cast<void>(!out.remove(name));
  }
  return notes;
}

bool Outbox::empty() const {
  const Directory out = open(store_, Absent::fails);
  return out.error() || out.some_names(note_suffix, 1).empty();
}

}  // namespace ejk::detail
