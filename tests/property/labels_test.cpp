// SPDX-License-Identifier: Apache-2.0
// Any bytes: the corpus, mutations of it, and texts made to be slow.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fuzz/labels.h"
#include "paths.h"
#include "sanitized.h"

namespace {

std::vector<std::string> corpus() {
  std::vector<std::string> out;
  for (const char* folder : {"lowered", "lowered/dump", "../fuzz/corpus/labels"})
    for (const auto& item : std::filesystem::directory_iterator(test::data(folder)))
      if (item.is_regular_file()) {
        std::ifstream file(item.path(), std::ios::binary);
        out.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>{});
      }
  return out;
}

TEST(AnyBytes, TheCorpusIsReadWithoutHarm) {
  const auto texts = corpus();
  EXPECT_GE(texts.size(), 25u);
  for (const std::string& text : texts) fuzz::check_labels(text);
}

TEST(AnyBytes, ChangedAtRandomAreReadWithoutHarm) {
  const auto texts = corpus();
  std::mt19937_64 random(1);
  const std::vector<std::string> parts{"ejkernel_ops#",
                                       "ejkernel_ops:{\"",
                                       "ejkernel_label = \"",
                                       "\\",
                                       "\"",
                                       ":0123456789abcdef",
                                       "@v1",
                                       std::string(1, '\0'),
                                       "own\\\"\\303\\244#",
                                       "\\22",
                                       "x#",
                                       "\n",
                                       "\x80\xff\x7f"};
  for (int round = 0; round < (sanitized ? 500 : 1500); ++round) {
    std::string text = texts[random() % texts.size()];
    for (uint64_t changes = 1 + random() % 8; changes > 0 && !text.empty(); --changes) {
      const size_t at = random() % text.size();
      switch (random() % 5) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.resize(at);
          break;
        case 2:
          text.insert(at, parts[random() % parts.size()]);
          break;
        case 3:
          text.erase(at, random() % 40);
          break;
        case 4:
          text.insert(at, text.substr(random() % text.size(), random() % 200));
          break;
      }
    }
    fuzz::check_labels(text);
  }
}

// Whatever takes more than linear time would not end before the test is stopped.
TEST(AnyBytes, MadeToBeSlowAreReadInLinearTime) {
  constexpr size_t size = size_t{sanitized ? 1 : 4} << 20;
  auto repeated = [&](const std::string& beginning, const std::string& part) {
    std::string text = beginning;
    while (text.size() < size) text += part;
    return text;
  };
  for (const char* beginning : {"HloModule m\n", "module @m {\n", "\1"})
    for (const std::string& part :
         {std::string("ejkernel_ops#"), std::string("ejkernel_ops#a/"), std::string("ejkernel_"),
          std::string("ejkernel_ops#:"), std::string("ejkernel_ops:{"),
          std::string("ejkernel_ops:{\""), std::string("ejkernel_ops:{\\\"a\\\":["),
          std::string("ejkernel_label = \""), std::string("ejkernel_label=\\\""), std::string("x#"),
          std::string("ejkernel_ops#\\"), std::string("\\\"ejkernel_ops#\\\\"),
          std::string("ejkernel_ops#0123456789abcde:"), std::string("own\"#")})
      fuzz::check_labels(repeated(beginning, part));
  fuzz::check_labels(repeated("ejkernel_ops#", "a"));
  fuzz::check_labels(repeated("ejkernel_ops:{\"a\":", "["));
  fuzz::check_labels(repeated("ejkernel_label=\"", "a"));
  fuzz::check_labels(repeated("", std::string("\x0a\x01\x0a\x02", 4)));
}

}  // namespace
