// SPDX-License-Identifier: Apache-2.0
// Notes of what is to be sent: what can be read of them, and when one goes.
#include <cstdlib>

#include <gtest/gtest.h>

#include "store/keep.h"
#include "store/outbox.h"
#include "store_fixture.h"

namespace ejk::detail {
namespace {

using namespace ejk::testing;

class OutboxTest : public ::testing::Test {
 protected:
  OutboxTest() { ::unsetenv("EJKERNEL_STORE_TRUST"); }
  ~OutboxTest() override { ::unsetenv("EJKERNEL_STORE_TRUST"); }

  std::string path_of(const std::string& name) const { return scratch / ("near/outbox/" + name); }

  Scratch scratch;
  const Outbox outbox{scratch / "near"};
  const Entry entry = make_entry(testing::call_id(1));
};

TEST_F(OutboxTest, GivesBackWhatWasNoted) {
  EXPECT_TRUE(outbox.empty());
  const std::string name = outbox.add(entry, IfPresent::replace);
  const auto notes = outbox.notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0].name, name);
  EXPECT_TRUE(same_call(notes[0].call, entry.id));
  EXPECT_EQ(notes[0].if_present, IfPresent::replace);
  EXPECT_EQ(notes[0].environment, environment_id(entry));
  outbox.remove(name);
  EXPECT_TRUE(outbox.empty());
}

TEST_F(OutboxTest, AFileThatIsNotANoteIsRemoved) {
  for (const char* text : {"", "{", "[]", "{}", R"({"device":1})"}) {
    write_text(path_of("0123456789abcdef.json"), text);
    EXPECT_TRUE(outbox.notes().empty()) << text;
    EXPECT_TRUE(outbox.empty()) << text;
  }
}

TEST_F(OutboxTest, ANoteThatCannotBeReadNowStays) {
  EXPECT_TRUE(as_nobody([&] {  // root can read everything
    const std::string file = path_of(outbox.add(entry, IfPresent::keep_better));
    fs::permissions(file, fs::perms::none);
    const bool passed_over = outbox.notes().empty() && !outbox.empty();
    fs::permissions(file, fs::perms::owner_all);
    return passed_over && outbox.notes().size() == 1;
  }));
}

TEST_F(OutboxTest, WithStrictTrustANoteThatOthersMayHaveWrittenIsPassedOver) {
  const std::string file = path_of(outbox.add(entry, IfPresent::replace));
  fs::permissions(file, fs::perms::others_write, fs::perm_options::add);
  EXPECT_EQ(outbox.notes().size(), 1u);
  ::setenv("EJKERNEL_STORE_TRUST", "strict", 1);
  EXPECT_TRUE(outbox.notes().empty());
  EXPECT_FALSE(outbox.empty()) << "it may be sent by one who trusts it";
}

}  // namespace
}  // namespace ejk::detail
