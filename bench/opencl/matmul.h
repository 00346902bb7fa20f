// SPDX-License-Identifier: Apache-2.0
// bench/opencl: products of matrices beside OpenBLAS, and beside CLBlast after its own tuner.
#pragma once

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "part.h"

namespace bench {

struct Shape {
  int64_t m, n, k;
  std::string text() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  }
};

// One product, with its arrays here and on the device.
struct Product {
  using Kernel = ejk::ops::Matmul<float>;
  using Call = DeviceCall<Kernel, Kernel::DeviceInput, Kernel::DeviceInput, Kernel::DeviceBias,
                          Kernel::DeviceOutput>;
  explicit Product(const Shape& s)
      : shape(s),
        host_a(random_tensor({1, s.m, s.k})),
        host_b(random_tensor({1, s.k, s.n})),
        a(host_a.to(device())),
        b(host_b.to(device())),
        c(ejk::DType::float32, {1, s.m, s.n}, device()),
        call(Kernel(), ejk::device_view<const float, 3>(a), ejk::device_view<const float, 3>(b),
             Kernel::DeviceBias(), ejk::Out(ejk::device_view<float, 3>(c))) {}

  Shape shape;
  Tensor host_a, host_b, a, b, c;
  Call call;
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
      const auto memory = [](const Tensor& t) {
        return static_cast<cl_mem>(ejk::device_view<const float, 3>(t).cl());
      };
      cl_command_queue queue = queue_;
      const int status = sgemm_(row_major, as_it_is, as_it_is, m, n, k, 1, memory(p.a), 0, k,
                                memory(p.b), 0, n, 0, memory(p.c), 0, n, &queue, nullptr);
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

// A square product with the config that a tuning found; each size is tuned once.
struct TunedProduct {
  TunedProduct(int64_t size, double seconds)
      : product({size, size, size}),
        config(product.call.tuned(seconds)),
        run(product.call.run(config)) {
    std::printf("matmul %lld: %s\n", static_cast<long long>(size),
                ejk::to_json(config.forward).c_str());
    const double start = bench::seconds();
    run();
    const double taken = bench::seconds() - start;
    std::printf("  one run %.0f GFLOP/s\n", 2e-9 * std::pow(static_cast<double>(size), 3) / taken);
  }
  Product product;
  Product::Call::Config config;
  Work run;
};

constexpr int64_t square_sizes[] = {256, 512, 1024, 2048};
inline const TunedProduct& tuned_product(int64_t size, const Options& options) {
  static std::map<int64_t, std::unique_ptr<TunedProduct>> known;
  auto& one = known[size];
  if (!one) one = std::make_unique<TunedProduct>(size, options.seconds / std::size(square_sizes));
  return *one;
}

inline void openblas_figures(const Options& options, Figures& figures) {
  const OpenBlas openblas;
  if (!openblas) {
    std::printf("OpenBLAS is not here: libopenblas.so.0 (libopenblas0-pthread)\n");
    return;
  }
  for (const int64_t size : square_sizes) {
    const TunedProduct& ours = tuned_product(size, options);
    const auto [ratio, same] = race(ours.run, openblas.product(ours.product));
    figures.emplace_back("matmul_" + std::to_string(size) + "_openblas", ratio);
    std::printf("  over OpenBLAS %.3f (A/A %.3f)\n", ratio, same);
  }
}

inline void clblast_figures(const Options& options, Figures& figures) {
  const ClBlast clblast;
  if (!clblast) {
    std::printf("CLBlast is not here: libclblast.so.1 (libclblast1)\n");
    return;
  }
  if (!clblast.tune(options.seconds, options.work)) {
    std::printf("CLBlast's tuner is not here: clblast_tuner_xgemm (clblast-utils)\n");
    return;
  }
  std::vector<double> ratios;
  for (const int64_t size : square_sizes) {
    const TunedProduct& ours = tuned_product(size, options);
    Race best{.ratio = 1e30, .same = 1};
    for (const bool main : {true, false}) {
      clblast.use_main(main);
      const Race one = race(ours.run, clblast.product(ours.product));
      if (one.ratio < best.ratio) best = one;
    }
    ratios.push_back(best.ratio);
    std::printf("matmul %lld over CLBlast, tuned %.2f (A/A %.3f)\n", static_cast<long long>(size),
                best.ratio, best.same);
  }
  figures.emplace_back("matmul_geomean_clblast_tuned", geomean(ratios));
}

}  // namespace bench
