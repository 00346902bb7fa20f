// SPDX-License-Identifier: Apache-2.0
// The policy in force: every field can be changed for a while, and those that are not stay.
#include <ejk/config.h>
#include <ejk/selector.h>
#include <gtest/gtest.h>

namespace {

using ejk::AutotunePolicy;
using ejk::PolicyUpdates;

// One value for each field, none of which is the default.
constexpr AutotunePolicy changed{.allow_autotune = false,
                                 .allow_heuristics = false,
                                 .cache_miss_fallback = ejk::Fallback::heuristics,
                                 .validate_backward = true,
                                 .numerics = ejk::Numerics::same,
                                 .budget_seconds = 2.5,
                                 .budget_evaluations = 3,
                                 .target_seconds = 0.25,
                                 .guard = false,
                                 .resume = false,
                                 .resume_share = 0.5,
                                 .background_bytes = 1,
                                 .background_share = 0.5,
                                 .drift_watch = true};

TEST(Policy, UpdatesHaveTheFieldsOfAPolicyAndSetNone) {
  const ejk::Value fields = to_value(AutotunePolicy{}), updates = to_value(PolicyUpdates{});
  ASSERT_EQ(fields.as_object().members.size(), updates.as_object().members.size());
  for (const auto& [name, value] : fields.as_object().members) {
    ASSERT_NE(updates.find(name), nullptr) << name;
    EXPECT_TRUE(updates.find(name)->is_null()) << name;
    EXPECT_NE(value, *to_value(changed).find(name)) << name;
  }
}

TEST(Policy, AnOverrideChangesItsFieldAndNoOther) {
  ejk::ConfigSelectorChain chain({.policy = AutotunePolicy{}});
  const ejk::Value before = to_value(chain.policy());
  const ejk::Value fields = to_value(changed);
  for (const auto& [name, value] : fields.as_object().members) {
    ejk::Value expected = before;
    expected[name] = value;
    {
      const auto scope =
          ejk::policy_override(ejk::from_value<PolicyUpdates>(ejk::Value::object({{name, value}})));
      EXPECT_EQ(to_value(chain.policy()), expected) << name;
    }
    EXPECT_EQ(to_value(chain.policy()), before) << name;
  }
}

}  // namespace
