// SPDX-License-Identifier: Apache-2.0
// Loads OpenCL, and reads its error codes.
#include "platform/opencl/library.h"

#include <dlfcn.h>

#include <utility>

#include "base/format.h"

namespace ejk::detail::opencl {
namespace {

using Kind = DeviceError::Kind;

struct Code {
  const char* name;
  cl_int code;
  Kind kind = Kind::other;
};

#define EJK_CODE(name, ...) \
  Code { #name, name __VA_OPT__(, ) __VA_ARGS__ }
constexpr Code codes[] = {
    EJK_CODE(CL_DEVICE_NOT_FOUND, Kind::absent),
    EJK_CODE(CL_DEVICE_NOT_AVAILABLE, Kind::lost),
    EJK_CODE(CL_COMPILER_NOT_AVAILABLE, Kind::build),
    EJK_CODE(CL_MEM_OBJECT_ALLOCATION_FAILURE, Kind::out_of_memory),
    EJK_CODE(CL_OUT_OF_RESOURCES, Kind::out_of_memory),
    EJK_CODE(CL_OUT_OF_HOST_MEMORY, Kind::out_of_memory),
    EJK_CODE(CL_PROFILING_INFO_NOT_AVAILABLE),
    EJK_CODE(CL_MEM_COPY_OVERLAP),
    EJK_CODE(CL_BUILD_PROGRAM_FAILURE, Kind::build),
    EJK_CODE(CL_MISALIGNED_SUB_BUFFER_OFFSET, Kind::invalid_launch),
    EJK_CODE(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    EJK_CODE(CL_INVALID_VALUE),
    EJK_CODE(CL_INVALID_DEVICE),
    EJK_CODE(CL_INVALID_CONTEXT),
    EJK_CODE(CL_INVALID_COMMAND_QUEUE, Kind::lost),
    EJK_CODE(CL_INVALID_MEM_OBJECT),
    EJK_CODE(CL_INVALID_BINARY, Kind::build),
    EJK_CODE(CL_INVALID_BUILD_OPTIONS, Kind::build),
    EJK_CODE(CL_INVALID_PROGRAM),
    EJK_CODE(CL_INVALID_PROGRAM_EXECUTABLE, Kind::build),
    EJK_CODE(CL_INVALID_KERNEL_NAME, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_KERNEL_DEFINITION, Kind::build),
    EJK_CODE(CL_INVALID_KERNEL),
    EJK_CODE(CL_INVALID_ARG_INDEX, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_ARG_VALUE, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_ARG_SIZE, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_KERNEL_ARGS, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_WORK_DIMENSION, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_WORK_GROUP_SIZE, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_WORK_ITEM_SIZE, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_GLOBAL_OFFSET, Kind::invalid_launch),
    EJK_CODE(CL_INVALID_OPERATION),
    EJK_CODE(CL_INVALID_BUFFER_SIZE, Kind::out_of_memory),
    EJK_CODE(CL_INVALID_GLOBAL_WORK_SIZE, Kind::invalid_launch),
    {"CL_PLATFORM_NOT_FOUND_KHR", -1001, Kind::absent},
};
#undef EJK_CODE

Code find(cl_int code) {
  for (const Code& known : codes)
    if (known.code == code) return known;
  return {nullptr, code};
}

}  // namespace

Library& cl() {
  static Library library;
  return library;
}

std::string load_library(const char* file, Library& into) {
  // Never closed: drivers have threads and handlers of their own.
  void* const handle = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fmt::format("{} is not installed", file);
  std::string missing;
  const auto find = [&]<class F>(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(handle, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
#define EJK_OPENCL_FIND(name) find(into.name, "cl" #name);
  EJK_OPENCL_FUNCTIONS(EJK_OPENCL_FIND)
#undef EJK_OPENCL_FIND
  return missing.empty() ? "" : fmt::format("{} has no {}", file, missing);
}

std::string error_name(cl_int code) {
  const Code found = find(code);
  return found.name != nullptr ? found.name : std::to_string(code);
}

void fail(cl_int code, std::string_view step) {
  throw DeviceError(find(code).kind,
                    fmt::format("[{}] the OpenCL driver says {}", step, error_name(code)));
}

}  // namespace ejk::detail::opencl
