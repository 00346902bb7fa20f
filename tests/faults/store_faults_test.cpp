// SPDX-License-Identifier: Apache-2.0
// A store among damaged files, missing rights, full disks and hostile names.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/error.h>
#include <ejk/store.h>

#include "base/directory.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using std::chrono::milliseconds;

bool ends_well(bool condition, const std::string& what) {
  if (!condition) std::fprintf(stderr, "child: %s\n", what.c_str());
  return condition;
}

void set_directory_modes(const std::string& root, int mode) {
  for (const auto& item : fs::recursive_directory_iterator(root)) {
    if (item.is_directory()) fs::permissions(item.path(), fs::perms(mode));
  }
  fs::permissions(root, fs::perms(mode));
}

class StoreFaults : public ::testing::Test {
 protected:
  std::string root() const { return scratch / "store"; }
  std::string place(const EntryId& which) { return store.file_of(which); }

  // A damaged file is a miss, is warned about once, is set aside, and leaves its place to a put.
  void expect_set_aside(const std::string& text) {
    SCOPED_TRACE(text.substr(0, 60));
    const Scratch own;
    Warnings said;
    DirectoryStore damaged = open_store(own / "s", said);
    const std::string file = damaged.file_of(id);
    write_text(file, text);
    EXPECT_FALSE(damaged.get(id));
    EXPECT_FALSE(damaged.get(id));
    EXPECT_EQ(said.count(), 1u) << said.text();
    EXPECT_NE(said.text().find(file), std::string::npos);
    EXPECT_FALSE(fs::exists(file));
    EXPECT_EQ(read_text(file + ".bad"), text);
    EXPECT_TRUE(damaged.put(make_entry(id)));
    EXPECT_TRUE(damaged.get(id));
  }

  // What is not ours to judge is a miss, is warned about, and stays as it is whatever is put.
  void expect_untouched(const std::string& file) {
    EXPECT_FALSE(store.get(id));
    EXPECT_FALSE(store.get(id));
    EXPECT_EQ(warnings.count(), 1u) << warnings.text();
    EXPECT_FALSE(store.put(make_entry(id)));
    EXPECT_FALSE(store.put(make_entry(id), ejk::IfPresent::replace));
    EXPECT_EQ(warnings.count(), 2u) << warnings.text();
    EXPECT_FALSE(store.erase(id));
    EXPECT_TRUE(fs::exists(file));
    EXPECT_FALSE(fs::exists(file + ".bad"));
    EXPECT_TRUE(fs::is_empty(root() + "/tmp"));
    EXPECT_TRUE(store.put(make_entry(call_id(2)))) << "other entries are not concerned";
    EXPECT_TRUE(store.get(call_id(2)));
  }

  Scratch scratch;
  Warnings warnings;
  DirectoryStore store = open_store(scratch / "store", warnings);
  EntryId id = call_id(1);
};

// ---- damaged files

TEST_F(StoreFaults, ADamagedFileIsAMissAndSetAside) {
  const std::string good = to_json(entry_to_document(make_entry(id)), 1);
  expect_set_aside("");
  expect_set_aside("not json at all");
  expect_set_aside(std::string(4096, '\0'));
  expect_set_aside(good.substr(0, good.size() / 2));
  expect_set_aside(good.substr(0, good.size() - 1));
  expect_set_aside(good + good);
  expect_set_aside("[]");
  expect_set_aside("null");
  expect_set_aside("{}");
  expect_set_aside(R"({"cpu|cpu|add@v0|5feceb66ffc86f38": {"a": 0}})");
  expect_set_aside(R"({"schema": 0})");
  expect_set_aside(R"({"schema": "1", "op": 3})");
  expect_set_aside(R"({"schema": 99999999999999999999999999})");
}

TEST_F(StoreFaults, EveryTruncationIsHarmless) {
  store.put(make_entry(id));
  const std::string good = read_text(place(id));
  const size_t without_end = good.size() - 2;  // "}\n"
  for (size_t length = 0; length <= without_end; length += 7) {
    write_text(place(id), good.substr(0, length));
    EXPECT_FALSE(store.get(id)) << length;
  }
  write_text(place(id), good);
  EXPECT_TRUE(store.get(id));
}

TEST_F(StoreFaults, AFlippedBitIsAMiss) {
  const Scratch memory(memory_directory());
  open_store(memory / "store", warnings).put(make_entry(id));
  DirectoryStore reader = open_store(memory / "store", warnings, true);  // sets nothing aside
  const std::string good = read_text(reader.file_of(id));
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string flipped = good;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    write_text(reader.file_of(id), flipped);
    EXPECT_FALSE(reader.get(id)) << "bit " << bit % 8 << " of byte " << bit / 8;
  }
}

TEST_F(StoreFaults, AnEditedFileIsAMissAndStaysUntilItsPlaceIsNeeded) {
  store.put(make_entry(id, 64));
  std::string edited = read_text(place(id));
  edited.replace(edited.find("64"), 2, "65");
  write_text(place(id), edited);
  EXPECT_FALSE(store.get(id));
  EXPECT_FALSE(store.get(id));
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("remove the member \"checksum\""), std::string::npos);
  EXPECT_EQ(read_text(place(id)), edited);
  EXPECT_TRUE(store.put(make_entry(id, 66)));
  EXPECT_EQ(store.get(id)->config, Value::object({{"block", 66}}));
  EXPECT_EQ(read_text(place(id) + ".bad"), edited);
}

TEST_F(StoreFaults, ANestingBombIsHarmless) {
  expect_set_aside(std::string(2'000'000, '['));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"schema":)";
  expect_set_aside(objects);
}

TEST_F(StoreFaults, AFileLargerThanTheLimitIsNotRead) {
  write_text(place(id), "");
  fs::resize_file(place(id), (16u << 20) + 1);
  expect_untouched(place(id));
}

TEST_F(StoreFaults, AnEntryOfAnotherCallIsAMiss) {
  store.put(make_entry(call_id(2), 2));
  write_text(place(id), read_text(place(call_id(2))));
  EXPECT_FALSE(store.get(id));
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_TRUE(fs::exists(place(id))) << "an honest entry in a wrong place is not ours to remove";
  int visits = 0;
  store.for_each("", [&](const Entry&) { return ++visits, true; });
  EXPECT_EQ(visits, 1);
  EXPECT_TRUE(store.put(make_entry(id, 1)));
  EXPECT_EQ(store.get(id)->config.find("block")->as_int(), 1);
  EXPECT_TRUE(fs::exists(place(id) + ".bad"));
}

TEST_F(StoreFaults, DamageIsPassedOverWhenVisiting) {
  store.put(make_entry(call_id(2)));
  write_text(place(id), "damaged");
  write_text(fs::path(place(id)).parent_path() / "README.txt", "not an entry");
  int visits = 0;
  store.for_each("", [&](const Entry&) { return ++visits, true; });
  EXPECT_EQ(visits, 1);
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
}

TEST_F(StoreFaults, ANewerSchemaIsNeverTouched) {
  Value newer = entry_to_document(make_entry(id));
  newer["schema"] = 2;
  write_text(place(id), to_json(newer));
  expect_untouched(place(id));
  EXPECT_NE(warnings.text().find("newer version"), std::string::npos);
  EXPECT_EQ(read_text(place(id)), to_json(newer));
}

TEST_F(StoreFaults, AFlippedBitInTheSchemaMakesNoNewerVersion) {
  ASSERT_TRUE(store.put(make_entry(id)));
  std::string text = read_text(place(id));
  text.replace(text.find("\"schema\": 1"), 11, "\"schema\": 3");
  write_text(place(id), text);
  EXPECT_FALSE(store.get(id));
  EXPECT_NE(warnings.text().find("its checksum is wrong"), std::string::npos) << warnings.text();
  EXPECT_TRUE(store.put(make_entry(id)));
  EXPECT_TRUE(store.get(id));
  EXPECT_EQ(read_text(place(id) + ".bad"), text);
}

TEST_F(StoreFaults, ADirectoryInThePlaceOfAFileIsNeverTouched) {
  fs::create_directories(place(id));
  expect_untouched(place(id));
}

TEST_F(StoreFaults, APipeInThePlaceOfAFileDoesNotBlock) {
  fs::create_directories(fs::path(place(id)).parent_path());
  ASSERT_EQ(::mkfifo(place(id).c_str(), 0666), 0);
  expect_untouched(place(id));
}

TEST_F(StoreFaults, AnUnreadableFileIsNeverTouched) {
  store.put(make_entry(id, 1, 1));
  ASSERT_EQ(::chmod(place(id).c_str(), 0), 0);
  for (const auto& item : fs::recursive_directory_iterator(root())) {  // shared by a group
    ASSERT_EQ(::chown(item.path().c_str(), ::getuid(), ::getuid() == 0 ? 65534 : ::getgid()), 0);
  }
  set_directory_modes(root(), 0775);
  for (const auto& lock : fs::directory_iterator(root() + "/locks")) {
    fs::permissions(lock.path(), fs::perms(0664));
  }
  EXPECT_TRUE(as_nobody([&] {
    Warnings said;
    DirectoryStore reader = open_store(root(), said);
    return ends_well(!reader.get(id), "a miss") && ends_well(said.count() == 1, said.text()) &&
           ends_well(said.text().find("Permission denied") != std::string::npos, said.text()) &&
           ends_well(!reader.put(make_entry(id, 2, 99)), "not written over") &&
           ends_well(!fs::exists(place(id) + ".bad"), "not set aside");
  }));
  ASSERT_EQ(::chmod(place(id).c_str(), 0644), 0);
  EXPECT_EQ(store.get(id)->config.find("block")->as_int(), 1);
}

// ---- places that cannot be written

bool says_what_and_what_to_do(const Warnings& said, const std::string& path,
                              const std::string& why) {
  return ends_well(said.count() == 1, "one warning, not: " + said.text()) &&
         ends_well(said.text().find(path) != std::string::npos, "the path: " + said.text()) &&
         ends_well(said.text().find(why) != std::string::npos, "the reason: " + said.text()) &&
         ends_well(said.text().find("EJKERNEL_PERSISTENT_CACHE_DIR") != std::string::npos,
                   "the cure");
}

TEST_F(StoreFaults, ADirectoryWithoutRightsIsStillRead) {
  store.put(make_entry(id));
  set_directory_modes(root(), 0555);
  EXPECT_TRUE(as_nobody([&] {
    Warnings said;
    DirectoryStore reader = open_store(root(), said);
    for (int i = 2; i < 5; ++i) {
      if (!ends_well(!reader.put(make_entry(call_id(i))), "put fails")) return false;
    }
    return ends_well(reader.get(id).has_value(), "reads go on") &&
           says_what_and_what_to_do(said, root(), "Permission denied") &&
           ends_well(reader.lease(id, 0) == nullptr, "no lease");
  }));
  set_directory_modes(root(), 0755);
  EXPECT_TRUE(fs::is_empty(root() + "/tmp"));
}

TEST_F(StoreFaults, APathBelowAFileIsAQuietMissAndOneWarningForPuts) {
  write_text(scratch / "file", "x");
  Warnings said;
  DirectoryStore below = open_store(scratch / "file/store", said);
  EXPECT_FALSE(below.get(id));
  EXPECT_EQ(said.count(), 0u) << said.text();
  EXPECT_FALSE(below.put(make_entry(id)));
  EXPECT_FALSE(below.put(make_entry(id)));
  EXPECT_FALSE(below.erase(id));
  EXPECT_EQ(below.lease(id, 0), nullptr);
  EXPECT_TRUE(says_what_and_what_to_do(said, scratch / "file/store", "Not a directory"));
}

TEST_F(StoreFaults, ADirectoryThatVanishesIsMadeAgain) {
  EXPECT_TRUE(store.put(make_entry(id)));
  fs::remove_all(root());
  EXPECT_FALSE(store.get(id));
  EXPECT_TRUE(store.put(make_entry(id)));
  EXPECT_TRUE(store.get(id));
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(StoreFaults, AFileSizeLimitFailsThePutAndNothingElse) {
  store.put(make_entry(id));
  EXPECT_TRUE(child_succeeded(start_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{100, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    Warnings said;
    DirectoryStore full = open_store(root(), said);
    bool well = true;
    for (int i = 2; i < 5; ++i) well &= ends_well(!full.put(make_entry(call_id(i))), "put fails");
    well &= says_what_and_what_to_do(said, root(), "File too large");
    well &= ends_well(full.get(id).has_value(), "reads go on");
    well &= ends_well(fs::is_empty(root() + "/tmp"), "no temporary file is left");
    limit.rlim_cur = RLIM_INFINITY;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return well & ends_well(full.put(make_entry(call_id(2))), "puts work again");
  })));
  EXPECT_TRUE(store.get(call_id(2)));
}

TEST_F(StoreFaults, AFullDiskFailsThePutAndNothingElse) {
  const std::string disk = scratch / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "cannot mount";
  Warnings said;
  {
    DirectoryStore small = open_store(disk + "/store", said);
    int kept = 0;
    while (kept < 1000 && small.put(make_entry(call_id(kept)))) ++kept;
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, 1000) << "the disk never filled up";
    EXPECT_FALSE(small.put(make_entry(call_id(5000))));
    EXPECT_TRUE(says_what_and_what_to_do(said, disk + "/store", "No space left on device"));
    EXPECT_TRUE(fs::is_empty(disk + "/store/tmp"));
    for (int i = 0; i < kept; ++i) EXPECT_TRUE(small.get(call_id(i))) << i;
    EXPECT_FALSE(small.put(make_entry(call_id(0), 2, 99), ejk::IfPresent::replace))
        << "a failed rewrite";
    EXPECT_TRUE(small.get(call_id(0))) << "keeps what was there";
    for (int i = 0; i < kept; ++i) small.erase(call_id(i));
    EXPECT_TRUE(small.put(make_entry(call_id(5000)))) << "puts work again";
  }
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

// ---- hostile names and values

TEST_F(StoreFaults, HostileNamesStayInsideAndApart) {
  const std::vector<std::string> names = {"../../x",
                                          "..",
                                          ".",
                                          "",
                                          "/",
                                          "/etc/passwd",
                                          "a/b",
                                          "a\\b",
                                          "a:b",
                                          "a b",
                                          "A",
                                          "a",
                                          std::string("nul\0byte", 8),
                                          "nul",
                                          std::string(10'000, 'x'),
                                          std::string(10'001, 'x'),
                                          "\xc3\xa9",
                                          "\xc3\xa8",
                                          "\xff\xfe",
                                          "CON",
                                          "con",
                                          "-rf",
                                          "~",
                                          "$HOME",
                                          "a\nb",
                                          "*",
                                          ".hidden",
                                          ".json",
                                          "x.json",
                                          "x.bad",
                                          "\xf0\x9f\x98\x80"};
  std::vector<EntryId> ids;
  for (const auto& name : names) {
    ids.push_back({"d", name, "k", "s"});
    ids.push_back({name, "op", "k", "s"});
    ids.push_back({"d", "op", name, ""});
  }
  std::set<std::string> lower_case_files;
  for (size_t i = 0; i < ids.size(); ++i) {
    ASSERT_TRUE(store.put(make_entry(ids[i], static_cast<int>(i)))) << i << warnings.text();
    std::string file = place(ids[i]);
    for (char& c : file) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    EXPECT_TRUE(lower_case_files.insert(file).second) << file;
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto entry = store.get(ids[i]);
    ASSERT_TRUE(entry) << i;
    EXPECT_EQ(entry->config.find("block")->as_int(), static_cast<int>(i));
    EXPECT_EQ(entry->id.op, ids[i].op);
    EXPECT_NE(store.lease(ids[i], 0), nullptr);
  }
  for (const auto& item : fs::directory_iterator(scratch.path())) {
    EXPECT_EQ(item.path().filename(), "store") << "something was written outside";
  }
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(StoreFaults, AnEntryThatCouldNotBeReadBackIsNotWritten) {
  Entry deep = make_entry(id), twice = make_entry(id), no_number = make_entry(id);
  for (int i = 0; i < 150; ++i) deep.config = Value(Value::Array{deep.config});
  twice.config = Value::object({{"a", 1}, {"a", 2}});
  no_number.config = Value(Value::BigInt{"12 monkeys"});
  EXPECT_FALSE(store.put(deep));
  EXPECT_FALSE(store.put(twice));
  EXPECT_FALSE(store.put(no_number));
  EXPECT_EQ(warnings.count(), 1u) << "once for this file: " << warnings.text();
  EXPECT_FALSE(fs::exists(place(id)));
  EXPECT_TRUE(store.put(make_entry(id))) << "later puts are not poisoned";
}

// ---- locks that others hold

TEST_F(StoreFaults, APutDoesNotWaitForALockThatIsNotGivenBack) {
  ASSERT_TRUE(store.put(make_entry(id)));
  std::vector<std::unique_ptr<base::FileLock>> held;
  for (int n = 0; n < 64; ++n)
    held.push_back(std::make_unique<base::FileLock>(
        directory_at(root() + "/locks"), (n < 10 ? "0" : "") + std::to_string(n),
        base::FileLock::Wait{}, base::FileLock::AfterUse::keep_file));
  for (int n = 2; n < 5; ++n) EXPECT_FALSE(store.put(make_entry(call_id(n))));
  EXPECT_TRUE(store.get(id)) << "readers take no lock";
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("end the process that holds the lock"), std::string::npos);
  held.clear();
  EXPECT_TRUE(store.put(make_entry(call_id(2))));
}

TEST_F(StoreFaults, ALeaseOfASilentHolderIsNotWaitedFor) {
  const auto held = store.lease(id, 0);
  ASSERT_TRUE(held);
  const double patience = 86'400;  // the test would not end
  EXPECT_EQ(store.lease(id, patience), nullptr);
  EXPECT_EQ(store.lease(id, patience), nullptr);
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("tuned here too"), std::string::npos) << warnings.text();
}

// A process that takes the lease, tells so, lives on, and ends with the lease.
pid_t start_holder(DirectoryStore& store, const EntryId& id, const std::function<void()>& live) {
  int told[2];
  if (::pipe(told) != 0) return -1;
  const pid_t holder = start_child([&] {
    const auto held = store.lease(id, 0);
    if (!held || ::write(told[1], "y", 1) != 1) return false;
    live();
    return true;
  });
  ::close(told[1]);
  char byte = 0;
  const bool held = ::read(told[0], &byte, 1) == 1;
  ::close(told[0]);
  return held ? holder : -1;
}

TEST_F(StoreFaults, AHolderThatComputesIsWaitedFor) {
  const pid_t holder = start_holder(store, id, [] {
    while (std::clock() < 2 * CLOCKS_PER_SEC) {  // longer than silence would be waited for
    }
  });
  ASSERT_GT(holder, 0);
  EXPECT_NE(store.lease(id, 86'400), nullptr);
  EXPECT_TRUE(child_succeeded(holder));
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(StoreFaults, AStoppedHolderIsNotWaitedFor) {
  const pid_t holder = start_holder(store, id, [] {
    for (;;) (void)std::clock();
  });
  ASSERT_GT(holder, 0);
  ::kill(holder, SIGSTOP);
  EXPECT_EQ(store.lease(id, 86'400), nullptr);
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
}

TEST_F(StoreFaults, AnyTextInALeaseIsHarmless) {
  constexpr base::FileLock::Wait wait{std::chrono::hours(24), milliseconds(1), 20};
  constexpr auto after_use = base::FileLock::AfterUse::remove_file;
  fs::create_directories(root());
  base::FileLock holder(directory_at(root()), "lock", wait, after_use);
  holder.give_sign();
  const std::string line = read_text(root() + "/lock");
  const std::string host = line.substr(0, line.rfind(' ') + 1);
  for (const std::string& text :
       {std::string(), std::string("\0\xff\n", 3), std::string(100'000, '7'), line + line, host,
        host + "-1\n", host + "0\n", host + "99999999999999999999\n", host + "../1\n",
        host + "2147483647\n", host + host + host}) {
    SCOPED_TRACE(text.substr(0, 200));
    write_text(root() + "/lock", text);
    const base::FileLock waiter(directory_at(root()), "lock", wait, after_use);
    EXPECT_TRUE(waiter.holder_is_silent());
    EXPECT_EQ(waiter.error().code, ETIMEDOUT);
  }
}

TEST_F(StoreFaults, AHolderThatGivesSignsIsWaitedFor) {
  constexpr int silent_looks = 200;
  const base::FileLock::Wait wait{std::chrono::hours(24), milliseconds(5), silent_looks};
  fs::create_directories(root());
  std::optional<base::FileLock> holder;
  holder.emplace(directory_at(root()), "lock", wait, base::FileLock::AfterUse::remove_file);
  Openings looks(root());
  std::jthread living([&] {
    for (int seen = 0; seen < 2 * silent_looks; ++seen) {
      holder->give_sign();
      looks.wait_for(seen);
    }
    holder.reset();
  });
  const base::FileLock waiter(directory_at(root()), "lock", wait,
                              base::FileLock::AfterUse::keep_file);
  EXPECT_TRUE(waiter.held()) << waiter.error().text();
}

TEST_F(StoreFaults, RefreshingALeaseIsSeenFromOutside) {
  const auto held = store.lease(id, 0);
  const std::string file = root() + "/leases/" + files_below(root() + "/leases").at(0);
  const std::string before = read_text(file);
  held->refresh();
  EXPECT_NE(read_text(file), before);
}

// ---- leftovers

TEST_F(StoreFaults, LeftoversOfTheDeadAreRemovedAndFilesInUseStay) {
  write_text(root() + "/tmp/0123456789abcdef.tmp", "half an en");
  write_text(root() + "/tmp/keep.txt", "not ours");
  const std::string in_use = root() + "/tmp/fedcba9876543210.tmp";
  write_text(in_use, "being written");
  const base::FileLock writer(directory_at(root() + "/tmp"), "fedcba9876543210.tmp", {},
                              base::FileLock::AfterUse::keep_file);
  ASSERT_TRUE(writer.held());
  EXPECT_FALSE(store.get(id));
  EXPECT_TRUE(fs::exists(root() + "/tmp/0123456789abcdef.tmp")) << "reading cleans nothing";
  EXPECT_TRUE(store.put(make_entry(id)));
  EXPECT_FALSE(fs::exists(root() + "/tmp/0123456789abcdef.tmp"));
  EXPECT_TRUE(fs::exists(in_use));
  EXPECT_TRUE(fs::exists(root() + "/tmp/keep.txt"));
}

}  // namespace
}  // namespace ejk
