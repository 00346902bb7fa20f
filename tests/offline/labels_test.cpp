// SPDX-License-Identifier: Apache-2.0
#include <ejk/labels.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ejk/ejk.h>

#include "fakes.h"
#include "paths.h"

using ejk::find_labels;
using ejk::FoundLabels;
using ejk::Label;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace {

const std::string plain = "ejkernel_ops#matmul@v1:0123456789abcdef";
const std::string odd =
    "ejkernel_ops#we:ird / [op] <x> (y) #z 'q' \"d\" \\b \xCE\xBB@v2.1:fedcba9876543210";

std::string path_of(const std::string& name) { return test::data("lowered/" + name); }

std::string read(const std::string& name) {
  std::ifstream file(path_of(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "TEXT xCOUNT", with a '!' if it is truncated.
std::vector<std::string> texts(const FoundLabels& found) {
  std::vector<std::string> out;
  for (const Label& l : found.labels)
    out.push_back(l.text + " x" + std::to_string(l.count) + (l.truncated ? "!" : ""));
  return out;
}

std::string counted(const std::string& label, int n) { return label + " x" + std::to_string(n); }

// The key of the call in the json stamp of `names`.
std::string stamped() {
  const std::string spec =
      R"({"args_spec":[{"dtype":"float32","shape":[4,4]},{"dtype":"float32","shape":[4,4]}],)"
      R"("batch_axes":null,"kwargs_spec":{},"method":null})";
  return "ejkernel_ops#matmul@v1:" + ejk::short_hash(std::string_view(spec));
}

TEST(Labels, AttributesAreFoundInEveryFormOfAComputation) {
  struct Case {
    const char* file;
    const char* format;
    int plain, odd;
  };
  for (const Case& c : {Case{"attributes.mlir", "StableHLO text", 14, 5},
                        {"attributes.debug.mlir", "StableHLO text", 14, 5},
                        {"attributes.hlo.txt", "HLO text", 13, 5},
                        {"attributes.debug.hlo.txt", "HLO text", 13, 5},
                        {"attributes.compiled.hlo.txt", "HLO text", 16, 6},
                        {"attributes.hlo.pb", "HLO proto", 13, 5},
                        {"attributes.compiled.hlo.pb", "HLO proto", 16, 6}}) {
    SCOPED_TRACE(c.file);
    const FoundLabels found = find_labels(read(c.file));
    EXPECT_EQ(found.format, c.format);
    EXPECT_THAT(texts(found),
                testing::UnorderedElementsAre(counted(plain, c.plain), counted(odd, c.odd)));
    EXPECT_THAT(found.notes, IsEmpty());
    const FoundLabels of_file = ejk::find_labels_in(path_of(c.file));
    EXPECT_EQ(of_file.format, c.format);
    EXPECT_EQ(texts(of_file), texts(found));
  }
}

TEST(Labels, TheyComeInTheOrderOfTheFile) {
  const FoundLabels found = find_labels(read("attributes.mlir"));
  ASSERT_EQ(found.labels.size(), 2u);
  EXPECT_EQ(found.labels[0].op, "matmul@v1");
  EXPECT_EQ(found.labels[0].key, "0123456789abcdef");
  EXPECT_EQ(found.labels[0].prefix, "ejkernel_ops");
  EXPECT_EQ(found.labels[1].op, "we:ird / [op] <x> (y) #z 'q' \"d\" \\b \xCE\xBB@v2.1");
}

TEST(Labels, AnExportHoldsThemToo) {
  const FoundLabels found = find_labels(read("attributes.export"));
  EXPECT_EQ(found.format, "bytes");
  std::vector<std::string> names;
  for (const Label& l : found.labels) names.push_back(l.text);
  EXPECT_THAT(names, testing::UnorderedElementsAre(plain, odd));
}

TEST(Labels, UpstreamsNamesAndStampsAreUnderstoodWhereTheyAreWhole) {
  EXPECT_THAT(texts(find_labels(read("names.debug.mlir"))),
              ElementsAre(counted(plain, 2), counted(stamped(), 1)));
  EXPECT_THAT(find_labels(read("names.export")).labels, testing::SizeIs(2));
}

TEST(Labels, NamesThatXlaCutAtTheAtSignAreReportedAsTruncated) {
  for (const char* file :
       {"names.debug.hlo.txt", "names.compiled.hlo.txt", "names.hlo.pb", "names.compiled.hlo.pb"}) {
    SCOPED_TRACE(file);
    const FoundLabels found = find_labels(read(file));
    // Two instructions with the name, one with the json stamp, whose op is left.
    EXPECT_THAT(texts(found), ElementsAre("ejkernel_ops#matmul x3!"));
    EXPECT_EQ(found.labels[0].op, "matmul");
    EXPECT_EQ(found.labels[0].key, "");
    ASSERT_EQ(found.notes.size(), 1u);
    EXPECT_THAT(found.notes[0], HasSubstr("1 label is truncated"));
  }
}

TEST(Labels, AFormWithoutThemHasNone) {
  EXPECT_THAT(find_labels(read("names.mlir")).labels, IsEmpty());
  EXPECT_THAT(find_labels(read("names.hlo.txt")).labels, IsEmpty());
  EXPECT_THAT(find_labels("").labels, IsEmpty());
}

TEST(Labels, ADumpFolderCountsEachModuleOnce) {
  const FoundLabels found = ejk::find_labels_in(path_of("dump"));
  EXPECT_EQ(found.format, "dump folder");
  EXPECT_THAT(texts(found), testing::UnorderedElementsAre(counted(plain, 16), counted(odd, 6),
                                                          "ejkernel_ops#matmul x3!"));
}

TEST(Labels, AFolderWithoutDumpsSaysSo) {
  const fakes::TempDir folder;
  const FoundLabels found = ejk::find_labels_in(folder.path());
  EXPECT_THAT(found.labels, IsEmpty());
  ASSERT_EQ(found.notes.size(), 1u);
  EXPECT_THAT(found.notes[0], HasSubstr("there is no .mlir"));
}

TEST(Labels, AMissingFileIsAnError) {
  try {
    ejk::find_labels_in("/nowhere/at/all");
    FAIL();
  } catch (const ejk::Error& error) {
    EXPECT_EQ(error.kind(), ejk::ErrorKind::io);
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/at/all: No such file"));
  }
}

TEST(Labels, LabelsOfTheReleasedOriginalAreFoundAsItsPatternsFindThem) {
  std::ifstream file(test::data("keys.json"));
  const ejk::Value vectors = ejk::parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  size_t compared = 0;
  for (const ejk::Value& v : vectors.find("extract")->as_array()) {
    SCOPED_TRACE(v.find("name")->as_string());
    // Either of its two patterns found it; which of them did depended on the characters in the op.
    std::vector<std::string> expected;
    auto add = [&](const std::string& label) {
      if (std::ranges::find(expected, label) == expected.end()) expected.push_back(label);
    };
    for (const ejk::Value& l : v.find("labels")->as_array()) add(l.as_string());
    for (const ejk::Value& m : v.find("label_re")->as_array())
      add("ejkernel_ops#" + m.find("op")->as_string() + ":" + m.find("key")->as_string());
    if (v.find("name")->as_string() == "colon") add("ejkernel_ops#a:b@v0:0123456789abcdef");
    std::vector<std::string> complete;
    for (const Label& l : find_labels(v.find("text")->as_string()).labels)
      if (!l.truncated) complete.push_back(l.text);
    EXPECT_EQ(complete, expected);
    ++compared;
  }
  EXPECT_GE(compared, 12u);
}

TEST(Labels, OwnPrefixesAreFoundInAttributesAndIfAskedForInNames) {
  const std::string text =
      "HloModule m\n"
      "a = f32[] add(b, c), frontend_attributes={ejkernel_label="
      "\"mine#op@v1:0123456789abcdef\"}, metadata={op_name=\""
      "jit(f)/gr\\303\\266\\303\\237e#op%v2:0123456789abcdef/add\"}\n";
  EXPECT_THAT(texts(find_labels(text)), ElementsAre("mine#op@v1:0123456789abcdef x1"));
  EXPECT_THAT(texts(find_labels(text, {.prefixes = {"gr\xC3\xB6\xC3\x9F"
                                                    "e#"}})),
              ElementsAre("mine#op@v1:0123456789abcdef x1",
                          "gr\xC3\xB6\xC3\x9F"
                          "e#op@v2:0123456789abcdef x1"));
  EXPECT_THROW(find_labels(text, {.prefixes = {"#"}}), ejk::Error);
}

TEST(Labels, AnAttributeInsideAStringIsReadThroughBothLayersOfEscapes) {
  // What a call's attributes look like in HLO text: MLIR in a string.
  const std::string text =
      "HloModule m\nr = f32[] custom-call(a), backend_config=\"{label = "
      "\\\"ejkernel_ops#a\\\\22b\\\\\\\\c@v1:0123456789abcdef\\\"}\"\n";
  EXPECT_THAT(texts(find_labels(text)), ElementsAre("ejkernel_ops#a\"b\\c@v1:0123456789abcdef x1"));
}

TEST(Labels, BothSpellingsAreOneLabel) {
  EXPECT_EQ(ejk::scope_label(plain), "ejkernel_ops#matmul%v1:0123456789abcdef");
  EXPECT_THAT(texts(find_labels(plain + " " + ejk::scope_label(plain))),
              ElementsAre(counted(plain, 2)));
}

TEST(Labels, PartsOfALabel) {
  const auto parts = ejk::parse_label("custom#a:b%v1#x@v2:0123456789abcdef");
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->prefix, "custom");
  EXPECT_EQ(parts->op, "a:b%v1#x@v2");
  EXPECT_EQ(parts->key, "0123456789abcdef");
  EXPECT_EQ(ejk::parse_label("p#op%v3:0123456789abcdef")->op, "op@v3");
  for (const char* none :
       {"", "#", "p#op@v1", "p#op@v1:", "p#op@v1:0123", "p#:0123456789abcdef",
        "#op:0123456789abcdef", "p#op@v1:0123456789ABCDEF", ":0123456789abcdef#"})
    EXPECT_FALSE(ejk::parse_label(none)) << none;
}

TEST(Labels, AnUnfinishedOneDoesNotHideTheNext) {
  EXPECT_THAT(texts(find_labels("ejkernel_ops#outer/" + plain)), ElementsAre(counted(plain, 1)));
  EXPECT_THAT(texts(find_labels("ejkernel_ops# " + plain)), ElementsAre(counted(plain, 1)));
  EXPECT_THAT(texts(find_labels("\"ejkernel_ops#a\\\"b\"")), ElementsAre("ejkernel_ops#a\"b x1!"));
}

TEST(Labels, ATextWithoutAnOpIsNotALabel) {
  EXPECT_THAT(find_labels("ejkernel_ops#:0123456789abcdef").labels, IsEmpty());
}

TEST(Labels, AFileLongerThanTheBufferIsReadAsAWhole) {
  const fakes::TempDir folder;
  const std::string path = folder.path() + "/long.txt";
  // Lines of growing length, so that a label lies across every boundary sooner or later.
  std::string text = "HloModule m\n";
  size_t lines = 0;
  for (; text.size() < (size_t{3} << 20); ++lines)
    text += std::string(lines % 997, 'x') +
            " op_name=\"jit(f)/ejkernel_ops#\\303\\244%v1:" + "0123456789abcdef/add\"\n";
  std::ofstream(path, std::ios::binary) << text;
  const FoundLabels whole = find_labels(text);
  ASSERT_EQ(whole.labels.size(), 1u);
  EXPECT_EQ(whole.labels[0].count, lines);
  EXPECT_EQ(texts(ejk::find_labels_in(path)), texts(whole));
}

TEST(Labels, ConfigsComeFromMemoryThenFromDisk) {
  fakes::Setup setup;
  const fakes::TempDir folder;
  const auto chain = std::make_shared<ejk::ConfigSelectorChain>(setup.options(folder.path()));
  const ejk::Executor executor(chain);
  const std::vector<float> x(4), more(5), none(6);
  std::vector<float> y(8);
  executor(fakes::Show{}, x, y);  // tuned: memory and disk
  std::string lowered = "HloModule m\n";
  for (const auto* v : {&x, &more, &none})
    lowered += "op_name=\"" + ejk::scope_label(executor.label(fakes::Show{}, *v, y)) + "\"\n";

  chain->cache().put(ejk::cpu_device().fingerprint, "show@v3",
                     executor.describe(fakes::Show{}, more, y).call_key(), fakes::Show::Config{5});
  auto configs = ejk::labels_to_configs(*chain, lowered);
  ASSERT_EQ(configs.size(), 3u);
  EXPECT_EQ(stable_json(configs[0].second.to_value()), R"({"block":2})");
  EXPECT_EQ(stable_json(configs[1].second.to_value()), R"({"block":5})");
  EXPECT_FALSE(configs[2].second);

  const ejk::ConfigSelectorChain another(setup.options(folder.path()));
  configs = ejk::labels_to_configs(another, lowered);
  ASSERT_EQ(configs.size(), 3u);
  EXPECT_EQ(stable_json(configs[0].second.to_value()), R"({"block":2})");
  EXPECT_FALSE(configs[1].second);
}

}  // namespace
