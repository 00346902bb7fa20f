// SPDX-License-Identifier: Apache-2.0
// What stores keep, how they choose between entries, and how layers answer.
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <ejk/error.h>
#include <ejk/names.h>
#include <ejk/store.h>

#include "base/file.h"
#include "store/strategy.h"
#include "store_fixture.h"

namespace ejk {
namespace {

using namespace ejk::testing;

// Sets an environment variable (nullptr: unsets it) for the length of a test.
class Environment {
 public:
  Environment(std::string name, const char* value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    if (value != nullptr) ::setenv(name_.c_str(), value, 1);
    else ::unsetenv(name_.c_str());
  }
  ~Environment() {
    if (before_) ::setenv(name_.c_str(), before_->c_str(), 1);
    else ::unsetenv(name_.c_str());
  }

 private:
  std::string name_;
  std::optional<std::string> before_;
};

class StoreTest : public ::testing::Test {
 protected:
  Scratch scratch;
  Warnings warnings;
  DirectoryStore store = open_store(scratch / "store", warnings);
  EntryId id = call_id(1);
};

Entry full_entry() {
  Entry entry = make_entry(call_id(1));
  entry.outcome = Outcome::unresolved;
  entry.provenance = "transferred";
  entry.config = parse_json(
      R"({"z": 1, "a": [1, 2.5, null, true, "é"], "big": 123456789012345678901234567890,
          "nested": {"x": {}, "y": []}, "f": 0.1, "nan": NaN, "minus": -0.0})");
  entry.evidence = {1.5e-6,
                    1.4e-6,
                    1.6e-6,
                    3e-6,
                    Value::object({{"block", 1}}),
                    2.0,
                    1.9,
                    2.1,
                    0.01,
                    41,
                    false,
                    10.5,
                    0.5,
                    "race",
                    "wall",
                    "warm",
                    "child",
                    "call",
                    "0.1.0",
                    "2026-01-02T03:04:05Z",
                    "xxh3:0123456789abcdef"};
  entry.candidates = {
      {Value::object({{"block", 1}}), "ok", "", "", 1.0 / 3, 0.9, 0.8, 1.0, 12, 0.25},
      {Value(), "rejected", "wrong", "output 0 differs", 0, 0, 0, 0, 0}};
  entry.extra = Value::object({{"future", Value(Value::Array{1, 2})}});
  return entry;
}

void expect_equal(const Entry& a, const Entry& b) {
  EXPECT_EQ(to_json(entry_to_document(a), 1), to_json(entry_to_document(b), 1));
  EXPECT_EQ(a.id.spec, b.id.spec);
  EXPECT_EQ(a.config, b.config);
  EXPECT_EQ(a.extra, b.extra);
}

// ---- entries as documents

TEST(EntryDocument, ComesBackAsItWas) {
  const Entry entry = full_entry();
  const Entry back = entry_from_document(parse_json(to_json(entry_to_document(entry), 1)));
  expect_equal(entry, back);
  EXPECT_EQ(back.outcome, Outcome::unresolved);
  EXPECT_EQ(back.evidence.seconds, 1.5e-6);
  EXPECT_EQ(back.evidence.samples, 41);
  EXPECT_FALSE(back.evidence.complete);
  EXPECT_EQ(back.evidence.tuning_seconds, 10.5);
  EXPECT_EQ(back.evidence.resumed_seconds, 0.5);
  ASSERT_EQ(back.candidates.size(), 2u);
  EXPECT_EQ(back.candidates[0].seconds, 1.0 / 3);
  EXPECT_EQ(back.candidates[0].compile_seconds, 0.25);
  EXPECT_EQ(entry_to_document(back).find("candidates")->as_array()[1].find("compile_seconds"),
            nullptr)
      << "only of what was compiled";
  EXPECT_EQ(back.candidates[1].kind, "wrong");
  EXPECT_EQ(back.candidates[1].why, "output 0 differs");
}

TEST(EntryDocument, ShowsTheSpecAsJsonIfThatKeepsItsText) {
  const Value document = entry_to_document(make_entry(call_id(3)));
  EXPECT_TRUE(document.find("spec")->is_object());
  EXPECT_EQ(entry_from_document(document).id.spec, call_id(3).spec);
  for (const std::string spec : {"{\"a\": 1}", "{\"b\":1,\"a\":2}", "\"text\"", "null", "17",
                                 "not json", "[1,2", "\xff", "{\"a\":1,\"a\":1}"}) {
    Entry entry = make_entry({"d", "o", "k", spec});
    const Value kept = entry_to_document(entry);
    EXPECT_TRUE(kept.find("spec")->is_string()) << spec;
    EXPECT_EQ(entry_from_document(parse_json(to_json(kept))).id.spec, spec);
  }
  const std::string deep = std::string(95, '[') + std::string(95, ']');
  const Value kept = entry_to_document(make_entry({"d", "o", "k", deep}));
  EXPECT_EQ(entry_from_document(parse_json(to_json(kept))).id.spec, deep);
}

TEST(EntryDocument, KeepsUnknownMembersWhereTheyWere) {
  Value document = entry_to_document(full_entry());
  document["new_member"] = Value::object({{"x", 1}});
  (*document.find("evidence"))["temperature"] = 55.5;
  (*document.find("device"))["serial"] = "A1";
  document.find("candidates")->as_array()[0]["energy"] = 3;
  const Value again = entry_to_document(entry_from_document(document));
  EXPECT_EQ(again, document);
}

TEST(EntryDocument, KeepsWordsThatThisVersionDoesNotKnow) {
  Entry entry = full_entry();
  entry.provenance = entry.evidence.strategy = entry.evidence.clock = "of tomorrow";
  entry.candidates[1].status = entry.candidates[1].kind = "of tomorrow";
  const Entry back = entry_from_document(entry_to_document(entry));
  expect_equal(back, entry);
  EXPECT_EQ(back.candidates[1].kind, "of tomorrow");
  EXPECT_FALSE(is_measured(back));
  EXPECT_EQ(named<Provenance>(back.provenance), std::nullopt);
}

TEST(Rejections, OnlyTimeMemoryAndIsValidMayPassLater) {
  for (const std::string_view kind : names_of(Rejection{})) {
    Measurement m;
    m.status = name_of(CandidateStatus::rejected), m.kind = kind;
    const bool may_pass = kind == "timed_out" || kind == "out_of_memory" || kind == "invalid";
    EXPECT_NE(is_rejected_for_good(m), may_pass) << kind;
  }
}

TEST(Rejections, ARejectionOfAnUnknownKindLasts) {
  Measurement m;
  m.status = "rejected", m.kind = "of tomorrow";
  EXPECT_TRUE(is_rejected_for_good(m));
}

TEST(StrategyText, TellsThreeFactsApart) {
  for (const std::string text : {"race", "auto", "random", "exhaustive", "single run"})
    for (const bool given : {false, true}) {
      Evidence evidence;
      evidence.strategy = given ? text + " among given configs" : text;
      const detail::Strategy strategy = detail::strategy_of(evidence);
      EXPECT_EQ(detail::text_of(strategy), evidence.strategy);
      EXPECT_EQ(strategy.given_list, given);
      EXPECT_EQ(strategy.single_run, text == "single run");
      EXPECT_EQ(strategy.may_have_searched(), text != "race") << text;
    }
}

TEST(StrategyText, AnUnknownStrategyIsASearch) {
  Evidence evidence;
  EXPECT_FALSE(detail::strategy_of(evidence).may_have_searched());
  evidence.strategy = "of tomorrow among given configs";
  EXPECT_TRUE(detail::strategy_of(evidence).may_have_searched());
  EXPECT_TRUE(detail::strategy_of(evidence).given_list);
}

TEST(EntryDocument, RefusesWhatIsNotAnEntryOfThisSchema) {
  const Value good = entry_to_document(full_entry());
  const auto with = [&](const char* name, Value value) {
    Value document = good;
    document[name] = std::move(value);
    return document;
  };
  for (const char* name : {"schema", "op", "key", "device", "outcome"}) {
    Value document = good;
    document.erase(name);
    EXPECT_THROW((void)entry_from_document(document), Error) << name;
  }
  EXPECT_THROW((void)entry_from_document(Value()), Error);
  EXPECT_THROW((void)entry_from_document(Value(Value::Array{1})), Error);
  EXPECT_THROW((void)entry_from_document(with("schema", 2)), Error);
  EXPECT_THROW((void)entry_from_document(with("schema", "1")), Error);
  EXPECT_THROW((void)entry_from_document(with("op", 1)), Error);
  EXPECT_THROW((void)entry_from_document(with("device", "cpu")), Error);
  EXPECT_THROW((void)entry_from_document(with("outcome", "splendid")), Error);
  EXPECT_THROW((void)entry_from_document(with("evidence", 1)), Error);
  EXPECT_THROW((void)entry_from_document(with("evidence", Value::object({{"samples", -1}}))),
               Error);
  EXPECT_THROW((void)entry_from_document(with("evidence", Value::object({{"seconds", "x"}}))),
               Error);
  EXPECT_THROW((void)entry_from_document(with("candidates", Value::object())), Error);
  EXPECT_THROW((void)entry_from_document(with("candidates", Value(Value::Array{1}))), Error);
}

TEST(EntryDocument, ManyUnknownMembersTakeNoQuadraticTime) {
  Value document = entry_to_document(full_entry());
  for (int i = 0; i < 200'000; ++i) {
    document.as_object().members.emplace_back("x" + std::to_string(i), i);
  }
  EXPECT_EQ(entry_to_document(entry_from_document(document)), document);
}

// The places of all numbers that an entry was measured with.
std::vector<Value*> measured_numbers(Value& document) {
  std::vector<Value*> out;
  Value &evidence = *document.find("evidence"), &candidates = *document.find("candidates");
  for (Value* from : {&evidence, &candidates.as_array()[0]})
    for (auto& [name, member] : from->as_object().members)
      if (member.is_number()) out.push_back(&member);
  return out;
}

TEST(EntryDocument, NumbersThatCannotBeMeasuredAreRefused) {
  Value document = entry_to_document(full_entry());
  const auto numbers = measured_numbers(document);
  ASSERT_EQ(numbers.size(), 17u);
  for (Value* number : numbers) {
    for (const char* text : {"-1", "-1e-300", "NaN", "Infinity", "-Infinity", "\"1\""}) {
      const Value before = std::exchange(*number, parse_json(text));
      EXPECT_THROW((void)entry_from_document(document), Error) << text;
      *number = before;
    }
  }
  EXPECT_EQ(entry_to_document(entry_from_document(document)), document);
}

TEST(EntryDocument, NumbersBeyondMeasureAreCut) {
  Value document = entry_to_document(full_entry());
  for (Value* number : measured_numbers(document))
    *number = number->is_int() ? Value(2147483647) : Value(1e300);
  const Entry entry = entry_from_document(document);
  EXPECT_EQ(entry.evidence.samples, 1'000'000);
  EXPECT_EQ(entry.candidates[0].samples, 1'000'000);
  EXPECT_EQ(entry.evidence.speedup, 1e9);
  EXPECT_EQ(entry.candidates[0].ratio, 1e9);
  (*document.find("evidence"))["samples"] = int64_t{1} << 62;
  EXPECT_EQ(entry_from_document(document).evidence.samples, 1'000'000);
}

// ---- which of two entries is better

TEST(BetterEvidence, FollowsItsOrder) {
  const Entry present = make_entry(call_id(1), 64, 40);
  const auto better = [&](auto change) {
    Entry candidate = present;
    change(candidate);
    return better_evidence(candidate, present);
  };
  EXPECT_FALSE(better([](Entry&) {})) << "putting it again changes nothing";
  EXPECT_TRUE(better([](Entry& e) { e.evidence.samples = 41; }));
  EXPECT_FALSE(better([](Entry& e) { e.evidence.samples = 39; }));
  EXPECT_TRUE(better([](Entry& e) { e.evidence.time = "2026-01-02T03:04:06Z"; }));
  EXPECT_FALSE(better([](Entry& e) { e.evidence.time = "2026-01-02T03:04:04Z"; }));
  EXPECT_FALSE(better([](Entry& e) { e.evidence.complete = false, e.evidence.samples = 1000; }));
  EXPECT_FALSE(better([](Entry& e) { e.outcome = Outcome::failed, e.evidence.samples = 1000; }));
  EXPECT_TRUE(better([](Entry& e) { e.candidates.resize(1); }));
  EXPECT_FALSE(better([](Entry& e) { e.trusted = false; }));
  EXPECT_FALSE(better([](Entry& e) {
    e.extra = Value::object({{"future", 1}});
  })) << "unknown members decide nothing";
  Entry other = present;
  other.config = Value::object({{"block", 1}});
  EXPECT_NE(better_evidence(other, present), better_evidence(present, other))
      << "else a digest of their texts decides";

  Entry failed = present, cut = present;
  failed.outcome = Outcome::failed;
  cut.evidence.complete = false;
  EXPECT_TRUE(better_evidence(cut, failed));
}

TEST(AnswersBefore, IsWhatWasMeasuredThenWhatWasMeasuredHere) {
  const Entry here = make_entry(call_id(1), 64, 1);
  Entry elsewhere = here, imported = here, transferred = here, failed = here;
  elsewhere.environment = Value("another compiler");
  elsewhere.evidence.samples = imported.evidence.samples = transferred.evidence.samples = 1000;
  imported.provenance = "imported", transferred.provenance = "transferred";
  failed.outcome = Outcome::failed;
  const std::vector<Entry> order = {here, failed, elsewhere, imported, transferred};
  for (size_t i = 0; i < order.size(); ++i)
    for (size_t j = 0; j < order.size(); ++j)
      EXPECT_EQ(answers_before(order[i], order[j], environment()), i < j) << i << " " << j;
  EXPECT_TRUE(answers_before(elsewhere, here, Value("another compiler")));
}

TEST(EnvironmentId, TellsEnvironmentsAndTransferredEntriesApart) {
  const Entry entry = make_entry(call_id(1));
  Entry elsewhere = entry, transferred = entry, imported = make_entry(call_id(2), 1, 1);
  elsewhere.environment = Value();
  transferred.provenance = "transferred", imported.provenance = "imported";
  EXPECT_EQ(environment_id(entry),
            base::sha256_hex(R"([{"compiler":"gcc 12","cores":2},false])", 32));
  EXPECT_EQ(environment_id(imported), environment_id(entry));
  EXPECT_EQ(environment_id(elsewhere), base::sha256_hex("[null,false]", 32));
  EXPECT_NE(environment_id(transferred), environment_id(entry));
}

TEST(BetterEvidence, IsWhatWasMeasuredWhateverOthersSayOfThemselves) {
  for (const char* provenance : {"imported", "transferred", "Measured", ""}) {
    Entry measured = make_entry(call_id(1), 64, 1), other = make_entry(call_id(1), 64, 1'000'000);
    other.provenance = provenance;
    other.evidence.time = "9999-12-31T23:59:59Z";
    for (const Value& where : {environment(), Value("another compiler")}) {
      measured.environment = where;
      for (const Outcome outcome : {Outcome::tuned, Outcome::unresolved, Outcome::failed}) {
        measured.outcome = outcome, measured.evidence.complete = outcome == Outcome::tuned;
        EXPECT_FALSE(better_evidence(other, measured)) << provenance;
        EXPECT_TRUE(better_evidence(measured, other)) << provenance;
        EXPECT_FALSE(answers_before(other, measured, environment())) << provenance;
        EXPECT_TRUE(answers_before(measured, other, environment())) << provenance;
      }
    }
  }
}

// ---- a directory

TEST_F(StoreTest, GivesBackWhatWasPut) {
  const Entry entry = full_entry();
  EXPECT_TRUE(store.put(entry));
  const auto back = store.get(entry.id);
  ASSERT_TRUE(back);
  expect_equal(*back, entry);
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(StoreTest, RemembersANullConfig) {
  Entry entry = make_entry(id);
  entry.config = Value();
  entry.outcome = Outcome::failed;
  EXPECT_TRUE(store.put(entry));
  ASSERT_TRUE(store.get(id));
  EXPECT_TRUE(store.get(id)->config.is_null());
  EXPECT_EQ(store.get(id)->outcome, Outcome::failed);
}

TEST_F(StoreTest, CreatesNothingUntilTheFirstPut) {
  EXPECT_FALSE(store.get(id));
  store.for_each("", [](const Entry&) { return true; });
  EXPECT_FALSE(store.erase(id));
  EXPECT_FALSE(fs::exists(store.where()));
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(StoreTest, FilesAreForPeople) {
  store.put(make_entry(id));
  const std::string text = read_text(store.file_of(id));
  EXPECT_TRUE(text.starts_with("{\n \"schema\": 1,\n \"op\": \"add@v1\",\n \"key\": \""));
  EXPECT_TRUE(text.ends_with("}\n"));
  EXPECT_NE(text.find("\"shape\": [1]"), std::string::npos) << text;
  EXPECT_NE(store.file_of(id).find("/v2/cpu_Test_CPU_0123456789abcdef-"), std::string::npos);
  EXPECT_NE(store.file_of(id).find("/add@v1-"), std::string::npos);
  EXPECT_NE(store.file_of(id).find("/" + id.key), std::string::npos);
  EXPECT_TRUE(store.file_of(id).ends_with("/" + environment_id(make_entry(id)) + ".json"));
}

TEST_F(StoreTest, FilesEndWithTheirChecksum) {
  store.put(make_entry(id));
  const std::string text = read_text(store.file_of(id));
  const size_t end = text.rfind(",\n \"checksum\": \"xxh3:");
  ASSERT_NE(end, text.npos) << text;
  const std::string digits = fmt::format("{:016x}", XXH3_64bits(text.data(), end));
  EXPECT_EQ(text.substr(end), ",\n \"checksum\": \"xxh3:" + digits + "\"\n}\n");
  EXPECT_TRUE(store.get(id)->trusted);
  EXPECT_TRUE(store.get(id)->extra.is_null());
}

TEST_F(StoreTest, AnEntryWithoutItsChecksumIsReadButNotTrusted) {
  write_text(store.file_of(id), to_json(entry_to_document(make_entry(id)), 1) + "\n");
  ASSERT_TRUE(store.get(id));
  EXPECT_FALSE(store.get(id)->trusted);
  store.for_each("", [](const Entry& entry) {
    EXPECT_FALSE(entry.trusted);
    return true;
  });
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(StoreTest, PuttingAnEntryAgainDoesNotMakeItTrusted) {
  write_text(store.file_of(id), to_json(entry_to_document(make_entry(id)), 1) + "\n");
  EXPECT_TRUE(store.put(*store.get(id), ejk::IfPresent::replace));
  EXPECT_FALSE(store.get(id)->trusted);
  EXPECT_TRUE(store.put(make_entry(id), ejk::IfPresent::replace));
  EXPECT_TRUE(store.get(id)->trusted);
}

TEST_F(StoreTest, AnEntryOfAnotherUserIsNotTrusted) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  store.put(make_entry(id));
  ASSERT_EQ(::chown(store.file_of(id).c_str(), 65534, 65534), 0);
  ASSERT_TRUE(store.get(id));
  EXPECT_FALSE(store.get(id)->trusted);
}

TEST_F(StoreTest, FilesHaveTheModeTheUmaskGives) {
  const mode_t before = ::umask(002);
  store.put(make_entry(id));
  ::umask(before);
  struct stat info {};
  ASSERT_EQ(::stat(store.file_of(id).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0664u);
}

TEST_F(StoreTest, ComparesTheWholeSpecAndNotItsHashAlone) {
  EntryId a = call_id(1), b = call_id(2);
  b.key = a.key;  // a collision of the 16 digits
  store.put(make_entry(a, 1));
  EXPECT_FALSE(store.get(b));
  store.put(make_entry(b, 2));
  EXPECT_EQ(store.get(a)->config.find("block")->as_int(), 1);
  EXPECT_EQ(store.get(b)->config.find("block")->as_int(), 2);
}

TEST_F(StoreTest, KeepsDevicesOpsAndVersionsApart) {
  EntryId other_device = id, other_op = id, other_version = id;
  other_device.device += "x";
  other_op.op = "ADD@v1";
  other_version.op = "add@v2";
  store.put(make_entry(id));
  for (const EntryId& other : {other_device, other_op, other_version})
    EXPECT_FALSE(store.get(other));
}

TEST_F(StoreTest, AnEntryWithoutSpecAnswersEveryCallWithItsKey) {
  EntryId key_only = id;
  key_only.spec.clear();
  store.put(make_entry(key_only, 7));
  ASSERT_TRUE(store.get(id));
  EXPECT_EQ(store.get(id)->config.find("block")->as_int(), 7);
  EXPECT_FALSE(store.get(call_id(2)));
  store.put(make_entry(id, 8, 1));
  EXPECT_EQ(store.get(id)->config.find("block")->as_int(), 8) << "the exact call comes first";
  EXPECT_EQ(store.get(key_only)->config.find("block")->as_int(), 7);
}

TEST_F(StoreTest, AQuestionByKeyAloneFindsTheEntryWithASpec) {
  store.put(make_entry(id, 9));
  EntryId key_only = id;
  key_only.spec.clear();
  ASSERT_TRUE(store.get(key_only));
  EXPECT_EQ(store.get(key_only)->id.spec, id.spec);
}

TEST_F(StoreTest, AKeyWhoseOwnFileIsThereIsAnsweredWithoutListingItsDirectory) {
  EntryId by_key = call_id(2);
  by_key.spec.clear();
  store.put(make_entry(id));
  store.put(make_entry(by_key));
  const base::Fd events(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  const std::string directory = fs::path(store.file_of(id)).parent_path().parent_path();
  ASSERT_GE(::inotify_add_watch(events.get(), directory.c_str(), IN_ACCESS), 0);
  const auto was_listed = [&] {  // an event with a name is of a file
    alignas(inotify_event) char buffer[4096];
    bool listed = false;
    const ssize_t size = ::read(events.get(), buffer, sizeof buffer);
    for (ssize_t at = 0; at < size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      listed |= event->len == 0;
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
    return listed;
  };
  ASSERT_TRUE(store.get(by_key));
  EXPECT_FALSE(was_listed());
  ASSERT_TRUE(store.get({id.device, id.op, id.key, ""}));
  EXPECT_TRUE(was_listed()) << "the entry has a spec";
}

TEST_F(StoreTest, KeepsTheBetterEntryUnlessToldToReplace) {
  store.put(make_entry(id, 1, 40));
  EXPECT_TRUE(store.put(make_entry(id, 2, 10))) << "not kept, but nothing failed";
  EXPECT_EQ(store.get(id)->config.find("block")->as_int(), 1);
  EXPECT_TRUE(store.put(make_entry(id, 3, 10), ejk::IfPresent::replace));
  EXPECT_EQ(store.get(id)->config.find("block")->as_int(), 3);
  EXPECT_TRUE(store.put(make_entry(id, 4, 11))) << "better than what took the place";
  EXPECT_EQ(store.get(id)->config.find("block")->as_int(), 4);
}

TEST_F(StoreTest, UnknownMembersSurviveARewriteAndAnotherWriter) {
  Value document = entry_to_document(make_entry(id, 1, 10));
  document["from_the_future"] = "kept";
  (*document.find("evidence"))["temperature"] = 55.5;
  write_text(store.file_of(id), to_json(document));

  auto entry = store.get(id);
  ASSERT_TRUE(entry);
  entry->evidence.samples = 20;
  store.put(*entry);
  store.put(make_entry(id, 2, 30));  // a writer that never saw these members
  store.put(make_entry(id, 3, 1), ejk::IfPresent::replace);
  const Value kept = parse_json(read_text(store.file_of(id)));
  ASSERT_NE(kept.find("from_the_future"), nullptr);
  ASSERT_NE(kept.find("evidence")->find("temperature"), nullptr);
  EXPECT_EQ(*kept.find("from_the_future"), Value("kept"));
  EXPECT_EQ(*kept.find("evidence")->find("temperature"), Value(55.5));
  EXPECT_EQ(*kept.find("config")->find("block"), Value(3));
}

TEST_F(StoreTest, EraseRemovesWhatGetWouldFind) {
  EntryId key_only = id;
  key_only.spec.clear();
  store.put(make_entry(id));
  store.put(make_entry(key_only));
  store.put(make_entry(call_id(2)));
  EXPECT_TRUE(store.erase(id));
  EXPECT_FALSE(store.get(id));
  EXPECT_FALSE(store.erase(id));
  EXPECT_TRUE(store.get(call_id(2)));
  EntryId second_by_key = call_id(2);
  second_by_key.spec.clear();
  EXPECT_TRUE(store.erase(second_by_key));
  EXPECT_FALSE(store.get(call_id(2)));
}

TEST_F(StoreTest, VisitsEveryEntryOfAnOpUntilToldToStop) {
  for (int i = 0; i < 5; ++i) store.put(make_entry(call_id(i)));
  for (int i = 0; i < 3; ++i) store.put(make_entry(call_id(i, "mul@v1")));
  const auto count = [&](std::string_view op, int most) {
    int seen = 0;
    store.for_each(op, [&](const Entry&) { return ++seen < most; });
    return seen;
  };
  EXPECT_EQ(count("", 100), 8);
  EXPECT_EQ(count("add@v1", 100), 5);
  EXPECT_EQ(count("mul@v1", 100), 3);
  EXPECT_EQ(count("div@v1", 100), 0);
  EXPECT_EQ(count("", 2), 2);
}

TEST_F(StoreTest, AReadOnlyStoreChangesNothing) {
  store.put(make_entry(id));
  write_text(store.file_of(call_id(2)), "damaged");
  const auto before = files_below(store.where());
  Warnings said;
  DirectoryStore reader = open_store(store.where(), said, true);
  EXPECT_FALSE(reader.writable());
  EXPECT_TRUE(reader.get(id));
  EXPECT_FALSE(reader.get(call_id(2)));
  EXPECT_FALSE(reader.put(make_entry(call_id(3))));
  EXPECT_FALSE(reader.erase(id));
  EXPECT_EQ(reader.lease(id, 0), nullptr);
  EXPECT_EQ(files_below(store.where()), before);
}

TEST_F(StoreTest, StaysWhereItWasOpenedWhenTheProcessMoves) {
  const fs::path before = fs::current_path();
  fs::current_path(scratch.path());
  DirectoryStore relative = open_store("relative", warnings);
  fs::current_path(before);
  EXPECT_TRUE(relative.put(make_entry(id)));
  EXPECT_TRUE(fs::exists(scratch / "relative/v2"));
}

TEST_F(StoreTest, RefusesAnEmptyPath) {
  EXPECT_THROW(DirectoryStore(""), Error);
  EXPECT_THROW(DirectoryStore(std::string("a\0b", 3)), Error);
}

TEST_F(StoreTest, ThreadsShareOneStore) {
  constexpr int threads = 4, puts = 40;
  std::vector<std::jthread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (int i = 0; i < puts; ++i) {
        store.put(make_entry(call_id(i), t, 10 + t));
        EXPECT_TRUE(store.get(call_id(i)));
      }
    });
  }
  workers.clear();
  for (int i = 0; i < puts; ++i) {
    EXPECT_EQ(store.get(call_id(i))->config.find("block")->as_int(), threads - 1);
  }
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

// ---- leases

TEST_F(StoreTest, AKeyHasASingleHolderAtATime) {
  auto first = store.lease(id, 0);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(store.lease(id, 0.03), nullptr) << "patience runs out";
  EXPECT_NE(store.lease(call_id(2), 0), nullptr) << "other keys are free";
  first.reset();
  EXPECT_NE(store.lease(id, 0), nullptr);
  EXPECT_TRUE(files_below(store.where()).empty()) << "released leases leave no files";
  EXPECT_EQ(warnings.count(), 0u) << warnings.text();
}

TEST_F(StoreTest, AWaiterGetsTheLeaseWhenItIsReleased) {
  auto first = store.lease(id, 0);
  Openings looks(store.where() + "/leases");
  std::jthread waiter([&] { EXPECT_NE(store.lease(id, 10), nullptr); });
  looks.wait_for(2);  // one was in vain: it waits
  first.reset();
}

TEST_F(StoreTest, ThreadsNeverHoldOneLeaseTogether) {
  std::atomic<int> holders = 0, taken = 0;
  std::vector<std::jthread> workers;
  for (int t = 0; t < 4; ++t) {
    workers.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        const auto lease = store.lease(id, 20);
        ASSERT_NE(lease, nullptr);
        EXPECT_EQ(holders.fetch_add(1), 0);
        ++taken;
        holders.fetch_sub(1);
      }
    });
  }
  workers.clear();
  EXPECT_EQ(taken, 100);
}

// ---- layers

class LayersTest : public ::testing::Test {
 protected:
  Scratch scratch;
  Warnings warnings;
  std::shared_ptr<DirectoryStore> layer(const std::string& name, bool read_only) {
    return std::make_shared<DirectoryStore>(
        scratch / name, DirectoryStore::Options{read_only, warnings.sink(), environment()});
  }
};

TEST_F(LayersTest, TheFirstLayerThatAnswersWins) {
  layer("user", false)->put(make_entry(call_id(1), 1));
  layer("site", false)->put(make_entry(call_id(1), 2));
  layer("site", false)->put(make_entry(call_id(2), 3));
  PersistentCache cache({layer("user", false), layer("site", true)});
  EXPECT_EQ(cache.get(call_id(1))->entry.config.find("block")->as_int(), 1);
  EXPECT_EQ(cache.get(call_id(1))->where, scratch / "user");
  EXPECT_EQ(cache.get(call_id(2))->where, scratch / "site");
  EXPECT_FALSE(cache.get(call_id(3)));
  int visits = 0;
  cache.for_each("", [&](const Entry& entry) { return ++visits, entry.config != Value(2); });
  EXPECT_EQ(visits, 2) << "the hidden entry is not visited";
}

TEST_F(LayersTest, WritesGoToTheFirstWritableLayer) {
  PersistentCache cache({layer("shipped", true), layer("user", false), layer("other", false)});
  EXPECT_TRUE(cache.put(make_entry(call_id(1))));
  EXPECT_EQ(cache.get(call_id(1))->where, scratch / "user");
  EXPECT_NE(cache.lease(call_id(1), 0), nullptr);
  EXPECT_TRUE(cache.erase(call_id(1)));
  EXPECT_FALSE(cache.get(call_id(1)));

  PersistentCache nothing_writable({layer("shipped", true)});
  EXPECT_FALSE(nothing_writable.put(make_entry(call_id(1))));
  EXPECT_EQ(nothing_writable.lease(call_id(1), 0), nullptr);
  EXPECT_FALSE(PersistentCache(std::vector<std::shared_ptr<Store>>{}).get(call_id(1)));
}

TEST_F(LayersTest, TheDefaultPlaceFollowsTheEnvironment) {
  const Environment own("EJKERNEL_PERSISTENT_CACHE_DIR", nullptr);
  const Environment xdg("XDG_CACHE_HOME", nullptr);
  const Environment home("HOME", nullptr);
  EXPECT_EQ(default_store_path(), "");
  ::setenv("HOME", "/home/someone", 1);
  EXPECT_EQ(default_store_path(), "/home/someone/.cache/ejkernel");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(default_store_path(), "/home/someone/.cache/ejkernel");
  ::setenv("XDG_CACHE_HOME", "/xdg", 1);
  EXPECT_EQ(default_store_path(), "/xdg/ejkernel");
  ::setenv("EJKERNEL_PERSISTENT_CACHE_DIR", "~/mine", 1);
  EXPECT_EQ(default_store_path(), "/home/someone/mine");
  EXPECT_EQ(PersistentCache("~/x").layers().front()->where(), "/home/someone/x");
}

TEST_F(LayersTest, TheDefaultCacheHasTheReadOnlyLayersOfTheEnvironmentBehindIt) {
  const Environment own("EJKERNEL_PERSISTENT_CACHE_DIR", (scratch / "own").c_str());
  const Environment layers("EJKERNEL_PERSISTENT_CACHE_LAYERS", "/site/a::/site/b");
  const PersistentCache cache;
  ASSERT_EQ(cache.layers().size(), 3u);
  EXPECT_EQ(cache.layers()[0]->where(), scratch / "own");
  EXPECT_TRUE(cache.layers()[0]->writable());
  EXPECT_EQ(cache.layers()[1]->where(), "/site/a");
  EXPECT_EQ(cache.layers()[2]->where(), "/site/b");
  EXPECT_FALSE(cache.layers()[1]->writable());
  EXPECT_FALSE(fs::exists(scratch / "own"));
}

TEST(OutcomeName, IsTheWordInTheFile) {
  EXPECT_EQ(outcome_name(Outcome::tuned), "tuned");
  EXPECT_EQ(outcome_name(Outcome::unresolved), "unresolved");
  EXPECT_EQ(outcome_name(Outcome::failed), "failed");
}

}  // namespace
}  // namespace ejk
