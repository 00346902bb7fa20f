// SPDX-License-Identifier: Apache-2.0
// Labels in texts: in attributes, in names, in json stamps, undoing escapes.
//
// Every byte is looked at a bounded number of times: what was read is never read again but for the
// few bytes of a prefix.
#include <cstring>

#include "offline/labels/labels.h"

namespace ejk::labels {

namespace {

// Both begin so: one search finds the attribute and the default prefix.
constexpr std::string_view usual_beginning = "ejkernel_";
static_assert(default_prefix.starts_with(usual_beginning) &&
              label_attribute.starts_with(usual_beginning));

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_octal(char c) { return c >= '0' && c <= '7'; }

// Characters of a string as they were before it was written, up to its end.
class Unescaped {
 public:
  enum class End { not_yet, string, line, input };

  // A string inside a string has its escapes escaped once more.
  Unescaped(std::string_view text, size_t at, Escapes escapes, bool nested)
      : text_(text), at_(at), escapes_(escapes), nested_(nested) {}

  bool next(char& c) {
    if (!outer(c)) return false;
    if (!nested_) return true;
    if (c == '"') return stop(End::string);
    if (c != '\\') return true;
    char first, second;
    if (!outer(first)) return false;
    if (hex_digit(first) < 0) return c = letter(first), true;
    if (!outer(second)) return false;
    return c = byte_of(hex_digit(first), hex_digit(second)), true;
  }

  size_t at() const { return at_; }
  End end() const { return end_; }

 private:
  bool stop(End end) {
    end_ = end;
    return false;
  }
  static char letter(char c) { return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c; }
  static char byte_of(int high, int low) { return static_cast<char>(high * 16 + std::max(low, 0)); }

  bool outer(char& c) {
    if (at_ >= text_.size()) return stop(End::input);
    c = text_[at_++];
    if (escapes_ == Escapes::none) return is_control(c) ? stop(End::string) : true;
    if (c == '"') return stop(End::string);
    if (c == '\n') return stop(End::line);
    if (c != '\\') return true;
    const std::string_view rest = text_.substr(at_);
    if (rest.empty()) return stop(End::input);
    if (escapes_ == Escapes::mlir && rest.size() >= 2 && hex_digit(rest[0]) >= 0 &&
        hex_digit(rest[1]) >= 0) {
      c = byte_of(hex_digit(rest[0]), hex_digit(rest[1]));
      at_ += 2;
    } else if (escapes_ == Escapes::hlo && rest.size() >= 3 && is_octal(rest[0]) &&
               is_octal(rest[1]) && is_octal(rest[2])) {
      c = static_cast<char>((rest[0] - '0') * 64 + (rest[1] - '0') * 8 + (rest[2] - '0'));
      at_ += 3;
    } else {
      c = letter(rest[0]);
      ++at_;
    }
    return true;
  }

  std::string_view text_;
  size_t at_;
  Escapes escapes_;
  bool nested_;
  End end_ = End::not_yet;
};

bool begins_in_nested_string(std::string_view text, size_t at) {
  return at >= 2 && text[at - 1] == '"' && text[at - 2] == '\\';
}

std::string escaped(std::string_view text, Escapes escapes) {
  constexpr const char* hex = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte >= 0x20 && byte < 0x7f;
    if (c == '\\') out += "\\\\";
    else if (escapes == Escapes::mlir) {
      if (plain && c != '"') out += c;
      else out += {'\\', hex[byte >> 4], hex[byte & 15]};
    } else {
      if (c == '"' || c == '\'') out += {'\\', c};
      else if (plain) out += c;
      else
        out += {'\\', static_cast<char>('0' + (byte >> 6)),
                static_cast<char>('0' + (byte >> 3 & 7)), static_cast<char>('0' + (byte & 7))};
    }
  }
  return out;
}

// The place of a needle's rarest character in a text like HLO; it is what is searched for.
size_t rarest(std::string_view needle) {
  for (const char c : std::string_view("~^`$@?!QZXYjzqJKWVkvwUGH"))
    if (const size_t at = needle.find(c); at != needle.npos) return at;
  return 0;
}

// A colon and the digits of a key, at the end of what was read so far.
class KeyWatch {
 public:
  // True if this character is the last one of a key.
  bool saw(char c) {
    if (c == ':') digits_ = 0;
    else if (digits_ < 0) return false;
    else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))
      return ++digits_ == static_cast<int>(key_digits);
    else digits_ = -1;
    return false;
  }

 private:
  int digits_ = -1;  // since the colon
};

}  // namespace

Escapes escapes_of(std::string_view text) {
  const std::string_view head = text.substr(0, size_t{64} << 10);
  if (head.substr(0, 4096).find('\0') != head.npos) return Escapes::none;
  if (head.starts_with("HloModule") || head.find("\nHloModule") != head.npos) return Escapes::hlo;
  for (const char* word : {"stablehlo.", "mhlo.", "func.func", "module @", "#loc"})
    if (head.find(word) != head.npos) return Escapes::mlir;
  return Escapes::hlo;
}

TextReader::TextReader(Escapes escapes, Collector& to) : escapes_(escapes), to_(to) {
  auto search_for = [&](std::string text) {
    const size_t at = rarest(text);
    needles_.push_back({std::move(text), at});
  };
  search_for(std::string(usual_beginning));
  for (const std::string& prefix : to.prefixes()) {
    forms_.push_back({prefix, prefix});
    if (std::string other = escaped(prefix, escapes); escapes != Escapes::none && other != prefix)
      forms_.push_back({std::move(other), prefix});
  }
  for (const Form& form : forms_)
    if (!form.text.starts_with(usual_beginning)) search_for(form.text);
}

size_t TextReader::read(std::string_view text, size_t from, bool last) {
  for (Needle& needle : needles_) needle.known = false;
  size_t longest = 0;
  for (const Needle& needle : needles_) longest = std::max(longest, needle.text.size());
  while (true) {
    const size_t at = next_place(text, from);
    if (at == text.npos) break;
    if (!last && text.size() - at < window) return at;
    from = read_at(text, at);
  }
  if (last) return text.size();
  return std::max(from, text.size() - std::min(text.size(), longest));
}

// A search for one character is several times faster than one for a word.
size_t TextReader::find(const Needle& needle, std::string_view text, size_t from) {
  const char c = needle.text[needle.rarest];
  for (size_t i = from + needle.rarest; i < text.size(); ++i) {
    const void* at = std::memchr(text.data() + i, c, text.size() - i);
    if (at == nullptr) break;
    i = static_cast<size_t>(static_cast<const char*>(at) - text.data());
    const size_t begin = i - needle.rarest;
    if (text.compare(begin, needle.text.size(), needle.text) == 0) return begin;
  }
  return text.npos;
}

size_t TextReader::next_place(std::string_view text, size_t from) {
  size_t first = text.npos;
  for (Needle& needle : needles_) {
    if (!needle.known || (needle.next != text.npos && needle.next < from)) {
      needle.next = find(needle, text, from);
      needle.known = true;
    }
    first = std::min(first, needle.next);
  }
  return first;
}

// Returns where to go on, behind `at`.
size_t TextReader::read_at(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.starts_with(label_attribute)) return attribute_at(text, at);
  for (const Form& form : forms_) {
    if (!rest.starts_with(form.text)) continue;
    const std::string_view behind = rest.substr(form.text.size());
    if (behind.starts_with('#')) return name_at(text, at, form);
    if (behind.starts_with(":{")) return stamp_at(text, at, form);
  }
  return at + 1;
}

// ejkernel_label = "VALUE"
size_t TextReader::attribute_at(std::string_view text, size_t at) {
  size_t i = at + label_attribute.size();
  auto skip = [&](char c) { return i < text.size() && text[i] == c ? ++i, true : false; };
  while (skip(' ')) {
  }
  if (!skip('=')) return i;
  while (skip(' ')) {
  }
  skip('\\');
  if (!skip('"')) return i;
  const bool nested = begins_in_nested_string(text, i);
  const size_t body = i;

  const std::string_view near = text.substr(body, longest_label);
  const std::string_view plain = near.substr(0, std::min(near.find('"'), near.size()));
  const bool is_plain = plain.size() < near.size() && plain.find('\\') == plain.npos;
  if (is_plain && to_.again(Carrier::attribute, plain)) return body + plain.size() + 1;
  Unescaped value(text, body, escapes_, nested);
  unescaped_.clear();
  for (char c; value.next(c);) {
    unescaped_ += c;
    if (unescaped_.size() > longest_label) return value.at();
  }
  if (value.end() == Unescaped::End::line) return value.at();
  to_.attribute(unescaped_);
  if (is_plain) to_.remember(Carrier::attribute, plain);
  return value.at();
}

// PREFIX#OP:KEY, where nothing is escaped.
size_t TextReader::name_at(std::string_view text, size_t at, const Form& form) {
  const size_t body = at + form.text.size() + 1;
  const std::string_view near = text.substr(body, longest_label);
  if (const size_t colon = near.find(':'); colon != near.npos && colon + key_digits < near.size()) {
    const std::string_view whole = text.substr(at, body - at + colon + 1 + key_digits);
    if (to_.again(Carrier::name, whole)) return at + whole.size();
  }
  KeyWatch key;
  for (size_t i = 0; i < near.size(); ++i) {
    const char c = near[i];
    if (is_control(c) || c == '\\' || c == '"' || c == '#') break;
    if (!key.saw(c)) continue;
    const std::string_view whole = text.substr(at, body - at + i + 1);
    to_.name(form.prefix, near.substr(0, i - key_digits),
             near.substr(i + 1 - key_digits, key_digits));
    to_.remember(Carrier::name, whole);
    return body + i + 1;
  }
  return escaped_name_at(text, at, form);
}

size_t TextReader::escaped_name_at(std::string_view text, size_t at, const Form& form) {
  Unescaped name(text, at + form.text.size() + 1, escapes_, begins_in_nested_string(text, at));
  KeyWatch key;
  unescaped_.clear();
  for (char c; name.next(c);) {
    if (c == '#')
      if (const Form* another = form_before(text.substr(0, name.at() - 1)))
        return name.at() - 1 - another->text.size();
    unescaped_ += c;
    if (key.saw(c)) {
      const std::string_view whole = unescaped_;
      const size_t op = whole.size() - key_digits - 1;
      to_.name(form.prefix, whole.substr(0, op), whole.substr(op + 1));
      return name.at();
    }
    if (unescaped_.size() > longest_label) return name.at();
  }
  if (name.end() != Unescaped::End::line) to_.cut(form.prefix, unescaped_);
  return name.at();
}

const TextReader::Form* TextReader::form_before(std::string_view text) const {
  for (const Form& form : forms_)
    if (text.ends_with(form.text)) return &form;
  return nullptr;
}

// PREFIX:{"args":...}
size_t TextReader::stamp_at(std::string_view text, size_t at, const Form& form) {
  const size_t body = at + form.text.size() + 1;
  // In no string at all: then quotes belong to the json.
  const bool raw = text.substr(body).starts_with("{\"");
  Unescaped json(text, body, raw ? Escapes::none : escapes_, begins_in_nested_string(text, at));
  int depth = 0;
  bool in_string = false, after_backslash = false;
  unescaped_.clear();
  for (char c; json.next(c);) {
    unescaped_ += c;
    if (after_backslash) after_backslash = false;
    else if (in_string) {
      after_backslash = c == '\\';
      in_string = c != '"';
    } else if (c == '"') in_string = true;
    else if (c == '{' || c == '[') ++depth;
    else if (c == '}' || c == ']') --depth;
    if (depth == 0) break;
    if (unescaped_.size() > longest_stamp) return json.at();
  }
  to_.stamp(form.prefix, unescaped_);
  return json.at();
}

}  // namespace ejk::labels
