// SPDX-License-Identifier: Apache-2.0
// The promise: putting, getting and opening cost the same in a store of 100 000 entries as of 10.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <ejk/store.h>
#include <ejk/value.h>

namespace {

namespace fs = std::filesystem;
using ejk::Entry;
using ejk::EntryId;
using ejk::Value;

constexpr std::array<int, 3> sizes = {10, 1'000, 100'000};
constexpr int rounds = 400;

EntryId call_id(int n) {
  const std::string spec =
      R"({"args_spec":[{"dtype":"float32","shape":[8,)" + std::to_string(n) +
      R"(,4,64]}],"batch_axes":null,"kwargs_spec":{"causal":true},"method":null})";
  return {"cpu|Bench CPU|0123456789abcdef", "attention@v1", ejk::short_hash(spec), spec};
}

Value environment() { return Value::object({{"cores", 2}}); }
ejk::DirectoryStore::Options options() { return {false, {}, environment()}; }

// As a tuning with six candidates leaves it, about 2 kB.
Entry make_entry(int n) {
  Entry entry;
  entry.id = call_id(n);
  entry.config = Value::object({{"block", 64}, {"threads", 2}});
  entry.device = Value::object({{"kind", "cpu"}, {"model", "Bench CPU"}});
  entry.environment = environment();
  entry.evidence.seconds = 1.25e-5;
  entry.evidence.samples = 40;
  for (int i = 0; i < 6; ++i) {
    entry.candidates.push_back({Value::object({{"block", 16 << i}, {"threads", 2}}), "ok", "", "",
                                1.1e-5 + 1e-7 * i, 1.01, 0.99, 1.03, 40});
  }
  return entry;
}

// Writes the files directly, without locks and flushing: the store is only made big this way, what
// is measured goes through the public interface.
void fill(const std::string& root, int count) {
  const ejk::DirectoryStore store(root);
  for (int n = 0; n < count; ++n) {
    const Entry entry = make_entry(n);
    const std::string file = store.file_of(entry);
    fs::create_directories(fs::path(file).parent_path());
    std::ofstream(file) << to_json(entry_to_document(entry), 1) << '\n';
  }
}

template <typename Work>
double microseconds(Work work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
      .count();
}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

struct Subject {
  int size = 0;
  std::string root;
  std::unique_ptr<ejk::DirectoryStore> store;
  std::vector<double> put, rewrite, get, hit, other, miss, open;
};

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "bench: %s failed\n", what);
  std::exit(1);
}

// One of everything. A put adds an entry and is undone, so that the size stays what it is.
void measure(Subject& subject, int round) {
  const Entry fresh = make_entry(1'000'000 + round), present = make_entry(round % subject.size);
  subject.put.push_back(microseconds([&] { require(subject.store->put(fresh), "put"); }));
  require(subject.store->erase(fresh.id), "erase");
  subject.rewrite.push_back(microseconds(
      [&] { require(subject.store->put(present, ejk::IfPresent::replace), "rewrite"); }));
  subject.get.push_back(
      microseconds([&] { require(subject.store->get(present.id).has_value(), "get"); }));
  // What a call asks for, and the same in an environment that has no entry of its own.
  const auto choice = [&](const Value& where) {
    return microseconds([&] {
      require(subject.store->get(present.id, ejk::Detail::choice, &where).has_value(), "hit");
    });
  };
  subject.hit.push_back(choice(environment()));
  subject.other.push_back(choice(Value("elsewhere")));
  subject.miss.push_back(microseconds([&] { require(!subject.store->get(fresh.id), "miss"); }));
  subject.open.push_back(microseconds([&] {
    ejk::DirectoryStore opened(subject.root, options());
    require(opened.get(present.id).has_value(), "open");
  }));
}

}  // namespace

int main() {
  std::string base = (fs::temp_directory_path() / "ejk_bench_XXXXXX").string();
  require(::mkdtemp(base.data()) != nullptr, "mkdtemp");
  std::array<Subject, sizes.size()> subjects;
  for (size_t i = 0; i < sizes.size(); ++i) {
    subjects[i].size = sizes[i];
    subjects[i].root = base + "/" + std::to_string(sizes[i]);
    fill(subjects[i].root, sizes[i]);
    subjects[i].store = std::make_unique<ejk::DirectoryStore>(subjects[i].root, options());
  }
  ::sync();  // what filling left to be written must not be paid by the measured puts
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      measure(subjects[(i + static_cast<size_t>(round)) % sizes.size()], round);
    }
  }
  fs::remove_all(base);

  std::printf("median of %d, in microseconds\n%10s %10s %10s %10s %10s %10s %10s %10s\n", rounds,
              "entries", "put new", "rewrite", "get", "hit", "other", "miss", "open+get");
  for (const Subject& s : subjects) {
    std::printf("%10d %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f %10.1f\n", s.size, median(s.put),
                median(s.rewrite), median(s.get), median(s.hit), median(s.other), median(s.miss),
                median(s.open));
  }
  const Subject &small = subjects.front(), &large = subjects.back();
  const Value result =
      Value::object({{"put_100k_over_10", median(large.put) / median(small.put)},
                     {"get_us", median(large.get)},
                     {"hit_us", median(large.hit)},
                     {"other_environment_us", median(large.other)},
                     {"put_us", median(large.put)},
                     {"open_100k_over_10", median(large.open) / median(small.open)}});
  std::printf("%s\n", to_json(result).c_str());
}
