// SPDX-License-Identifier: Apache-2.0
// The two formats of a directory: choices apart from candidates, and stores of version 1.
#include <signal.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/store.h>

#include "base/file.h"
#include "store/checksum.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;

Entry with_candidates(Entry entry, int count = 3) {
  for (int i = 0; i < count; ++i)
    entry.candidates.push_back(
        {Value::object({{"block", i}}), "slower", "", "", 1e-6 * (i + 1), 1.1, 1.0, 1.2, 9});
  return entry;
}

class Formats : public ::testing::Test {
 protected:
  std::string root() const { return scratch / "store"; }
  int block_of(const EntryId& which) {
    const auto entry = store.get(which, Detail::choice);
    return entry ? static_cast<int>(entry->config.find("block")->as_int()) : -1;
  }
  std::string old_file(const EntryId& which) {
    const std::string name =
        which.spec.empty() ? base::file_name_of(which.key) : base::sha256_hex(which.spec, 32);
    return root() + "/v1/" + base::file_name_of(which.device) + "/" + base::file_name_of(which.op) +
           "/" + name + ".json";
  }
  // As version 1 wrote it.
  std::string put_old(const Entry& entry) {
    const std::string text = to_json(entry_to_document(entry), 1) + "\n";
    write_text(old_file(entry.id), entry.trusted ? detail::with_checksum(text) : text);
    return old_file(entry.id);
  }
  std::vector<std::string> content() {
    std::vector<std::string> out;
    store.for_each("", [&](const Entry& entry) {
      out.push_back((entry.trusted ? "trusted " : "") + to_json(entry_to_document(entry)));
      return true;
    });
    std::ranges::sort(out);
    return out;
  }
  std::vector<std::string> files_of(const char* format) {
    auto out = files_below(root() + "/" + format);
    std::ranges::sort(out);
    return out;
  }

  Scratch scratch{memory_directory()};
  Warnings warnings;
  DirectoryStore store = open_store(scratch / "store", warnings);
  EntryId id = call_id(1);
};

// ---- choice and candidates

size_t bytes_read_so_far() {
  const std::string text = base::read_file("/proc/self/io", 4096).text;
  return text.starts_with("rchar: ") ? std::stoull(text.substr(7)) : 0;
}

TEST_F(Formats, AHitReadsTheChoiceAndNotTheCandidates) {
  if (bytes_read_so_far() == 0) GTEST_SKIP() << "/proc/self/io cannot be read";
  ASSERT_TRUE(store.put(with_candidates(make_entry(id), 500)));
  ASSERT_GT(fs::file_size(store.file_of(id)), 64u << 10);
  const auto bytes_for = [&](Detail detail) {
    const size_t before = bytes_read_so_far();
    EXPECT_TRUE(store.get(id, detail));
    return bytes_read_so_far() - before;
  };
  EXPECT_LT(bytes_for(Detail::choice), 8u << 10);
  EXPECT_GT(bytes_for(Detail::all), 64u << 10);
}

TEST_F(Formats, AChoiceLargerThanABlockIsReadWhole) {
  for (const size_t size : {3'000u, 4'000u, 4'050u, 4'096u, 5'000u, 9'000u, 100'000u})
    for (size_t more = 0; more < 8; ++more) {
      Entry entry = with_candidates(make_entry(id));
      entry.config = Value(std::string(size + more, 'x'));
      ASSERT_TRUE(store.put(entry, ejk::IfPresent::replace));
      const auto back = store.get(id, Detail::choice);
      ASSERT_TRUE(back) << size + more;
      EXPECT_EQ(back->config, entry.config);
    }
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(Formats, DamagedCandidatesLeaveTheChoice) {
  store.put(with_candidates(make_entry(id)));
  const std::string file = store.file_of(id), good = read_text(file);
  const size_t behind = good.find("\n}\n") + 3;
  std::string flipped = good, unknown = good;
  flipped[good.find("slower")] = 'S';
  for (const std::string& text :
       {flipped, good.substr(0, good.size() - 9), good.substr(0, behind + 5),
        good.substr(0, behind) + "[]\n", good.substr(0, behind) + "{\"candidates\": 1}\n"}) {
    Warnings said;
    DirectoryStore own = open_store(root(), said);
    write_text(file, text);
    ASSERT_TRUE(own.get(id, Detail::choice));
    EXPECT_EQ(said.count(), 0u) << said.text();
    ASSERT_TRUE(own.get(id));
    EXPECT_TRUE(own.get(id)->candidates.empty());
    EXPECT_EQ(said.count(), 1u) << said.text();
    EXPECT_NE(said.text().find("passing over the candidates in " + file), std::string::npos);
    EXPECT_EQ(read_text(file), text) << "it is of use, and stays";
  }
  EXPECT_TRUE(store.put(with_candidates(make_entry(id), 4)));
  EXPECT_EQ(store.get(id)->candidates.size(), 4u);
}

TEST_F(Formats, CandidatesWithoutTheirChecksumAreNotTrusted) {
  store.put(with_candidates(make_entry(id)));
  std::string text = read_text(store.file_of(id));
  const size_t last = text.rfind(",\n \"checksum\"");
  text.replace(last, text.size() - last, "\n}\n");
  write_text(store.file_of(id), text);
  EXPECT_TRUE(store.get(id, Detail::choice)->trusted);
  EXPECT_EQ(store.get(id)->candidates.size(), 3u);
  EXPECT_FALSE(store.get(id)->trusted);
}

TEST_F(Formats, AnEntryOfAnotherEnvironmentInAWrongPlaceIsAMiss) {
  Entry other = make_entry(id, 2);
  other.environment = Value("elsewhere");
  store.put(other);
  write_text(store.file_of(id), read_text(store.file_of(other)));
  fs::remove(store.file_of(other));
  EXPECT_FALSE(store.get(id));
  EXPECT_TRUE(content().empty());
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_TRUE(store.put(make_entry(id, 1)));
  EXPECT_EQ(block_of(id), 1);
}

TEST_F(Formats, TheLastEntryOfACallTakesItsFolderAlong) {
  store.put(make_entry(id));
  const fs::path call = fs::path(store.file_of(id)).parent_path();
  EXPECT_TRUE(fs::is_directory(call));
  EXPECT_TRUE(store.erase(id));
  EXPECT_FALSE(fs::exists(call));
}

// ---- version 1

TEST_F(Formats, AnOldStoreAnswersAsBeforeAndReadersLeaveItAsItIs) {
  EntryId key_only = call_id(2);
  key_only.spec.clear();
  const std::string file = put_old(with_candidates(make_entry(id, 1)));
  put_old(make_entry(key_only, 2));
  const std::string text = read_text(file);
  EXPECT_EQ(block_of(id), 1);
  EXPECT_EQ(block_of(call_id(2)), 2);
  EXPECT_EQ(block_of({id.device, id.op, id.key, ""}), 1);
  EXPECT_TRUE(store.get(id)->trusted);
  EXPECT_TRUE(store.get(id, Detail::choice)->candidates.empty());
  EXPECT_EQ(store.get(id)->candidates.size(), 3u);
  EXPECT_EQ(store.file_of(*store.get(id)), file);
  EXPECT_EQ(content().size(), 2u);
  EXPECT_EQ(read_text(file), text);
  EXPECT_EQ(files_below(root()).size(), 2u);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(Formats, APutGoesToTheNewFormatAndTheBetterOneAnswers) {
  const std::string file = put_old(make_entry(id, 1, 40));
  EXPECT_TRUE(store.put(make_entry(id, 2, 10)));
  EXPECT_EQ(block_of(id), 1);
  EXPECT_TRUE(files_of("v2").empty());
  EXPECT_TRUE(store.put(make_entry(id, 3, 50)));
  EXPECT_EQ(block_of(id), 3);
  EXPECT_EQ(content().size(), 1u);
  EXPECT_TRUE(fs::exists(file)) << "programs of the old version go on";
  EXPECT_TRUE(store.put(make_entry(id, 4, 1), ejk::IfPresent::replace));
  EXPECT_EQ(block_of(id), 4);
  EXPECT_FALSE(fs::exists(file)) << "an upgrade would bring it back";
}

TEST_F(Formats, UnknownMembersOfAnOldEntrySurvive) {
  Entry old = make_entry(id, 1, 40);
  old.extra = Value::object({{"future", 1}});
  put_old(old);
  EXPECT_TRUE(store.put(make_entry(id, 2, 50)));
  EXPECT_EQ(store.get(id)->extra, old.extra);
}

TEST_F(Formats, AnOldEntryOfAnotherEnvironmentStaysBesideTheNew) {
  Entry old = make_entry(id, 1, 1000);
  old.environment = Value("elsewhere");
  put_old(old);
  EXPECT_EQ(block_of(id), 1);
  EXPECT_TRUE(store.put(make_entry(id, 2, 1)));
  EXPECT_EQ(block_of(id), 2);
  EXPECT_EQ(store.get(id, Detail::choice, &old.environment)->config, old.config);
  EXPECT_EQ(content().size(), 2u);
}

TEST_F(Formats, EraseRemovesOldEntriesToo) {
  put_old(make_entry(id, 1));
  store.put(make_entry(id, 2, 50));
  EXPECT_TRUE(store.erase(id));
  EXPECT_FALSE(store.get(id));
  EXPECT_TRUE(files_of("v1").empty());
}

TEST_F(Formats, AnUpgradeKeepsEveryEntryAndIsDoneOnce) {
  for (int i = 0; i < 20; ++i) put_old(with_candidates(make_entry(call_id(i), i), i % 3));
  Entry elsewhere = make_entry(call_id(20)), edited = make_entry(call_id(21));
  elsewhere.environment = Value(), edited.trusted = false;
  put_old(elsewhere), put_old(edited);
  const auto before = content();
  ASSERT_EQ(before.size(), 22u);
  std::vector<size_t> progress;
  const auto told = store.upgrade([&](size_t done, size_t of) {
    EXPECT_EQ(of, 22u);
    progress.push_back(done);
    return true;
  });
  EXPECT_EQ(told.moved, 22u);
  EXPECT_EQ(told.left, 0u);
  EXPECT_EQ(progress.size(), 23u);
  EXPECT_EQ(progress.back(), 22u);
  EXPECT_EQ(content(), before);
  EXPECT_FALSE(fs::exists(root() + "/v1"));
  const auto files = files_of("v2");
  EXPECT_EQ(store.upgrade().moved, 0u);
  EXPECT_EQ(files_of("v2"), files);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(Formats, AnUpgradeKeepsWhatIsBetter) {
  put_old(make_entry(call_id(1), 1, 40));
  put_old(make_entry(call_id(2), 1, 40));
  store.put(make_entry(call_id(1), 2, 50));
  store.put(make_entry(call_id(2), 2, 50));
  put_old(make_entry(call_id(2), 3, 60));  // by a program of the old version
  EXPECT_EQ(store.upgrade().moved, 2u);
  EXPECT_EQ(block_of(call_id(1)), 2);
  EXPECT_EQ(block_of(call_id(2)), 3);
}

TEST_F(Formats, AnUpgradeLeavesWhatItCannotReadWhereItIs) {
  put_old(make_entry(call_id(1)));
  Value newer = entry_to_document(make_entry(call_id(2)));
  newer["schema"] = 7;
  const std::vector<std::pair<std::string, std::string>> others = {
      {old_file(call_id(2)), to_json(newer)},
      {old_file(call_id(3)), "damaged"},
      {old_file(call_id(4)), read_text(old_file(call_id(1)))},
      {old_file(call_id(5)) + ".bad", "set aside"}};
  for (const auto& [file, text] : others) write_text(file, text);
  const auto told = store.upgrade();
  EXPECT_EQ(told.moved, 1u);
  EXPECT_EQ(told.left, 3u);
  EXPECT_EQ(warnings.count(), 3u) << warnings.text();
  for (const auto& [file, text] : others) EXPECT_EQ(read_text(file), text) << file;
  EXPECT_EQ(files_of("v2").size(), 1u);
}

TEST_F(Formats, AReadOnlyStoreIsNotUpgraded) {
  put_old(make_entry(id));
  DirectoryStore reader = open_store(root(), warnings, true);
  EXPECT_EQ(reader.upgrade().moved, 0u);
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_EQ(files_of("v1").size(), 1u);
  EXPECT_TRUE(files_of("v2").empty());
}

TEST_F(Formats, AnUpgradeThatIsInterruptedGoesOnWhereItWas) {
  for (int i = 0; i < 10; ++i) put_old(make_entry(call_id(i), i));
  const auto before = content();
  const auto first = store.upgrade([](size_t done, size_t) { return done < 4; });
  EXPECT_EQ(first.moved, 4u);
  EXPECT_EQ(files_of("v1").size(), 6u);
  EXPECT_EQ(content(), before);
  EXPECT_EQ(store.upgrade().moved, 6u);
  EXPECT_EQ(content(), before);
}

TEST_F(Formats, KilledUpgradesLoseNothing) {
  constexpr int entries = 60;
  for (int i = 0; i < entries; ++i) put_old(make_entry(call_id(i), i));
  const auto before = content();
  for (size_t kill_at = 0; !files_of("v1").empty(); kill_at += 3) {
    const pid_t child = start_child([&] {
      Warnings said;
      open_store(root(), said).upgrade([&](size_t done, size_t) {
        if (done == 3) ::raise(SIGKILL);
        return true;
      });
      return true;
    });
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(content(), before);
    ASSERT_LT(kill_at, size_t{entries} + 3) << "it never gets ahead";
  }
  EXPECT_EQ(files_of("v2").size(), size_t{entries});
}

TEST_F(Formats, UpgradesAndPutsOfSeveralProcessesKeepTheBest) {
  constexpr int entries = 40;
  for (int i = 0; i < entries; ++i) put_old(make_entry(call_id(i), 1, 40));
  std::vector<pid_t> children;
  for (int p = 0; p < 4; ++p)
    children.push_back(start_child([&] {
      Warnings said;
      DirectoryStore own = open_store(root(), said);
      bool good = true;
      if (p < 2) own.upgrade();
      else
        for (int i = 0; i < entries; ++i)
          good &= own.put(make_entry(call_id(i), p, i % 2 == 0 ? 50 + p : 10));
      return good && said.count() == 0;
    }));
  for (const pid_t child : children) EXPECT_TRUE(child_succeeded(child));
  EXPECT_EQ(store.upgrade().left, 0u);
  EXPECT_EQ(content().size(), size_t{entries});
  for (int i = 0; i < entries; ++i) EXPECT_EQ(block_of(call_id(i)), i % 2 == 0 ? 3 : 1) << i;
}

TEST_F(Formats, NoLinkOfAnOldStoreIsFollowed) {
  const std::string file = put_old(make_entry(id));
  const Scratch elsewhere(memory_directory());
  fs::rename(root() + "/v1", elsewhere / "v1");
  fs::create_directory_symlink(elsewhere / "v1", root() + "/v1");
  EXPECT_FALSE(store.get(id));
  EXPECT_EQ(store.upgrade().moved, 0u);
  EXPECT_EQ(files_below(elsewhere / "v1").size(), 1u);
  EXPECT_EQ(warnings.count(), 1u) << warnings.text();
  EXPECT_NE(warnings.text().find("it is a link"), std::string::npos);
}

}  // namespace
}  // namespace ejk
