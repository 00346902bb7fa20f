// SPDX-License-Identifier: Apache-2.0
// What one thread does for all others, by name.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace ejk::detail {

// Works under a mutex of its owner, which all functions but a Flight's end want to be held.
class SingleFlight {
 public:
  explicit SingleFlight(std::mutex& mutex) : mutex_(mutex) {}

  bool is_on(const std::string& what) const { return by_whom_.contains(what); }
  // Also by a thread that waits for this one: waiting would never end.
  bool waits_for_itself(const std::string& what) const;
  bool is_on_elsewhere(const std::string& what) const;
  // Until some flight has ended.
  void wait_for(const std::string& what, std::unique_lock<std::mutex>& lock);

  // The calling thread does it, until the end of this. Unlocks the mutex.
  class Flight {
   public:
    Flight(SingleFlight& flights, std::string what, std::unique_lock<std::mutex>& lock);
    ~Flight();
    Flight(const Flight&) = delete;
    Flight& operator=(const Flight&) = delete;

   private:
    SingleFlight& flights_;
    const std::string what_;
  };

 private:
  std::mutex& mutex_;
  std::condition_variable ended_;
  std::map<std::string, std::thread::id> by_whom_;
  std::map<std::thread::id, std::string> waiting_;  // threads, and what each waits for
};

}  // namespace ejk::detail
