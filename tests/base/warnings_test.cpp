// SPDX-License-Identifier: Apache-2.0
// What warnings quote was written by others: it is escaped and cut for every sink.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/quarantine.h>
#include <ejk/record.h>
#include <ejk/worker.h>

#include "base/sha256.h"
#include "base/text.h"
#include "base/warn.h"
#include "fakes.h"
#include "store_fixture.h"

namespace {

using ejk::base::one_line;
using ejk::base::printable;
using fakes::Show;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

// Clears a terminal, rings, begins a line, writes backwards, is no UTF-8.
const std::string hostile = "\x1b[2J\a\n\r\x7f\xc2\x9b\xe2\x80\xae\xe2\x81\xa6\xff";

TEST(Text, PrintableCharactersStay) {
  for (const char* text : {"", "plain", "a \\ b \"c\"", "äλ語🙂", "\xc2\xa0"})
    EXPECT_EQ(printable(text), text);
}

TEST(Text, OtherCharactersBecomeEscapes) {
  EXPECT_EQ(printable(hostile), R"(\x1b[2J\x07\n\x0d\x7f\x9b\u202e\u2066\xff)");
  EXPECT_EQ(printable(std::string_view("\0\t", 2)), R"(\x00\t)");
  // Overlong, a surrogate, cut off, beyond Unicode, a tag: each byte for itself where it is no
  // UTF-8.
  EXPECT_EQ(printable("\xc0\x80 \xed\xa0\x80 \xe2\x82"), R"(\xc0\x80 \xed\xa0\x80 \xe2\x82)");
  EXPECT_EQ(printable("\xf4\x90\x80\x80 \xf3\xa0\x81\x81"), R"(\xf4\x90\x80\x80 \ue0041)");
  EXPECT_EQ(printable(printable(hostile)), printable(hostile));
}

TEST(Text, LongMessagesKeepTheirEndsInAThousandBytes) {
  EXPECT_EQ(one_line(std::string(1000, 'x')), std::string(1000, 'x'));
  for (const std::string unit : {"x", "ä", "語", "🙂", "\x1b"}) {
    std::string long_one = "begin ";
    while (long_one.size() < 5000) long_one += unit;
    const std::string line = one_line(long_one + " end");
    EXPECT_LE(line.size(), 1000u);
    EXPECT_GE(line.size(), 990u);
    EXPECT_THAT(line, StartsWith("begin "));
    EXPECT_TRUE(line.ends_with(" end"));
    EXPECT_THAT(line, HasSubstr(" ... [cut, "));
    EXPECT_EQ(printable(line), line) << "a character is cut";
    EXPECT_EQ(one_line(line), line);
  }
}

class QuotesOfOthers : public testing::Test {
 protected:
  void expect_harmless(const std::vector<std::string>& said) {
    EXPECT_FALSE(said.empty());
    for (const std::string& message : said) {
      EXPECT_LE(message.size(), 1000u);
      EXPECT_EQ(printable(message), message);
    }
  }
  static void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
  }
  // JSON of a string with all that is hostile, and long.
  static std::string text() {
    return ejk::stable_json(ejk::Value(hostile + std::string(100'000, 'x') + hostile));
  }

  fakes::TempDir dir;
  fakes::Setup setup;
  const std::string root = dir.path() + "/" + hostile;
};

TEST_F(QuotesOfOthers, InEntriesAreEscapedAndCut) {
  ejk::DirectoryStore store(root, {false, setup.warnings.sink(), ejk::testing::environment()});
  const ejk::EntryId id = ejk::testing::call_id(1);
  write(store.file_of(id), R"({"schema":1,"op":"a@v1","key":"k","device":{"fingerprint":"d"},)"
                           R"("outcome":)" +
                               text() + "}");
  EXPECT_FALSE(store.get(id));
  expect_harmless(setup.warnings.take());
}

TEST_F(QuotesOfOthers, InStoredConfigsAreEscapedAndCut) {
  const ejk::Executor executor(setup.options(root));
  std::vector<float> x(8), y(8);
  const auto inv = executor.describe(Show{}, x, y);
  ejk::Entry entry;
  entry.id = {inv.device->fingerprint, inv.op(), inv.call_key(), inv.spec()};
  entry.config = ejk::parse_json("{" + text() + ":1}");
  ASSERT_TRUE(executor.chain().persistent()->put(entry));
  executor(Show{}, x, y);
  const auto said = setup.warnings.take();
  expect_harmless(said);
  EXPECT_TRUE(said.at(0).ends_with("it will be replaced when this call is tuned again")) << said[0];
}

TEST_F(QuotesOfOthers, InRecordsAreEscapedAndCut) {
  write(root + "/v1/device/op/" + std::string(32, '0') + ".json",
        R"({"schema":1,"op":"a","key":)" + text() + "}");
  EXPECT_THAT(ejk::read_recorded(root, setup.warnings.sink()), SizeIs(0));
  expect_harmless(setup.warnings.take());
}

TEST_F(QuotesOfOthers, InQuarantineAndJournalAreEscapedAndCut) {
  write(root + "/quarantine/x.json", "{" + text() + ":1," + text() + ":2}");
  EXPECT_THAT(ejk::quarantine_list(root, setup.warnings.sink()), SizeIs(0));
  expect_harmless(setup.warnings.take());
  write(root + "/journal/x.suspects", "{" + text() + ":1," + text() + ":2}");
  EXPECT_THAT(ejk::suspect_list(root, setup.warnings.sink()), SizeIs(0));
  expect_harmless(setup.warnings.take());
}

TEST_F(QuotesOfOthers, OnStderrAreEscapedAndCut) {
  testing::internal::CaptureStderr();
  ejk::stderr_warnings()("got " + hostile + std::string(5000, 'x'));
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, StartsWith("ejk: got \\x1b[2J"));
  EXPECT_EQ(said.find('\n'), said.size() - 1);
  expect_harmless({said.substr(5, said.size() - 6)});
}

}  // namespace
