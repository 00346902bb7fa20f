// SPDX-License-Identifier: Apache-2.0
// What a kernel compiled for the emulation and the emulated driver know of each other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulated {

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

// Where the running thread is: threadIdx, blockIdx, blockDim, gridDim.
struct Place {
  Extent thread, block, block_size, grid_size;
};

// Memory that was not written has this in every byte: no number as a float, -1 as an int.
constexpr unsigned char undefined_byte = 0xff;

// A request of all lanes of a warp that `mask` names. Without `all` each gets what the lane `from`
// has as `mine`, with it the bytes of every lane.
constexpr size_t warp_size = 32, lane_bytes = 32;
struct WarpRequest {
  unsigned mask = ~0u;
  int line = 0;
  unsigned from = 0;
  alignas(8) unsigned char mine[lane_bytes] = {};
  unsigned char (*all)[lane_bytes] = nullptr;
};

enum class Access { read, write, atomic };

// What the driver gives to every module that it loads.
struct Driver {
  // Of the running thread.
  Place place;
  unsigned lane;
  void (*barrier)(int line);
  void (*exchange)(WarpRequest& request);
  void (*access)(const void* at, size_t bytes, Access access, const void* code);
  // Ends the kernel; does not return.
  void (*mistake)(const char* what, const char* file, unsigned line);
};

// What a module gives to the driver: one for each of its kernels.
struct Kernel {
  const char* name;
  int max_threads;  // __launch_bounds__
  size_t parameters;
  const size_t* sizes;                           // of each of them
  size_t parameter_bytes;                        // of all, as captured
  void (*capture)(void** parameters, void* to);  // copies their values, as a launch does
  void (*run)(const void* captured);
};

struct ModuleTable {
  Driver* driver;
  int arch;  // 90 for sm_90
  const Kernel* kernels;
  size_t kernel_count;
  char *shared_begin, *shared_end;  // its __shared__ variables
  char *image_begin, *image_end;    // all of the module, constants among it
};

constexpr char module_symbol[] = "emulated_module";

}  // namespace emulated
