// SPDX-License-Identifier: Apache-2.0
// The functions of OpenCL, found at run time, what their errors mean, and handles that own.
#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include <ejk/gpu.h>

namespace ejk::detail::opencl {

#define EJK_OPENCL_FUNCTIONS(use)                                                                  \
  use(GetPlatformIDs) use(GetPlatformInfo) use(GetDeviceIDs) use(GetDeviceInfo) use(CreateContext) \
      use(ReleaseContext) use(CreateCommandQueue) use(ReleaseCommandQueue) use(CreateBuffer)       \
          use(CreateSubBuffer) use(ReleaseMemObject) use(GetMemObjectInfo) use(EnqueueReadBuffer)  \
              use(EnqueueWriteBuffer) use(EnqueueCopyBuffer) use(EnqueueFillBuffer)                \
                  use(EnqueueMarkerWithWaitList) use(EnqueueNDRangeKernel) use(Flush) use(Finish)  \
                      use(CreateProgramWithSource) use(CreateProgramWithBinary) use(BuildProgram)  \
                          use(ReleaseProgram) use(GetProgramInfo) use(GetProgramBuildInfo)         \
                              use(CreateKernel) use(ReleaseKernel) use(GetKernelInfo)              \
                                  use(SetKernelArg) use(GetKernelWorkGroupInfo) use(ReleaseEvent)  \
                                      use(GetEventProfilingInfo)

struct Library {
#define EJK_OPENCL_MEMBER(name) decltype(&::cl##name) name = nullptr;
  EJK_OPENCL_FUNCTIONS(EJK_OPENCL_MEMBER)
#undef EJK_OPENCL_MEMBER
};

// Fills the library from a file that the loader finds. Why that failed; "" if it did not.
std::string load_library(const char* file, Library& into);
// The one of this process; empty before it is loaded.
Library& cl();

std::string error_name(cl_int code);  // "CL_OUT_OF_RESOURCES", or the number
// Throws DeviceError of the right kind: "[step] the OpenCL driver says ...".
[[noreturn]] void fail(cl_int code, std::string_view step);
inline void check(cl_int code, std::string_view step) {
  if (code != CL_SUCCESS) fail(code, step);
}

// ---- handles

template <auto Release>
struct Releaser {
  template <class T>
  void operator()(T* handle) const {
    (cl().*Release)(handle);
  }
};
template <class Handle, auto Release>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Releaser<Release>>;

using Context = Owned<cl_context, &Library::ReleaseContext>;
using CommandQueue = Owned<cl_command_queue, &Library::ReleaseCommandQueue>;
using Buffer = Owned<cl_mem, &Library::ReleaseMemObject>;
using Program = Owned<cl_program, &Library::ReleaseProgram>;
using Kernel = Owned<cl_kernel, &Library::ReleaseKernel>;
using Event = Owned<cl_event, &Library::ReleaseEvent>;

}  // namespace ejk::detail::opencl
