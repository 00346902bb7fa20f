// SPDX-License-Identifier: Apache-2.0
// What the readers of lowered computations share: where they put the labels they find.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ejk/labels.h>

namespace ejk::labels {

inline constexpr size_t key_digits = 16;
inline constexpr std::string_view default_prefix = "ejkernel_ops";
// No op id is longer; a text that goes on without a key is not a label.
inline constexpr size_t longest_label = size_t{8} << 10;
// json stamps hold the whole call.
inline constexpr size_t longest_stamp = size_t{64} << 10;

bool is_key(std::string_view text);

// Where a label was found: on an instruction, or in a name.
enum class Carrier : uint8_t { attribute, name };

// Every label once, with its count, in the order in which they came.
class Collector {
 public:
  explicit Collector(const LabelOptions& options);

  // Without '#', the default first.
  const std::vector<std::string>& prefixes() const { return prefixes_; }

  // The whole value of an attribute.
  void attribute(std::string_view value);
  // A complete label in a name. Op and key as they stand there.
  void name(std::string_view prefix, std::string_view op, std::string_view key);
  // What is left of a label that was cut off.
  void cut(std::string_view prefix, std::string_view op);
  // The object of a json stamp, or what is left of one.
  void stamp(std::string_view prefix, std::string_view json);

  // The same text again: true if it was counted. `remember` is told what the text turned out to be.
  bool again(Carrier carrier, std::string_view text);
  void remember(Carrier carrier, std::string_view text);

  std::vector<Label> take();

 private:
  struct Found {
    Label label;
    uint64_t attributes = 0, names = 0;
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  using Index = std::unordered_map<std::string, size_t, Hash, std::equal_to<>>;
  void add(Carrier carrier, Label label);

  std::vector<std::string> prefixes_;
  std::vector<Found> found_;
  Index by_text_, attributes_, names_;  // the last two by the text as it stands in the file
  size_t last_ = none;                  // what the last addition was counted for
  static constexpr size_t none = SIZE_MAX;
};

// ---- text -------------------------------------------------------------------------------------

enum class Escapes : uint8_t {
  mlir,  // \22: two hex digits
  hlo,   // \042 and \n: as in C
  none,  // bytes; strings end with a control character
};

// Reads texts piece by piece.
class TextReader {
 public:
  TextReader(Escapes escapes, Collector& to);

  // Looks for labels from `from` on. Returns how far it came: unless this was the `last` piece, the
  // rest must be passed again with more behind it and `context` bytes before it.
  size_t read(std::string_view text, size_t from, bool last);
  static constexpr size_t context = 2;
  // More than a label can be long as it stands in a text, all of it escaped.
  static constexpr size_t window = 5 * longest_stamp;

 private:
  // A prefix as it may stand in a text.
  struct Form {
    std::string text;
    std::string prefix;
  };
  // What to search for, and where it is next.
  struct Needle {
    std::string text;
    size_t rarest = 0;
    size_t next = 0;
    bool known = false;
  };
  static size_t find(const Needle& needle, std::string_view text, size_t from);
  size_t next_place(std::string_view text, size_t from);
  size_t read_at(std::string_view text, size_t at);
  size_t attribute_at(std::string_view text, size_t at);
  size_t name_at(std::string_view text, size_t at, const Form& form);
  size_t escaped_name_at(std::string_view text, size_t at, const Form& form);
  size_t stamp_at(std::string_view text, size_t at, const Form& form);
  const Form* form_before(std::string_view text) const;

  Escapes escapes_;
  Collector& to_;
  std::vector<Form> forms_;
  std::vector<Needle> needles_;
  std::string unescaped_;
};

// Which escapes a text has, by its beginning.
Escapes escapes_of(std::string_view text);

// ---- serialized HLO -----------------------------------------------------------------------------

// True if this is a serialized HloModuleProto or HloProto that could be read to its end; else
// nothing was collected.
bool read_hlo_proto(std::string_view bytes, Collector& to);

}  // namespace ejk::labels
