// SPDX-License-Identifier: Apache-2.0
// ejk serve: the report of a store in a browser, read again now and then.
#include <algorithm>
#include <chrono>
#include <mutex>

#include <ejk/names.h>

#include "base/time.h"
#include "calls.h"
#include "live.h"
#include "page.h"
#include "report.h"
#include "verbs.h"

namespace ejk::cli {
namespace {

struct ServeOptions {
  Filter filter;
  KernelOptions kernels;
  std::string listen = "127.0.0.1:0";
};

using Clock = std::chrono::steady_clock;

// The report of a store, read again now and then.
class StoreShown {
 public:
  explicit StoreShown(const ServeOptions& options) : options_(options) { read(); }

  LiveShown shown() {
    const std::lock_guard lock(mutex_);
    if (Clock::now() >= next_) read();
    Value state = Value::object({{"stage", name_of(LiveStage::store)}});
    if (problems_.is_database_away)
      state["problems"] = Value(Value::Array{
          Value("The database cannot be read. This is what was read " +
                (read_at_.empty() ? std::string("without it.") : "at " + read_at_ + "."))});
    return {std::move(state), report_, version_};
  }

 private:
  void read() {
    constexpr auto pause = std::chrono::seconds(2);
    constexpr int share = 20;  // of the time that it may take
    const auto begun = Clock::now();
    problems_.is_database_away = false;
    Value report = report_of_store(options_.filter, options_.kernels, problems_);
    if (!problems_.is_database_away) read_at_ = base::utc_now();
    // What is known of the database is better than nothing.
    const bool is_news = !problems_.is_database_away || read_at_.empty();
    if (is_news && (report_ == nullptr || report != *report_))
      report_ = std::make_shared<Value>(std::move(report)), ++version_;
    const auto end = Clock::now();
    next_ = end + std::max<Clock::duration>(pause, share * (end - begun));
  }

  const ServeOptions& options_;
  std::mutex mutex_;
  Problems problems_;
  std::shared_ptr<const Value> report_;
  std::string read_at_;  // with all that is in the database; "": never
  uint64_t version_ = 0;
  Clock::time_point next_;
};

int serve_verb(const ServeOptions& options, Output& out) {
  load_plugins(options.kernels);
  const StopOnInterrupt stop;
  StoreShown store(options);
  const PageServer server(
      options.listen, [&](const std::string& path) { return live_answer(path, store.shown()); });
  out.line("the report of " + store_name(options.kernels.store) + " is at " + server.url());
  out.line("Ctrl-C ends it");
  out.document(Value::object({{"url", server.url()}}));
  if (const int code = out.finish(exit_ok); code != exit_ok) return code;
  wait_for_interrupt();
  return exit_ok;
}

}  // namespace

void add_serve(Verbs& verbs) {
  verbs.add<ServeOptions>(
      {"serve", "Show the report of a store in a browser, as it changes", "ejk serve --op matmul"},
      serve_verb, [](const VerbLine& line, ServeOptions& to) {
        line.store(to.kernels.store);
        line.filter(to.filter);
        line.recorded_in(to.kernels);
        line.listen(to.listen);
      });
}

}  // namespace ejk::cli
