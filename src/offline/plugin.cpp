// SPDX-License-Identifier: Apache-2.0
// Shared libraries of kernels. What one says of itself is looked at as if it could be anything:
// one that was made for something else must be an error, not a crash.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>

#include <ejk/registry.h>

#include "base/file.h"

namespace ejk {

namespace {

using detail::Plugin;

// Memory that may not be there. The system copies it and says so, where this process would end.
class Memory {
 public:
  Memory() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    out_ = base::Fd(ends[0]), in_ = base::Fd(ends[1]);
  }

  bool copy(const void* from, void* to, size_t bytes) {
    const auto n = static_cast<ssize_t>(bytes);
    // The call itself: sanitizers would look at the memory before write() does.
    return ::syscall(SYS_write, in_.get(), from, bytes) == n && ::read(out_.get(), to, bytes) == n;
  }
  std::optional<std::string> text_at(const char* at) {
    constexpr size_t longest = 64;
    std::string out;
    for (char c = 0; out.size() <= longest; out += c) {
      if (!copy(at + out.size(), &c, 1)) return std::nullopt;
      if (c == 0) return out;
    }
    return std::nullopt;
  }

 private:
  base::Fd out_, in_;
};

bool is_function(const void* symbol) {
  Dl_info info{};
  void* found = nullptr;
  if (::dladdr1(symbol, &info, &found, RTLD_DL_SYMENT) == 0 || found == nullptr) return false;
  return ELF64_ST_TYPE(static_cast<const ElfW(Sym)*>(found)->st_info) == STT_FUNC;
}

bool is_whole(const KernelType& type) {
  size_t platforms = 0;
  for (const ConfigType* config : type.configs) {
    if (config == nullptr) continue;
    if (config->to_value == nullptr || config->from_value == nullptr) return false;
    ++platforms;
  }
  return !type.op.empty() && type.rebuild != nullptr && platforms > 0 &&
         (type.ready != nullptr || type.configs[0] == nullptr);
}

// The texts at the beginning of a table, whatever it is.
struct Words {
  std::string magic, version, compiler;
};
std::optional<Words> words_of(const void* table) {
  struct {
    const char *magic, *version, *compiler;
  } head{};
  Memory memory;
  if (!memory.copy(table, &head, sizeof head)) return std::nullopt;
  const auto magic = memory.text_at(head.magic), version = memory.text_at(head.version),
             compiler = memory.text_at(head.compiler);
  if (!magic || !version || !compiler) return std::nullopt;
  return Words{*magic, *version, *compiler};
}

// What the library at `path` registers; throws if that cannot be used.
const Plugin& plugin_of(void* symbol, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::invalid_argument, "cannot use the kernels in " + path + ": " + why);
  };
  if (symbol == nullptr)
    refuse("it is not a library of kernels (EJK_REGISTER in one of its sources makes it one)");
  const auto refuse_another = [&] { refuse("its ejk_plugin is something else"); };
  if (!is_function(symbol)) refuse_another();
  const Plugin* plugin = reinterpret_cast<const Plugin* (*)()>(symbol)();
  const auto words = words_of(plugin);
  if (!words || words->magic != Plugin{}.magic) refuse_another();
  if (words->version != detail::header_version)
    refuse("it was built with version " + words->version + " of this library, which is " +
           std::string(detail::header_version) + "; build it again");
  if (words->compiler != detail::compiler_version)
    refuse("it was built with " + words->compiler + " and this library with " +
           std::string(detail::compiler_version));
  if (plugin->kernel_size != sizeof(KernelType))
    refuse("it was built with other headers of version " + words->version + "; build it again");
  if (plugin->kernels.empty()) refuse("it registers no kernel");
  for (const KernelType& type : plugin->kernels)
    if (!is_whole(type))
      refuse("got a kernel without name or functions (" + type.op +
             "); expected what EJK_REGISTER makes; build it again");
  return *plugin;
}

}  // namespace

std::vector<std::string> load_kernels(const std::string& path) {
  // Never closed: kernels may be registered, and configs of it may live anywhere.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* found = ::dlerror();
    const std::string why = found == nullptr ? "unknown error" : found;
    // A name of this library: "_ZN3ejk..." and the like.
    const size_t missing = why.find("undefined symbol");
    const bool unlinked = missing != why.npos && why.find("3ejk", missing) != why.npos;
    throw Error(ErrorKind::io, "cannot load kernels from " + path + ": " + why +
                                   (unlinked ? "; a library of kernels links libejk: "
                                               "target_link_libraries(... ejk::ejk)"
                                             : ""));
  }
  std::vector<std::string> ops;
  for (const KernelType& type : plugin_of(::dlsym(library, "ejk_plugin"), path).kernels) {
    register_kernel(type);
    ops.push_back(type.op);
  }
  return ops;
}

}  // namespace ejk
