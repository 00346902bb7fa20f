// SPDX-License-Identifier: Apache-2.0
// bench/opencl: the first call of a process after one that has tuned it and kept its program,
// beside a program that makes the driver's calls alone.
#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "matmul.h"

namespace bench {

constexpr int64_t first_size = 256;

// Milliseconds until there are devices, until the arrays are there, and from there to the result.
// The first two are the driver's loading and its context.
struct FirstCall {
  double opening = 0, copying = 0, calling = 0;
};
class FirstCallClock {
 public:
  void opened() { now_.opening = lap(); }
  void copied() { now_.copying = lap(); }
  void called() {
    now_.calling = lap();
    std::printf("%.3f %.3f %.3f\n", now_.opening, now_.copying, now_.calling);
  }

 private:
  double lap() {
    const double now = seconds();
    return 1e3 * (now - std::exchange(last_, now));
  }
  double last_ = seconds();
  FirstCall now_;
};

inline Tensor first_product(const ejk::Executor& executor, const Tensor& a, const Tensor& b) {
  Tensor c = ejk::ops::matmul(executor, a, b);
  wait();
  return c;
}

// In that process.
inline int first_call() {
  FirstCallClock clock;
  static_cast<void>(device());
  clock.opened();
  const Tensor a = random_there({first_size, first_size}),
               b = random_there({first_size, first_size});
  wait();
  clock.copied();
  first_product(ejk::default_executor(), a, b);
  clock.called();
  return 0;
}

// The same product from the same binary, which is the rest of `file` behind two lines. `grid`:
// groups and items of a group, both in two dimensions.
inline int bare_first_call(const char* file, const std::array<size_t, 4>& grid) {
  FirstCallClock clock;
  void* const library = dlopen("libOpenCL.so.1", RTLD_NOW);
#define CL(name) symbol<decltype(name)>(library, #name)
  cl_platform_id platforms[16];
  cl_uint count = 0, devices = 0;
  cl_device_id id = nullptr;
  cl_int code = CL(clGetPlatformIDs)(std::size(platforms), platforms, &count);
  for (cl_uint p = 0; p < count && devices == 0; ++p)
    CL(clGetDeviceIDs)(platforms[p], CL_DEVICE_TYPE_ALL, 1, &id, &devices);
  const cl_context context = CL(clCreateContext)(nullptr, 1, &id, nullptr, nullptr, &code);
  clock.opened();
  const cl_command_queue queue =
      CL(clCreateCommandQueue)(context, id, CL_QUEUE_PROFILING_ENABLE, &code);
  constexpr size_t bytes = sizeof(float) * first_size * first_size;
  const auto buffer = [&] {
    return CL(clCreateBuffer)(context, CL_MEM_READ_WRITE, bytes, nullptr, &code);
  };
  const auto filled = [&] {
    const Tensor here = random_tensor({first_size, first_size});
    const cl_mem there = buffer();
    CL(clEnqueueWriteBuffer)
    (queue, there, CL_TRUE, 0, bytes, here.data<float>(), 0, nullptr, nullptr);
    return there;
  };
  const cl_mem a = filled(), b = filled();
  CL(clFinish)(queue);
  clock.copied();

  const cl_mem c = buffer();
  std::ifstream in(file, std::ios::binary);
  for (int line = 0; line < 2; ++line) in.ignore(1 << 20, '\n');
  const std::string binary(std::istreambuf_iterator<char>(in), {});
  const size_t size = binary.size();
  const auto* begin = reinterpret_cast<const unsigned char*>(binary.data());
  const cl_program program =
      CL(clCreateProgramWithBinary)(context, 1, &id, &size, &begin, nullptr, &code);
  if (CL(clBuildProgram)(program, 1, &id, "", nullptr, nullptr) != CL_SUCCESS) return 1;
  const cl_kernel kernel = CL(clCreateKernel)(program, "matmul", &code);
  cl_uint arguments = 0;
  const auto set = [&](const auto& value) {
    code |= CL(clSetKernelArg)(kernel, arguments++, sizeof value, &value);
  };
  // Sizes, one matrix for all of a batch, no groups; as nothing else is there, no bias.
  for (const cl_int number : {cl_int{first_size}, cl_int{first_size}, cl_int{first_size}, 0, 0, 0})
    set(number);
  for (const cl_mem array : {a, b, a, a, c}) set(array);
  const size_t items[] = {grid[2], grid[3], 1};
  const size_t all[] = {grid[0] * items[0], grid[1] * items[1], 1};
  code |= CL(clEnqueueNDRangeKernel)(queue, kernel, 3, nullptr, all, items, 0, nullptr, nullptr);
  CL(clFinish)(queue);
#undef CL
  if (code != CL_SUCCESS) return 1;
  clock.called();
  return 0;
}

inline FirstCall first_call_of(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  FirstCall out;
  if (pipe == nullptr ||
      std::fscanf(pipe, "%lf %lf %lf", &out.opening, &out.copying, &out.calling) != 3)
    throw std::runtime_error("said nothing: " + command);
  pclose(pipe);
  return out;
}

inline std::vector<std::string> programs_in(const std::filesystem::path& store) {
  std::vector<std::string> found;
  for (const auto& item : std::filesystem::recursive_directory_iterator(store))
    if (item.path().extension() == ".program") found.push_back(item.path().string());
  return found;
}

// Groups, and items of a group, of the product with that blocking.
inline std::string grid_of(const ejk::ops::MatmulGpuBlocking& b) {
  const bool direct = b.way == ejk::ops::MatmulGpuBlocking::Way::direct;
  std::string text;
  for (const int64_t number :
       {ejk::ceil_div(first_size, b.bm), ejk::ceil_div(first_size, b.bn),
        int64_t{direct ? 1 : b.bn / b.tn}, int64_t{direct ? 1 : b.bm / b.tm}})
    text += " " + std::to_string(number);
  return text;
}

inline void first_call_figures(const Options& options, Figures& figures) {
  const auto store = options.work / "first_call";
  const auto executor_there = [&](bool tunes) {
    ejk::SelectorOptions selector;
    selector.policy =
        ejk::AutotunePolicy{.allow_autotune = tunes, .budget_seconds = options.seconds};
    selector.persistent = std::make_shared<ejk::PersistentCache>(
        std::vector<std::shared_ptr<ejk::Store>>{std::make_shared<ejk::DirectoryStore>(store)});
    return ejk::Executor(std::move(selector));
  };
  const Product product({first_size, first_size, first_size});
  product.call.chosen_by(executor_there(true));

  // Ours until it has found one program and nothing more to tune.
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string(),
                    ours = "EJKERNEL_PERSISTENT_CACHE_DIR=" + store.string() + " " + self +
                           " --first-call";
  std::vector<std::string> programs;
  for (int i = 0; i < 5 && programs.size() != 1; ++i) {
    std::filesystem::remove_all(store / "programs");
    first_call_of(ours);
    programs = programs_in(store);
  }
  if (programs.size() != 1) throw std::runtime_error("the tuning of the first call does not end");
  const std::string bare = self + " --bare-first-call " + programs[0] +
                           grid_of(product.call.chosen_by(executor_there(false)).forward);

  constexpr int rounds = 15;
  std::vector<double> opening, copying, calling, bare_opening, bare_calling;
  for (int i = 0; i < rounds; ++i) {
    const FirstCall one = first_call_of(ours), other = first_call_of(bare);
    opening.push_back(one.opening), copying.push_back(one.copying);
    calling.push_back(one.calling);
    bare_opening.push_back(other.opening), bare_calling.push_back(other.calling);
  }
  std::printf(
      "a second process: devices after %.1f ms (the driver's calls alone: %.1f), arrays there %.1f "
      "ms later, its first call %.2f ms (%.2f to %.2f; alone: %.2f, %.2f to %.2f)\n",
      median(opening), median(bare_opening), median(copying), median(calling), quantile(calling, 0),
      quantile(calling, 0.99), median(bare_calling), quantile(bare_calling, 0),
      quantile(bare_calling, 0.99));
  figures.emplace_back("second_process_first_call_ms", median(calling));
  figures.emplace_back("second_process_first_call_bare_ms", median(bare_calling));
  figures.emplace_back("second_process_driver_ms", median(opening));
  figures.emplace_back("second_process_driver_bare_ms", median(bare_opening));
}

}  // namespace bench
