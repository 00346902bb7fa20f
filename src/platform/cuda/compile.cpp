// SPDX-License-Identifier: Apache-2.0
// Compiles with NVRTC and reads its log.
#include "platform/cuda/compile.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/format.h"
#include "platform/build_log.h"
#include "platform/cuda/library.h"

namespace ejk::detail::cuda {
namespace {

using Kind = DeviceError::Kind;

// -v: registers, spills and shared memory go to the log. 177: the dialect has functions that a
// source does not use.
std::vector<std::string> options_for(int arch) {
  return {fmt::format("--gpu-architecture=sm_{}", arch), "--std=c++17", "--ptxas-options=-v",
          "--diag-suppress=177"};
}

class OwnedProgram {
 public:
  OwnedProgram(const std::string& name, const std::string& source) : name_(name) {
    check_nvrtc(
        nvrtc().nvrtcCreateProgram(&program_, source.c_str(), name.c_str(), 0, nullptr, nullptr));
  }
  ~OwnedProgram() { nvrtc().nvrtcDestroyProgram(&program_); }
  OwnedProgram(const OwnedProgram&) = delete;
  OwnedProgram& operator=(const OwnedProgram&) = delete;

  NvrtcStatus compile(const std::vector<std::string>& options) const {
    std::vector<const char*> words;
    for (const std::string& option : options) words.push_back(option.c_str());
    return nvrtc().nvrtcCompileProgram(program_, static_cast<int>(words.size()), words.data());
  }
  std::string log() const {
    std::string log = read(nvrtc().nvrtcGetProgramLogSize, nvrtc().nvrtcGetProgramLog);
    std::ranges::replace(log, '\0',
                         '\n');  // what ptxas says comes behind the end of the first text
    log.resize(log.find_last_not_of('\n') + 1);  // npos + 1 is nothing
    return log;
  }
  std::string cubin() const { return read(nvrtc().nvrtcGetCUBINSize, nvrtc().nvrtcGetCUBIN); }

  void check_nvrtc(NvrtcStatus status) const {
    if (status == NvrtcStatus::success) return;
    throw DeviceError(status == NvrtcStatus::out_of_memory ? Kind::out_of_memory : Kind::other,
                      fmt::format("[{}] NVRTC says error {}", name_, static_cast<int>(status)));
  }

 private:
  std::string read(auto size_of, auto copy) const {
    size_t bytes = 0;
    check_nvrtc(size_of(program_, &bytes));
    std::string text(bytes, '\0');
    check_nvrtc(copy(program_, text.data()));
    return text;
  }
  const std::string& name_;
  Program program_ = nullptr;
};

// The number before `unit` in "Used 17 registers, 16896 bytes smem".
int64_t number_before(std::string_view line, std::string_view unit) {
  const size_t end = line.find(unit);
  if (end == line.npos) return 0;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int64_t value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

std::optional<std::string_view> between(std::string_view line, std::string_view before,
                                        char after) {
  const size_t at = line.find(before);
  if (at == line.npos) return std::nullopt;
  line.remove_prefix(at + before.size());
  return line.substr(0, line.find(after));
}

}  // namespace

std::string options_text(int arch) { return fmt::format("{}", fmt::join(options_for(arch), " ")); }

Cubin compile(const std::string& name, const std::string& source, int arch) {
  const OwnedProgram program(name, source);
  const NvrtcStatus status = program.compile(options_for(arch));
  std::string log = program.log();
  if (status == NvrtcStatus::compilation || status == NvrtcStatus::invalid_option)
    throw DeviceError(Kind::build, fmt::format("[{}] NVRTC says: {}", name, first_error(log)), log);
  program.check_nvrtc(status);
  std::vector<KernelFacts> facts = facts_of(log);
  return {program.cubin(), std::move(log), std::move(facts)};
}

// Lines of a kernel follow the one that names it; those of spills only if it has a stack.
std::vector<KernelFacts> facts_of(std::string_view log) {
  std::vector<KernelFacts> facts;
  while (!log.empty()) {
    const size_t end = std::min(log.find('\n'), log.size());
    const std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (const auto name = between(line, "Compiling entry function '", '\''))
      facts.push_back({.kernel = std::string(*name)});
    if (facts.empty()) continue;
    KernelFacts& now = facts.back();
    if (line.find(" bytes spill stores") != line.npos)
      now.spilled_bytes = number_before(line, " bytes spill stores");
    if (line.find(" registers") == line.npos) continue;
    now.registers = number_before(line, " registers");
    now.local_bytes = number_before(line, " bytes smem");
  }
  return facts;
}

}  // namespace ejk::detail::cuda
