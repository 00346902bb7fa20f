// SPDX-License-Identifier: Apache-2.0
#include "store/entry_file.h"

#include <algorithm>
#include <utility>

#include <ejk/error.h>

#include "store/checksum.h"

namespace ejk::detail {
namespace {

constexpr const char* candidates_name = "candidates";
constexpr const char* wrong_checksum =
    "its checksum is wrong; to have an edited entry read, remove the member \"checksum\" from it";

std::string document_text(const Value& document, bool with_checksum_too) {
  std::string text = to_json(document, 1) + "\n";
  return with_checksum_too ? with_checksum(std::move(text)) : text;
}

bool is_newer_schema(const Value& document) {
  const Value* schema = document.find("schema");
  return schema != nullptr && schema->is_int() && schema->as_double() > entry_schema;
}

// Puts them into the document. False without their checksum; throws Error(parse) if they are not
// what was written.
bool add_candidates(std::string_view text, Value& document) {
  Value own = parse_json(text);
  Value* const list = own.is_object() ? own.find(candidates_name) : nullptr;
  const Checksum checksum = checksum_of(text, own);
  if (checksum == Checksum::wrong) throw Error(ErrorKind::parse, "their checksum is wrong");
  if (list == nullptr)
    throw Error(ErrorKind::parse, "what follows the entry is not a list of candidates");
  document[candidates_name] = std::move(*list);
  return checksum == Checksum::right;
}

}  // namespace

base::OrWhy<std::string> entry_text(const Entry& entry) {
  Value choice = entry_to_document(entry);
  Value candidates = Value::object({{candidates_name, std::move(*choice.find(candidates_name))}});
  choice.erase(candidates_name);
  std::string text = document_text(choice, entry.trusted);
  if (!entry.candidates.empty()) text += document_text(candidates, entry.trusted);
  if (text.size() > max_entry_bytes) return base::Why{"it is larger than 16 MiB"};
  const ReadEntry back = read_entry(text, Detail::all);
  if (std::string why = back.why + back.no_candidates; !why.empty())
    return base::Why{std::move(why)};
  return text;
}

ReadEntry read_entry(std::string_view text, Detail detail) {
  using enum ReadEntry::Status;
  const size_t end = text.find(end_of_document);
  const std::string_view choice =
      text.substr(0, end == text.npos ? end : end + end_of_document.size());
  const std::string_view behind = text.substr(choice.size());
  try {
    Value document = parse_json(choice);
    const Checksum checksum = checksum_of(choice, document);
    const bool wrong = checksum == Checksum::wrong;
    if (is_newer_schema(document)) {
      if (wrong) return {altered, {}, wrong_checksum};  // a flipped bit makes 3 of 1
      return {newer,
              {},
              "it was written by a newer version (schema " + stable_json(*document.find("schema")) +
                  ")"};
    }
    if (detail == Detail::choice && document.is_object()) document.erase(candidates_name);
    ReadEntry out{entry};
    bool trusted = checksum == Checksum::right;
    if (detail == Detail::all && !behind.empty()) try {
        trusted &= add_candidates(behind, document);
        out.entry = entry_from_document(document);
      } catch (const Error& problem) {
        out.no_candidates = problem.what();
        document.erase(candidates_name);
      }
    if (!out.entry) out.entry = entry_from_document(document);
    if (wrong) return {altered, {}, wrong_checksum};
    out.entry->trusted = out.no_candidates.empty() ? trusted : checksum == Checksum::right;
    return out;
  } catch (const Error& problem) {
    return {broken, {}, problem.what()};
  }
}

}  // namespace ejk::detail
