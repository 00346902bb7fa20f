// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong with the store or the arguments: the call runs, or says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "../../examples/kernels.h"
#include "fakes.h"

namespace {

using fakes::Show;
using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

class CallFaults : public testing::Test {
 protected:
  // Runs Show on the store and tells the block it ran with and how many warnings there were.
  std::pair<float, size_t> run(const std::string& store, int times = 1) {
    const ejk::Executor executor(setup.options(store));
    std::vector<float> x(8), y(8);
    for (int i = 0; i < times; ++i) executor(Show{}, x, y);
    warnings = setup.warnings.take();
    return {y[0], warnings.size()};
  }
  // The one entry file in the store.
  static std::filesystem::path entry_file(const std::string& store) {
    for (const auto& f : std::filesystem::recursive_directory_iterator(store))
      if (f.path().extension() == ".json") return f.path();
    return {};
  }
  // Runs f in a child and tells its exit code; 99 if it was killed.
  static int in_child(const std::function<int()>& f) {
    const pid_t pid = fork();
    if (pid == 0) _exit(f());
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
  }

  fakes::TempDir dir;
  fakes::Setup setup;
  std::vector<std::string> warnings;
};

TEST_F(CallFaults, ACorruptEntryIsTunedAgainWithOneWarning) {
  for (const char* content : {"", "{", "not json", "[1,2,3]", "{\"schema\":1}",
                              "{\"schema\":\"x\",\"op\":3}", "\xff\xfe"}) {
    const std::string store = dir.path() + "/" + ejk::short_hash(std::string_view(content));
    run(store);
    std::ofstream(entry_file(store), std::ios::trunc) << content;
    EXPECT_EQ(run(store, 3), std::pair(2.f, size_t{1})) << content;
    EXPECT_EQ(run(store), std::pair(2.f, size_t{0})) << "the entry was not replaced: " << content;
  }
}

TEST_F(CallFaults, AnEntryOfANewerSchemaIsLeftAloneAndTheCallRuns) {
  run(dir.path());
  const auto file = entry_file(dir.path());
  const std::string newer = "{\"schema\":99,\"shape\":\"unknown\"}\n";
  std::ofstream(file, std::ios::trunc) << newer;
  EXPECT_EQ(run(dir.path(), 3).first, 2);
  std::stringstream content;
  content << std::ifstream(file).rdbuf();
  EXPECT_EQ(content.str(), newer);
}

TEST_F(CallFaults, AStoreThatCannotBeMadeIsOneWarningAndTheCallRuns) {
  std::ofstream(dir.path() + "/file") << "x";
  const auto [block, count] = run(dir.path() + "/file/store", 3);
  EXPECT_EQ(block, 2);
  ASSERT_EQ(count, 1u);
  EXPECT_THAT(warnings[0], HasSubstr(dir.path() + "/file/store"));
}

TEST_F(CallFaults, AReadOnlyStoreIsStillRead) {
  run(dir.path());
  EXPECT_EQ(in_child([&] {
              std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
              for (const auto& f : std::filesystem::recursive_directory_iterator(dir.path()))
                std::filesystem::permissions(
                    f.path(), std::filesystem::perms(f.is_directory() ? 0555 : 0444));
              if (geteuid() == 0 && setuid(65534) != 0) return 3;  // root may write everywhere
              const ejk::Executor executor(setup.options(dir.path()));
              std::vector<float> x(8), y(8), longer(9), out(9);
              const int asked = setup.tuner->asked;
              executor(Show{}, x, y);
              if (y[0] != 2 || setup.tuner->asked != asked) return 1;  // found on disk
              executor(Show{}, longer, out);                           // tuned, cannot be kept
              executor(Show{}, longer, out);
              if (out[0] != 2 || setup.tuner->asked != asked + 1) return 2;
              return setup.warnings.take().size() == 1 ? 0 : 4;
            }),
            0);
}

TEST_F(CallFaults, AFullDiskIsOneWarningAndTheCallRuns) {
  EXPECT_EQ(in_child([&] {
              const rlimit none{16, 16};
              setrlimit(RLIMIT_FSIZE, &none);
              const ejk::Executor executor(setup.options(dir.path()));
              for (size_t n = 8; n < 12; ++n) {
                std::vector<float> x(n), y(n);
                executor(Show{}, x, y);
                if (y[0] != 2) return 1;
              }
              return setup.warnings.take().size() == 1 ? 0 : 2;
            }),
            0);
  for (const auto& f : std::filesystem::recursive_directory_iterator(dir.path()))
    EXPECT_FALSE(f.is_regular_file() && f.path().parent_path().filename() == "tmp")
        << "left over: " << f.path();
}

// ---- arguments the example kernels cannot take
// -------------------------------------------------------

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const ejk::Error& e) {
    EXPECT_EQ(e.kind(), ejk::ErrorKind::invalid_argument);
    return e.what();
  }
  return "no error";
}

TEST_F(CallFaults, WrongShapesNameTheOpWhatWasGivenAndWhatIsNeeded) {
  auto options = setup.options(dir.path());
  options.tuner = nullptr;
  const ejk::Executor executor(options);
  std::vector<float> three(3), four(4);
  EXPECT_THAT(message_of([&] { executor(examples::Saxpy{}, 1.f, three, four); }),
              AllOf(HasSubstr("[example_saxpy] given"), HasSubstr("needed")));
  const auto a = ejk::Tensor::of<float>({2, 3}), b = ejk::Tensor::of<float>({4, 5});
  auto c = ejk::Tensor::of<float>({2, 5});
  EXPECT_THAT(message_of([&] { executor(examples::Matmul{}, a, b, c); }),
              AllOf(HasSubstr("[example_matmul] given"), HasSubstr("needed")));
  auto same = ejk::Tensor::of<float>({2, 3});
  EXPECT_THAT(message_of([&] { executor(examples::Transpose{}, a, same); }),
              AllOf(HasSubstr("[example_transpose] given"), HasSubstr("needed")));
  // Nothing of it is remembered as a failure of the candidates.
  executor.chain().persistent()->for_each("", [](const ejk::Entry& e) {
    ADD_FAILURE() << "kept: " << e.id.op;
    return true;
  });
}

TEST_F(CallFaults, WrongTypesRanksAndStridesAreNamedBeforeTheKernelRuns) {
  const ejk::Executor executor(setup.options());
  const auto ints = ejk::Tensor::of<int32_t>({2, 3}), flat = ejk::Tensor::of<float>({6}),
             a = ejk::Tensor::of<float>({3, 2});
  auto c = ejk::Tensor::of<float>({2, 2});
  EXPECT_THAT(message_of([&] { executor(examples::Matmul{}, ints, a, c); }),
              AllOf(HasSubstr("[example_matmul] argument 0: given int32[2, 3]"),
                    HasSubstr("needed float32")));
  EXPECT_THAT(message_of([&] { executor(examples::Matmul{}, flat, a, c); }),
              HasSubstr("its rank differs"));
  EXPECT_THAT(message_of([&] {
                executor(examples::Matmul{}, a.transposed({1, 0}), a, c);
              }),
              HasSubstr("not packed"));
}

TEST_F(CallFaults, AConfigThatCannotBeIsNamed) {
  const ejk::Executor executor(setup.options());
  std::vector<float> x(3), y(3);
  EXPECT_THAT(message_of([&] { executor(examples::Saxpy{}, {.block = 0}, 1.f, x, y); }),
              HasSubstr("[example_saxpy] given config.block = 0"));
}

}  // namespace
