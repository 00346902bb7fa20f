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
class Leases : public fakes::EmptyStore {
 public:
  int held = 0, refreshed = 0;

  std::unique_ptr<ejk::TuningLease> lease(const ejk::EntryId&, double) override {
    struct Lease : ejk::TuningLease {
      explicit Lease(Leases& store) : leases(store) { ++leases.held; }
      ~Lease() override { --leases.held; }
      void refresh() override { ++leases.refreshed; }
      Leases& leases;
    };
    return std::make_unique<Lease>(*this);
  }
};

TEST(Leases, AreRefreshedBetweenRuns) {
  const auto leases = std::make_shared<Leases>();
  ejk::SelectorOptions o;
  o.policy = ejk::AutotunePolicy{};
  o.persistent = fakes::cache_of(leases);
  const std::vector<float> x(8);
  std::vector<float> y(8);
  const ejk::Executor executor(o);
  executor(fakes::Show{}, x, y);
  EXPECT_GE(leases->refreshed, 4) << "one for each candidate and the heuristic, at least";
  EXPECT_EQ(leases->held, 0);
}

}  // namespace
