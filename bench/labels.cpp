// SPDX-License-Identifier: Apache-2.0
// How long reading the labels of 100 MB of HLO text takes, beside grep on the same file.
//
// CPU time of the reading thread against that of the grep process, in turn. seconds_over_grep is
// over `grep -c ejkernel_ops`, which counts lines; seconds_over_grep_o over `grep -o` with the
// pattern of a label, which finds what we find, but undoes no escapes and counts nothing.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ejk/labels.h>

#include "harness.h"

namespace {

constexpr size_t size = size_t{100} << 20;

// As XLA prints a large module: one instruction in four comes from a labelled call, of 350.
uint64_t write_hlo(const std::string& path) {
  std::mt19937_64 random(1);
  std::ofstream file(path, std::ios::binary);
  std::string text = "HloModule jit_step, is_scheduled=true\n\nENTRY %main {\n";
  uint64_t labelled = 0;
  for (size_t n = 0, written = 0; written < size; ++n) {
    const std::string id = std::to_string(n), shape = "f32[8,1024," + std::to_string(n % 97) + "]";
    text += "  %fusion." + id + " = " + shape + "{2,1,0} multiply(%param." + id + ", %broadcast." +
            std::to_string(n / 3) + ")";
    std::string scope = "transpose(jvp(layers))/while/body";
    if (random() % 4 == 0) {
      char label[80];
      std::snprintf(label, sizeof label, "ejkernel_ops#attention%llu@v1:%016llx",
                    static_cast<unsigned long long>(random() % 7),
                    static_cast<unsigned long long>(random() % 50));
      text += std::string(", frontend_attributes={ejkernel_label=\"") + label + "\"}";
      scope += "/" + ejk::scope_label(label);
      ++labelled;
    }
    text += ", metadata={op_name=\"jit(step)/" + scope + "/mul\" stack_frame_id=" + id + "}\n";
    if (text.size() < (size_t{1} << 20)) continue;
    written += text.size();
    file << text;
    text.clear();
  }
  file << text << "}\n";
  return labelled;
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double ours(const std::string& path, uint64_t expected) {
  const double start = cpu_seconds();
  const ejk::FoundLabels found = ejk::find_labels_in(path);
  const double spent = cpu_seconds() - start;
  uint64_t count = 0;
  for (const ejk::Label& label : found.labels) count += label.count;
  if (count != expected) std::fprintf(stderr, "labels: found %lu\n", count), std::exit(1);
  return spent;
}

// CPU seconds of a grep process; its output goes to a file, as grep stops early at /dev/null.
double grep(const std::vector<std::string>& arguments, const std::string& path,
            const std::string& output) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("LC_ALL", "C", 1);
    const int out = open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, STDOUT_FILENO);
    std::vector<char*> argv{const_cast<char*>("grep")};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(const_cast<char*>(path.c_str()));
    argv.push_back(nullptr);
    execvp("grep", argv.data());
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  if (wait4(child, &status, 0, &usage) != child || status != 0)
    std::fprintf(stderr, "labels: grep failed\n"), std::exit(1);
  auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

int main() {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "ejk_labels_XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return std::perror("mkdtemp"), 1;
  const std::string path = folder + "/step.txt", output = folder + "/out";
  const uint64_t labelled = write_hlo(path);
  std::printf("%zu bytes of HLO text, %lu labelled instructions\n",
              static_cast<size_t>(fs::file_size(path)), labelled);

  constexpr int rounds = 15;
  std::vector<double> a, again, count, only;
  for (int r = -1; r < rounds; ++r) {
    const double first = ours(path, labelled);
    const double lines = grep({"-c", "ejkernel_ops"}, path, output);
    const double second = ours(path, labelled);
    const double found =
        grep({"-o", "ejkernel_ops#[A-Za-z0-9_.@%-]*:[0-9a-f]\\{16\\}"}, path, output);
    if (r < 0) continue;  // warm-up
    a.push_back(first), count.push_back(lines), again.push_back(second), only.push_back(found);
  }
  fs::remove_all(folder);
  const double us = bench::median(a);
  std::printf("find_labels_in %.0f ms, grep -c %.0f ms, grep -o %.0f ms (CPU, medians of %d)\n",
              1e3 * us, 1e3 * bench::median(count), 1e3 * bench::median(only), rounds);
  bench::print_json({{"seconds", us},
                     {"seconds_over_grep", us / bench::median(count)},
                     {"seconds_over_grep_o", us / bench::median(only)},
                     {"seconds_over_itself", us / bench::median(again)}});
}
