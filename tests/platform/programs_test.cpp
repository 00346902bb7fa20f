// SPDX-License-Identifier: Apache-2.0
// Programs of devices on disk: what is read, and what is not.
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.h"
#include "platform/fake_backend.h"
#include "platform/program_cache.h"
#include "platform/program_files.h"
#include "store_fixture.h"

namespace ejk::detail {
namespace {

namespace fs = std::filesystem;
using fakes::FakeBackend;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Programs : public ::testing::Test {
 protected:
  Programs() { ::setenv("EJKERNEL_PERSISTENT_CACHE_DIR", scratch_.path().c_str(), 1); }

  // As a process does that launches kernel "k" of that source.
  static void use(FakeBackend& backend, const std::string& source = "text") {
    const auto program = backend.programs().get("name", source);
    backend.programs().keep(*program, "k");
  }
  std::string directory() const { return scratch_ / "programs/" + std::to_string(::geteuid()); }
  std::string only_file() const {
    std::string found;
    for (const auto& file : fs::directory_iterator(directory())) {
      EXPECT_EQ(found, "") << "more than one file";
      found = file.path().string();
    }
    return found;
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  // What a later process does: true if it had to build.
  static bool builds_again() {
    FakeBackend later;
    use(later);
    return !later.built.empty();
  }

  ejk::testing::Scratch scratch_;
};

TEST_F(Programs, AreBuiltByTheFirstProcessAndReadByLaterOnes) {
  FakeBackend first, later;
  use(first);
  EXPECT_THAT(first.built, ElementsAre("text"));
  use(later);
  EXPECT_THAT(later.built, IsEmpty());
  EXPECT_THAT(later.loaded, ElementsAre("binary of text"));
  EXPECT_EQ(later.programs().counts().loaded, 1);
  EXPECT_EQ(later.programs().counts().built, 0);
  ASSERT_THAT(later.loaded_facts, SizeIs(1));
  EXPECT_EQ(later.loaded_facts[0].kernel, "k");
  EXPECT_EQ(later.loaded_facts[0].registers, 32);
  EXPECT_EQ(later.loaded_facts[0].spilled_bytes, 4);
  EXPECT_EQ(later.loaded_facts[0].local_bytes, 1024);
}

TEST_F(Programs, AreWrittenOnce) {
  FakeBackend first;
  const auto program = first.programs().get("name", "text");
  for (const char* kernel : {"k", "k", "other"}) first.programs().keep(*program, kernel);
  EXPECT_EQ(first.waits, 0) << "there is nothing that a launch adds";
  EXPECT_THAT(first.built, SizeIs(1));
}

TEST_F(Programs, AreWrittenForEachKernelWhereLaunchesAddToThem) {
  FakeBackend first, later;
  first.grows = later.grows = true;
  const auto program = first.programs().get("name", "text");
  for (const char* kernel : {"k", "k", "other"}) first.programs().keep(*program, kernel);
  EXPECT_EQ(first.waits, 2);
  EXPECT_THAT(first.built, SizeIs(2));  // another one to ask for its binary
  const auto again = later.programs().get("name", "text");
  later.programs().keep(*again, "other");
  EXPECT_EQ(later.waits, 0);
  later.programs().keep(*again, "third");
  EXPECT_EQ(later.waits, 1);
  EXPECT_THAT(later.built, SizeIs(1));
}

TEST_F(Programs, AreNotAskedForBinariesWhereThereIsNoPlaceForThem) {
  for (const char* name : {"EJKERNEL_PERSISTENT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"})
    ::setenv(name, "", 1);
  FakeBackend backend;
  backend.grows = true;
  const auto program = backend.programs().get("name", "text");
  for (const char* kernel : {"k", "other"}) backend.programs().keep(*program, kernel);
  EXPECT_EQ(backend.waits, 0);
  EXPECT_THAT(backend.built, SizeIs(1));
}

TEST_F(Programs, AnotherSourceOrTargetIsAnotherProgram) {
  FakeBackend first, later;
  use(first);
  use(later, "another text");
  EXPECT_THAT(later.built, SizeIs(1));
  FakeBackend updated;
  updated.said_target = "another driver";
  use(updated);
  EXPECT_THAT(updated.built, SizeIs(1));
}

TEST_F(Programs, ThatTheDriverRefusesAreBuiltAgain) {
  FakeBackend first, later;
  use(first);
  later.refuses_binaries = true;
  use(later);
  EXPECT_THAT(later.built, SizeIs(1));
}

TEST_F(Programs, ThatAreDamagedNeverReachTheDriver) {
  FakeBackend first;
  use(first);
  const std::string path = only_file(), whole = content(path);
  for (size_t at = 0; at < whole.size(); at += 7) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    write(path, damaged);
    FakeBackend later;
    later.programs().get("name", "text");
    EXPECT_THAT(later.loaded, IsEmpty()) << "byte " << at;
    write(path, whole.substr(0, at));
    FakeBackend cut;
    cut.programs().get("name", "text");
    EXPECT_THAT(cut.loaded, IsEmpty()) << at << " bytes";
  }
  write(path, whole);
  EXPECT_FALSE(builds_again());
}

TEST_F(Programs, AnotherProgramUnderItsNameIsAMiss) {
  FakeBackend first;
  use(first);
  const std::string name = only_file();
  fs::rename(name, scratch_ / "aside");
  use(first, "another text");
  fs::rename(only_file(), name);
  EXPECT_TRUE(builds_again());
}

TEST_F(Programs, AProgramOfALaterFormatIsAMiss) {
  FakeBackend first;
  use(first);
  const std::string path = only_file();
  std::string text = content(path);
  text.erase(0, text.find('\n') + 1);
  text.replace(text.find("\"format\": 2"), 11, "\"format\": 3");
  write(path, base::digest_of(text) + "\n" + text);
  EXPECT_TRUE(builds_again());
}

TEST_F(Programs, AreForTheirUserAlone) {
  const mode_t before = ::umask(0);
  FakeBackend first;
  use(first);
  ::umask(before);
  EXPECT_EQ(fs::status(directory()).permissions(), fs::perms::owner_all);
  EXPECT_FALSE(builds_again());
}

TEST_F(Programs, InADirectoryThatOthersMayWriteAreNeitherReadNorKept) {
  FakeBackend first;
  use(first);
  fs::permissions(directory(), fs::perms::group_write, fs::perm_options::add);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(builds_again());
  EXPECT_TRUE(builds_again());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("another user may write there"), said.npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << "said once: " << said;
  fs::permissions(directory(), fs::perms::group_write, fs::perm_options::remove);
  EXPECT_FALSE(builds_again());
}

TEST_F(Programs, BehindALinkAreNotRead) {
  FakeBackend first;
  use(first);
  const std::string aside = scratch_ / "aside";
  fs::rename(directory(), aside);
  fs::create_directory_symlink(aside, directory());
  EXPECT_TRUE(builds_again());
}

TEST_F(Programs, ThatCannotBeWrittenAreSaidOnceAndRun) {
  write(scratch_ / "programs", "a file in the way");
  ::testing::internal::CaptureStderr();
  FakeBackend first;
  use(first);
  use(first, "another text");
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("device programs are not kept"), said.npos) << said;
  EXPECT_EQ(said.find('\n'), said.size() - 1) << said;
}

TEST_F(Programs, ThatSeveralThreadsWantAreBuiltByOne) {
  struct Slow : FakeBackend {
    std::shared_ptr<DeviceProgram> build(const std::string&, const std::string& source) override {
      ++builds;
      ejk::testing::wait_until([&] { return waiting == 4; }, "that all the others want it too");
      return std::make_shared<fakes::FakeProgram>(source);
    }
    std::atomic<int> builds{0}, waiting{0};
  } backend;
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<CachedProgram>> got(4);
  for (auto& program : got)
    threads.emplace_back([&] {
      ++backend.waiting;
      program = backend.programs().get("name", "text");
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(backend.builds, 1);
  EXPECT_THAT(got, ::testing::Each(got.front()));
}

TEST_F(Programs, AreSoManyAtMost) {
  for (int i = 0; i < 1100; ++i) write_program(std::to_string(i), {"bytes", {}, {}});
  const auto files = std::distance(fs::directory_iterator(directory()), fs::directory_iterator());
  EXPECT_LE(files, 1024);
  EXPECT_GT(files, 900);
}

TEST_F(Programs, ThatFailToBuildAreTriedAgain) {
  struct Failing : FakeBackend {
    std::shared_ptr<DeviceProgram> build(const std::string& name,
                                         const std::string& source) override {
      if (fails) throw DeviceError(DeviceError::Kind::build, "[k] no", "a long log");
      return FakeBackend::build(name, source);
    }
    bool fails = true;
  } backend;
  EXPECT_THROW(use(backend), DeviceError);
  backend.fails = false;
  EXPECT_NO_THROW(use(backend));
}

}  // namespace
}  // namespace ejk::detail
