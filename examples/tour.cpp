// SPDX-License-Identifier: Apache-2.0
// What ./run shows: the built-in operations tuned for a small transformer on this machine, then
// kernels on an OpenCL device, then all choices found again on disk.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <ejk/ejk.h>
#include <ejk/ops.h>

#include "device_kernels.h"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- the calls ----------------------------------------------------------------------------------

constexpr int64_t model = 512, heads = 8, head = 64, inner = 2048;
constexpr int64_t vocabulary = 8192, context = 1024;

ejk::Tensor random_tensor(std::vector<int64_t> shape) {
  ejk::Tensor t = ejk::Tensor::of<float>(std::move(shape));
  std::minstd_rand random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = normal(random);
  return t;
}

// visit(what it is for, kernel, arguments...) for the calls of one layer and of the output.
template <class Visit>
void for_each_call(const Visit& visit) {
  using namespace ejk::ops;
  const auto project = [&](const char* what, int64_t tokens, int64_t from, int64_t to) {
    visit(what, Matmul<float>{}, random_tensor({1, tokens, from}), random_tensor({1, from, to}),
          std::optional<ejk::Tensor>(), ejk::Tensor::of<float>({1, tokens, to}));
  };
  const auto normalise = [&](int64_t tokens) {
    visit("norm", RmsNorm<float>{}, random_tensor({tokens, model}),
          std::optional(random_tensor({model})), 1e-6f, ejk::Tensor::of<float>({tokens, model}));
  };
  for (int64_t tokens : {int64_t{128}, int64_t{1}}) {  // a prompt, then one token after the other
    normalise(tokens);
    project("q, k, v", tokens, model, 3 * heads * head);
    if (tokens > 1) {
      const ejk::Tensor q = random_tensor({1, tokens, heads, head});
      visit("attention", FlashAttention{}, q, q, q, AttentionOptions{.causal = true});
    } else {
      const ejk::Tensor cache = random_tensor({1, context, heads, head});
      const std::vector<int32_t> lengths = {context};
      visit("attention", DecodeAttention{}, random_tensor({1, heads, head}), cache, cache, lengths,
            DecodeOptions{});
    }
    project("its output", tokens, heads * head, model);
    project("feed forward", tokens, model, inner);
    project("and back", tokens, inner, model);
    project("logits", tokens, model, vocabulary);
    visit("their softmax", Softmax<float>{}, random_tensor({tokens, vocabulary}), 1.f,
          ejk::Tensor::of<float>({tokens, vocabulary}));
  }
}

// The same for an OpenCL device: what is written for a GPU, and a product as for a CPU.
template <class Visit>
void for_each_device_call(const ejk::Device& device, const Visit& visit) {
  using namespace examples;
  const auto there = [&](std::vector<int64_t> shape) { return random_tensor(shape).to(device); };
  visit("GPU-shaped", Saxpy{}, 2.f, there({1 << 20}), there({1 << 20}));
  visit("GPU-shaped", Transpose{}, there({1024, 1024}), there({1024, 1024}));
  visit("GPU-shaped", Blur{}, there({1024, 1024}), there({1024, 1024}));
  visit("GPU-shaped", RowSum{}, there({512, 4096}), there({512}));
  visit("GPU-shaped", TiledMatmul{}, there({256, 256}), there({256, 256}), there({256, 256}));
  visit("CPU-shaped", DirectMatmul{}, there({384, 384}), there({384, 384}), there({384, 384}));
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

// The fields in which a config differs from another: "threads 1 -> 2, streamed false -> true".
void add_differences(const std::string& name, const ejk::Value& from, const ejk::Value& to,
                     std::string& text) {
  if (from.is_object() && to.is_object()) {
    for (const auto& [field, value] : to.as_object().members)
      if (const ejk::Value* old = from.find(field))
        add_differences(name.empty() ? field : name + "." + field, *old, value, text);
  } else if (ejk::stable_json(from) != ejk::stable_json(to)) {
    text += (text.empty() ? "" : ", ") + name + " " + ejk::stable_json(from) + " -> " +
            ejk::stable_json(to);
  }
}
std::string differences(const ejk::Value& from, const ejk::Value& to) {
  std::string text;
  add_differences("", from, to, text);
  return text;
}

// The shapes of the first two arrays: "1x128x512 1x512x1536".
std::string shapes(const ejk::Invocation& inv) {
  std::string text;
  int arrays = 0;
  for (const ejk::Arg& arg : inv.args) {
    if (arg.kind != ejk::Arg::Kind::tensor || arg.role == ejk::Role::output || arg.shape.empty())
      continue;
    if (++arrays > 2) break;
    text += text.empty() ? "" : " ";
    for (size_t d = 0; d < arg.shape.size(); ++d)
      text += (d == 0 ? "" : "x") + std::to_string(arg.shape[d]);
  }
  return text;
}

// Of the time of the guess: what the tuned config needs of it, and what it saves.
std::string bar(double share) {
  constexpr size_t width = 24;
  const double part = std::clamp(share, 0.0, 1.0) * static_cast<double>(width);
  const auto full = std::max<size_t>(1, static_cast<size_t>(std::lround(part)));
  return std::string(full, '#') + std::string(width - full, '.');
}

// ---- the two passes -----------------------------------------------------------------------------

// What tuning some calls came to.
struct Gains {
  int calls = 0, stored = 0, gained = 0;
  double logs = 0, seconds = 0;  // of the speedups; that the tunings took
  double largest = 1;
  std::string largest_op;

  void add(const ejk::Entry& entry, const std::string& op, bool has_gained) {
    ++calls, seconds += entry.evidence.tuning_seconds;
    if (!has_gained) return;
    ++gained, logs += std::log(entry.evidence.speedup);
    if (entry.evidence.speedup > largest) largest = entry.evidence.speedup, largest_op = op;
  }
  // Calls that gained nothing count as 1.
  double mean() const { return std::exp(logs / std::max(1, calls)); }
};

class Tour {
 public:
  Tour(bool retune, std::string program) : retune_(retune), program_(std::move(program)) {}

  // True if every choice of the second pass came from disk.
  bool run() {
    std::printf(
        "%s\n%d of its cores can be used here.\n\n"
        "A layer of a transformer, %d wide, with %d heads of %d, %d inside, %d words: a prompt of\n"
        "128 tokens, then one token after %d others. Each call is tuned within 3 s.\n\n",
        ejk::device_fingerprint().c_str(), ejk::visible_cores(), static_cast<int>(model),
        static_cast<int>(heads), static_cast<int>(head), static_cast<int>(inner),
        static_cast<int>(vocabulary), static_cast<int>(context));
    const auto on_cpu = [](const auto& visit) { for_each_call(visit); };
    const Gains cpu = measure<ejk::Platform::cpu>(3, on_cpu);
    std::printf(
        "\nTuning made %d of %d calls faster than the heuristic's choice by more than the noise,\n"
        "by which a config seemed to differ from itself. For the other %d it gained nothing that\n"
        "could be told.\n",
        cpu.gained, cpu.calls, cpu.calls - cpu.gained);

    const auto devices = ejk::devices(ejk::Platform::opencl);
    if (devices.empty()) {
      std::printf("\nNo OpenCL device, so nothing is tuned there: %s\n",
                  ejk::why_no_devices(ejk::Platform::opencl).c_str());
      const bool all = find_again<ejk::Platform::cpu>(on_cpu);
      show_store(cpu.stored, cpu.calls);
      return all;
    }
    const ejk::Device& device = devices[0];
    std::printf(
        "\n%s\n\nKernels of examples/device_kernels.h there. The guess is what is usually taken: "
        "groups "
        "of 64,\n128 or 16 x 16 items, vectors of the device's width. Each is tuned within 6 "
        "s.\n\n",
        device.fingerprint.c_str());
    const auto on_device = [&](const auto& visit) { for_each_device_call(device, visit); };
    const Gains there = measure<ejk::Platform::opencl>(6, on_device);
    bool all = find_again<ejk::Platform::cpu>(on_cpu);
    all = find_again<ejk::Platform::opencl>(on_device) && all;
    show_store(cpu.stored + there.stored, cpu.calls + there.calls);
    say_in_short(there);
    return all;
  }

 private:
  // Measures what is not stored yet, and shows the evidence for every choice.
  template <ejk::Platform On>
  Gains measure(double budget_seconds, const auto& calls) {
    const ejk::Executor executor;
    const ejk::Executor guesses(ejk::SelectorOptions{.policy = {{.allow_autotune = false}}});
    store_ = executor.chain().persistent()->layers().empty()
                 ? "nowhere: set EJKERNEL_PERSISTENT_CACHE_DIR"
                 : executor.chain().persistent()->layers().front()->where();
    const auto budget = ejk::policy_override({.budget_seconds = budget_seconds});
    print_row("for", "op", "shapes", "guess", "tuned", "speedup (95 %)", "of the guess's time", "");
    Gains gains;
    calls([&](const char* what, const auto& kernel, auto&&... args) {
      const ejk::Invocation inv = executor.describe(kernel, args...);
      const double started = seconds();
      const auto stored = retune_ ? std::nullopt : stored_entry(executor, kernel, args...);
      const ejk::Entry entry = stored ? *stored : executor.template tune<On>(kernel, args...).entry;
      const ejk::Value guess =
          ejk::to_value(guesses.template choose_config<On>(kernel, args...).config);
      const bool has_gained = show(what, inv, guess, entry,
                                   stored ? "stored " + entry.evidence.time
                                          : "measured in " + readable_time(seconds() - started));
      gains.add(entry, inv.op_id, has_gained);
      if (stored) ++gains.stored;
    });
    return gains;
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

  static void print_row(const char* what, const char* op, const char* of, const char* guess,
                        const char* tuned, const char* speedup, const std::string& bar,
                        const std::string& rest) {
    std::printf("%-13s %-18s %-22s %9s %9s   %-20s %-24s  %s\n", what, op, of, guess, tuned,
                speedup, bar.c_str(), rest.c_str());
    std::fflush(stdout);
  }

  // True if it is clear that something was gained.
  static bool show(const char* what, const ejk::Invocation& inv, const ejk::Value& guess,
                   const ejk::Entry& entry, const std::string& how) {
    const ejk::Evidence& e = entry.evidence;
    const std::string changes = differences(guess, entry.config);
    const bool gained = !changes.empty() && is_beyond_noise(e);
    char speedup[64];
    std::snprintf(speedup, sizeof speedup, "%.2fx [%.2f, %.2f]", e.speedup, e.speedup_low,
                  e.speedup_high);
    print_row(what, inv.op_id.c_str(), shapes(inv).c_str(),
              readable_time(e.heuristic_seconds).c_str(), readable_time(e.seconds).c_str(), speedup,
              bar(gained ? 1 / e.speedup : 1),
              (changes.empty() ? "the guess is best" : changes) +
                  (changes.empty() || gained ? "" : ", no clear gain") + median_text(entry) + "; " +
                  how + (e.complete ? "" : ", cut by the budget") +
                  (entry.outcome == ejk::Outcome::unresolved ? ", too noisy to tell" : ""));
    return gained;
  }

  // Less than the noise says nothing, and neither does one sample; few say enough if all of them
  // are twice as fast.
  static bool is_beyond_noise(const ejk::Evidence& e) {
    if (e.samples < 5) return e.samples >= 2 && e.speedup_low > 2;
    return e.speedup_low > 1 && e.speedup > 1 + e.noise;
  }

  // Of all that were timed on a device: what one gets who picks blindly.
  static std::string median_text(const ejk::Entry& entry) {
    std::vector<double> times;
    for (const ejk::Measurement& m : entry.candidates)
      if (m.seconds > 0) times.push_back(m.seconds);
    if (times.empty() || entry.id.device == ejk::device_fingerprint()) return "";
    std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
    return "; median of " + std::to_string(times.size()) + ": " +
           readable_time(times[times.size() / 2]);
  }

  // A new executor knows nothing but the store.
  template <ejk::Platform On>
  static bool find_again(const auto& calls) {
    const ejk::Executor executor;
    const auto frozen = ejk::policy_override({.allow_autotune = false});
    bool all = true;
    std::printf("\nThe same calls with a new executor, whose memory is empty:\n");
    std::printf("%-13s %-18s %-22s %-12s %12s   %s\n", "for", "op", "shapes", "from", "choice took",
                "the next one");
    calls([&](const char* what, const auto& kernel, auto&&... args) {
      const ejk::Invocation inv = executor.describe(kernel, args...);
      const double started = seconds();
      const auto chosen = executor.template choose_config<On>(kernel, args...);
      const double first = seconds() - started;
      static_cast<void>(executor(kernel, args...));
      std::printf("%-13s %-18s %-22s %-12s %12s   %s\n", what, inv.op_id.c_str(),
                  shapes(inv).c_str(), origin_name(chosen.origin).data(),
                  readable_time(first).c_str(),
                  readable_time(warm_choice<On>(executor, kernel, args...)).c_str());
      all = all && chosen.origin == ejk::Origin::persistent;
    });
    if (!all) std::printf("NOT every choice came from disk.\n");
    return all;
  }

  template <ejk::Platform On, class Kernel, class... Args>
  static double warm_choice(const ejk::Executor& executor, const Kernel& kernel, Args&... args) {
    constexpr int calls = 1000;
    const double started = seconds();
    for (int i = 0; i < calls; ++i) static_cast<void>(executor.choose_config<On>(kernel, args...));
    return (seconds() - started) / calls;
  }

  void show_store(int stored, int calls) const {
    std::printf("\nThe store is %s\n", store_.c_str());
    if (stored > 0)
      std::printf(
          "%d of %d choices were there from an earlier run; to measure again: %s --retune\n",
          stored, calls, program_.c_str());
  }

  static void say_in_short(const Gains& there) {
    if (there.gained == 0)
      std::printf("\nTuning on OpenCL gained nothing here that could be told from the noise.\n");
    else
      std::printf(
          "\nThe %d OpenCL kernels run %.1f times as fast as with the usual guesses, %s %.1f "
          "times: "
          "%.0f s of tuning, once.\n",
          there.calls, there.mean(), there.largest_op.c_str(), there.largest, there.seconds);
  }

  const bool retune_;
  const std::string program_;
  std::string store_;
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
