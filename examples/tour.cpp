// SPDX-License-Identifier: Apache-2.0
// What ./run shows: the built-in operations tuned for a small transformer on this machine, then
// found again on disk.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <ejk/ejk.h>
#include <ejk/ops.h>

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
          Matmul<float>::Bias{}, ejk::Tensor::of<float>({1, tokens, to}));
  };
  const auto normalise = [&](int64_t tokens) {
    const ejk::Tensor weight = random_tensor({model});
    visit("norm", RmsNorm<float>{}, random_tensor({tokens, model}),
          std::optional(weight.view<const float, 1>().span()), 1e-6f,
          ejk::Tensor::of<float>({tokens, model}));
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

// ---- the two passes -----------------------------------------------------------------------------

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
    const auto budget = ejk::policy_override({.budget_seconds = 3});  // 16 calls: under a minute
    print_row("for", "op", "shapes", "heuristic", "tuned", "speedup (95 %)", "noise", "");
    for_each_call([&](const char* what, const auto& kernel, auto&&... args) {
      const ejk::Invocation inv = executor.describe(kernel, args...);
      const double started = seconds();
      const auto stored = retune_ ? std::nullopt : stored_entry(executor, kernel, args...);
      const ejk::Entry entry = stored ? *stored : executor.tune(kernel, args...).entry;
      show(what, inv, ejk::to_value(kernel.heuristic_cfg(inv)), entry,
           stored ? "stored " + entry.evidence.time
                  : "measured in " + readable_time(seconds() - started));
      ++calls_;
      if (stored) ++stored_;
    });
    std::printf(
        "\nTuning made %d of %d calls faster than the heuristic's choice by more than the noise,\n"
        "by which a config seemed to differ from itself. For the other %d it gained nothing that\n"
        "could be told.\n",
        gained_, calls_, calls_ - gained_);
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

  static void print_row(const char* what, const char* op, const char* of, const char* heuristic,
                        const char* tuned, const char* speedup, const char* noise,
                        const std::string& rest) {
    std::printf("%-13s %-16s %-24s %10s %10s   %-18s %6s   %s\n", what, op, of, heuristic, tuned,
                speedup, noise, rest.c_str());
    std::fflush(stdout);
  }

  void show(const char* what, const ejk::Invocation& inv, const ejk::Value& heuristic,
            const ejk::Entry& entry, const std::string& how) {
    const ejk::Evidence& e = entry.evidence;
    const std::string changes = differences(heuristic, entry.config);
    // The same config gains nothing, one sample says nothing, and neither does less than the noise.
    const bool gained =
        !changes.empty() && e.samples >= 5 && e.speedup_low > 1 && e.speedup > 1 + e.noise;
    char speedup[64], noise[32];
    std::snprintf(speedup, sizeof speedup, "%.2f [%.2f, %.2f]", e.speedup, e.speedup_low,
                  e.speedup_high);
    std::snprintf(noise, sizeof noise, "%.1f %%", 100 * e.noise);
    print_row(what, inv.op_id.c_str(), shapes(inv).c_str(),
              readable_time(e.heuristic_seconds).c_str(), readable_time(e.seconds).c_str(), speedup,
              noise,
              (changes.empty() ? "the heuristic's choice" : changes) +
                  (changes.empty() || gained ? "" : ", no clear gain") + "; " + how +
                  (e.complete ? "" : ", cut by the budget") +
                  (entry.outcome == ejk::Outcome::unresolved ? ", too noisy to tell" : ""));
    if (gained) ++gained_;
  }

  // A new executor knows nothing but the store.
  bool find_again() {
    const ejk::Executor executor;
    const auto frozen = ejk::policy_override({.allow_autotune = false});
    bool all = true;
    std::printf("\nThe same calls with a new executor, whose memory is empty:\n");
    std::printf("%-13s %-16s %-24s %-12s %12s   %s\n", "for", "op", "shapes", "from", "choice took",
                "the next one");
    for_each_call([&](const char* what, const auto& kernel, auto&&... args) {
      const ejk::Invocation inv = executor.describe(kernel, args...);
      const double started = seconds();
      const auto chosen = executor.choose_config(kernel, args...);
      const double first = seconds() - started;
      static_cast<void>(executor(kernel, args...));
      std::printf("%-13s %-16s %-24s %-12s %12s   %s\n", what, inv.op_id.c_str(),
                  shapes(inv).c_str(), origin_name(chosen.origin).data(),
                  readable_time(first).c_str(),
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
  std::string store_;
  int calls_ = 0, stored_ = 0, gained_ = 0;
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
