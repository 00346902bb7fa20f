// SPDX-License-Identifier: Apache-2.0
// Small calls of the operations that run on devices, to be checked with any config: by the tests on
// every driver and compiler that there is, and by `ejk doctor --selftest`.
//
// An operation has its calls in device_cases.cpp of its folder, a function
//
//   void rms_norm_cases(const Device& device, const UseDeviceCase& use);
//
// which is declared and listed below, and makes each of them with use_case() or
// use_case_with_gradient() of ops/common/device_case.h. Shapes are odd, so that every bound counts,
// and small, as checkers are slow.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ejk/any_config.h>
#include <ejk/kernel.h>
#include <ejk/tuner.h>

namespace ejk::ops {

struct DeviceCase {
  std::string name;  // "float32[7, 133], weight"
  const AnyKernel& kernel;
  const Invocation& call;
  // Once, on arrays of exactly their size, and waits: for those who watch memory.
  std::function<void(const AnyConfig&)> run;
  // The local memory that the space says a config needs, of the kernel that needs most; of the
  // gradient's too, if that runs.
  std::function<int64_t(const AnyConfig&, bool with_gradient)> local_bytes;
  // What forward and backward leave on the CPU, with the output as cotangent; empty: there is no
  // gradient, or nothing of it but rounding.
  std::function<std::vector<OutputBytes>()> gradient = {};
};
using UseDeviceCase = std::function<void(const DeviceCase&)>;

void rms_norm_cases(const Device& device, const UseDeviceCase& use);
void layer_norm_cases(const Device& device, const UseDeviceCase& use);
void softmax_cases(const Device& device, const UseDeviceCase& use);
void matmul_cases(const Device& device, const UseDeviceCase& use);
void grouped_matmul_cases(const Device& device, const UseDeviceCase& use);
void flash_attention_cases(const Device& device, const UseDeviceCase& use);
void decode_attention_cases(const Device& device, const UseDeviceCase& use);

struct DeviceOp {
  std::string_view name;
  void (*cases)(const Device& device, const UseDeviceCase& use);
};
inline constexpr DeviceOp device_ops[] = {
    {"rms_norm", rms_norm_cases},
    {"layer_norm", layer_norm_cases},
    {"softmax", softmax_cases},
    {"matmul", matmul_cases},
    {"grouped_matmul", grouped_matmul_cases},
    {"flash_attention", flash_attention_cases},
    {"decode_attention", decode_attention_cases},
};

}  // namespace ejk::ops
