// SPDX-License-Identifier: Apache-2.0
// Making executors, describing calls and asking the chooser.
#include <ejk/executor.h>

#include "base/format.h"
#include "platform/place.h"

namespace ejk {

namespace {

SelectorOptions default_options() {
  SelectorOptions options;
  options.persistent = std::make_shared<PersistentCache>();
  return options;
}

}  // namespace

namespace detail {

void add_argument(Invocation& inv, Arg arg, Role role, std::string_view name) {
  if (role != Role::input && arg.kind == Arg::Kind::tensor) arg.role = role;
  if (name.empty()) inv.args.push_back(std::move(arg));
  else inv.kwargs.emplace_back(name, std::move(arg));
}

void set_key(Invocation& inv, std::initializer_list<Arg> parts) { inv.key_args = parts; }

void set_words(Invocation& inv, const WordSink& words) {
  inv.words.assign(words.data(), words.data() + words.size());
}

}  // namespace detail

Executor::Executor() : Executor(default_options()) {}

Executor::Executor(SelectorOptions options)
    : Executor(std::make_shared<ConfigSelectorChain>(std::move(options))) {}

Executor::Executor(std::shared_ptr<ConfigChooser> chooser, ExecutorOptions options)
    : chooser_(std::move(chooser)), options_(std::move(options)) {
  if (!chooser_)
    throw Error(ErrorKind::invalid_argument,
                "an Executor needs a ConfigChooser; it was given none");
  chain_ = dynamic_cast<ConfigSelectorChain*>(chooser_.get());
  if (chain_ == nullptr) return;
  salt_ = chain_->salt();
  quiet_ = !chain_->has_event_sink() && !options_.hook;
}

ConfigSelectorChain& Executor::chain() const {
  if (chain_ == nullptr)
    throw Error(ErrorKind::invalid_argument,
                "this executor was made with a ConfigChooser of your own; only a "
                "ConfigSelectorChain can explain or tune");
  return *chain_;
}

Choice Executor::ask(Invocation& inv, const AnyKernel& kernel) const {
  // A config that came with the call leaves nothing to tune. Data are sketched before run writes.
  uint32_t record = 0;
  if (chain_ != nullptr && !inv.override_cfg) {
    if (Recording* own = chain_->recording()) record = inv.record = own->record(inv, kernel);
    if (Recording* scoped = detail::scoped_recording()) record = scoped->record(inv, kernel);
  }
  Choice choice = chooser_->choose(inv, kernel);
  choice.record = record;
  count(record);
  if (!choice.config || choice.config.type() != &kernel.config_type())
    throw Error(ErrorKind::no_configuration,
                "[" + inv.op() + "] the chooser gave " +
                    (choice.config ? "a config of type " + std::string(choice.config.type()->name)
                                   : "no config") +
                    "; the kernel needs " + std::string(kernel.config_type().name));
  if (options_.hook)
    options_.hook->on_call(inv, choice,
                           make_label(inv.op(), inv.call_key(), options_.stamp_prefix));
  return choice;
}

namespace detail {

namespace {

std::string home_text(const Home& home) {
  if (home.device == nullptr) return fmt::format("[{}] the arrays live on cpu", home.first.op);
  return text_of(home.first) + " lives on " + place_text(home.device);
}

}  // namespace

void no_run_there(const Home& home) {
  const std::string missing =
      home.device == nullptr ? "run" : fmt::format("run_{}", platform_name(home.platform()));
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("{}, and the kernel has no {}; add it, or copy the arrays with to(device)",
                  home_text(home), missing));
}

void name_the_platform(const Home& home, Platform meant) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{}, and this is typed for {}; name the platform, as in "
                          "tune<ejk::Platform::{}>(...)",
                          home_text(home), platform_name(meant), platform_name(home.platform())));
}

void no_gradient_there(const Home& home) {
  const std::string missing =
      home.device == nullptr
          ? "fwd_with_residuals and vjp"
          : fmt::format("fwd_with_residuals_{0} and vjp_{0}", platform_name(home.platform()));
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("{}, and the kernel has no gradient there; add {}, or copy the arrays with "
                  "to(device)",
                  home_text(home), missing));
}

void wrong_cotangent(std::string_view op, Platform there, std::string_view given) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("[{}] got a cotangent of type {}; expected what the kernel's vjp on {} "
                          "takes, where the arguments live",
                          op, given, platform_name(there)));
}

void config_of_another_platform(const Home& home, std::string_view given, std::string_view needed) {
  throw Error(
      ErrorKind::invalid_argument,
      fmt::format("[{}] got a {} for arrays on {}; expected a {}, which the kernel's run for "
                  "that platform takes",
                  home.first.op, given, place_text(home.device), needed));
}

}  // namespace detail

Executor& default_executor() {
  static Executor executor;
  return executor;
}

}  // namespace ejk
