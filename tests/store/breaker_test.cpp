// SPDX-License-Identifier: Apache-2.0
// When a database is left alone, and when it is asked again.
#include <gtest/gtest.h>

#include "store/postgres/breaker.h"

namespace ejk::detail::postgres {
namespace {

struct BreakerTest : ::testing::Test {
  double random = 0.5;  // pauses as they are
  Breaker breaker{{.first_pause = 5, .longest_pause = 300, .failures = 3},
                  [this] { return random; }};
};

TEST_F(BreakerTest, AFailedConnectionOpensItAtOnce) {
  EXPECT_FALSE(breaker.open());
  EXPECT_TRUE(breaker.connect_failed(100));
  EXPECT_TRUE(breaker.open());
  EXPECT_EQ(breaker.next_probe(), 105);
}

TEST_F(BreakerTest, ThreeFailedQueriesInARowOpenIt) {
  EXPECT_FALSE(breaker.query_failed(1));
  EXPECT_FALSE(breaker.query_failed(2));
  EXPECT_FALSE(breaker.succeeded());
  EXPECT_FALSE(breaker.query_failed(3));
  EXPECT_FALSE(breaker.query_failed(4));
  EXPECT_TRUE(breaker.query_failed(5));
  EXPECT_EQ(breaker.next_probe(), 10);
}

TEST_F(BreakerTest, PausesDoubleUpToTheLongest) {
  breaker.connect_failed(0);
  for (const double pause : {10., 20., 40., 80., 160., 300., 300.}) {
    const double now = breaker.next_probe();
    EXPECT_FALSE(breaker.connect_failed(now)) << "it was open";
    EXPECT_EQ(breaker.next_probe(), now + pause);
  }
  EXPECT_TRUE(breaker.succeeded());
  EXPECT_FALSE(breaker.open());
  EXPECT_FALSE(breaker.succeeded()) << "it was closed";
  EXPECT_TRUE(breaker.connect_failed(1000));
  EXPECT_EQ(breaker.next_probe(), 1005) << "from the beginning";
}

TEST_F(BreakerTest, ProcessesComeBackAtDifferentTimes) {
  random = 0;
  breaker.connect_failed(0);
  EXPECT_EQ(breaker.next_probe(), 3.75);
  random = 1;
  breaker.connect_failed(0);
  EXPECT_EQ(breaker.next_probe(), 12.5);
}

}  // namespace
}  // namespace ejk::detail::postgres
