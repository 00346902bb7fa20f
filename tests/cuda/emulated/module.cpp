// SPDX-License-Identifier: Apache-2.0
#include "module.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "accesses.h"
#include "platform/cuda/driver_api.h"

namespace emulated {
namespace {

// What runs now, for the calls of the kernel, which know nothing else. There is one at a time.
Block* running = nullptr;
Accesses* watching = nullptr;

struct Running {
  Running(Block& block, Accesses& accesses) { running = &block, watching = &accesses; }
  ~Running() { running = nullptr, watching = nullptr; }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
};

// The table of sections is the last thing in the files that linkers write.
size_t bytes_of(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  return header.e_shoff + size_t{header.e_shentsize} * header.e_shnum;
}

Driver calls_of_kernels() {
  Driver driver = {};
  driver.barrier = [](int line) { running->barrier(line); };
  driver.exchange = [](WarpRequest& request) { running->exchange(request); };
  driver.access = [](const void* at, size_t bytes, Access access, const void* code) {
    if (watching != nullptr)
      watching->check(at, bytes, access, code);  // else parameters are copied
  };
  driver.mistake = [](const char* what, const char* file, unsigned line) {
    const bool misaligned = std::string_view(what).find("misaligned") != std::string_view::npos;
    running->fail(
        {misaligned ? ejk::detail::cuda::misaligned_address : ejk::detail::cuda::launch_failed,
         fmt::format("{}:{}: {}", file, line, what)});
  };
  return driver;
}

std::vector<Extent> blocks_of(Extent grid, std::mt19937& random) {
  std::vector<Extent> blocks;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) blocks.push_back({x, y, z});
  std::ranges::shuffle(blocks, random);
  return blocks;
}

}  // namespace

std::unique_ptr<LoadedModule> LoadedModule::load(const void* image) {
  const size_t bytes = bytes_of(image);
  if (bytes == 0) return nullptr;
  const int file = memfd_create("emulated cubin", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* library = nullptr;
  if (write(file, image, bytes) == static_cast<ssize_t>(bytes))
    library = dlopen(fmt::format("/proc/self/fd/{}", file).c_str(), RTLD_NOW | RTLD_LOCAL);
  const void* table = library == nullptr ? nullptr : dlsym(library, module_symbol);
  if (table == nullptr) {
    if (library != nullptr) dlclose(library);
    close(file);
    return nullptr;
  }
  std::unique_ptr<LoadedModule> module(
      new LoadedModule(file, library, static_cast<const ModuleTable*>(table)));
  *module->table().driver = calls_of_kernels();
  return module;
}

LoadedModule::~LoadedModule() {
  dlclose(library_);
  close(file_);
}

const Kernel* LoadedModule::kernel(const std::string& name) const {
  const Kernel *begin = table_->kernels, *end = begin + table_->kernel_count;
  const Kernel* found = std::find_if(begin, end, [&](const Kernel& k) { return k.name == name; });
  return found == end ? nullptr : found;
}

std::string LoadedModule::file() const { return fmt::format("/proc/{}/fd/{}", getpid(), file_); }

Fault run(const Launch& launch, const Memory& memory) {
  const ModuleTable& table = launch.module->table();
  static std::mt19937 random;  // the same orders in every run of a test
  Block block(launch.block, launch.grid, [&] { launch.kernel->run(launch.parameters.data()); });
  Accesses accesses(block, memory, table, launch.parameters, launch.module->file());
  block.on_switch = [&] {
    table.driver->place = block.place();
    table.driver->lane = static_cast<unsigned>(block.thread() % warp_size);
  };
  const Running now(block, accesses);
  for (const Extent index : blocks_of(launch.grid, random)) {
    std::fill(table.shared_begin, table.shared_end, static_cast<char>(undefined_byte));
    if (Fault fault = block.run(index, random)) {
      fault.text = fmt::format("{}: {}", launch.kernel->name, fault.text);
      return fault;
    }
  }
  return {};
}

}  // namespace emulated
