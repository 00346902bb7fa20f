// SPDX-License-Identifier: Apache-2.0
// Labels in serialized HLO: a walk along the fields of its messages that can hold one.
//
// The numbers are those of xla/service/hlo.proto, which cannot change: files are kept with them.
#include <optional>

#include "offline/labels/labels.h"

namespace ejk::labels {

namespace {

namespace field {
constexpr uint64_t hlo_module = 1;            // of HloProto
constexpr uint64_t computations = 3;          // of HloModuleProto
constexpr uint64_t instructions = 2;          // of HloComputationProto
constexpr uint64_t metadata = 7;              // of HloInstructionProto
constexpr uint64_t backend_config = 43;       // of HloInstructionProto
constexpr uint64_t frontend_attributes = 68;  // of HloInstructionProto
constexpr uint64_t op_name = 2;               // of OpMetadata
constexpr uint64_t attribute_map = 1;         // of FrontendAttributes
constexpr uint64_t map_key = 1, map_value = 2;
}  // namespace field

// The fields of a message, one after the other.
class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  // False at the end, or where the bytes are not a message.
  bool next() {
    if (rest_.empty()) return false;
    const auto tag = varint();
    if (!tag || *tag >> 3 == 0) return fail();
    number = *tag >> 3;
    bytes = {};
    is_bytes = (*tag & 7) == 2;
    if (is_bytes) {
      const auto length = varint();
      if (!length || *length > rest_.size()) return fail();
      bytes = rest_.substr(0, *length);
      return skip(*length);
    }
    const uint64_t wire_type = *tag & 7;
    if (wire_type == 0) return varint() ? true : fail();
    if (wire_type == 1) return skip(8);
    if (wire_type == 5) return skip(4);
    return fail();  // groups, which no message of HLO has
  }
  bool valid() const { return valid_; }

  uint64_t number = 0;
  std::string_view bytes;
  bool is_bytes = false;

 private:
  bool fail() {
    valid_ = false;
    return false;
  }
  bool skip(size_t n) {
    if (n > rest_.size()) return fail();
    rest_.remove_prefix(n);
    return true;
  }
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }

  std::string_view rest_;
  bool valid_ = true;
};

// Calls visit(bytes) for each field of that number; false if the bytes are not a message or a visit
// says so.
template <class Visit>
bool for_each(std::string_view message, uint64_t number, Visit visit) {
  Fields fields(message);
  while (fields.next())
    if (fields.is_bytes && fields.number == number && !visit(fields.bytes)) return false;
  return fields.valid();
}

bool is_module(std::string_view message) {
  size_t computations = 0;
  const bool valid = for_each(message, field::computations, [&](std::string_view computation) {
    ++computations;
    return for_each(computation, field::instructions, [](std::string_view instruction) {
      return for_each(instruction, 0, [](std::string_view) { return true; });
    });
  });
  return valid && computations > 0;
}

void read_attribute(std::string_view entry, TextReader& names, Collector& to) {
  std::string_view key, value;
  Fields fields(entry);
  while (fields.next()) {
    if (fields.number == field::map_key) key = fields.bytes;
    if (fields.number == field::map_value) value = fields.bytes;
  }
  if (key == label_attribute) to.attribute(value);
  else names.read(value, 0, true);
}

void read_instruction(std::string_view instruction, TextReader& names, TextReader& configs,
                      Collector& to) {
  auto each_name = [&](std::string_view name) { return names.read(name, 0, true), true; };
  auto each_attribute = [&](std::string_view entry) {
    return read_attribute(entry, names, to), true;
  };
  Fields fields(instruction);
  while (fields.next()) {
    if (!fields.is_bytes) continue;
    if (fields.number == field::metadata) for_each(fields.bytes, field::op_name, each_name);
    if (fields.number == field::frontend_attributes)
      for_each(fields.bytes, field::attribute_map, each_attribute);
    if (fields.number == field::backend_config) configs.read(fields.bytes, 0, true);
  }
}

}  // namespace

bool read_hlo_proto(std::string_view bytes, Collector& to) {
  std::string_view module;
  if (is_module(bytes)) module = bytes;
  for_each(bytes, field::hlo_module, [&](std::string_view message) {
    if (is_module(message)) module = message;
    return true;
  });
  if (module.empty()) return false;
  TextReader names(Escapes::none, to);
  TextReader configs(Escapes::mlir, to);  // attributes of calls stand there as MLIR writes them
  for_each(module, field::computations, [&](std::string_view computation) {
    return for_each(computation, field::instructions, [&](std::string_view instruction) {
      return read_instruction(instruction, names, configs, to), true;
    });
  });
  return true;
}

}  // namespace ejk::labels
