// SPDX-License-Identifier: Apache-2.0
// What ./run shows: the example kernels tuned on this machine, then found again on disk.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels.h"

namespace {

using namespace examples;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- the calls ----------------------------------------------------------------------------------

std::vector<float> random_vector(int64_t size) {
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(size));
  for (float& v : values) v = normal(generator);
  return values;
}

ejk::Tensor random_matrix(int64_t rows, int64_t columns) {
  const std::vector<float> values = random_vector(rows * columns);
  return ejk::Tensor::of<float>({rows, columns}, std::span<const float>(values));
}

// visit(kernel, arguments...) for every call of the tour.
template <class Visit>
void for_each_call(const Visit& visit) {
  for (int64_t size : {4'096, 2'000'000}) {
    const std::vector<float> x = random_vector(size);
    std::vector<float> y = x;
    visit(Saxpy{}, 0.5f, x, y);
  }
  for (auto [m, k, n] : {std::array<int64_t, 3>{64, 64, 64}, {256, 256, 256}, {1, 1024, 1024}})
    visit(Matmul{}, random_matrix(m, k), random_matrix(k, n), ejk::Tensor::of<float>({m, n}));
  for (auto [rows, columns] : {std::array<int64_t, 2>{1, 4096}, {1024, 512}})
    visit(RmsNorm{}, random_matrix(rows, columns), random_vector(columns),
          ejk::Tensor::of<float>({rows, columns}), 1e-5f);
  for (auto [rows, columns] : {std::array<int64_t, 2>{200, 300}, {1024, 1024}})
    visit(Transpose{}, random_matrix(rows, columns), ejk::Tensor::of<float>({columns, rows}));
}

// ---- texts --------------------------------------------------------------------------------------

std::string readable_time(double s) {
  char text[32];
  if (s < 1e-6) std::snprintf(text, sizeof text, "%.0f ns", s * 1e9);
  else if (s < 1e-3) std::snprintf(text, sizeof text, "%.1f us", s * 1e6);
  else if (s < 1) std::snprintf(text, sizeof text, "%.2f ms", s * 1e3);
  else std::snprintf(text, sizeof text, "%.1f s", s);
  return text;
}

// The names or the values of a config's fields: "order, tile, threads" or "broad, 64, 1".
std::string fields(const ejk::Value& config, bool names) {
  std::string text;
  for (const auto& [name, value] : config.as_object().members)
    text += (text.empty() ? "" : ", ") + (names               ? name
                                          : value.is_string() ? value.as_string()
                                                              : ejk::stable_json(value));
  return text;
}

// The shapes of the inputs: "256x256 256x256".
std::string shapes(const ejk::Invocation& inv) {
  std::string text;
  for (const ejk::Arg& arg : inv.args) {
    if (arg.kind != ejk::Arg::Kind::tensor || arg.role == ejk::Role::output || arg.shape.empty())
      continue;
    text += text.empty() ? "" : " ";
    for (size_t d = 0; d < arg.shape.size(); ++d)
      text += (d == 0 ? "" : "x") + std::to_string(arg.shape[d]);
  }
  return text;
}

// ---- the two passes -----------------------------------------------------------------------------

class Tour {
 public:
  Tour(bool retune, std::string program) : retune_(retune), program_(std::move(program)) {}

  // True if every choice of the second pass came from disk.
  bool run() {
    std::printf("%s\n%d of its cores can be used here.\n\n", ejk::device_fingerprint().c_str(),
                ejk::visible_cores());
    measure();
    const bool all = find_again();
    std::printf("\nThe store is %s\n", store_.c_str());
    if (stored_ > 0)
      std::printf(
          "%d of %d choices were there from an earlier run; to measure again: %s --retune\n",
          stored_, calls_, program_.c_str());
    return all;
  }

 private:
  // Measures what is not stored yet, and shows the evidence for every choice.
  void measure() {
    const ejk::Executor executor;
    store_ = executor.chain().persistent()->layers().empty()
                 ? "nowhere: set EJKERNEL_PERSISTENT_CACHE_DIR"
                 : executor.chain().persistent()->layers().front()->where();
    const auto budget = ejk::policy_override({.budget_seconds = 2.5});  // 9 calls: well under 30 s
    std::printf("%-10s %-21s %-15s %10s   %-15s %10s   %-21s %6s\n", "op", "shapes", "heuristic",
                "time", "tuned", "time", "speedup (95 %)", "noise");
    for_each_call([&](const auto& kernel, auto&&... args) {
      const ejk::Invocation inv = executor.describe(kernel, args...);
      const ejk::Value heuristic = ejk::to_value(kernel.heuristic_cfg(inv));
      if (last_op_ != inv.op_id) std::printf("(%s)\n", fields(heuristic, true).c_str());
      last_op_ = inv.op_id;
      std::printf("%-10s %-21s %-15s ", inv.op_id.c_str(), shapes(inv).c_str(),
                  fields(heuristic, false).c_str());
      std::fflush(stdout);  // the rest of the line comes when it is measured
      const double started = seconds();
      const auto stored = retune_ ? std::nullopt : stored_entry(executor, kernel, args...);
      const ejk::Entry entry = stored ? *stored : executor.tune(kernel, args...).entry;
      show(entry, stored ? "stored " + entry.evidence.time
                         : "measured in " + readable_time(seconds() - started));
      ++calls_;
      if (stored) ++stored_;
    });
  }

  // What is kept for this call and would be used; empty if nothing is.
  template <class Kernel, class... Args>
  static std::optional<ejk::Entry> stored_entry(const ejk::Executor& executor, const Kernel& kernel,
                                                Args&... args) {
    if (executor.explain(kernel, args...).origin != "persistent") return std::nullopt;
    const ejk::Invocation inv = executor.describe(kernel, args...);
    const auto found = executor.chain().persistent()->get(
        {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()});
    return found ? std::optional(found->entry) : std::nullopt;
  }

  static void show(const ejk::Entry& entry, const std::string& how) {
    const ejk::Evidence& e = entry.evidence;
    char speedup[64];
    std::snprintf(speedup, sizeof speedup, "%.2f [%.2f, %.2f]", e.speedup, e.speedup_low,
                  e.speedup_high);
    std::printf("%10s   %-15s %10s   %-21s %4.1f %%   %s%s%s\n",
                readable_time(e.heuristic_seconds).c_str(), fields(entry.config, false).c_str(),
                readable_time(e.seconds).c_str(), speedup, 100 * e.noise, how.c_str(),
                e.complete ? "" : ", cut by the budget",
                entry.outcome == ejk::Outcome::unresolved ? ", too noisy to tell" : "");
  }

  // A new executor knows nothing but the store.
  bool find_again() {
    const ejk::Executor executor;
    const auto frozen = ejk::policy_override({.allow_autotune = false});
    bool all = true;
    std::printf("\nThe same calls with a new executor, whose memory is empty:\n");
    std::printf("%-10s %-21s %-15s %-12s %12s   %s\n", "op", "shapes", "config", "from",
                "choice took", "the next one");
    for_each_call([&](const auto& kernel, auto&&... args) {
      const ejk::Invocation inv = executor.describe(kernel, args...);
      const double started = seconds();
      const auto chosen = executor.choose_config(kernel, args...);
      const double first = seconds() - started;
      executor(kernel, args...);
      std::printf("%-10s %-21s %-15s %-12s %12s   %s\n", inv.op_id.c_str(), shapes(inv).c_str(),
                  fields(ejk::to_value(chosen.config), false).c_str(),
                  origin_name(chosen.origin).data(), readable_time(first).c_str(),
                  readable_time(warm_choice(executor, kernel, args...)).c_str());
      all = all && chosen.origin == ejk::Origin::persistent;
    });
    if (!all) std::printf("NOT every choice came from disk.\n");
    return all;
  }

  template <class Kernel, class... Args>
  static double warm_choice(const ejk::Executor& executor, const Kernel& kernel, Args&... args) {
    constexpr int calls = 1000;
    const double started = seconds();
    for (int i = 0; i < calls; ++i) static_cast<void>(executor.choose_config(kernel, args...));
    return (seconds() - started) / calls;
  }

  const bool retune_;
  const std::string program_;
  std::string store_, last_op_;
  int calls_ = 0, stored_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bool retune = argc == 2 && std::strcmp(argv[1], "--retune") == 0;
  if (argc > 1 && !retune) return std::fprintf(stderr, "usage: tour [--retune]\n"), 2;
  try {
    return Tour(retune, argv[0]).run() ? 0 : 1;
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
}
