// SPDX-License-Identifier: Apache-2.0
// Who does what, who waits for whom.
#include "choose/single_flight.h"

#include <utility>

namespace ejk::detail {

bool SingleFlight::waits_for_itself(const std::string& what) const {
  for (auto next = by_whom_.find(what); next != by_whom_.end();) {
    if (next->second == std::this_thread::get_id()) return true;
    const auto waits = waiting_.find(next->second);
    if (waits == waiting_.end()) return false;
    next = by_whom_.find(waits->second);
  }
  return false;
}

bool SingleFlight::is_on_elsewhere(const std::string& what) const {
  const auto flight = by_whom_.find(what);
  return flight != by_whom_.end() && flight->second != std::this_thread::get_id();
}

void SingleFlight::wait_for(const std::string& what, std::unique_lock<std::mutex>& lock) {
  waiting_[std::this_thread::get_id()] = what;
  ended_.wait(lock);
  waiting_.erase(std::this_thread::get_id());
}

SingleFlight::Flight::Flight(SingleFlight& flights, std::string what,
                             std::unique_lock<std::mutex>& lock)
    : flights_(flights), what_(std::move(what)) {
  flights_.by_whom_.emplace(what_, std::this_thread::get_id());
  lock.unlock();
}

SingleFlight::Flight::~Flight() {
  {
    const std::lock_guard lock(flights_.mutex_);
    flights_.by_whom_.erase(what_);
  }
  flights_.ended_.notify_all();
}

}  // namespace ejk::detail
