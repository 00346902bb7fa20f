// SPDX-License-Identifier: Apache-2.0
// Characters of strings, and texts of others as they may be shown.
#include "base/text.h"

#include "base/format.h"

namespace ejk::base {
namespace {

bool harmless(uint32_t c) {
  if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;  // control characters
  if (c >= 0x200b && c <= 0x200f) return false;           // invisible, or of direction
  if (c >= 0x2028 && c <= 0x202e) return false;           // line ends, direction
  if (c >= 0x2060 && c <= 0x206f) return false;           // the same
  return c != 0xfeff && c != 0x61c && !(c >= 0xfff9 && c <= 0xfffb) && c < 0xe0000;
}

bool inside_character(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.is_stray_byte()) out += fmt::format("\\x{:02x}", c.code & 0xff);
    else if (harmless(c.code)) out += text.substr(at, c.bytes);
    else if (c.code == '\n') out += "\\n";
    else if (c.code == '\t') out += "\\t";
    else if (c.code < 0x100) out += fmt::format("\\x{:02x}", c.code);
    else out += fmt::format("\\u{:04x}", c.code);
    at += c.bytes;
  }
  return out;
}

std::string one_line(std::string_view message) {
  std::string text = printable(message);
  if (text.size() <= longest_line) return text;
  size_t head = longest_line / 2;
  while (inside_character(text[head])) --head;
  const std::string mark = fmt::format(" ... [cut, {} bytes in all] ... ", text.size());
  size_t tail = text.size() - (longest_line - head - mark.size());
  while (inside_character(text[tail])) ++tail;
  return text.substr(0, head) + mark + text.substr(tail);
}

}  // namespace ejk::base
