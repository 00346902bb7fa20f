// SPDX-License-Identifier: Apache-2.0
// The labels of lowered computations, whatever form they are in, and what is known for them.
#include <ejk/labels.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>

#include <ejk/config.h>
#include <ejk/error.h>

#include "base/file.h"
#include "offline/labels/labels.h"

namespace ejk {

namespace {

namespace fs = std::filesystem;
using labels::Collector;
using labels::Escapes;

std::string format_of(Escapes escapes) {
  return escapes == Escapes::mlir  ? "StableHLO text"
         : escapes == Escapes::hlo ? "HLO text"
                                   : "bytes";
}

// Texts have no other control characters than these; serialized messages have some at their start.
bool is_binary(std::string_view head) {
  return std::ranges::any_of(head.substr(0, 4096), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' && c != '\r' &&
           c != '\f' && c != '\v';
  });
}

FoundLabels from_text(std::string_view text, Escapes escapes, const LabelOptions& options) {
  Collector found(options);
  labels::TextReader(escapes, found).read(text, 0, true);
  return {format_of(escapes), found.take(), {}};
}

FoundLabels from_bytes(std::string_view bytes, const LabelOptions& options) {
  Collector found(options);
  if (labels::read_hlo_proto(bytes, found)) return {"HLO proto", found.take(), {}};
  return from_text(bytes, Escapes::none, options);
}

// ---- files --------------------------------------------------------------------------------------

[[noreturn]] void cannot_read(const std::string& path, int code) {
  throw Error(ErrorKind::io, "cannot read labels from " + path + ": " + std::strerror(code));
}

// Fills the buffer as far as the file goes.
size_t fill(const base::Fd& file, char* to, size_t size, const std::string& path) {
  size_t filled = 0;
  while (filled < size) {
    const ssize_t n = ::read(file.get(), to + filled, size - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) cannot_read(path, errno);
    if (n == 0) break;
    filled += static_cast<size_t>(n);
  }
  return filled;
}

// A text of any length goes through a buffer that stays in the processor's cache.
FoundLabels from_text_file(const base::Fd& file, const std::string& path,
                           std::unique_ptr<char[]> buffer, size_t capacity, size_t filled,
                           const LabelOptions& options) {
  using labels::TextReader;
  Collector found(options);
  const Escapes escapes = labels::escapes_of({buffer.get(), filled});
  TextReader reader(escapes, found);
  size_t from = 0;
  while (true) {
    const bool last = filled < capacity;
    const size_t done = reader.read({buffer.get(), filled}, from, last);
    if (last) break;
    const size_t kept = done - std::min(done, TextReader::context);
    std::memmove(buffer.get(), buffer.get() + kept, filled - kept);
    from = done - kept;
    filled -= kept;
    filled += fill(file, buffer.get() + filled, capacity - filled, path);
  }
  return {format_of(escapes), found.take(), {}};
}

// No serialized message is larger: stop reading something that never ends.
constexpr size_t largest_proto = size_t{2} << 30;

FoundLabels from_file(const std::string& path, const LabelOptions& options) {
  const base::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) cannot_read(path, errno);
  constexpr size_t capacity = size_t{1} << 20;
  static_assert(capacity > 2 * labels::TextReader::window);
  auto buffer = std::make_unique_for_overwrite<char[]>(capacity);
  const size_t filled = fill(file, buffer.get(), capacity, path);
  if (!is_binary({buffer.get(), filled}))
    return from_text_file(file, path, std::move(buffer), capacity, filled, options);
  std::string bytes(buffer.get(), filled);
  for (size_t n = filled; n == capacity; bytes.append(buffer.get(), n)) {
    if (bytes.size() > largest_proto) cannot_read(path, EFBIG);
    n = fill(file, buffer.get(), capacity, path);
  }
  return from_bytes(bytes, options);
}

// ---- dump folders -------------------------------------------------------------------------------

bool is_dump(const std::string& name) {
  for (const char* ending : {".mlir", ".txt", ".hlo", ".pb"})
    if (name.ends_with(ending)) return true;
  return false;
}

// Files of one module, "module_0009.jit_f.before_optimizations.txt", tell of the same instructions.
std::string module_of(const std::string& name) {
  return name.starts_with("module_") ? name.substr(0, name.find('.')) : name;
}

FoundLabels from_folder(const std::string& path, const LabelOptions& options) {
  FoundLabels out;
  out.format = "dump folder";
  std::map<std::string, size_t> places;
  std::string module;
  std::map<std::string, uint64_t> most;  // of the module's labels
  auto end_module = [&] {
    for (const auto& [text, count] : most) out.labels[places[text]].count += count;
    most.clear();
  };
  size_t files = 0;
  for (const std::string& name : base::list_directory(path)) {
    std::error_code ignored;
    const std::string file = path + "/" + name;
    if (!is_dump(name) || !fs::is_regular_file(file, ignored)) continue;
    ++files;
    if (module_of(name) != module) end_module(), module = module_of(name);
    try {
      for (Label& label : from_file(file, options).labels) {
        auto& count = most[label.text];
        count = std::max(count, label.count);
        if (!places.try_emplace(label.text, out.labels.size()).second) continue;
        label.count = 0;
        out.labels.push_back(std::move(label));
      }
    } catch (const Error& error) {
      out.notes.push_back(error.what());
    }
  }
  end_module();
  if (files == 0) out.notes.push_back("there is no .mlir, .txt, .hlo or .pb file in " + path);
  return out;
}

void add_notes(FoundLabels& found) {
  const auto is_xlas = [](const Label& label) { return label.truncated && cut_by_xla(label); };
  const auto cut = std::ranges::count_if(found.labels, &Label::truncated);
  const auto by_xla = std::ranges::count_if(found.labels, is_xlas);
  const auto count = [](auto n) {
    return std::to_string(n) + (n == 1 ? " label is truncated" : " labels are truncated");
  };
  if (by_xla > 0)
    found.notes.push_back(count(by_xla) + ": XLA cuts names at '@'; the frontend attribute " +
                          std::string(label_attribute) + " keeps them whole");
  if (cut > by_xla)
    found.notes.push_back(count(cut - by_xla) + " in the middle: the file was cut off");
}

}  // namespace

bool cut_by_xla(const Label& label) { return label.op.find_first_of("@%:") == label.op.npos; }

FoundLabels find_labels(std::string_view lowered, const LabelOptions& options) {
  FoundLabels out = is_binary(lowered) ? from_bytes(lowered, options)
                                       : from_text(lowered, labels::escapes_of(lowered), options);
  add_notes(out);
  return out;
}

FoundLabels find_labels_in(const std::string& path, const LabelOptions& options) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (error && status.type() != fs::file_type::not_found) cannot_read(path, error.value());
  if (!fs::exists(status)) cannot_read(path, ENOENT);
  FoundLabels out =
      fs::is_directory(status) ? from_folder(path, options) : from_file(path, options);
  add_notes(out);
  return out;
}

std::vector<std::pair<Label, AnyConfig>> labels_to_configs(const ConfigSelectorChain& selector,
                                                           std::string_view lowered,
                                                           const LabelOptions& options) {
  std::vector<std::pair<Label, AnyConfig>> out;
  const std::string& device = cpu_device().fingerprint;
  for (Label& label : find_labels(lowered, options).labels) {
    if (label.truncated) continue;
    AnyConfig config;
    if (auto kept = selector.cache().get(device, label.op, label.key)) config = std::move(*kept);
    else if (PersistentCache* store = selector.persistent())
      if (auto stored = store->get({device, label.op, label.key, {}}, Detail::choice);
          stored && stored->entry.outcome != Outcome::failed)
        config = make_config(Value(stored->entry.config));
    out.emplace_back(std::move(label), std::move(config));
  }
  return out;
}

}  // namespace ejk
