// SPDX-License-Identifier: Apache-2.0
// A store that others may write to: their links are not followed, their files are not touched.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/quarantine.h>
#include <ejk/store.h>

#include "store/crash_journal.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;
using std::chrono::milliseconds;

constexpr uid_t stranger = 65534;

class Strangers : public ::testing::Test {
 protected:
  Strangers() { ::unsetenv("EJKERNEL_STORE_TRUST"); }
  ~Strangers() override { ::unsetenv("EJKERNEL_STORE_TRUST"); }

  std::string root() const { return scratch / "store"; }
  DirectoryStore open() { return open_store(root(), warnings); }

  // All that the library does in a store. Returns whether the put succeeded.
  bool use(const EntryId& which) {
    DirectoryStore store = open();
    (void)store.get(which);
    (void)store.get({which.device, which.op, which.key, ""});
    const bool kept = store.put(make_entry(which), ejk::IfPresent::replace);
    (void)store.lease(which, 0);
    store.for_each("", [](const Entry&) { return true; });
    const Value config = Value::object({{"block", 1}});
    detail::Journal journal(root(), which, environment(), warnings.sink());
    (void)journal.condemned(config);
    journal.intend(config);
    journal.done();
    journal.acquit(config);
    journal.condemn(config, "crashed");
    (void)detail::left_running(root(), ::getpid());
    (void)suspect_list(root(), warnings.sink());
    (void)quarantine_clear(root(), "no such op");
    (void)store.erase(which);
    return kept;
  }

  Scratch scratch;
  Warnings warnings;
  EntryId id = call_id(1);
};

// Every name below a directory with what it is and holds.
std::map<std::string, std::string> snapshot(const std::string& directory) {
  std::map<std::string, std::string> out;
  for (const auto& item : fs::recursive_directory_iterator(directory)) {
    struct stat info {};
    ::lstat(item.path().c_str(), &info);
    out[fs::relative(item.path(), directory)] =
        std::to_string(info.st_mode) + " " + std::to_string(info.st_ino) +
        (item.is_regular_file() ? read_text(item.path()) : "");
  }
  return out;
}

void plant_suspect(const std::string& root) {
  write_text(root + "/journal/0123456789abcdef.intent",
             "{\"device\":\"d\",\"op\":\"o@v1\",\"schema\":1}\n0000000011 {\"block\":1}\n");
}

TEST_F(Strangers, NothingHappensInADirectoryThatIsReachedByALink) {
  use(id);
  open().put(make_entry(id));
  const fs::path entry = open().file_of(id);
  const fs::path call = entry.parent_path(), op = call.parent_path(), device = op.parent_path();
  for (const std::string& directory :
       {root() + "/v2", device.string(), op.string(), call.string(), root() + "/tmp",
        root() + "/locks", root() + "/leases", root() + "/journal", root() + "/quarantine"}) {
    SCOPED_TRACE(directory);
    const Scratch elsewhere;
    fs::rename(directory, elsewhere / "target");
    fs::create_directory_symlink(elsewhere / "target", directory);
    write_text(elsewhere / "target/0123456789abcdef.tmp", "looks like a leftover");
    write_text(elsewhere / "target/fedcba9876543210.intent",
               "{\"device\":\"d\",\"op\":\"o@v1\",\"schema\":1}\n0000000011 {\"block\":1}\n");
    write_text(elsewhere / "target/" + entry.filename().string(), "no entry");
    const auto before = snapshot(elsewhere.path());
    use(id);
    EXPECT_EQ(snapshot(elsewhere.path()), before);
    EXPECT_TRUE(fs::is_symlink(directory));
    EXPECT_NE(warnings.text().find("it is a link, which is not followed"), std::string::npos);
    fs::remove(directory);
    fs::remove_all(directory);
    use(id);
    open().put(make_entry(id));
  }
}

TEST_F(Strangers, ALinkIsSaidOnceAndByItsName) {
  ASSERT_TRUE(open().put(make_entry(id)));
  fs::rename(root() + "/v2", scratch / "elsewhere");
  fs::create_directory_symlink(scratch / "elsewhere", root() + "/v2");
  DirectoryStore store = open();
  for (int n = 0; n < 50; ++n) EXPECT_FALSE(store.get(call_id(n, "op" + std::to_string(n % 3))));
  EXPECT_FALSE(store.erase(id));
  store.for_each("", [](const Entry&) { return true; });
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find(root() + "/v2: it is a link"), std::string::npos)
      << warnings.text();
  EXPECT_NE(warnings.text().find("make " + root() + " itself the link"), std::string::npos);
}

TEST_F(Strangers, NoFileIsMadeReadOrChangedThroughALink) {
  ASSERT_TRUE(open().put(make_entry(id)));
  ASSERT_TRUE(open().lease(id, 0));
  const std::string text = read_text(open().file_of(id));
  write_text(scratch / "victim", text);
  std::vector<std::string> files = {root() + "/locks/journal", open().file_of(id)};
  for (int n = 0; n < 64; ++n)
    files.push_back(root() + "/locks/" + (n < 10 ? "0" : "") + std::to_string(n));
  for (const std::string& target : {scratch / "victim", scratch / "made"}) {
    for (const std::string& file : files) fs::remove(file), fs::create_symlink(target, file);
    plant_suspect(root());
    EXPECT_FALSE(open().get(id));
    EXPECT_FALSE(use(id));
    EXPECT_EQ(read_text(scratch / "victim"), text);
    EXPECT_FALSE(fs::exists(scratch / "made"));
    for (const std::string& file : files) EXPECT_TRUE(fs::is_symlink(file)) << file;
  }
}

TEST_F(Strangers, TheRootItselfMayBeALink) {
  fs::create_directory(scratch / "elsewhere");
  fs::permissions(scratch / "elsewhere", fs::perms(0755));
  fs::create_directory_symlink(scratch / "elsewhere", root());
  EXPECT_TRUE(use(id));
  EXPECT_TRUE(open().put(make_entry(id)));
  EXPECT_TRUE(open().get(id));
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(Strangers, OnlyOwnLeftoversAreRemoved) {
  const std::string own = root() + "/tmp/0123456789abcdef.tmp";
  const std::vector<std::string> others = {"notes.tmp", "0123456789abcdef.tmp.tmp",
                                           "0123456789ABCDEF.tmp", "0123456789abcde.tmp"};
  write_text(own, "half an en");
  for (const std::string& name : others) write_text(root() + "/tmp/" + name, "mine");
  const std::string foreign = root() + "/tmp/fedcba9876543210.tmp";
  write_text(foreign, "half an en");
  const bool given_away = ::chown(foreign.c_str(), stranger, stranger) == 0;  // only root can
  ASSERT_TRUE(open().put(make_entry(id)));
  EXPECT_FALSE(fs::exists(own));
  for (const std::string& name : others) EXPECT_TRUE(fs::exists(root() + "/tmp/" + name)) << name;
  EXPECT_EQ(fs::exists(foreign), given_away);
}

TEST_F(Strangers, ThousandsOfOtherFilesHideNoLeftover) {
  const std::string own = root() + "/tmp/0123456789abcdef.tmp";
  write_text(own, "half an en");
  for (int n = 0; n < 5000; ++n) write_text(root() + "/tmp/" + std::to_string(n), "");
  ASSERT_TRUE(open().put(make_entry(id)));
  EXPECT_FALSE(fs::exists(own));
}

TEST_F(Strangers, NothingIsMadeForEveryoneToWrite) {
  const mode_t before = ::umask(0);
  use(id);
  open().put(make_entry(id));
  const auto lease = open().lease(id, 0);
  plant_suspect(root());
  ::chmod((root() + "/journal/0123456789abcdef.intent").c_str(), 0600);
  detail::Journal journal(root(), id, environment(), warnings.sink());
  journal.intend(Value(1));
  ::umask(before);
  int looked_at = 0;
  for (const auto& item : fs::recursive_directory_iterator(root())) {
    EXPECT_EQ(item.status().permissions() & fs::perms::others_write, fs::perms::none)
        << item.path();
    EXPECT_EQ(item.status().permissions() & fs::perms::group_write, fs::perms::group_write)
        << item.path();
    ++looked_at;
  }
  EXPECT_GE(looked_at, 10);
}

// ---- what others may have written --------------------------------------------------------------

TEST_F(Strangers, AStoreThatEveryoneMayWriteIsSaidOnce) {
  ASSERT_TRUE(open().put(make_entry(id)));
  const fs::path call = fs::path(open().file_of(id)).parent_path();
  for (const std::string& directory : {root(), call.parent_path().string(), call.string()}) {
    SCOPED_TRACE(directory);
    fs::permissions(directory, fs::perms(0777));
    Warnings said;
    DirectoryStore store = open_store(root(), said);
    EXPECT_TRUE(store.get(id));
    EXPECT_TRUE(store.put(make_entry(id), ejk::IfPresent::replace));
    EXPECT_EQ(said.count(), 1u) << said.text();
    EXPECT_NE(said.text().find(directory + ","), std::string::npos) << said.text();
    fs::permissions(directory, fs::perms(0755));
  }
}

TEST_F(Strangers, AStoreThatEveryoneMayWriteIsRefusedWithStrictTrust) {
  ASSERT_TRUE(open().put(make_entry(id)));
  fs::permissions(root(), fs::perms(0777));
  ::setenv("EJKERNEL_STORE_TRUST", "strict", 1);
  const auto before = snapshot(root());
  EXPECT_FALSE(use(id));
  DirectoryStore store = open();
  EXPECT_FALSE(store.get(id));
  EXPECT_FALSE(store.get(call_id(2)));
  store.for_each("", [](const Entry&) {
    ADD_FAILURE() << "an entry was read";
    return true;
  });
  EXPECT_EQ(snapshot(root()), before);
  EXPECT_EQ(warnings.count(), 2u) << "one of each store: " << warnings.text();
  fs::permissions(root(), fs::perms(0755));
  EXPECT_TRUE(store.get(id));
}

TEST_F(Strangers, APutThatFailsIsSaidWithStrictTrustToo) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_TRUE(open().put(make_entry(id)));
  for (const char* name : {"/tmp", "/locks"}) {
    fs::remove_all(root() + name);
    fs::create_directory(root() + name);
    ASSERT_EQ(::chown((root() + name).c_str(), stranger, stranger), 0);
  }
  // In such a directory files of others cannot be replaced: EPERM.
  const std::string op = fs::path(open().file_of(id)).parent_path();
  ASSERT_EQ(::chown(op.c_str(), 0, stranger), 0);
  ASSERT_EQ(::chmod(op.c_str(), 01775), 0);
  EXPECT_TRUE(as_nobody([&] {
    ::setenv("EJKERNEL_STORE_TRUST", "strict", 1);
    const bool kept = open().put(make_entry(id), ejk::IfPresent::replace);
    return !kept && warnings.count() == 1 &&
           warnings.text().find("Operation not permitted") != std::string::npos;
  }));
}

TEST_F(Strangers, AnEntryOfAnotherUserIsSaidOnceAndRefusedWithStrictTrust) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  for (int n : {1, 2}) {
    ASSERT_TRUE(open().put(make_entry(call_id(n))));
    ASSERT_EQ(::chown(open().file_of(call_id(n)).c_str(), stranger, stranger), 0);
  }
  DirectoryStore store = open();
  EXPECT_TRUE(store.get(call_id(1)));
  EXPECT_TRUE(store.get(call_id(2)));
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("belongs to user 65534"), std::string::npos) << warnings.text();
  EXPECT_NE(warnings.text().find("Have root own"), std::string::npos) << warnings.text();

  ::setenv("EJKERNEL_STORE_TRUST", "strict", 1);
  Warnings said;
  DirectoryStore strict = open_store(root(), said);
  EXPECT_FALSE(strict.get(call_id(1)));
  EXPECT_FALSE(strict.get(call_id(2)));
  EXPECT_EQ(said.count(), 1u) << said.text();
  EXPECT_FALSE(strict.put(make_entry(call_id(1)), ejk::IfPresent::replace));
  EXPECT_FALSE(strict.erase(call_id(1)));
  EXPECT_TRUE(strict.put(make_entry(call_id(3))));
  EXPECT_TRUE(strict.get(call_id(3)));
}

TEST_F(Strangers, AnEntryThatEveryoneMayWriteIsNotTrusted) {
  ASSERT_TRUE(open().put(make_entry(id)));
  EXPECT_TRUE(open().get(id)->trusted);
  fs::permissions(open().file_of(id), fs::perms(0666));
  EXPECT_FALSE(open().get(id)->trusted);
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("everyone may write to " + open().file_of(id)), std::string::npos)
      << warnings.text();
  EXPECT_NE(warnings.text().find("chmod -R o-w " + root()), std::string::npos);
}

TEST_F(Strangers, ABrokenFileOfAnotherUserStaysUntilItsPlaceIsNeeded) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  write_text(open().file_of(id), "no entry");
  ASSERT_EQ(::chown(open().file_of(id).c_str(), stranger, stranger), 0);
  EXPECT_FALSE(open().get(id));
  EXPECT_EQ(read_text(open().file_of(id)), "no entry");
  EXPECT_TRUE(open().put(make_entry(id)));
  EXPECT_EQ(read_text(open().file_of(id) + ".bad"), "no entry");
}

}  // namespace
}  // namespace ejk
