// SPDX-License-Identifier: Apache-2.0
// Recordings among killed processes, damaged files, missing rights and full disks.
#include <signal.h>
#include <sys/resource.h>

#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "base/directory.h"
#include "fakes.h"
#include "store_fixture.h"

using namespace ejk::testing;
namespace base = ejk::base;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

namespace {

void make_calls(const std::shared_ptr<ejk::Recording>& recording, size_t size, int times) {
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.allow_autotune = false};
  options.recording = recording;
  const ejk::Executor executor(options);
  const std::vector<float> x(size);
  std::vector<float> y{0};
  for (int i = 0; i < times; ++i) executor(fakes::Show{}, x, y);
}

class RecordFaults : public ::testing::Test {
 protected:
  std::string folder() const { return scratch / "recorded"; }
  std::shared_ptr<ejk::Recording> open() {
    return std::make_shared<ejk::Recording>(folder(),
                                            ejk::Recording::Options{.on_warning = said.sink()});
  }
  std::map<std::string, ejk::RecordedCall> calls() {
    return ejk::read_recorded(folder(), said.sink())[ejk::cpu_device().fingerprint]["show@v3"];
  }
  // The one file there is.
  std::string file() {
    for (const std::string& name : files_below(folder()))
      if (name.ends_with(".json")) return folder() + "/" + name;
    return {};
  }

  Scratch scratch;
  fakes::WarningLog said;
};

TEST_F(RecordFaults, ProcessesAddTheirCountsToOnePlace) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(start_child([&] {
      // Not flush(), which gives up after a second: others may be slow to write.
      for (int round = 0; round < 5; ++round) make_calls(open(), 8, 10);
      return said.take().empty();
    }));
  for (const pid_t child : children) EXPECT_TRUE(child_succeeded(child));
  ASSERT_THAT(calls(), SizeIs(1));
  EXPECT_EQ(calls().begin()->second.calls, 4u * 5 * 10);
  EXPECT_THAT(said.take(), IsEmpty());
}

TEST_F(RecordFaults, AKilledProcessLosesNothingWrittenAndBlocksNoOther) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = start_child([&]() -> bool {
    const auto recording = open();
    make_calls(recording, 8, 10);
    if (!recording->flush() || ::write(ready[1], "x", 1) != 1) return false;
    while (true) {  // killed while it writes
      make_calls(recording, 9, 1);
      recording->flush();
    }
  });
  char c;
  ASSERT_EQ(::read(ready[0], &c, 1), 1);
  Openings(folder()).wait_for(20);
  ::kill(child, SIGKILL);
  EXPECT_FALSE(child_succeeded(child));
  EXPECT_GE(calls().size(), 1u);
  const auto recording = open();
  make_calls(recording, 8, 1);
  EXPECT_TRUE(recording->flush());
  const auto x8 = std::vector<float>(8);
  std::vector<float> y{0};
  EXPECT_EQ(calls()
                .at(ejk::Executor(ejk::SelectorOptions{}).describe(fakes::Show{}, x8, y).call_key())
                .calls,
            11u);
  EXPECT_THAT(said.take(), IsEmpty());
}

TEST_F(RecordFaults, AForkedChildLeavesTheRecordingToItsParent) {
  const auto recording = open();
  make_calls(recording, 8, 3);
  EXPECT_TRUE(child_succeeded(start_child([&] {
    make_calls(recording, 8, 100);
    return true;
  })));
  recording->flush();
  EXPECT_EQ(calls().begin()->second.calls, 3u);
}

TEST_F(RecordFaults, AChildThatExitsDoesNotHang) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    {
      auto recording = open();
      make_calls(recording, 8, 1);
      recording->flush();
      const pid_t inner = ::fork();
      if (inner == 0) {
        recording.reset();  // of its parent: neither joins a thread nor writes
        ::_exit(0);
      }
      if (!child_succeeded(inner)) ::_exit(1);
    }
    ::_exit(0);
  }
  EXPECT_TRUE(child_succeeded(child));
}

TEST_F(RecordFaults, DamagedRecordsArePassedOverAndWrittenAnew) {
  for (const std::string& damage :
       {std::string(), std::string("{"), std::string("[]"), std::string("\0\xff\x80", 3),
        std::string(R"({"schema":1})"), std::string(R"({"schema":1,"op":3})")}) {
    make_calls(open(), 8, 5);
    const std::string path = file();
    ASSERT_NE(path, "");
    write_text(path, damage);
    EXPECT_THAT(calls(), IsEmpty());
    EXPECT_THAT(said.take(), ElementsAre(HasSubstr("passing over " + path)));
    make_calls(open(), 8, 2);
    EXPECT_THAT(said.take(), ElementsAre(HasSubstr("is written anew")));
    EXPECT_EQ(calls().begin()->second.calls, 2u);
    ::unlink(path.c_str());
  }
}

TEST_F(RecordFaults, TimesThatCannotBeMeasuredAreCut) {
  make_calls(open(), 8, 5);
  ejk::RecordedCall call = calls().begin()->second;
  call.timed_seconds = 1e308;
  write_text(file(), to_json(record_to_document(call)));
  EXPECT_EQ(calls().begin()->second.timed_seconds, 1e12);
  make_calls(open(), 8, 5);
  EXPECT_EQ(calls().begin()->second.calls, 10u);
  EXPECT_THAT(said.take(), IsEmpty());
}

TEST_F(RecordFaults, ARecordOfAnotherCallIsNotTakenForThisOne) {
  make_calls(open(), 8, 5);
  const std::string path = file();
  std::string text = read_text(path);
  text.replace(text.find("show@v3"), 7, "evil@v3");
  write_text(path, text);
  EXPECT_THAT(ejk::read_recorded(folder(), said.sink()), IsEmpty());
  EXPECT_THAT(said.take(), ElementsAre(HasSubstr("the record of another call")));
}

TEST_F(RecordFaults, LinksAreNotFollowed) {
  make_calls(open(), 8, 1);
  const fs::path record = file(), op = record.parent_path(), device = op.parent_path();
  for (const fs::path& place : {record, op, device, device.parent_path(),
                                fs::path(folder()) / "tmp", fs::path(folder()) / "lock"}) {
    SCOPED_TRACE(place);
    const Scratch elsewhere;
    fs::rename(place, elsewhere / "target");
    fs::create_symlink(elsewhere / "target", place);
    const auto content = [&] {
      std::map<std::string, std::string> out;
      for (const std::string& name : files_below(elsewhere.path()))
        out[name] = read_text(elsewhere / name);
      return out;
    };
    const auto before = content();
    const auto recording = open();
    make_calls(recording, 8, 1);
    EXPECT_FALSE(recording->flush());
    EXPECT_EQ(content(), before);
    EXPECT_TRUE(fs::is_symlink(place));
    fs::remove(place);
    fs::rename(elsewhere / "target", place);
  }
}

TEST_F(RecordFaults, RecordsOfANewerVersionStay) {
  make_calls(open(), 8, 5);
  const std::string path = file();
  write_text(path, R"({"schema":2,"new":"things"})");
  make_calls(open(), 8, 5);
  EXPECT_EQ(read_text(path), R"({"schema":2,"new":"things"})");
  EXPECT_THAT(said.take(), ElementsAre(HasSubstr("newer version")));
}

TEST_F(RecordFaults, AFullDiskIsSaidOnceAndHarmsNoCall) {
  EXPECT_TRUE(child_succeeded(start_child([&] {
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 0;
    const auto recording = open();
    ::setrlimit(RLIMIT_FSIZE, &limit);
    make_calls(recording, 8, 3);
    bool well = !recording->flush() && !recording->flush();
    well = well && said.take().size() == 1;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return well && recording->flush();
  })));
  EXPECT_EQ(calls().begin()->second.calls, 3u) << "nothing was lost";
}

TEST_F(RecordFaults, AtTheEndALockIsWaitedForLongerThanMeanwhile) {
  constexpr int looks_of_a_flush = 210;  // a second, one every 5 ms, and short ones at first
  fs::create_directory(folder());
  std::optional<base::FileLock> other;
  other.emplace(directory_at(folder()), "lock", base::FileLock::Wait{},
                base::FileLock::AfterUse::keep_file);
  auto recording = open();
  make_calls(recording, 8, 3);
  EXPECT_FALSE(recording->flush());
  EXPECT_THAT(said.take(), ElementsAre(HasSubstr("another process holds")));
  Openings looks(folder());
  std::jthread ends([&] {
    looks.wait_for(looks_of_a_flush + 1);
    other.reset();
  });
  recording.reset();
  EXPECT_THAT(said.take(), IsEmpty());
  EXPECT_EQ(calls().begin()->second.calls, 3u);
}

TEST_F(RecordFaults, APlaceThatCannotBeWrittenIsSaidOnce) {
  write_text(scratch / "recorded", "a file");
  {
    const auto recording = open();
    make_calls(recording, 8, 3);
    EXPECT_FALSE(recording->flush());
    EXPECT_FALSE(recording->flush());
  }
  EXPECT_THAT(said.take(), ElementsAre(HasSubstr("cannot record calls in")));
  EXPECT_THROW(ejk::Recording(""), ejk::Error);
}

}  // namespace
