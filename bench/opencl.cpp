// SPDX-License-Identifier: Apache-2.0
// Operations on the first OpenCL device beside OpenBLAS, CLBlast and this library's own on the CPU,
// and what a call there costs.
//
// All of them use every core of this program by wall time, in turn in one process; the A/A figures
// are of one function that takes part twice. OpenBLAS (libopenblas0-pthread) and CLBlast
// (libclblast1, its tuner in clblast-utils) are looked for when this runs. PoCL's threads are
// pinned to their cores ($POCL_AFFINITY), unless that is set. Options: --seconds N (for each side's
// tuning, all sizes together; default 40).
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>

#include <dlfcn.h>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <ejk/ejk.h>
#include <ejk/gpu.h>
#include <ejk/ops.h>

#include "harness.h"

namespace {

using ejk::Tensor;
using Figures = std::vector<ejk::Value::Member>;
using Work = std::function<void()>;

const ejk::Device& device() { return ejk::devices(ejk::Platform::opencl).at(0); }
void wait() { ejk::Queue(device()).wait(); }

Tensor random_tensor(std::vector<int64_t> shape) {
  Tensor t = Tensor::of<float>(std::move(shape));
  static std::mt19937 engine(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (int64_t i = 0; i < t.size(); ++i) t.data<float>()[i] = uniform(engine);
  return t;
}

ejk::Executor executor(bool tunes, double seconds = 10) {
  ejk::SelectorOptions options;
  options.policy = ejk::AutotunePolicy{.allow_autotune = tunes, .budget_seconds = seconds};
  return ejk::Executor(std::move(options));
}

// As bench::interleave, but a sample is several runs after a pause and one that is not measured:
// threads of OpenBLAS that wait for its next call keep a core busy for 26 ms, and those of a driver
// sleep meanwhile.
std::vector<std::vector<double>> in_turn(const std::vector<Work>& works, size_t rounds) {
  constexpr double sample_seconds = 0.005;
  std::vector<std::vector<double>> samples(works.size());
  for (size_t r = 0; r < rounds; ++r)
    for (size_t i = 0; i < works.size(); ++i) {
      const size_t which = (i + r) % works.size();
      std::this_thread::sleep_for(std::chrono::milliseconds(35));
      works[which]();
      const double start = bench::seconds();
      int runs = 0;
      do works[which](), ++runs;
      while (bench::seconds() - start < sample_seconds);
      samples[which].push_back((bench::seconds() - start) / runs);
    }
  return samples;
}

struct Race {
  double ratio, same;  // the other's time over ours; ours over ours
};
Race race(const Work& ours, const Work& other) {
  const auto samples = in_turn({ours, other, ours}, 15);
  const double mine = bench::median(samples[0]);
  return {bench::median(samples[1]) / mine, bench::median(samples[2]) / mine};
}

double geomean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += std::log(v);
  return std::exp(sum / static_cast<double>(values.size()));
}

template <class F>
F* symbol(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
}

// ---- matmul -------------------------------------------------------------------------------------

struct Shape {
  int64_t m, n, k;
  std::string text() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  }
};

// One product on the device, with a config that is given.
class Product {
 public:
  using Kernel = ejk::ops::Matmul<float>;
  using Config = Kernel::GpuConfig;
  explicit Product(const Shape& s)
      : shape(s),
        host_a(random_tensor({1, s.m, s.k})),
        host_b(random_tensor({1, s.k, s.n})),
        a_(host_a.to(device())),
        b_(host_b.to(device())),
        c_(Tensor(ejk::DType::float32, {1, s.m, s.n}, device())) {}

  Config guess() const {
    return executor(false).choose_config(Kernel(), in(a_), in(b_), no_bias, out()).config;
  }
  Config tuned(double seconds) const {
    return executor(true, seconds).tune(Kernel(), in(a_), in(b_), no_bias, out()).config;
  }
  std::vector<Config> sampled(uint64_t count) const {
    const auto space = Kernel().candidate_cfgs_gpu(
        executor(false).describe(Kernel(), in(a_), in(b_), no_bias, out()));
    std::vector<Config> configs;
    for (const uint64_t point : space.sample(count, 1)) configs.push_back(space[point]);
    return configs;
  }
  Work run(const Config& config) const {
    return [this, config] {
      Kernel().run_gpu(config, in(a_), in(b_), no_bias, out());
      wait();
    };
  }

  Shape shape;
  Tensor host_a, host_b;
  void* a() const { return in(a_).cl(); }
  void* b() const { return in(b_).cl(); }
  void* c() const { return out()->cl(); }

 private:
  static constexpr Kernel::DeviceBias no_bias = {};
  static Kernel::DeviceInput in(const Tensor& t) { return ejk::device_view<const float, 3>(t); }
  Kernel::DeviceOutput out() const { return ejk::Out(ejk::device_view<float, 3>(c_)); }

  Tensor a_, b_, c_;
};

class OpenBlas {
 public:
  OpenBlas() {
    void* const library = dlopen("libopenblas.so.0", RTLD_NOW);
    sgemm_ = symbol<Sgemm>(library, "cblas_sgemm");
    if (auto* set = symbol<void(int)>(library, "openblas_set_num_threads"))
      set(ejk::visible_cores());
  }
  explicit operator bool() const { return sgemm_ != nullptr; }
  Work product(const Product& p) const {
    auto c = std::make_shared<std::vector<float>>(p.shape.m * p.shape.n);
    return [this, &p, c] {
      const auto [m, n, k] = std::array{static_cast<int>(p.shape.m), static_cast<int>(p.shape.n),
                                        static_cast<int>(p.shape.k)};
      constexpr int row_major = 101, as_it_is = 111;
      sgemm_(row_major, as_it_is, as_it_is, m, n, k, 1, p.host_a.data<float>(), k,
             p.host_b.data<float>(), n, 0, c->data(), n);
    };
  }

 private:
  using Sgemm = void(int, int, int, int, int, int, float, const float*, int, const float*, int,
                     float, float*, int);
  Sgemm* sgemm_ = nullptr;
};

// ---- CLBlast and its tuner ----------------------------------------------------------------------

struct Parameters {
  std::vector<std::string> names;
  std::vector<size_t> values;
  double gflops = 0;
};

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// The fastest right one among what a tuner has printed by then.
std::optional<Parameters> tuned_by(const std::string& tuner, double seconds,
                                   const std::filesystem::path& work) {
  const std::string command = "cd " + work.string() + " && timeout -s KILL " +
                              std::to_string(seconds) + " stdbuf -oL " + tuner + " 2>/dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  Parameters best;
  std::vector<std::string> names;
  char buffer[4096];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) {
    const std::string line = buffer;
    const std::string begin = "* Parameters explored:";
    if (line.starts_with(begin)) names = words_of(line.substr(begin.size()));
    if (line.find("results match") == line.npos) continue;
    std::vector<std::string> cells;
    std::istringstream in(line);
    for (std::string cell; std::getline(in, cell, '|');) cells.push_back(cell);
    constexpr size_t of_values = 3, of_gflops = 8;
    if (cells.size() <= of_gflops) continue;
    const double gflops = std::atof(cells[of_gflops].c_str());
    if (gflops <= best.gflops) continue;
    best = {names, {}, gflops};
    for (const std::string& word : words_of(cells[of_values]))
      best.values.push_back(static_cast<size_t>(std::atol(word.c_str())));
  }
  pclose(pipe);
  if (best.gflops == 0 || best.names.size() != best.values.size()) return std::nullopt;
  return best;
}

class ClBlast {
 public:
  ClBlast() {
    void* const library = dlopen("libclblast.so.1", RTLD_NOW);
    sgemm_ = symbol<Sgemm>(library, "CLBlastSgemm");
    override_ = symbol<Override>(library, "CLBlastOverrideParameters");
    queue_ = static_cast<cl_command_queue>(ejk::Queue(device()).cl());
    void* const cl = dlopen("libOpenCL.so.1", RTLD_NOW);
    symbol<decltype(clGetCommandQueueInfo)>(cl, "clGetCommandQueueInfo")(
        queue_, CL_QUEUE_DEVICE, sizeof device_, &device_, nullptr);
  }
  explicit operator bool() const { return sgemm_ != nullptr && override_ != nullptr; }

  // False: its tuners are not here.
  bool tune(double seconds, const std::filesystem::path& work) const {
    const std::string size = " -precision 32 -m 512 -n 512 -k 512 -runs 2 -fraction 12";
    const auto main = tuned_by("clblast_tuner_xgemm" + size, 0.75 * seconds, work);
    const auto direct = tuned_by("clblast_tuner_xgemm_direct" + size, 0.25 * seconds, work);
    if (main) give("Xgemm", *main);
    if (direct) give("XgemmDirect", *direct);
    return main.has_value();
  }
  // Which of its two kernels is used.
  void use_main(bool always) const {
    give("GemmRoutine", {{"XGEMM_MIN_INDIRECT_SIZE"}, {always ? size_t{1} : size_t{1} << 20}});
  }
  Work product(const Product& p) const {
    return [this, &p] {
      const auto size = [](int64_t n) { return static_cast<size_t>(n); };
      const auto [m, n, k] = std::array{size(p.shape.m), size(p.shape.n), size(p.shape.k)};
      constexpr int row_major = 101, as_it_is = 111;
      cl_command_queue queue = queue_;
      const int status = sgemm_(row_major, as_it_is, as_it_is, m, n, k, 1,
                                static_cast<cl_mem>(p.a()), 0, k, static_cast<cl_mem>(p.b()), 0, n,
                                0, static_cast<cl_mem>(p.c()), 0, n, &queue, nullptr);
      if (status != 0) throw std::runtime_error("CLBlast: " + std::to_string(status));
      wait();
    };
  }

 private:
  using Sgemm = int(int, int, int, size_t, size_t, size_t, float, cl_mem, size_t, size_t, cl_mem,
                    size_t, size_t, float, cl_mem, size_t, size_t, cl_command_queue*, cl_event*);
  using Override = int(cl_device_id, const char*, int, size_t, const char**, const size_t*);

  void give(const char* kernel, const Parameters& p) const {
    std::vector<const char*> names;
    for (const std::string& name : p.names) names.push_back(name.c_str());
    constexpr int single = 32;
    const int status =
        override_(device_, kernel, single, names.size(), names.data(), p.values.data());
    if (status != 0) std::fprintf(stderr, "CLBlast refuses parameters of %s: %d\n", kernel, status);
  }

  Sgemm* sgemm_ = nullptr;
  Override* override_ = nullptr;
  cl_command_queue queue_ = nullptr;
  cl_device_id device_ = nullptr;
};

// ---- figures ------------------------------------------------------------------------------------

void matmul_figures(double seconds, const std::filesystem::path& work, Figures& figures) {
  const std::vector<int64_t> sizes = {256, 512, 1024, 2048};
  const OpenBlas openblas;
  const ClBlast clblast;
  bool tuned = false;
  if (!openblas) std::printf("OpenBLAS is not here: libopenblas.so.0 (libopenblas0-pthread)\n");
  if (!clblast) std::printf("CLBlast is not here: libclblast.so.1 (libclblast1)\n");
  else if (!(tuned = clblast.tune(seconds, work)))
    std::printf("CLBlast's tuner is not here: clblast_tuner_xgemm (clblast-utils)\n");
  std::vector<double> over_clblast;
  for (const int64_t size : sizes) {
    const Product product({size, size, size});
    const auto config = product.tuned(seconds / static_cast<double>(sizes.size()));
    const Work ours = product.run(config);
    const double gflop = 2e-9 * static_cast<double>(size * size * size);
    std::printf("matmul %lld: %s\n", static_cast<long long>(size),
                ejk::to_json(config.forward).c_str());
    if (openblas) {
      const auto [ratio, same] = race(ours, openblas.product(product));
      figures.emplace_back("matmul_" + std::to_string(size) + "_openblas", ratio);
      std::printf("  over OpenBLAS %.3f (A/A %.3f)\n", ratio, same);
    }
    if (tuned) {
      double best = 1e30;
      for (const bool main : {true, false}) {
        clblast.use_main(main);
        best = std::min(best, race(ours, clblast.product(product)).ratio);
      }
      over_clblast.push_back(best);
      std::printf("  over CLBlast, tuned %.2f\n", best);
    }
    const double start = bench::seconds();
    ours();
    std::printf("  one run %.0f GFLOP/s\n", gflop / (bench::seconds() - start));
  }
  if (tuned) figures.emplace_back("matmul_geomean_clblast_tuned", geomean(over_clblast));
}

// What tuning is worth on shapes that no guess was made with.
void tuning_figures(double seconds, Figures& figures) {
  const std::vector<Shape> shapes = {{384, 640, 512}, {777, 777, 777}, {48, 2048, 512},
                                     {1, 4096, 1024}, {8, 1024, 4096}, {2000, 24, 300}};
  std::vector<double> over_guess, over_median;
  for (const Shape& shape : shapes) {
    const Product product(shape);
    const auto guess = product.guess();
    const auto tuned = product.tuned(seconds / static_cast<double>(shapes.size()));
    std::vector<Work> works{product.run(tuned), product.run(guess), product.run(tuned)};
    for (const auto& config : product.sampled(9)) works.push_back(product.run(config));
    const auto samples = bench::interleave(works, 31);
    std::vector<double> times;
    for (const auto& s : samples) times.push_back(bench::median(s));
    over_guess.push_back(tuned == guess ? 1 : times[1] / times[0]);
    over_median.push_back(bench::median({times.begin() + 3, times.end()}) / times[0]);
    std::printf(
        "matmul %s: tuned over guess %.3f (A/A %.3f), over the median of 9 candidates %.2f\n",
        shape.text().c_str(), over_guess.back(), times[2] / times[0], over_median.back());
  }
  figures.emplace_back("tuned_over_heuristic_geomean", geomean(over_guess));
  figures.emplace_back("tuned_over_median_geomean", geomean(over_median));
}

// ---- operations beside this library's own on the CPU --------------------------------------------

// Both as they are guessed. `arguments` are those of the kernel's run, arrays as tensors.
template <class K, class... A>
void own_figure(const std::string& name, Figures& figures, const K& kernel, const A&... arguments) {
  const ejk::Executor guessing = executor(false);
  const auto there = [](const auto& argument) {
    if constexpr (std::is_same_v<decltype(argument), const Tensor&>) return argument.to(device());
    else return argument;
  };
  const auto copies = std::make_tuple(there(arguments)...);
  const auto [ratio, same] = race(
      [&] {
        std::apply([&](const auto&... a) { guessing(kernel, a...); }, copies);
        wait();
      },
      [&] { guessing(kernel, arguments...); });
  std::printf("%s over the CPU's %.3f (A/A %.3f)\n", name.c_str(), ratio, same);
  figures.emplace_back(name + "_own", ratio);
}

void own_figures(Figures& figures) {
  const Tensor x = random_tensor({512, 4096}), weight = random_tensor({4096}),
               out = Tensor::of<float>({512, 4096});
  own_figure("rms_norm", figures, ejk::ops::RmsNorm<float>{}, x, weight, 1e-6f, out);
  own_figure("softmax", figures, ejk::ops::Softmax<float>{}, x, 1.f, out);
}

// ---- what a call costs --------------------------------------------------------------------------

struct Nothing {
  static constexpr std::string_view op_id = "nothing";
  struct Config {
    int group = 1;
  };
  static constexpr ejk::Source source{R"(
    __kernel EJK_GROUP(GROUP, 1, 1) void nothing(int n, __global float* x) { if (n < 0) x[0] = 0; }
  )"};
  void run_gpu(const Config& config, ejk::Out<ejk::DeviceView<float, 1>> x) const {
    ejk::launch(source, "nothing", config, {}, static_cast<int>(x->shape[0]), *x);
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};

// A warm call beside the calls to OpenCL that it makes. They wait behind an event meanwhile: what
// is measured is the call, not the device.
void call_figures(Figures& figures) {
  void* const library = dlopen("libOpenCL.so.1", RTLD_NOW);
#define CL(name) symbol<decltype(name)>(library, #name)
  const Tensor x = Tensor::of<float>({64}).to(device());
  const auto view = ejk::device_view<float, 1>(x);
  const ejk::Executor guessing = executor(false);
  guessing(Nothing{}, view);
  wait();
  auto* const queue = static_cast<cl_command_queue>(ejk::Queue(device()).cl());
  cl_context context = nullptr;
  cl_device_id id = nullptr;
  CL(clGetCommandQueueInfo)(queue, CL_QUEUE_CONTEXT, sizeof context, &context, nullptr);
  CL(clGetCommandQueueInfo)(queue, CL_QUEUE_DEVICE, sizeof id, &id, nullptr);
  const char* text =
      "__kernel __attribute__((reqd_work_group_size(1, 1, 1))) void nothing(int n, "
      "__global float* x) { if (n < 0) x[0] = 0; }";
  cl_int code = 0;
  const cl_program program = CL(clCreateProgramWithSource)(context, 1, &text, nullptr, &code);
  CL(clBuildProgram)(program, 1, &id, "", nullptr, nullptr);
  const cl_kernel kernel = CL(clCreateKernel)(program, "nothing", &code);
  auto* const set = CL(clSetKernelArg);
  auto* const enqueue = CL(clEnqueueNDRangeKernel);
  const auto raw = [&] {
    const int n = 64;
    void* memory = view.cl();
    const size_t one[] = {1, 1, 1};
    set(kernel, 0, sizeof n, &n);
    set(kernel, 1, sizeof memory, &memory);
    enqueue(queue, kernel, 3, nullptr, one, one, 0, nullptr, nullptr);
  };
  const auto call = [&] { guessing(Nothing{}, view); };

  constexpr int calls = 64, rounds = 300;
  const auto nanoseconds = [&](const auto& work) {
    const cl_event gate = CL(clCreateUserEvent)(context, &code);
    CL(clEnqueueBarrierWithWaitList)(queue, 1, &gate, nullptr);
    const double start = bench::seconds();
    for (int i = 0; i < calls; ++i) work();
    const double taken = bench::seconds() - start;
    CL(clSetUserEventStatus)(gate, CL_COMPLETE);
    wait();
    CL(clReleaseEvent)(gate);
    return 1e9 * taken / calls;
  };
#undef CL
  std::vector<double> warm, direct, again;
  for (int i = 0; i < rounds; ++i) {
    warm.push_back(nanoseconds(call));
    direct.push_back(nanoseconds(raw));
    again.push_back(nanoseconds(raw));
  }
  const double over = bench::median(warm) - bench::median(direct);
  std::printf("a warm call %.0f ns, the raw enqueue %.0f ns (A/A %.3f)\n", bench::median(warm),
              bench::median(direct), bench::median(again) / bench::median(direct));
  figures.emplace_back("warm_over_enqueue_ns", over);
}

// In a process of its own, after one that has tuned the call and kept its program: from the arrays
// to the result.
constexpr Shape first_call_shape{256, 256, 256};
int first_call() {
  const Tensor a = random_tensor({first_call_shape.m, first_call_shape.k}).to(device()),
               b = random_tensor({first_call_shape.k, first_call_shape.n}).to(device());
  const double start = bench::seconds();
  const Tensor c = ejk::ops::matmul(a, b);
  wait();
  std::printf("%.3f\n", 1e3 * (bench::seconds() - start));
  return 0;
}

void first_call_figures(Figures& figures) {
  const Tensor a = random_tensor({first_call_shape.m, first_call_shape.k}).to(device()),
               b = random_tensor({first_call_shape.k, first_call_shape.n}).to(device());
  ejk::ops::matmul(executor(true, 3), a, b);
  std::vector<double> taken;
  for (int i = 0; i < 5; ++i) {
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    FILE* const pipe = popen((self + " --first-call").c_str(), "r");
    double ms = std::nan("");
    if (pipe == nullptr || std::fscanf(pipe, "%lf", &ms) != 1)
      throw std::runtime_error("the second process said nothing");
    pclose(pipe);
    taken.push_back(ms);
  }
  std::printf("the first call of a second process %.2f ms\n", bench::median(taken));
  figures.emplace_back("second_process_first_call_ms", bench::median(taken));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--first-call") == 0) return first_call();
  // Else Linux may keep both of PoCL's threads on one core, beside OpenBLAS's on the other.
  setenv("POCL_AFFINITY", "1", 0);
  const double seconds =
      argc == 3 && std::strcmp(argv[1], "--seconds") == 0 ? std::atof(argv[2]) : 40;
  if (ejk::devices(ejk::Platform::opencl).empty()) {
    std::printf("no OpenCL device: %s\n", ejk::why_no_devices(ejk::Platform::opencl).c_str());
    bench::print_json({});
    return 0;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  // Choices and programs of earlier runs must not be found.
  char folder[] = "/tmp/ejk_bench_opencl_XXXXXX";
  const std::filesystem::path work = mkdtemp(folder);
  setenv("EJKERNEL_PERSISTENT_CACHE_DIR", (work / "store").c_str(), 1);
  std::printf("%s, %d threads\n", device().fingerprint.c_str(), ejk::visible_cores());
  Figures figures;
  call_figures(figures);
  first_call_figures(figures);
  own_figures(figures);
  matmul_figures(seconds, work, figures);
  tuning_figures(seconds, figures);
  std::filesystem::remove_all(work);
  bench::print_json(std::move(figures));
}
