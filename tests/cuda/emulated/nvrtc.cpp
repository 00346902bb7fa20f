// SPDX-License-Identifier: Apache-2.0
// NVRTC of the emulation: its "cubins" are shared objects that the host's compiler makes.
#include "platform/cuda/nvrtc_api.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "failures.h"
#include "seam.h"

using ejk::detail::cuda::NvrtcStatus;
using ejk::detail::cuda::Program;

struct ejk::detail::cuda::ProgramTag {
  std::string source, name, log, cubin;
  NvrtcStatus status = NvrtcStatus::success;
};

namespace {

namespace fs = std::filesystem;
constexpr size_t max_shared_bytes = 48 << 10;  // of __shared__ variables, as ptxas has it

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

std::string quoted(const std::string& word) {
  return "'" + std::regex_replace(word, std::regex("'"), "'\\''") + "'";
}

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "emulated_cuda_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Folder() { fs::remove_all(path); }
};

struct Options {
  std::string macros;
  int arch = 0;
  std::string unknown;
};

Options read_options(int count, const char* const* options) {
  static const char* const without_effect[] = {
      "--ptxas-options=", "--std=", "--fmad=", "--restrict", "--diag-suppress="};
  Options result;
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i];
    if (option.starts_with("-D")) result.macros += " " + quoted(option);
    else if (std::sscanf(option.c_str(), "--gpu-architecture=sm_%d", &result.arch) == 1) continue;
    else if (std::ranges::none_of(without_effect, [&](auto o) { return option.starts_with(o); }))
      result.unknown = option;
  }
  return result;
}

struct FoundKernel {
  std::string name, bounds;  // bounds: __launch_bounds__(...), if it has one
};

// Of a text without macros.
std::vector<FoundKernel> kernels_of(const std::string& source) {
  static const std::regex pattern(R"(__global__\b([^;{}]*?)\bvoid\s+(\w+)\s*\()");
  std::vector<FoundKernel> found;
  for (std::sregex_iterator at(source.begin(), source.end(), pattern), end; at != end; ++at)
    found.push_back({(*at)[2], (*at)[1]});
  return found;
}

// The source with what makes it C++ in front, and a table of its kernels behind.
std::string translated(const ejk::detail::cuda::ProgramTag& program, int arch,
                       const std::vector<FoundKernel>& kernels) {
  std::string text =
      fmt::format("#include \"{}/device_code.h\"\n#line 1 \"{}\"\n{}\n#line 1 \"table\"\n",
                  EMULATED_CUDA_SOURCES, program.name, program.source);
  text += "#undef __launch_bounds__\n#define __launch_bounds__(most, ...) , int(most)\n";
  text += "static const emulated::Kernel emulated_kernels[] = {\n";
  for (const auto& [name, bounds] : kernels)
    text += fmt::format(
        "  decltype(emulated::captured(&{0}))::describe<&{0}>(\"{0}\", emulated::last_of({{1024 "
        "{1}}})),\n",
        name, bounds);
  text += fmt::format(R"(}};
extern "C" __attribute__((weak, visibility("hidden"))) char __start_emulated_shared[], __stop_emulated_shared[];
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start[], _end[];
extern "C" __attribute__((visibility("default"))) const emulated::ModuleTable {} = {{
  &emulated_driver, {}, emulated_kernels, {}, __start_emulated_shared, __stop_emulated_shared, __ehdr_start, _end}};
)",
                      emulated::module_symbol, arch, kernels.size());
  return text;
}

// Sees every access to memory (thread) and undefined behaviour; kernel_runtime.cpp hears of both.
constexpr char compile_flags[] =
    "-std=c++20 -O1 -g1 -fPIC -fvisibility=hidden -ffp-contract=off -c"
    " -Wno-attributes -Wno-unknown-pragmas -Werror=unused-value"
    " -fsanitize=thread,bounds,alignment,shift,signed-integer-overflow,integer-divide-by-zero"
    " -fno-sanitize-recover=all";

bool run(const std::string& command, const fs::path& log) {
  return std::system(fmt::format("{} >>{} 2>&1", command, quoted(log.string())).c_str()) == 0;
}

// Of a kernel's own variables, from the table of symbols: "emulated_shared 00004200 _ZZ4nameE1x".
size_t shared_bytes(const std::string& symbols, const std::string& kernel) {
  const std::regex pattern(
      fmt::format(R"(\semulated_shared\s+([0-9a-f]+) _ZZ{}{}E)", kernel.size(), kernel));
  size_t bytes = 0;
  for (std::sregex_iterator at(symbols.begin(), symbols.end(), pattern), end; at != end; ++at)
    bytes += std::stoul((*at)[1], nullptr, 16);
  return bytes;
}

NvrtcStatus compile(ejk::detail::cuda::ProgramTag& program, const Options& options) {
  const Folder folder;
  const auto in = [&](const char* name) { return folder.path / name; };
  const auto compiler = [&](const std::string& arguments) {
    return run(fmt::format("{} {}", EMULATED_CUDA_COMPILER, arguments), in("log"));
  };
  // Named as the source, which debug data knows by this name.
  const fs::path source = folder.path / fs::path(program.name).filename();
  std::ofstream(source) << program.source;
  bool made = compiler(fmt::format("-E -P -DEJK_EMULATED_CUDA=1{} -o {} -x c++ {}", options.macros,
                                   in("expanded").string(), quoted(source.string())));
  const auto kernels = kernels_of(text_of(in("expanded")));
  std::ofstream(source) << translated(program, options.arch, kernels);
  made = made &&
         compiler(fmt::format("{}{} -o {} -x c++ {}", compile_flags, options.macros,
                              in("kernel.o").string(), quoted(source.string()))) &&
         compiler(fmt::format("-shared -o {} {} {}", in("kernel.so").string(),
                              in("kernel.o").string(), EMULATED_CUDA_RUNTIME)) &&
         run(fmt::format("(objdump -t {} >{})", in("kernel.o").string(), in("symbols").string()),
             in("log"));
  program.log = text_of(in("log"));
  if (!made) return NvrtcStatus::compilation;
  const std::string symbols = text_of(in("symbols"));
  for (const auto& [name, bounds] : kernels) {
    const size_t shared = shared_bytes(symbols, name);
    if (shared > max_shared_bytes) {
      program.log += '\0';  // so does NVRTC 13
      program.log += fmt::format(
          "ptxas error   : Entry function '{}' uses too much shared data ({:#x} bytes, {:#x} "
          "max)\n",
          name, shared, max_shared_bytes);
      return NvrtcStatus::compilation;
    }
    // Registers are not known here: a source may say that it has too few of them.
    constexpr std::string_view spills = "#define SPILLED_BYTES ";
    const size_t said = program.source.find(spills);
    const std::string spilled =
        said == program.source.npos
            ? "0"
            : std::to_string(std::atoi(program.source.c_str() + said + spills.size()));
    program.log += fmt::format(
        "ptxas info    : Compiling entry function '{0}' for 'sm_{1}'\n"
        "ptxas info    : Function properties for {0}\n"
        "    {3} bytes stack frame, {3} bytes spill stores, {3} bytes spill loads\n"
        "ptxas info    : Used 32 registers, {2} bytes smem\n",
        name, options.arch, shared, spilled);
  }
  program.cubin = text_of(in("kernel.so"));
  return NvrtcStatus::success;
}

// Tests build the same texts again and again.
NvrtcStatus compile_once(ejk::detail::cuda::ProgramTag& program, const Options& options) {
  static std::mutex mutex;
  static std::map<std::string, ejk::detail::cuda::ProgramTag> known;
  const std::scoped_lock lock(mutex);
  const auto [at, is_new] = known.try_emplace(
      fmt::format("{}\n{}{}\n{}", program.name, options.arch, options.macros, program.source),
      program);
  if (is_new) at->second.status = compile(at->second, options);
  program = at->second;
  return program.status;
}

NvrtcStatus text_to(const std::string& text, char* to) {
  std::memcpy(to, text.c_str(), text.size());
  return NvrtcStatus::success;
}

}  // namespace

#define ENTER()                                                             \
  if (const int status = emulated::injected_failure(__func__); status != 0) \
    return static_cast<NvrtcStatus>(status);

extern "C" {

NvrtcStatus nvrtcVersion(int* major, int* minor) {
  ENTER()
  *major = 13;
  *minor = 0;
  return NvrtcStatus::success;
}

NvrtcStatus nvrtcCreateProgram(Program* program, const char* source, const char* name, int,
                               const char* const*, const char* const*) {
  ENTER()
  *program = new ejk::detail::cuda::ProgramTag{
      source, name == nullptr ? "default_program" : name, {}, {}, {}};
  return NvrtcStatus::success;
}

NvrtcStatus nvrtcDestroyProgram(Program* program) {
  ENTER()
  delete *program;
  *program = nullptr;
  return NvrtcStatus::success;
}

NvrtcStatus nvrtcCompileProgram(Program program, int count, const char* const* options) {
  ENTER()
  const Options read = read_options(count, options);
  if (!read.unknown.empty() || read.arch == 0) {
    program->log = fmt::format(
        "nvrtc: error: invalid value for --gpu-architecture or unknown option {}\n", read.unknown);
    return NvrtcStatus::invalid_option;
  }
  return compile_once(*program, read);
}

NvrtcStatus nvrtcGetProgramLogSize(Program program, size_t* bytes) {
  ENTER()
  *bytes = program->log.size() + 1;
  return NvrtcStatus::success;
}

NvrtcStatus nvrtcGetProgramLog(Program program, char* log) {
  ENTER()
  log[program->log.size()] = '\0';
  return text_to(program->log, log);
}

NvrtcStatus nvrtcGetCUBINSize(Program program, size_t* bytes) {
  ENTER()
  *bytes = program->cubin.size();
  return NvrtcStatus::success;
}

NvrtcStatus nvrtcGetCUBIN(Program program, char* cubin) {
  ENTER()
  return text_to(program->cubin, cubin);
}

}  // extern "C"
