// SPDX-License-Identifier: Apache-2.0
// The calls of CUDA's driver that this library makes. Declared here, so that no header of CUDA is
// needed to build it; tests/cuda/declarations_test.cpp compares them with CUDA's own where there is
// a toolkit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ejk::detail::cuda {

using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using DevicePointer = uint64_t;
using Ordinal = int;  // CUdevice

// CUresult, as far as anything is decided by it.
enum Status : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  no_binary_for_gpu = 209,
  ecc_uncorrectable = 214,
  invalid_handle = 400,
  not_found = 500,
  illegal_address = 700,
  launch_out_of_resources = 701,
  misaligned_address = 716,
  launch_failed = 719,
};

enum class DeviceAttribute : int {
  max_threads_per_block = 1,
  max_shared_memory_per_block = 8,
  warp_size = 10,
  multiprocessor_count = 16,
  l2_cache_size = 38,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_memory_per_block_optin = 97,
};

constexpr unsigned event_default = 0, stream_default = 0;

// X(name, parameters): each of them returns a Status.
#define EJK_CUDA_DRIVER_CALLS(X)                                                                  \
  X(cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, (int* version))                                                           \
  X(cuGetErrorName, (Status status, const char** name))                                           \
  X(cuGetErrorString, (Status status, const char** text))                                         \
  X(cuDeviceGetCount, (int* count))                                                               \
  X(cuDeviceGet, (Ordinal * device, int index))                                                   \
  X(cuDeviceGetName, (char* name, int bytes, Ordinal device))                                     \
  X(cuDeviceGetAttribute, (int* value, DeviceAttribute attribute, Ordinal device))                \
  X(cuDevicePrimaryCtxRetain, (Context * context, Ordinal device))                                \
  X(cuCtxSetCurrent, (Context context))                                                           \
  X(cuCtxGetCurrent, (Context * context))                                                         \
  X(cuStreamCreate, (Stream * stream, unsigned flags))                                            \
  X(cuStreamDestroy_v2, (Stream stream))                                                          \
  X(cuStreamSynchronize, (Stream stream))                                                         \
  X(cuEventCreate, (Event * event, unsigned flags))                                               \
  X(cuEventDestroy_v2, (Event event))                                                             \
  X(cuEventRecord, (Event event, Stream stream))                                                  \
  X(cuEventSynchronize, (Event event))                                                            \
  X(cuEventElapsedTime, (float* milliseconds, Event start, Event end))                            \
  X(cuMemAlloc_v2, (DevicePointer * memory, size_t bytes))                                        \
  X(cuMemFree_v2, (DevicePointer memory))                                                         \
  X(cuMemcpyHtoDAsync_v2, (DevicePointer to, const void* from, size_t bytes, Stream stream))      \
  X(cuMemcpyDtoHAsync_v2, (void* to, DevicePointer from, size_t bytes, Stream stream))            \
  X(cuMemcpyDtoDAsync_v2, (DevicePointer to, DevicePointer from, size_t bytes, Stream stream))    \
  X(cuMemsetD8Async, (DevicePointer to, unsigned char value, size_t bytes, Stream stream))        \
  X(cuModuleLoadData, (Module * module, const void* image))                                       \
  X(cuModuleUnload, (Module module))                                                              \
  X(cuModuleGetFunction, (Function * function, Module module, const char* name))                  \
  X(cuLaunchKernel, (Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,        \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
                     Stream stream, void** parameters, void** extra))

// Those that drivers before CUDA 12.4 do not have; null there.
#define EJK_CUDA_NEWER_DRIVER_CALLS(X) \
  X(cuFuncGetParamInfo, (Function function, size_t index, size_t * offset, size_t * bytes))

struct DriverApi {
#define EJK_CUDA_DECLARE(name, parameters) Status(*name) parameters = nullptr;
  EJK_CUDA_DRIVER_CALLS(EJK_CUDA_DECLARE)
  EJK_CUDA_NEWER_DRIVER_CALLS(EJK_CUDA_DECLARE)
#undef EJK_CUDA_DECLARE
};

}  // namespace ejk::detail::cuda
