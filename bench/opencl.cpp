// SPDX-License-Identifier: Apache-2.0
// Operations on the first OpenCL device beside OpenBLAS, CLBlast and this library's own on the CPU,
// and what a call there, a worker and a tuning cost and gain.
//
// All of them use every core of this program by wall time, in turn in one process; the A/A figures
// are of one function that takes part twice. OpenBLAS (libopenblas0-pthread) and CLBlast
// (libclblast1, its tuner in clblast-utils) are looked for when this runs. PoCL's threads are
// pinned to their cores ($POCL_AFFINITY), unless that is set.
//
// Arguments: the parts to run, by name (all of them without any), and --seconds N, for each side's
// tuning of square products, all sizes together (default 40). Each other shape has a sixth of it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "opencl/calls.h"
#include "opencl/first_call.h"
#include "opencl/matmul.h"
#include "opencl/own.h"
#include "opencl/part.h"
#include "opencl/tuning.h"
#include "opencl/workers.h"

namespace {

struct Part {
  std::string_view name;
  void (*run)(const bench::Options&, bench::Figures&);
};
constexpr Part parts[] = {
    {"calls", bench::call_figures},        {"first_call", bench::first_call_figures},
    {"restart", bench::restart_figures},   {"compile", bench::compile_figures},
    {"rows", bench::row_figures},          {"flash", bench::flash_figures},
    {"openblas", bench::openblas_figures}, {"clblast", bench::clblast_figures},
    {"tuning", bench::tuning_figures}};

int usage() {
  std::fprintf(stderr, "usage: opencl [--seconds N] [PART...]; parts:");
  for (const Part& part : parts) std::fprintf(stderr, " %s", part.name.data());
  std::fprintf(stderr, "\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--first-call") == 0) return bench::first_call();
  if (argc == 7 && std::strcmp(argv[1], "--bare-first-call") == 0) {
    const auto number = [&](int at) { return static_cast<size_t>(std::atol(argv[at])); };
    return bench::bare_first_call(argv[2], {number(3), number(4), number(5), number(6)});
  }
  bench::Options options;
  std::vector<std::string_view> wanted;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
      options.seconds = std::atof(argv[++i]);
    else if (std::ranges::find(parts, std::string_view(argv[i]), &Part::name) != std::end(parts))
      wanted.emplace_back(argv[i]);
    else return usage();
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // Else Linux may keep both of PoCL's threads on one core, beside OpenBLAS's on the other.
  setenv("POCL_AFFINITY", "1", 0);
  setenv("EJKERNEL_LOG", "0", 0);
  // Choices and programs of earlier runs must not be found.
  char folder[] = "/tmp/ejk_bench_opencl_XXXXXX";
  options.work = mkdtemp(folder);
  setenv("EJKERNEL_PERSISTENT_CACHE_DIR", (options.work / "store").c_str(), 1);
  bench::Figures figures;
  if (ejk::devices(ejk::Platform::opencl).empty())
    std::printf("no OpenCL device: %s\n", ejk::why_no_devices(ejk::Platform::opencl).c_str());
  else std::printf("%s, %d threads\n", bench::device().fingerprint.c_str(), ejk::visible_cores());
  for (const Part& part : parts) {
    if (ejk::devices(ejk::Platform::opencl).empty()) break;
    if (!wanted.empty() && std::ranges::find(wanted, part.name) == wanted.end()) continue;
    const double begin = bench::seconds();
    part.run(options, figures);
    std::printf("[%s: %.0f s]\n", part.name.data(), bench::seconds() - begin);
  }
  std::filesystem::remove_all(options.work);
  bench::print_json(std::move(figures));
}
