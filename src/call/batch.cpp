// SPDX-License-Identifier: Apache-2.0
// Spreading the elements of a batch over threads.
#include <ejk/batch.h>

#include <exception>
#include <thread>

#include "base/format.h"
#include "platform/place.h"

namespace ejk::detail {

void spread(int64_t count, int workers,
            const std::function<void(int64_t begin, int64_t end)>& body) {
  const int64_t parts = std::clamp<int64_t>(workers, 1, std::max<int64_t>(count, 1));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(parts));
  auto part = [&](int64_t p) {
    try {
      body(count * p / parts, count * (p + 1) / parts);
    } catch (...) {
      errors[static_cast<size_t>(p)] = std::current_exception();
    }
  };
  {
    const ScopeSnapshot scopes = current_scopes();  // what elements call sees what the caller set
    std::vector<std::jthread> threads;
    for (int64_t p = 1; p < parts; ++p)
      threads.emplace_back([&, p] { scopes.run([&] { part(p); }); });
    part(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

void no_batches_there(const Home& home) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("{} lives on {}; batches are for arrays on the CPU: call the kernel for "
                          "each element, or copy the array with to(ejk::cpu_device())",
                          text_of(home.first), place_text(home.device)));
}

void wrong_batch(std::string_view op, int argument, const std::string& problem) {
  throw Error(ErrorKind::invalid_argument, "[" + std::string(op) + "] batched argument " +
                                               std::to_string(argument) + ": " + problem);
}

}  // namespace ejk::detail
