// SPDX-License-Identifier: Apache-2.0
// What every store promises, asked of each of them.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/names.h>
#include <ejk/store.h>

#include "postgres_server.h"
#include "sanitized.h"
#include "store/memory.h"
#include "store/postgres/postgres_store.h"
#include "store/shared.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;

// How a kind of store is made, anew or again.
struct Kind {
  std::string name;
  std::function<std::shared_ptr<Store>(const std::string& place, Warnings&)> open;
  bool between_processes = true;
  bool vouches = true;                        // for what it gives back
  std::function<std::string()> why_not = {};  // it cannot be had here
};

const Kind directory{"Directory", [](const std::string& place, Warnings& warnings) {
                       return std::make_shared<DirectoryStore>(
                           place, DirectoryStore::Options{false, warnings.sink(), environment()});
                     }};
const Kind memory{"Memory",
                  [](const std::string&, Warnings& warnings) {
                    return std::make_shared<detail::MemoryStore>(environment(), "memory",
                                                                 warnings.sink());
                  },
                  false};

// A database, which the store has for itself: goes to the next place with it.
template <class Made>
std::shared_ptr<Store> on_database(const std::string& place, Made made) {
  auto* const store = made(Databases::of_this_program().url(place));
  return std::shared_ptr<Store>(store, [place](Store* last) {
    delete last;
    Databases::of_this_program().leave(place);
  });
}

const Kind postgres{"Postgres",
                    [](const std::string& place, Warnings& warnings) {
                      return on_database(place, [&](const std::string& url) {
                        return new detail::PostgresStore(url, patient_options(warnings.sink()));
                      });
                    },
                    !thread_sanitized, false, PostgresServer::why_not};

const Kind shared{
    "Shared",
    [](const std::string& place, Warnings& warnings) {
      return on_database(place, [&](const std::string& url) {
        return new detail::SharedStore(
            std::make_shared<DirectoryStore>(
                place, DirectoryStore::Options{false, warnings.sink(), environment()}),
            url, patient_options(warnings.sink()));
      });
    },
    !thread_sanitized, true, PostgresServer::why_not};

Value elsewhere() { return Value::object({{"cores", 64}, {"compiler", "clang 19"}}); }

Entry measured_elsewhere(const EntryId& id, int block = 64, int samples = 40) {
  Entry entry = make_entry(id, block, samples);
  entry.environment = elsewhere();
  return entry;
}

Entry with_candidates(Entry entry, int count = 3) {
  for (int i = 0; i < count; ++i)
    entry.candidates.push_back(
        {Value::object({{"block", i}}), "slower", "", "", 1e-6 * (i + 1), 1.1, 1.0, 1.2, 9});
  return entry;
}

EntryId key_only(EntryId id) {
  id.spec.clear();
  return id;
}

// All that a store holds, as texts without a place.
std::vector<std::string> content(Store& store) {
  std::vector<std::string> out;
  store.for_each("", [&](const Entry& entry) {
    out.push_back((entry.trusted ? "trusted " : "") + to_json(entry_to_document(entry)));
    return true;
  });
  std::ranges::sort(out);
  return out;
}

class StoreContract : public ::testing::TestWithParam<Kind> {
 protected:
  int block_of(const EntryId& call, const Value* where = nullptr) {
    const auto entry = store->get(call, Detail::choice, where);
    return entry ? static_cast<int>(entry->config.find("block")->as_int()) : -1;
  }
  // What an order of puts ends with, in a store of its own.
  std::vector<std::string> after(const std::vector<Entry>& entries,
                                 const std::vector<size_t>& order) {
    const Scratch own(memory_directory());
    const auto fresh = GetParam().open(own / "s", warnings);
    for (const size_t i : order) EXPECT_TRUE(fresh->put(entries[i]));
    return content(*fresh);
  }

  void SetUp() override {
    if (GetParam().why_not && !GetParam().why_not().empty()) GTEST_SKIP() << GetParam().why_not();
    store = GetParam().open(scratch / "store", warnings);
  }

  Scratch scratch{memory_directory()};
  Warnings warnings;
  std::shared_ptr<Store> store;
  const EntryId id = call_id(1);
};

// ---- what is kept

TEST_P(StoreContract, AnEmptyStoreHasNothing) {
  EXPECT_FALSE(store->get(id));
  EXPECT_FALSE(store->get(key_only(id)));
  EXPECT_FALSE(store->erase(id));
  EXPECT_TRUE(content(*store).empty());
  EXPECT_TRUE(store->writable());
  EXPECT_FALSE(store->where().empty());
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_P(StoreContract, GivesBackWhatWasPut) {
  Entry entry = with_candidates(make_entry(id));
  entry.config = parse_json(R"({"nan": NaN, "far": -Infinity, "big": 123456789012345678901234567890,
                                "list": [1, 2.5, null, true, "é"], "minus": -0.0})");
  entry.device = Value::object({{"bytes", "a\x80z"}});
  entry.outcome = Outcome::unresolved;
  entry.evidence.offered = "xxh3:0123456789abcdef";
  entry.extra = Value::object({{"future", Value(Value::Array{1, 2})}});
  EXPECT_TRUE(store->put(entry));
  const auto back = store->get(id);
  ASSERT_TRUE(back);
  EXPECT_EQ(to_json(entry_to_document(*back)), to_json(entry_to_document(entry)));
  EXPECT_NE(to_json(entry_to_document(*back)).find("a\\udc80z"), std::string::npos);
  EXPECT_EQ(back->trusted, GetParam().vouches);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_P(StoreContract, AChoiceIsTheEntryWithoutItsCandidates) {
  Entry entry = with_candidates(make_entry(id));
  store->put(entry);
  const auto choice = store->get(id, Detail::choice);
  ASSERT_TRUE(choice);
  EXPECT_TRUE(choice->candidates.empty());
  EXPECT_EQ(choice->trusted, GetParam().vouches);
  entry.candidates.clear();
  EXPECT_EQ(entry_to_document(*choice), entry_to_document(entry));
  store->for_each(
      "",
      [](const Entry& visited) {
        EXPECT_TRUE(visited.candidates.empty());
        return true;
      },
      Detail::choice);
  EXPECT_EQ(store->get(id, Detail::all)->candidates.size(), 3u);
}

TEST_P(StoreContract, RemembersAFailureAndANullConfig) {
  Entry failed = make_entry(id);
  failed.config = Value(), failed.outcome = Outcome::failed;
  EXPECT_TRUE(store->put(failed));
  EXPECT_TRUE(store->get(id)->config.is_null());
  EXPECT_EQ(store->get(id)->outcome, Outcome::failed);
}

TEST_P(StoreContract, AnEntryThatCouldNotBeReadBackIsNotKept) {
  Entry deep = make_entry(id), large = make_entry(id), never = make_entry(id);
  for (int i = 0; i < 120; ++i) deep.config = Value(Value::Array{deep.config});
  large.config = Value(std::string(size_t{16} << 20, 'x'));
  never.evidence.seconds = -1;
  for (const Entry& entry : {deep, large, never}) EXPECT_FALSE(store->put(entry));
  EXPECT_FALSE(store->get(id));
  EXPECT_GE(warnings.count(), 1u);
  Entry fits = make_entry(id);
  fits.config = Value(std::string(sanitized ? 100'000 : (size_t{16} << 20) - 10'000, 'x'));
  EXPECT_TRUE(store->put(fits));
  EXPECT_EQ(store->get(id, Detail::choice)->config, fits.config);
}

TEST_P(StoreContract, AnUntrustedEntryStaysUntrusted) {
  Entry entry = with_candidates(make_entry(id));
  entry.evidence.offered = "xxh3:0123456789abcdef";  // the last text of its document, no checksum
  entry.trusted = false;
  EXPECT_TRUE(store->put(entry));
  EXPECT_FALSE(store->get(id)->trusted);
  EXPECT_FALSE(store->get(id, Detail::choice)->trusted);
}

// ---- which entry answers

TEST_P(StoreContract, KeepsDevicesOpsVersionsAndSpecsApart) {
  EntryId device = id, op = id, version = id, collision = call_id(2);
  device.device += "x", op.op = "ADD@v1", version.op = "add@v2", collision.key = id.key;
  store->put(make_entry(id, 1));
  for (const EntryId& other : {device, op, version, collision}) EXPECT_FALSE(store->get(other));
  store->put(make_entry(collision, 2));
  EXPECT_EQ(block_of(id), 1);
  EXPECT_EQ(block_of(collision), 2);
}

TEST_P(StoreContract, AnEntryOfTheKeyAloneAnswersEveryCallWithIt) {
  store->put(make_entry(key_only(id), 7));
  EXPECT_EQ(block_of(id), 7);
  EXPECT_EQ(block_of(call_id(2)), -1);
  store->put(make_entry(id, 8, 1));
  EXPECT_EQ(block_of(id), 8) << "the exact call comes first";
  EXPECT_EQ(block_of(key_only(id)), 7);
}

TEST_P(StoreContract, AQuestionByKeyAloneFindsTheEntryWithASpec) {
  store->put(make_entry(id, 9));
  ASSERT_TRUE(store->get(key_only(id)));
  EXPECT_EQ(store->get(key_only(id))->id.spec, id.spec);
}

TEST_P(StoreContract, EveryEnvironmentHasItsOwnEntry) {
  const Value other = elsewhere(), third("third");
  store->put(make_entry(id, 1, 10));
  store->put(measured_elsewhere(id, 2, 1000));
  EXPECT_EQ(block_of(id), 1);
  EXPECT_EQ(block_of(id, &other), 2);
  EXPECT_EQ(block_of(id, &third), 2) << "it has no entry of its own: the better evidence";
  store->put(make_entry(id, 3, 20));
  store->put(measured_elsewhere(id, 4, 2000));
  EXPECT_EQ(block_of(id), 3);
  EXPECT_EQ(block_of(id, &other), 4);
  EXPECT_EQ(content(*store).size(), 2u);
}

TEST_P(StoreContract, AMeasuredEntryOfAnyEnvironmentAnswersFirst) {
  Entry imported = make_entry(id, 1, 1000), transferred = make_entry(id, 2, 1000);
  imported.provenance = "imported", transferred.provenance = "transferred";
  store->put(transferred);
  EXPECT_EQ(block_of(id), 2);
  store->put(imported);
  EXPECT_EQ(block_of(id), 1) << "a transferred one is of no environment";
  store->put(measured_elsewhere(id, 3, 1));
  EXPECT_EQ(block_of(id), 3);
  store->put(make_entry(id, 4, 1));
  EXPECT_EQ(block_of(id), 4);
}

// ---- which entry stays

TEST_P(StoreContract, KeepsTheBetterEntry) {
  store->put(make_entry(id, 1, 40));
  EXPECT_TRUE(store->put(make_entry(id, 2, 10))) << "not kept, but nothing failed";
  EXPECT_EQ(block_of(id), 1);
  EXPECT_TRUE(store->put(make_entry(id, 3, 41)));
  EXPECT_EQ(block_of(id), 3);
}

TEST_P(StoreContract, AReplacementAnswersInItsEnvironment) {
  const Value other = elsewhere();
  store->put(make_entry(id, 1, 40));
  store->put(measured_elsewhere(id, 2, 40));
  EXPECT_TRUE(store->put(make_entry(id, 3, 1), ejk::IfPresent::replace));
  EXPECT_EQ(block_of(id), 3);
  EXPECT_EQ(block_of(id, &other), 2) << "does not stand in its way";
  Entry by_hand = make_entry(id, 4, 0);
  by_hand.provenance = "put";
  EXPECT_TRUE(store->put(by_hand, ejk::IfPresent::replace));
  EXPECT_EQ(block_of(id), 4);
  EXPECT_EQ(block_of(id, &other), 4) << "what was measured elsewhere would have answered";
}

TEST_P(StoreContract, UnknownMembersSurviveEveryWriter) {
  Entry old = with_candidates(make_entry(id, 1, 10));
  old.extra = parse_json(
      R"({"future": "kept", "evidence": {"temperature": 55.5}, "device": {"serial": "A1"},
          "candidates": {"{\"block\":1}": {"energy": 3}}})");
  store->put(old);
  store->put(with_candidates(make_entry(id, 2, 30)));
  store->put(with_candidates(make_entry(id, 3, 1)), ejk::IfPresent::replace);
  Entry late = make_entry(id, 4, 0);
  late.extra = Value::object({{"later", 1}});
  store->put(late);
  const Value kept = entry_to_document(*store->get(id));
  EXPECT_EQ(*kept.find("config")->find("block"), Value(3));
  EXPECT_EQ(*kept.find("future"), Value("kept"));
  EXPECT_EQ(*kept.find("later"), Value(1)) << "also of one that is not better";
  EXPECT_EQ(*kept.find("evidence")->find("temperature"), Value(55.5));
  EXPECT_EQ(*kept.find("device")->find("serial"), Value("A1"));
  EXPECT_EQ(*kept.find("candidates")->as_array()[1].find("energy"), Value(3));
  const auto choice = store->get(id, Detail::choice);
  EXPECT_EQ(*choice->extra.find("future"), Value("kept"));
}

// Entries of few calls and environments that differ in all that decides, and in what does not.
std::vector<Entry> many_entries(std::mt19937& random, int count) {
  const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<Entry> out;
  for (int i = 0; i < count; ++i) {
    EntryId call = call_id(one_of(2));
    if (one_of(4) == 0) call.spec.clear();
    Entry e = make_entry(call, one_of(3), 10 + one_of(2));
    if (one_of(3) == 0) e.environment = elsewhere();
    if (one_of(4) == 0) e.outcome = Outcome::failed, e.config = Value();
    e.evidence.complete = one_of(3) > 0;
    e.evidence.time = "2026-01-02T03:04:0" + std::to_string(one_of(2)) + "Z";
    e.provenance = std::vector{"measured", "imported", "transferred",
                               "of tomorrow"}[static_cast<size_t>(one_of(4))];
    e.trusted = one_of(4) > 0;
    if (one_of(2) == 0) e = with_candidates(e, one_of(3));
    // Each its own: of two values of one member either may stay.
    if (one_of(3) == 0) e.extra = Value::object({{"future" + std::to_string(i), i}});
    out.push_back(std::move(e));
  }
  return out;
}

TEST_P(StoreContract, PutsInAnyOrderAndAnyNumberEndWithTheSame) {
  std::mt19937 random(1);
  for (int round = 0; round < (sanitized ? 4 : 12); ++round) {
    const auto entries = many_entries(random, 12);
    std::vector<size_t> order(entries.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto expected = after(entries, order);
    for (int shuffles = 0; shuffles < 4; ++shuffles) {
      std::ranges::shuffle(order, random);
      EXPECT_EQ(after(entries, order), expected);
    }
    std::vector<size_t> repeated = order;
    repeated.insert(repeated.end(), order.begin(), order.end());
    std::ranges::shuffle(repeated, random);
    EXPECT_EQ(after(entries, repeated), expected) << "putting again changes nothing";
  }
}

TEST_P(StoreContract, MergingStoresIsTheSameInWhateverGroups) {
  std::mt19937 random(2);
  const auto entries = many_entries(random, 18);
  std::vector<size_t> all(entries.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const auto expected = after(entries, all);
  for (const size_t cut : {3u, 9u, 15u}) {
    const Scratch own(memory_directory());
    const auto left = GetParam().open(own / "l", warnings);
    const auto right = GetParam().open(own / "r", warnings);
    for (const size_t i : all) (i < cut ? left : right)->put(entries[i]);
    const auto merge = [](Store& from, Store& into) {
      from.for_each("", [&](const Entry& entry) { return into.put(entry); });
    };
    merge(*left, *right);
    EXPECT_EQ(content(*right), expected) << cut;
    merge(*right, *left);
    EXPECT_EQ(content(*left), expected) << cut;
  }
}

TEST_P(StoreContract, ThreadsThatPutEndWithTheSame) {
  std::mt19937 random(3);
  const auto entries = many_entries(random, 40);
  std::vector<size_t> all(entries.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const auto expected = after(entries, all);
  std::vector<std::jthread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::vector<size_t> order = all;
      std::ranges::shuffle(order, std::mt19937(t));
      for (const size_t i : order) EXPECT_TRUE(store->put(entries[i]));
    });
  threads.clear();
  EXPECT_EQ(content(*store), expected);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_P(StoreContract, ProcessesThatPutEndWithTheSame) {
  if (!GetParam().between_processes) GTEST_SKIP() << "not with this store";
  std::mt19937 random(4);
  const auto entries = many_entries(random, 40);
  std::vector<size_t> all(entries.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const auto expected = after(entries, all);
  std::vector<pid_t> children;
  for (unsigned p = 0; p < 4; ++p)
    children.push_back(start_child([&] {
      Warnings said;
      const auto own = GetParam().open(scratch / "store", said);
      std::vector<size_t> order = all;
      std::ranges::shuffle(order, std::mt19937(p));
      for (const size_t i : order)
        if (!own->put(entries[i])) return false;
      return said.count() == 0;
    }));
  for (const pid_t child : children) EXPECT_TRUE(child_succeeded(child));
  EXPECT_EQ(content(*store), expected);
}

// ---- removing, visiting

TEST_P(StoreContract, EraseRemovesWhatGetWouldFindInAllEnvironments) {
  store->put(make_entry(id));
  store->put(measured_elsewhere(id));
  store->put(make_entry(key_only(id)));
  store->put(make_entry(call_id(2)));
  EXPECT_TRUE(store->erase(id));
  EXPECT_FALSE(store->get(id));
  EXPECT_FALSE(store->erase(id));
  EXPECT_TRUE(store->get(call_id(2)));
  EXPECT_TRUE(store->erase(key_only(call_id(2))));
  EXPECT_FALSE(store->get(call_id(2)));
  EXPECT_TRUE(store->put(make_entry(id, 5)));
  EXPECT_EQ(block_of(id), 5);
}

TEST_P(StoreContract, VisitsEveryEntryOfAnOpOnceUntilToldToStop) {
  for (int i = 0; i < 5; ++i) store->put(make_entry(call_id(i)));
  for (int i = 0; i < 3; ++i) store->put(make_entry(call_id(i, "mul@v1")));
  store->put(measured_elsewhere(call_id(0)));
  store->put(make_entry(key_only(call_id(0))));
  const auto count = [&](std::string_view op, int most) {
    int seen = 0;
    store->for_each(op, [&](const Entry&) { return ++seen < most; });
    return seen;
  };
  EXPECT_EQ(count("", 100), 10);
  EXPECT_EQ(count("add@v1", 100), 7);
  EXPECT_EQ(count("mul@v1", 100), 3);
  EXPECT_EQ(count("div@v1", 100), 0);
  EXPECT_EQ(count("", 2), 2);
}

TEST_P(StoreContract, AVisitMayAskAndChangeTheStore) {
  for (int i = 0; i < 4; ++i) store->put(make_entry(call_id(i)));
  store->for_each("", [&](const Entry& entry) {
    EXPECT_TRUE(store->get(entry.id));
    EXPECT_TRUE(store->erase(entry.id));
    return true;
  });
  EXPECT_TRUE(content(*store).empty());
}

// ---- leases

TEST_P(StoreContract, ACallHasASingleHolderAtATime) {
  auto first = store->lease(id, 0);
  ASSERT_NE(first, nullptr);
  first->refresh();
  EXPECT_EQ(store->lease(id, 0), nullptr);
  EXPECT_EQ(store->lease(id, 0.03), nullptr) << "patience runs out";
  EXPECT_NE(store->lease(call_id(2), 0), nullptr) << "other calls are free";
  EXPECT_TRUE(store->put(make_entry(id))) << "a lease keeps no process from writing";
  first.reset();
  EXPECT_NE(store->lease(id, 0), nullptr);
}

TEST_P(StoreContract, ThreadsNeverHoldOneLeaseTogether) {
  std::atomic<int> holders = 0, taken = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 10; ++i) {
        const auto lease = store->lease(id, 20);
        ASSERT_NE(lease, nullptr);
        EXPECT_EQ(holders.fetch_add(1), 0);
        ++taken;
        holders.fetch_sub(1);
      }
    });
  threads.clear();
  EXPECT_EQ(taken, 40);
}

INSTANTIATE_TEST_SUITE_P(All, StoreContract, ::testing::Values(memory, directory, postgres, shared),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace ejk
