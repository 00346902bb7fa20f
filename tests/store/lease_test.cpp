// SPDX-License-Identifier: Apache-2.0
// A tuning tells those who wait for it that it goes on.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"

namespace {

// Keeps nothing but leases that count how often they are refreshed.
class Leases : public ejk::Store {
 public:
  int held = 0, refreshed = 0;

  std::optional<ejk::Entry> get(const ejk::EntryId&, ejk::Detail, const ejk::Value*) override {
    return std::nullopt;
  }
  bool put(const ejk::Entry&, ejk::IfPresent) override { return true; }
  bool erase(const ejk::EntryId&) override { return false; }
  void for_each(std::string_view, const std::function<bool(const ejk::Entry&)>&,
                ejk::Detail) override {}
  std::unique_ptr<ejk::TuningLease> lease(const ejk::EntryId&, double) override {
    struct Lease : ejk::TuningLease {
      explicit Lease(Leases& store) : leases(store) { ++leases.held; }
      ~Lease() override { --leases.held; }
      void refresh() override { ++leases.refreshed; }
      Leases& leases;
    };
    return std::make_unique<Lease>(*this);
  }
  std::string where() const override { return "memory"; }
  bool writable() const override { return true; }
};

TEST(Leases, AreRefreshedBetweenRuns) {
  const auto leases = std::make_shared<Leases>();
  ejk::SelectorOptions o;
  o.policy = ejk::AutotunePolicy{};
  o.persistent =
      std::make_shared<ejk::PersistentCache>(std::vector<std::shared_ptr<ejk::Store>>{leases});
  const std::vector<float> x(8);
  std::vector<float> y(8);
  const ejk::Executor executor(o);
  executor(fakes::Show{}, x, y);
  EXPECT_GE(leases->refreshed, 4) << "one for each candidate and the heuristic, at least";
  EXPECT_EQ(leases->held, 0);
}

}  // namespace
