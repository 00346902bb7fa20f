// SPDX-License-Identifier: Apache-2.0
#include "accesses.h"

#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "platform/cuda/driver_api.h"

namespace emulated {

Accesses::Accesses(Block& block, const Memory& memory, const ModuleTable& module,
                   std::span<const std::byte> parameters, std::string file)
    : block_(block),
      memory_(memory),
      module_(module),
      parameters_(parameters),
      file_(std::move(file)),
      shared_(static_cast<size_t>(module.shared_end - module.shared_begin)) {}

namespace {
bool within(const void* at, size_t bytes, const void* begin, const void* end) {
  return begin <= at && static_cast<const char*>(at) + bytes <= end;
}
}  // namespace

void Accesses::check(const void* at, size_t bytes, Access access, const void* code) {
  if (within(at, bytes, module_.shared_begin, module_.shared_end)) {
    const size_t thread = block_.thread();
    const Use use = {block_.barriers(), block_.exchanges(thread), code,
                     static_cast<uint32_t>(thread + 1), access == Access::atomic};
    const auto first = static_cast<size_t>(static_cast<const char*>(at) - module_.shared_begin);
    for (size_t i = 0; i < bytes; ++i) check_race(shared_[first + i], use, access);
    return;
  }
  if (memory_.holds(reinterpret_cast<uintptr_t>(at), bytes) || block_.on_stack(at)) return;
  if (within(at, bytes, module_.image_begin, module_.image_end)) return;
  if (within(at, bytes, parameters_.data(), parameters_.data() + parameters_.size())) return;
  block_.fail(outside(bytes, access, code));
}

// Whether the threads have waited for each other in between.
bool Accesses::in_order(const Use& before, const Use& now) const {
  if (before.thread == 0 || before.thread == now.thread || before.barriers != now.barriers)
    return true;
  const bool same_warp = (before.thread - 1) / warp_size == (now.thread - 1) / warp_size;
  return same_warp && before.exchanges < now.exchanges;
}

void Accesses::check_race(Byte& byte, const Use& use, Access access) {
  const bool atomics = byte.writer.atomic && use.atomic;
  if (!atomics && !in_order(byte.writer, use))
    block_.fail(race(byte.writer, "wrote", use, access == Access::read ? "reads" : "writes over"));
  if (access == Access::read) {
    if (byte.reader.thread != use.thread) byte.other_reader = byte.reader;
    byte.reader = use;
    return;
  }
  for (const Use& reader : {byte.reader, byte.other_reader})
    if (!in_order(reader, use)) block_.fail(race(reader, "read", use, "writes over"));
  byte.writer = use;
}

// ---- what was found. Made in functions that return: those who fail never do, and free nothing.

Fault Accesses::outside(size_t bytes, Access access, const void* code) const {
  return {ejk::detail::cuda::illegal_address,
          fmt::format("{}: {} {} bytes outside of all memory of the device", line_of(code),
                      access == Access::read ? "reads" : "writes", bytes)};
}

Fault Accesses::race(const Use& before, const char* did, const Use& now, const char* does) const {
  return {ejk::detail::cuda::launch_failed,
          fmt::format("{}: thread {} {} what thread {} {} in {}, with no barrier in between",
                      line_of(now.code), now.thread - 1, does, before.thread - 1, did,
                      line_of(before.code))};
}

// "saxpy.cl:12", as the compiler of the kernel left it in the module.
std::string Accesses::line_of(const void* code) const {
  const auto offset =
      static_cast<const char*>(code) - module_.image_begin - 1;  // of the call itself
  const std::string command = fmt::format("addr2line -e {} {:#x}", file_, offset);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  char line[512] = "";
  if (pipe == nullptr || fgets(line, sizeof line, pipe.get()) == nullptr) return "unknown line";
  std::string text = line;
  text.erase(text.find_last_not_of(" \n") + 1);
  if (const size_t note = text.find(" (discriminator"); note != std::string::npos) text.erase(note);
  return text.substr(text.rfind('/') + 1);
}

}  // namespace emulated
