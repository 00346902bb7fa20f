// SPDX-License-Identifier: Apache-2.0
// Which configs the row kernels guess, offer and accept.
#include <ejk/ops/row_config.h>

#include <algorithm>
#include <cstdint>

#include <ejk/parallel.h>

namespace ejk::ops {
namespace {

int64_t bytes_of(const Arg& matrix) {
  return matrix.size() * static_cast<int64_t>(dtype_bits(matrix.dtype) / 8);
}

// Starting a thread costs some 20 us, in which a core reads and writes some 200 KiB.
int worthwhile_threads(int64_t bytes) {
  return static_cast<int>(
      std::clamp<int64_t>(bytes / (int64_t{512} << 10), 1, std::max(1, visible_cores())));
}

// Whether reading and writing that much leaves nothing of it in the caches for others. The last
// level is shared with unknown neighbours, so a fraction of it is what can be counted on.
bool exceeds_caches(const Invocation& inv, int64_t bytes) {
  int64_t last_level = int64_t{16} << 20;
  if (const Value* caches = inv.device ? inv.device->identity.find("caches") : nullptr)
    for (const auto& [name, size] : caches->as_object().members)
      last_level = name == "l3" ? size.as_int() : last_level;
  return bytes > last_level / 4;
}

}  // namespace

RowConfig RowKernel::heuristic_cfg(const Invocation& inv) const {
  const int64_t bytes = bytes_of(inv.args[0]);
  const int threads = worthwhile_threads(bytes);
  const bool large = exceeds_caches(inv, 2 * bytes);
  const bool ahead = 2 * bytes > int64_t{1} << 19;  // of the second level
  return {threads, large, ahead, {threads, large}};
}

Space<RowConfig> RowKernel::candidate_cfgs(const Invocation& inv) const {
  const RowConfig guess = heuristic_cfg(inv);
  const int64_t bytes = bytes_of(inv.args[0]), rows = inv.args[0].shape[0];
  std::vector<int> threads = thread_counts();
  std::erase_if(threads, [rows](int n) { return n > 1 && n > rows; });
  // What fits the second level is never better off without the caches.
  const std::vector<bool> either =
      bytes > (int64_t{1} << 20) ? std::vector<bool>{false, true} : std::vector<bool>{false};
  using Backward = RowConfig::Backward;
  auto space = ejk::space<RowConfig>()
                   .param(&RowConfig::threads, threads)
                   .param(&RowConfig::streamed, either)
                   .param(&RowConfig::ahead, {false, true});
  if (inv.backward)
    return std::move(space)
        .param(&RowConfig::backward, &Backward::threads, threads)
        .param(&RowConfig::backward, &Backward::streamed, either);
  return std::move(space)
      .param(&RowConfig::backward, &Backward::threads, {guess.backward.threads})
      .param(&RowConfig::backward, &Backward::streamed, {guess.backward.streamed});
}

bool RowKernel::is_valid(const Config& config, const Invocation&) const {
  const int most = std::max(1, visible_cores());
  return config.threads >= 1 && config.backward.threads >= 1 && config.backward.threads <= most;
}

}  // namespace ejk::ops
