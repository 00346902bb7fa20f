// SPDX-License-Identifier: Apache-2.0
// Runs kernels with the configuration that fits the call.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ejk/compiled.h>
#include <ejk/detail/bound_kernel.h>
#include <ejk/detail/call_counts.h>
#include <ejk/detail/call_platform.h>
#include <ejk/detail/export.h>
#include <ejk/detail/gradient.h>
#include <ejk/detail/kernel_traits.h>
#include <ejk/detail/warm_table.h>
#include <ejk/detail/watch_timer.h>
#include <ejk/record.h>
#include <ejk/selector.h>

namespace EJK_EXPORT ejk {

// A configuration and where it came from. What choose_config gives; it owns its copy of the config.
template <class Config>
struct Chosen {
  // The config that a call would run with, and the tier that gave it.
  Config config;
  Origin origin;
};

// A configuration found by tuning, with its evidence. What `tune` and `tune_among` give.
template <class Config>
struct Tuned {
  // The winner, and its entry: entry.evidence says how sure it is, entry.candidates how each
  // candidate did.
  Config config;
  Entry entry;
};

// Sees every call of an executor, for example to profile it. The executor shares ownership of it.
class CallHook {
 public:
  virtual ~CallHook() = default;
  // Called on the caller's thread, after the choice and before the kernel runs: also for
  // choose_config and `compile`, which run nothing, and once per choice of a batch. The arguments
  // are valid during the call only. Several threads may call at once. What it throws reaches the
  // caller, and the kernel does not run.
  virtual void on_call(const Invocation& inv, const Choice& choice, const std::string& label) = 0;
};

// What an executor adds to its chooser.
struct ExecutorOptions {
  // What labels begin with: "PREFIX#OP:KEY".
  std::string stamp_prefix = "ejkernel_ops";
  // Default: none. With a hook no call is warm: each is described, and the chooser is asked.
  std::shared_ptr<CallHook> hook = {};
};

// Runs kernels, each call with the config that its chooser gives. Every function may be called from
// several threads at once, if the kernel's hooks allow that. A copy of an executor shares cache,
// store and chooser with it.
//
// A call takes these steps, on the calling thread:
//   1. The kernel's `prepare`, if it has one, turns the arguments into those of `run`.
//   2. The warm table is asked, which takes no lock and allocates nothing. On a hit: step 5.
//   3. The chooser is asked. Under Fallback::autotune the first call with a key may take seconds.
//   4. The hook is called, if there is one.
//   5. `run` runs with the config, and the call returns what it returns.
//
// A call throws
//   - Error(invalid_argument) if an argument does not fit, or lives where the kernel cannot run
//   - Error(no_configuration) if no tier of the chain has a config that this call can run with
//   - what `prepare`, `run`, the hook and a chooser of your own throw
// Failures of stores, tunings and heuristics are events or warnings, and the next tier answers.
//
// The kernel and the arguments are used during the call only, but for what vjp returns. Under
// Fallback::background the chain keeps copies of both.
//
// On cache lines of its own: on a stack, what its neighbours write would slow other threads' calls.
class alignas(64) Executor {
 public:
  // The default chain: memory, the default persistent cache, autotune, heuristics, with the policy
  // of the environment. Throws Error(invalid_argument) if an environment variable that the chain
  // reads has a value that it cannot have.
  Executor();
  // Asks a chooser that may be shared with other executors, a chain or one of your own. Throws
  // Error(invalid_argument) for nullptr.
  explicit Executor(std::shared_ptr<ConfigChooser> chooser, ExecutorOptions options = {});
  // Makes a ConfigSelectorChain of its own from these options.
  explicit Executor(SelectorOptions options);

  // Runs the kernel: executor(kernel, arguments...), or executor(kernel, config, arguments...). A
  // config given first, as in `run`, is used for this call only: it is neither checked by is_valid
  // nor kept. Gives what `run` returns.
  template <class K, class... Args>
  requires(!detail::config_comes_first<K, Context::plain, Args...>) decltype(auto) operator()(
      const K& kernel, Args&&... args) const {
    return call<Context::plain>(kernel, std::forward<Args>(args)...);
  }
  template <class K, class... Args>
  decltype(auto) operator()(const K& kernel,
                            const detail::CallConfig<K, Context::plain, Args...>& config,
                            Args&&... args) const {
    return call_with<Context::plain>(kernel, config, std::forward<Args>(args)...);
  }
  // The config of the platform that the arrays live on, where that is known at run time only.
  template <class K, class Config, class... Args>
  requires(detail::is_config_of_another<K, Context::plain, Config, Args...>()) decltype(auto)
  operator()(const K& kernel, const Config& config, Args&&... args) const {
    return run_with<Context::plain>(kernel, config, std::forward<Args>(args)...);
  }

  // The same in a context, for the `_shard_map` and `_batch` hooks: executor.call<Context::batch>(
  // kernel, arguments...). The context is part of the key.
  template <Context C, class K, class... Args>
  requires(!detail::config_comes_first<K, C, Args...>) decltype(auto)
      call(const K& kernel, Args&&... args) const {
    using P = detail::FirstPlan<K, C, Args...>;
    if constexpr (detail::is_decided<K, C, Args...>)
      return call_on<P>(kernel, std::forward<Args>(args)...);
    else if constexpr (!detail::results_agree<K, C, detail::call_platforms_of<K, C, Args...>>()) {
      static_cast<void>(detail::mistake::runs_of_platforms_return_different_types<K>{});
      return detail::NoResult{};
    } else
      return detail::where_arrays_live<K, C>(
          [&]<class There>(std::type_identity<There>) -> decltype(auto) {
            return call_on<There>(kernel, std::forward<Args>(args)...);
          },
          args...);
  }
  template <Context C, class K, class... Args>
  decltype(auto) call_with(const K& kernel, const detail::CallConfig<K, C, Args...>& config,
                           Args&&... args) const {
    return run_with<C>(kernel, config, std::forward<Args>(args)...);
  }

  // What a call would run with, without running it: a Chosen<Config>. Chooses as a call does, so it
  // may tune, and its answer is kept. It counts as a call in a recording. Where it is known at run
  // time only which config the call takes, name the platform: choose_config<Platform::cuda>(...).
  template <class K, class... Args>
  auto choose_config(const K& kernel, Args&&... args) const {
    return detail::where_config_is_known<K>(
        [&]<class P>(std::type_identity<P>) {
          return choose_on<P>(kernel, std::forward<Args>(args)...);
        },
        args...);
  }
  template <Platform On, class K, class... Args>
  auto choose_config(const K& kernel, Args&&... args) const {
    return choose_on<detail::Plan<K, Context::plain, On>>(kernel, std::forward<Args>(args)...);
  }

  // Chooses once, for these example arguments, and gives a function without any selection (see
  // Compiled). Takes the config instead of choosing if one is given. Neither runs the kernel.
  template <class K, class... Args>
  requires(!detail::config_comes_first<K, Context::plain, Args...>) auto compile(
      const K& kernel, Args&&... args) const {
    using P = detail::FirstPlan<K, Context::plain, Args...>;
    detail::check_home<P>(args...);
    return compile_on<P>(kernel, std::forward<Args>(args)...);
  }
  template <Platform On, class K, class... Args>
  auto compile(const K& kernel, Args&&... args) const {
    return compile_on<detail::Plan<K, Context::plain, On>>(kernel, std::forward<Args>(args)...);
  }
  template <class K, class... Args>
  auto compile(const K& kernel, const detail::CallConfig<K, Context::plain, Args...>& config,
               Args&&... args) const {
    using P = detail::FirstPlan<K, Context::plain, Args...>;
    detail::check_home<P>(args...);
    if constexpr (!P::sound) return detail::NoResult{};
    else return Compiled<P>(kernel, config, Origin::override_);
  }

  // Every tier: what it held, why it did or did not answer. Changes nothing. Throws
  // Error(invalid_argument) if the chooser is not a chain.
  template <class K, class... Args>
  Explanation explain(const K& kernel, Args&&... args) const {
    return detail::where_arrays_live<K, Context::plain>(
        [&]<class P>(std::type_identity<P>) -> Explanation {
          return with_params<P>(
              kernel,
              [&](auto&& params) {
                return chain().explain(invocation<P>(kernel, params), bound<P>(kernel, params));
              },
              std::forward<Args>(args)...);
        },
        args...);
  }

  // Tunes this call now, whatever is stored, and keeps the result for all calls with its key. Gives
  // a Tuned<Config>. Candidates run on private copies: the caller's arrays do not change. Throws
  // Error(no_configuration) if every candidate is rejected, and Error(invalid_argument) if the
  // chooser is not a chain.
  template <class K, class... Args>
  auto tune(const K& kernel, Args&&... args) const {
    return detail::where_config_is_known<K>(
        [&]<class P>(std::type_identity<P>) {
          return tune_on<P>(nullptr, kernel, std::forward<Args>(args)...);
        },
        args...);
  }
  template <Platform On, class K, class... Args>
  auto tune(const K& kernel, Args&&... args) const {
    return tune_on<detail::Plan<K, Context::plain, On>>(nullptr, kernel,
                                                        std::forward<Args>(args)...);
  }
  // The same, over these configs instead of the kernel's candidates.
  template <class K, class... Args>
  auto tune_among(std::vector<detail::CallConfig<K, Context::plain, Args...>> configs,
                  const K& kernel, Args&&... args) const {
    std::vector<AnyConfig> list;
    for (auto& c : configs) list.push_back(make_config(std::move(c)));
    const auto offered = candidate_list(std::move(list));
    return detail::where_config_is_known<K>(
        [&]<class P>(std::type_identity<P>) {
          return tune_on<P>(offered, kernel, std::forward<Args>(args)...);
        },
        args...);
  }

  // Runs forward and gives {out, pull}; pull(dy) gives the gradients. One config is chosen for both
  // directions. The pull-back owns copies of the kernel and the config and keeps views of the
  // arguments: these must outlive it unchanged. (What `prepare` made of them it owns.) An owning
  // temporary among the arguments is a compile error, as is a kernel without a gradient.
  // If the arrays live on a device, the output, dy and the gradients do, too.
  template <class K, class... Args>
  auto vjp(const K& kernel, Args&&... args) const {
    constexpr detail::Platforms open =
        detail::platforms_with_gradient<K, Context::plain,
                                        detail::call_platforms_of<K, Context::plain, Args...>>();
    if constexpr (detail::is_decided<K, Context::plain, Args...>)
      return vjp_on<detail::FirstPlan<K, Context::plain, Args...>>(kernel,
                                                                   std::forward<Args>(args)...);
    else
      return detail::gradient_where_arrays_live<K>(
          detail::as_list<open>(detail::PlatformList<>{}), detail::home_of(K::op_id, args...),
          [&]<Platform P>(std::integral_constant<Platform, P>) {
            return vjp_on<detail::Plan<K, Context::plain, P>>(kernel, std::forward<Args>(args)...);
          });
  }
  template <Platform On, class K, class... Args>
  auto vjp(const K& kernel, Args&&... args) const {
    return vjp_on<detail::Plan<K, Context::plain, On>>(kernel, std::forward<Args>(args)...);
  }

  // The label of a call, "PREFIX#OP:KEY", by which `ejk` and labels.h find it. Chooses nothing.
  template <class K, class... Args>
  std::string label(const K& kernel, Args&&... args) const {
    const Invocation inv = describe(kernel, std::forward<Args>(args)...);
    return make_label(inv.op(), inv.call_key(), options_.stamp_prefix);
  }

  // The abstract call, as heuristics see it and keys are made from it. It holds no data of arrays
  // and refers to none. Chooses nothing.
  template <Context C = Context::plain, class K, class... Args>
  Invocation describe(const K& kernel, Args&&... args) const {
    return detail::where_arrays_live<K, C>(
        [&]<class P>(std::type_identity<P>) -> Invocation {
          return with_params<P>(
              kernel, [&](auto&& params) { return invocation<P>(kernel, params); },
              std::forward<Args>(args)...);
        },
        args...);
  }

  // What this executor asks on a miss. Lives at least as long as the executor.
  ConfigChooser& chooser() const noexcept { return *chooser_; }
  // The same as a chain, for what only a chain can do: cache(), policy(), resume(), idle(). Throws
  // Error(invalid_argument) if the chooser is one of your own.
  ConfigSelectorChain& chain() const;

  // -- for batch.h --
  // The choice for one batch: made once, used for all of its elements.
  template <class P, class K, class Params>
  Choice choose(const K& kernel, const Params& params, AnyConfig given = {},
                Value batch_axes = {}) const {
    Invocation inv = invocation<P>(kernel, params);
    inv.batch_axes = std::move(batch_axes);
    if (!inv.batch_axes.is_null()) inv.words.clear();  // looked up once per batch, not per element
    inv.override_cfg = std::move(given);
    return ask(inv, bound<P>(kernel, params));
  }

  // -- for record.h --
  // Keeps this call in a recording, as one that was made once, without making it. The arrays are
  // read, to sketch what they hold.
  template <class K, class... Args>
  void record(Recording& recording, const K& kernel, Args&&... args) const {
    detail::where_arrays_live<K, Context::plain>(
        [&]<class P>(std::type_identity<P>) -> void {
          with_params<P>(
              kernel,
              [&](auto&& params) {
                count(recording.record(invocation<P>(kernel, params), bound<P>(kernel, params)));
              },
              std::forward<Args>(args)...);
        },
        args...);
  }

 private:
  template <class P, class K, class... Args>
  decltype(auto) call_on(const K& kernel, Args&&... args) const {
    return with_params<P>(
        kernel, [&](auto&& params) -> decltype(auto) { return run_chosen<P>(kernel, params); },
        std::forward<Args>(args)...);
  }

  template <Context C, class K, class Config, class... Args>
  decltype(auto) run_with(const K& kernel, const Config& config, Args&&... args) const {
    return detail::where_arrays_live<K, C>(
        [&]<class P>(std::type_identity<P>) -> decltype(auto) {
          return run_with_on<P>(kernel, config, std::forward<Args>(args)...);
        },
        args...);
  }
  template <class P, class K, class Config, class... Args>
  decltype(auto) run_with_on(const K& kernel, const Config& config, Args&&... args) const {
    if constexpr (!P::sound) return detail::NoResult{};
    else if constexpr (!std::same_as<Config, typename P::Config>) {
      return detail::refuse_config<typename P::Result>(detail::home_of(K::op_id, args...),
                                                       detail::type_name<Config>(),
                                                       detail::type_name<typename P::Config>());
    } else
      return with_params<P>(
          kernel,
          [&](auto&& params) -> decltype(auto) {
            if (!quiet_) choose<P>(kernel, params, make_config(config));  // tells events and hooks
            return P::run(kernel, config, params);
          },
          std::forward<Args>(args)...);
  }

  template <class P, class K, class... Args>
  auto choose_on(const K& kernel, Args&&... args) const {
    return with_params<P>(
        kernel,
        [&](auto&& params) {
          const Choice choice = lookup<P>(kernel, params);
          return Chosen<typename P::Config>{choice.config.template as<typename P::Config>(),
                                            choice.origin};
        },
        std::forward<Args>(args)...);
  }

  template <class P, class K, class... Args>
  auto compile_on(const K& kernel, Args&&... args) const {
    if constexpr (!P::sound) return detail::NoResult{};
    else {
      auto chosen = choose_on<P>(kernel, std::forward<Args>(args)...);
      return Compiled<P>(kernel, std::move(chosen.config), chosen.origin);
    }
  }

  template <class P, class K, class... Args>
  auto tune_on(std::shared_ptr<const CandidateSet> candidates, const K& kernel,  // NOLINT: moved
               Args&&... args) const {
    return with_params<P>(
        kernel,
        [&](auto&& params) {
          auto [choice, entry] = chain().tune(invocation<P>(kernel, params),
                                              bound<P>(kernel, params), std::move(candidates));
          return Tuned<typename P::Config>{choice.config.template as<typename P::Config>(),
                                           std::move(entry)};
        },
        std::forward<Args>(args)...);
  }

  template <class P, class K, class... Args>
  auto vjp_on(const K& kernel, Args&&... args) const {
    if constexpr (!P::sound) return detail::NoResult{};
    else if constexpr (!detail::has_gradient<P>) {
      static_cast<void>(detail::mistake::kernel_has_no_gradient<K>{});
    } else {
      (detail::refuse_temporary<K, Args>(), ...);
      auto forward = [&](const auto& params) {
        const Choice choice = choose<P>(kernel, params);
        auto kept = std::apply([](const auto&... p) { return std::make_tuple(p...); }, params);
        return detail::run_forward<P>(kernel, choice.config.template as<typename P::Config>(),
                                      std::move(kept));
      };
      if constexpr (!P::has_prepare) return forward(P::bind_all(std::forward<Args>(args)...));
      else {
        auto prepared = prepare<K>(kernel, std::forward<Args>(args)...);
        using Prepared = decltype(prepared);
        auto owner = std::make_shared<Prepared>(std::move(prepared));
        auto [out, pull] =
            forward(std::apply([](auto&... p) { return P::bind_all(p...); }, *owner));
        using Pull = detail::PreparedPull<Prepared, decltype(pull)>;
        return std::pair<decltype(out), Pull>(std::move(out),
                                              Pull{std::move(owner), std::move(pull)});
      }
    }
  }

  template <class P, class K, class Params>
  static detail::BoundKernel<P, Params> bound(const K& kernel, const Params& params) {
    return {kernel, params};
  }

  template <class K, class... Args>
  static auto prepare(const K& kernel, Args&&... args) {
    auto prepared = detail::hook_prepare::call(kernel, std::forward<Args>(args)...);
    if constexpr (!detail::is_a<decltype(prepared), std::tuple>)
      static_cast<void>(detail::mistake::prepare_does_not_return_a_tuple<K>{});
    return prepared;
  }

  // Calls f with run's parameters, made from the caller's arguments through prepare.
  template <class P, class K, class F, class... Args>
  static decltype(auto) with_params(const K& kernel, F&& f, Args&&... args) {
    if constexpr (!P::sound) return detail::NoResult{};
    else if constexpr (P::has_prepare) {
      auto prepared = prepare<K>(kernel, std::forward<Args>(args)...);
      if constexpr (!detail::is_a<decltype(prepared), std::tuple>) return detail::NoResult{};
      else
        return std::apply(
            [&](auto&... p) -> decltype(auto) {
              auto params = P::bind_all(p...);
              return f(params);
            },
            prepared);
    } else {
      auto params = P::bind_all(std::forward<Args>(args)...);
      return f(params);
    }
  }

  template <class P, class K, class Params>
  Invocation invocation(const K& kernel, const Params& params) const {
    Invocation inv = P::invocation(kernel, params, typename P::Indices{});
    detail::WordSink sink;
    P::emit(kernel, params, 0, sink, typename P::Indices{});
    detail::set_words(inv, sink);
    return inv;
  }

  // The warm entry of this call under `salt`, none on a miss.
  template <class P, class K, class Params>
  detail::WarmFound probe(const K& kernel, const Params& params, uint64_t salt) const {
    if constexpr (P::fixed) {
      detail::FixedWords<P::fixed_words> words;
      P::emit(kernel, params, salt, words, typename P::Indices{});
      const uint64_t hash = detail::hash_words(words.words, P::fixed_words);
      return chain_->warm().find(hash, detail::FixedKey<P::fixed_words>{words},
                                 chain_->generation());
    } else {
      detail::WordSink words;
      P::emit(kernel, params, salt, words, typename P::Indices{});
      const uint64_t hash = detail::hash_words(words.data(), words.size());
      return chain_->warm().find(hash, detail::AnyKey{words}, chain_->generation());
    }
  }

  // True if nothing but the table needs to be asked.
  bool undisturbed() const noexcept { return quiet_ && detail::innermost_scope == nullptr; }

  // Inlined: a warm call costs 6 ns so, and 8 ns out of line.
  template <class P, class K, class Params>
  [[gnu::always_inline]] decltype(auto) run_chosen(const K& kernel, Params& params) const {
    using Config = typename P::Config;
    if (undisturbed()) [[likely]] {
      const detail::WarmFound found = probe<P>(kernel, params, salt_);
      if (const detail::WarmEntry* entry = found.entry) [[likely]] {
        const detail::WarmUse use(found);
        if (!entry->ask_first) [[likely]] {
          const auto& config = *static_cast<const Config*>(entry->config);
          if (entry->counted) [[unlikely]] {
            if (entry->record != 0 && detail::count_call(detail::call_count(entry->record)))
              return run_timed<P>(entry->record, kernel, config, params);
            if (entry->timed && found.reader->is_turn_to_time())
              return run_watched<P>(*entry->watched, kernel, config, params);
          }
          return P::run(kernel, config, params);
        }
      }
    }
    return run_slowly<P>(kernel, params);
  }

  template <class P, class K, class Params>
  [[gnu::noinline, gnu::cold]] static decltype(auto) run_timed(uint32_t record, const K& kernel,
                                                               const typename P::Config& config,
                                                               Params& params) {
    const detail::CallTimer timer(record);
    return P::run(kernel, config, params);
  }

  template <class P, class K, class Params>
  [[gnu::noinline, gnu::cold]] decltype(auto) run_watched(detail::WatchedCall& call,
                                                          const K& kernel,
                                                          const typename P::Config& config,
                                                          Params& params) const {
    const detail::WatchTimer timer(*chain_, call, [&] {
      chain_->tune_again(invocation<P>(kernel, params), bound<P>(kernel, params));
    });
    return P::run(kernel, config, params);
  }

  template <class P, class K, class Params>
  [[gnu::noinline, gnu::cold]] decltype(auto) run_slowly(const K& kernel, Params& params) const {
    const Choice choice = lookup<P>(kernel, params);
    const auto& config = choice.config.template as<typename P::Config>();
    if (choice.watched) return run_watched<P>(*choice.watched, kernel, config, params);
    if (choice.record != 0) return run_timed<P>(choice.record, kernel, config, params);
    return P::run(kernel, config, params);
  }

  static void count(uint32_t record) {
    if (record != 0) detail::count_call(detail::call_count(record));
  }

  // A warm entry if the scopes allow it, else the whole chain.
  template <class P, class K, class Params>
  Choice lookup(const K& kernel, const Params& params) const {
    if (chain_ != nullptr && !options_.hook) {
      chain_->warm().enlist();
      const detail::WarmFound found = probe<P>(kernel, params, chain_->scoped_salt());
      if (const detail::WarmEntry* entry = found.entry) {
        const detail::WarmUse use(found);
        if (auto choice = chain_->reuse(*entry)) {
          choice->record = entry->record;
          if (entry->timed && found.reader->is_turn_to_time() && chain_->policy().drift_watch)
            choice->watched = entry->watched;
          if (Recording* recording = detail::scoped_recording())
            choice->record =
                recording->record(invocation<P>(kernel, params), bound<P>(kernel, params));
          count(choice->record);
          return std::move(*choice);
        }
      }
    }
    return choose<P>(kernel, params);
  }

  Choice ask(Invocation& inv, const AnyKernel& kernel) const;

  std::shared_ptr<ConfigChooser> chooser_;
  ConfigSelectorChain* chain_ = nullptr;  // the chooser, if it is one
  ExecutorOptions options_;
  uint64_t salt_ = 0;
  bool quiet_ = false;  // a chain without event sink, and no hook
};

// The process-wide executor, used wherever no other one is passed. Created on first use, with the
// environment as it is then; lives until the process ends. Throws what Executor() throws, and tries
// again at the next use.
Executor& default_executor();

}  // namespace ejk
