// SPDX-License-Identifier: Apache-2.0
// The worker's side: one request after the other, tuned here (docs/reference/worker.md).
#include <ejk/worker.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <set>

#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/registry.h>
#include <ejk/selector.h>

#include "base/file.h"
#include "base/thrown.h"
#include "offline/worker_messages.h"

namespace ejk {
namespace {

using detail::WorkerEvent;

// Standard input, line by line.
class Requests {
 public:
  std::optional<std::string> next() {
    for (;;) {
      if (const size_t end = text_.find('\n', looked_at_); end != text_.npos) {
        std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        looked_at_ = 0;
        return line;
      }
      looked_at_ = text_.size();
      char buffer[65536];
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n > 0) text_.append(buffer, static_cast<size_t>(n));
      else if (n == 0 || errno != EINTR) return std::nullopt;
    }
  }

 private:
  std::string text_;
  size_t looked_at_ = 0;
};

// Standard output for answers alone: what kernels print there goes to standard error from now on.
// Warnings are the caller's.
class Answers {
 public:
  explicit Answers(WarningSink sink)
      : on_warning(std::move(sink)),
        out_(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)) {
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
  }
  const WarningSink on_warning;

  // What is said from now on is about this request.
  void begin(const Value& request) {
    const Value* number = request.find("request");
    request_ = number == nullptr ? Value() : *number;
  }

  void say(Value answer) {
    if (!request_.is_null()) answer["request"] = request_;
    const std::string line = to_json(answer) + "\n";
    for (std::string_view rest = line; !rest.empty();) {
      const ssize_t n = ::write(out_.get(), rest.data(), rest.size());
      if (n >= 0) rest.remove_prefix(static_cast<size_t>(n));
      else if (errno != EINTR) return;  // the host is gone; its end of the input tells
    }
  }

  void tell(const TuneProgress& p) {
    if (news_.is_news(p)) say(detail::progress_to_document(p));
  }

 private:
  base::Fd out_;
  Value request_;
  detail::ProgressNews news_;
};

void load_plugins(const std::vector<std::string>& paths) {
  static std::set<std::string> loaded;
  for (const std::string& path : paths)
    if (!loaded.contains(path)) {
      load_kernels(path);
      loaded.insert(path);
    }
}

Entry tune(const detail::TuneRequest& request, Answers& answers) {
  load_plugins(request.plugins);
  const auto made = rebuild_call(request.call);
  AutotunePolicy policy;
  policy.budget_seconds = request.budget_seconds;
  policy.validate_backward = request.validate_backward;
  policy.numerics = request.numerics;
  const std::string& store = request.store;
  ConfigSelectorChain selector(
      SelectorOptions{.policy = policy,
                      .persistent = store.empty() ? std::make_shared<PersistentCache>()
                                                  : std::make_shared<PersistentCache>(store),
                      .on_warning = answers.on_warning,
                      .on_progress = [&](const TuneProgress& p) { answers.tell(p); },
                      .stop = &StopOnInterrupt::requested()});
  if (request.retune) return selector.tune(made->invocation(), made->kernel()).second;
  // The host looks under the key of the record, which is not that of such a call.
  if (request.validate_backward || request.numerics == Numerics::same)
    if (auto tuned = selector.tuned(made->invocation(), made->kernel())) return std::move(*tuned);
  return selector.resume(made->invocation(), made->kernel()).second;
}

Value failed(std::string_view kind, std::string_view message) {
  return Value::object(
      {{"event", name_of(WorkerEvent::failed)}, {"kind", kind}, {"message", message}});
}

Value answer(const std::string& line, Answers& answers) {
  try {
    const Value request = parse_json(line);
    answers.begin(request);
    Value entry = entry_to_document(tune(detail::request_from_document(request), answers));
    entry.erase("candidates");  // they are in the store
    return Value::object({{"event", name_of(WorkerEvent::tuned)}, {"entry", std::move(entry)}});
  } catch (const Error& error) {
    return failed(name_of(error.kind()), error.what());
  } catch (...) {
    return failed("other", base::what_was_thrown());
  }
}

}  // namespace

int run_worker(WarningSink on_warning) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGPIPE, SIG_IGN);
  const StopOnInterrupt stop;
  Requests requests;
  Answers answers(std::move(on_warning));
  answers.say(Value::object({{"event", name_of(WorkerEvent::ready)},
                             {"protocol", worker_protocol},
                             {"device", cpu_device().fingerprint},
                             {"process", ::getpid()},
                             {"understands", Value(Value::Array{detail::numerics_member})},
                             {"library", library_version()}}));
  while (const auto line = requests.next()) {
    answers.say(answer(*line, answers));
    if (StopOnInterrupt::requested()) break;
  }
  return 0;
}

}  // namespace ejk
