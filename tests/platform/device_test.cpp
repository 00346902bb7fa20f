// SPDX-License-Identifier: Apache-2.0
// A CPU's identity and environment, read from prepared proc and sys trees.
#include <ejk/device.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include <gtest/gtest.h>

namespace ejk {
namespace {

namespace fs = std::filesystem;

// A folder with proc and sys files, removed at the end.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "ejk_device_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~FakeRoot() { fs::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  FakeRoot& write(const std::string& file, const std::string& text) {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
    return *this;
  }
  FakeRoot& cache(int index, int level, const std::string& type, const std::string& size) {
    const std::string at = "sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    return write(at + "level", std::to_string(level) + "\n")
        .write(at + "type", type + "\n")
        .write(at + "size", size + "\n");
  }
  Device probe() const { return probe_cpu(path_.string()); }

 private:
  fs::path path_;
};

std::string x86_cpuinfo(const std::string& flags, const std::string& mhz = "2299.998") {
  return "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 207\n"
         "model name\t: Intel(R) Xeon(R) Processor\nstepping\t: 2\nmicrocode\t: 0x1\n"
         "cpu MHz\t\t: " +
         mhz + "\nflags\t\t: " + flags + "\nbogomips\t: 4599.99\npower management:\n\n" +
         "processor\t: 1\nmodel name\t: second core\n\n";
}

constexpr const char* avx2_flags = "fpu vme sse4_2 avx f16c fma avx2 bmi2 smep sme";

void make_x86(FakeRoot& root, const std::string& flags = avx2_flags) {
  root.write("proc/cpuinfo", x86_cpuinfo(flags))
      .cache(0, 1, "Data", "48K")
      .cache(1, 1, "Instruction", "32K")
      .cache(2, 2, "Unified", "2048K")
      .cache(3, 3, "Unified", "30M")
      .write("proc/self/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8,10-11\n");
}

TEST(Device, X86IdentityNamesTheFactsThatKernelsDependOn) {
  FakeRoot root;
  make_x86(root);
  const Device device = root.probe();
  const Value& id = device.identity;
  EXPECT_EQ(*id.find("kind"), Value("cpu"));
  EXPECT_EQ(*id.find("vendor"), Value("GenuineIntel"));
  EXPECT_EQ(*id.find("model"), Value("Intel(R) Xeon(R) Processor"));
  EXPECT_EQ(*id.find("family"), Value(6));
  EXPECT_EQ(*id.find("model_number"), Value(207));
  EXPECT_EQ(*id.find("stepping"), Value(2));
  EXPECT_EQ(*id.find("isa"), Value(Value::Array{"avx", "avx2", "bmi2", "f16c", "fma", "sse4_2"}));
  EXPECT_EQ(*id.find("caches"),
            Value::object({{"l1d", 48 << 10}, {"l2", 2 << 20}, {"l3", 30 << 20}}));
  EXPECT_TRUE(device.fingerprint.starts_with("cpu|Intel(R) Xeon(R) Processor|"));
  EXPECT_EQ(device.fingerprint.size(), std::string("cpu|Intel(R) Xeon(R) Processor|").size() + 16);
  EXPECT_EQ(*device.environment.find("cores"), Value(7));
  EXPECT_TRUE(device.environment.find("quota")->is_null());
  EXPECT_EQ(*device.environment.find("library"), Value(library_version()));
}

TEST(Device, OtherCachesUnderTheSameNameAreAnotherDevice) {
  FakeRoot small, large;
  make_x86(small), make_x86(large);
  large.cache(3, 3, "Unified", "60M");
  EXPECT_NE(small.probe().fingerprint, large.probe().fingerprint);
}

TEST(Device, OtherIsaUnderTheSameNameIsAnotherDevice) {
  FakeRoot plain, wide;
  make_x86(plain), make_x86(wide, std::string(avx2_flags) + " avx512f amx_tile avx_vnni");
  EXPECT_NE(plain.probe().fingerprint, wide.probe().fingerprint);
}

TEST(Device, ClockSpeedAndUnrelatedFlagsDoNotSplitADevice) {
  FakeRoot before, after;
  make_x86(before), make_x86(after);
  after.write("proc/cpuinfo",
              x86_cpuinfo("bmi2 avx2 avx fma f16c sse4_2 new_mitigation", "3100.2"));
  EXPECT_EQ(before.probe().fingerprint, after.probe().fingerprint);
  EXPECT_EQ(before.probe().identity, after.probe().identity);
}

TEST(Device, AQuotaChangesTheEnvironmentOnly) {
  FakeRoot free, limited;
  make_x86(free), make_x86(limited);
  limited.write("proc/self/cgroup", "0::/app/job\n")
      .write("sys/fs/cgroup/app/job/cpu.max", "max 100000\n")
      .write("sys/fs/cgroup/app/cpu.max", "250000 100000\n")
      .write("sys/fs/cgroup/cpu.max", "400000 100000\n");
  const Device a = free.probe(), b = limited.probe();
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_FALSE(a.environment == b.environment);
  EXPECT_EQ(*b.environment.find("quota"), Value(2.5));  // the smallest on the way up
  EXPECT_EQ(*b.environment.find("cores"), Value(2));
}

TEST(Device, AQuotaIsFoundAtTheMountPointOfAContainer) {
  FakeRoot root;
  make_x86(root);
  root.write("proc/self/cgroup", "0::/not/mounted/here\n")
      .write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(*root.probe().environment.find("quota"), Value(0.5));
  EXPECT_EQ(*root.probe().environment.find("cores"), Value(1));
}

TEST(Device, AVersionOneQuotaIsRead) {
  FakeRoot root;
  make_x86(root);
  root.write("proc/self/cgroup", "4:memory:/m\n2:cpu,cpuacct:/job\n")
      .write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n")
      .write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n")
      .write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
      .write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(*root.probe().environment.find("quota"), Value(3.0));
}

TEST(Device, ArmHasNoModelNameButParts) {
  FakeRoot root;
  root.write("proc/cpuinfo",
             "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm sve bf16 i8mm\n"
             "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
             "CPU part\t: 0xd0c\nCPU revision\t: 1\n\nprocessor\t: 1\nCPU part\t: 0xd05\n\n");
  const Device device = root.probe();
  EXPECT_EQ(*device.identity.find("model"), Value("part 0xd05+0xd0c"));
  EXPECT_EQ(*device.identity.find("vendor"), Value("0x41"));
  EXPECT_EQ(*device.identity.find("isa"), Value(Value::Array{"asimd", "bf16", "i8mm", "sve"}));
  EXPECT_EQ(device.identity.find("caches"), nullptr);
}

TEST(Device, AnEmptyRootIsAnUnknownCpu) {
  const Device device = FakeRoot().probe();
  EXPECT_EQ(*device.identity.find("kind"), Value("cpu"));
  EXPECT_EQ(device.identity.find("model"), nullptr);
  EXPECT_EQ(device.environment.find("cores"), nullptr);
  EXPECT_TRUE(device.fingerprint.starts_with("cpu|unknown|"));
}

TEST(Device, GarbageInEveryFileIsSurvived) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::string garbage;
    for (int i = 0; i < 200; ++i) garbage += static_cast<char>(random() % 3 ? random() % 256 : ':');
    FakeRoot root;
    root.write("proc/cpuinfo", "model name: " + garbage + "\nflags : avx" + garbage)
        .cache(0, 1, garbage, "99999999999999999999K")
        .cache(1, 2, "Unified", garbage)
        .write("proc/self/status", "Cpus_allowed_list: 5-1,99999999999-" + garbage)
        .write("proc/self/cgroup", "0::/../../x\n0::relative\n::\n" + garbage)
        .write("sys/fs/cgroup/cpu.max", garbage);
    EXPECT_NO_THROW(root.probe());
  }
  FakeRoot folder;
  folder.write("proc/cpuinfo/is_a_folder", "");
  EXPECT_NO_THROW(folder.probe());
}

TEST(Device, ThisMachineIsListedFirstAndStaysTheSame) {
  ASSERT_FALSE(devices().empty());
  EXPECT_EQ(devices().front(), &cpu_device());
  EXPECT_EQ(device_fingerprint(), probe_cpu("/").fingerprint);
  EXPECT_GE(visible_cores(), 1);
  EXPECT_EQ(device_kind(), "cpu");
  EXPECT_EQ(get_device_platform(), "cpu");
  EXPECT_EQ(platform_name(Platform::opencl), "opencl");
  EXPECT_EQ(platform_name(Platform::cuda), "cuda");
  EXPECT_FALSE(library_version().empty());
}

}  // namespace
}  // namespace ejk
