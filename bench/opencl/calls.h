// SPDX-License-Identifier: Apache-2.0
// bench/opencl: what a warm call costs.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "part.h"

namespace bench {

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
inline void call_figures(const Options&, Figures& figures) {
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

}  // namespace bench
