// SPDX-License-Identifier: Apache-2.0
// Labels: which calls a lowered computation holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/invocation.h>
#include <ejk/selector.h>

namespace EJK_EXPORT ejk {

// A label says which call an instruction came from: "PREFIX#OP:KEY", see make_label. It travels as
// the HLO frontend attribute `ejkernel_label`, which every form of a computation keeps, and beside
// it as a scope name for profilers. XLA cuts scope names at '@', so that one is written without.

// The frontend attribute's name.
inline constexpr std::string_view label_attribute = "ejkernel_label";
// The same label as a scope name: '%' in the place of '@'.
std::string scope_label(std::string_view label);

// What a label is made of.
struct LabelParts {
  std::string prefix;  // without '#'
  std::string op;      // "name@vVERSION"; without a version if the label has none
  std::string key;     // 16 hex digits
};
// The parts of a text that is one label and nothing else, in either spelling. Empty for any other
// text.
std::optional<LabelParts> parse_label(std::string_view label);

// A label that was found, and how often.
struct Label {
  std::string text;             // "PREFIX#OP:KEY"; what is there of it if it is truncated
  std::string prefix, op, key;  // its parts, as far as they are there
  bool truncated = false;       // cut off, by XLA at '@' or by the end of the file: it has no key
  // How many instructions carry the attribute; without one, how often the name is there. In a dump
  // folder that of the file of each module that has most, summed over the modules.
  uint64_t count = 0;
};

// Of a truncated label: whether it ends where XLA cuts names, before '@'. Else the text itself ends
// in it.
bool cut_by_xla(const Label& label);

// What to look for.
struct LabelOptions {
  // Further prefixes to look for in scope names, with or without '#'. The attribute is found
  // whatever its label begins with.
  std::vector<std::string> prefixes = {};
};

// All labels of one computation.
struct FoundLabels {
  std::string format;         // "StableHLO text", "HLO text", "HLO proto", "bytes", "dump folder"
  std::vector<Label> labels;  // each once, in the order of the file
  std::vector<std::string> notes;  // what could not be read, and why
};

// The labels in a lowered computation: StableHLO text, HLO text before or after optimisation, a
// serialized HloModuleProto or HloProto, or any other bytes (MLIR bytecode, an export). Escapes are
// undone; upstream's names and its json stamps are understood. Never throws for what is in the text
// and takes time in proportion to its length.
FoundLabels find_labels(std::string_view lowered, const LabelOptions& options = {});
// The same for a file, or for all files of a folder that --xla_dump_to made. Throws Error(io) if
// there is no such file or folder, or it cannot be read.
FoundLabels find_labels_in(const std::string& path, const LabelOptions& options = {});

// Every complete label of a lowered computation with the config this selector holds for it on this
// device, in memory or on disk; an empty config if it holds none. Tunes nothing.
std::vector<std::pair<Label, AnyConfig>> labels_to_configs(const ConfigSelectorChain& selector,
                                                           std::string_view lowered,
                                                           const LabelOptions& options = {});

}  // namespace ejk
