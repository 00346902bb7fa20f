// SPDX-License-Identifier: Apache-2.0
// Spreading the elements of a batch over threads and devices.
#include <ejk/batch.h>

#include <exception>
#include <thread>

#include <ejk/gpu.h>

#include "base/format.h"
#include "platform/backend.h"
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

void spread_over(const std::vector<const Device*>& devices,
                 const std::function<void(const Device* device)>& body) {
  if (devices.size() == 1) return body(devices[0]);
  // Each thread has a queue of its own.
  for (const Device* device : devices) Queue(*device).wait();
  const auto count = static_cast<int>(devices.size());
  spread(count, count, [&](int64_t begin, int64_t end) {
    for (int64_t d = begin; d < end; ++d) {
      const Device* device = devices[static_cast<size_t>(d)];
      body(device);
      Queue(*device).wait();
    }
  });
}

bool begins_where_it_may(const AnyView& array) {
  return array.device == nullptr || array.offset % backend_of(*array.device).alignment() == 0;
}

void elements_on_several_devices(std::string_view op, const Device* one, const Device* other) {
  throw Error(ErrorKind::invalid_argument,
              fmt::format("[{}] got elements on {} and on {}; expected all on one device; call "
                          "pmap_with_config, or copy them with to(device)",
                          op, place_text(one), place_text(other)));
}

void wrong_batch(std::string_view op, int argument, const std::string& problem) {
  throw Error(ErrorKind::invalid_argument, "[" + std::string(op) + "] batched argument " +
                                               std::to_string(argument) + ": " + problem);
}

}  // namespace ejk::detail
