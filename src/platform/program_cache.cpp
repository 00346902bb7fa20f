// SPDX-License-Identifier: Apache-2.0
// Looks for a program in memory and on disk before it is built.
#include "platform/program_cache.h"

#include <algorithm>
#include <atomic>

#include "base/digest.h"
#include "base/time.h"
#include "platform/program_files.h"

namespace ejk::detail {
namespace {

// A search tries hundreds; of those only the winners are needed again.
constexpr size_t max_programs = 256;

std::string key_of(const Backend& backend, const std::string& source) {
  return base::name_by_digest_of(backend.target() + '\n' + source);
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::atomic<BuildWatch> build_watch{nullptr};

class Building {
 public:
  Building() : watch_(build_watch) { tell(true); }
  ~Building() { tell(false); }
  Building(const Building&) = delete;
  Building& operator=(const Building&) = delete;

  void made(const DeviceProgram& program) {
    for (const KernelFacts& facts : program.facts()) spilled_bytes_ += facts.spilled_bytes;
  }

 private:
  void tell(bool begins) const {
    if (watch_ != nullptr) watch_(begins, spilled_bytes_);
  }
  BuildWatch watch_;
  int64_t spilled_bytes_ = 0;
};

}  // namespace

void watch_builds(BuildWatch watch) { build_watch = watch; }

Backend::Backend() : id_(next_id()), programs_(std::make_unique<ProgramCache>(*this)) {}
Backend::~Backend() = default;

std::shared_ptr<CachedProgram> ProgramCache::get(const std::string& name,
                                                 const std::string& source) {
  std::shared_ptr<CachedProgram> found = slot(name, source);
  const std::lock_guard lock(found->mutex);
  if (!found->program) make(*found);
  return found;
}

std::shared_ptr<CachedProgram> ProgramCache::slot(const std::string& name,
                                                  const std::string& source) {
  const std::string key = key_of(backend_, source);
  const std::lock_guard lock(mutex_);
  Slot& slot = programs_[key];
  slot.last_use = ++uses_;
  if (!slot.program) {
    slot.program = std::make_shared<CachedProgram>();
    slot.program->key = key, slot.program->name = name, slot.program->source = source;
  }
  std::shared_ptr<CachedProgram> out = slot.program;
  if (programs_.size() > max_programs)
    programs_.erase(std::ranges::min_element(
        programs_, {}, [](const auto& item) { return item.second.last_use; }));
  return out;
}

void ProgramCache::make(CachedProgram& program) {
  Building building;
  const double begin = base::seconds_now();
  if (auto stored = read_program(program.key)) {
    program.program = backend_.load(stored->binary, std::move(stored->facts));
    program.is_kept = program.program != nullptr;
    if (program.is_kept) program.kept_kernels = {stored->kernels.begin(), stored->kernels.end()};
  }
  if (!program.program) program.program = backend_.build(program.name, program.source);
  building.made(*program.program);
  const std::lock_guard lock(mutex_);
  ++(program.is_kept ? counts_.loaded : counts_.built);
  counts_.build_seconds += base::seconds_now() - begin;
}

void ProgramCache::keep(CachedProgram& program, const std::string& kernel) {
  if (!programs_have_a_place()) return;  // some drivers compile again when asked for a binary
  const std::lock_guard lock(program.mutex);
  const bool grows = backend_.binary_grows();
  if (program.is_kept && (!grows || program.kept_kernels.contains(kernel))) return;
  if (grows) backend_.wait();
  const Building building;
  // One that was asked before says the same for ever; the driver's own cache makes another fast.
  const auto grown =
      program.is_kept ? backend_.build(program.name, program.source) : program.program;
  program.is_kept = true;
  program.kept_kernels.insert(kernel);
  write_program(program.key, {grown->binary(),
                              grown->facts(),
                              {program.kept_kernels.begin(), program.kept_kernels.end()}});
}

ProgramCache::Counts ProgramCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace ejk::detail
