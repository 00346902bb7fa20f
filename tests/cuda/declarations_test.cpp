// SPDX-License-Identifier: Apache-2.0
// The library's own declarations of CUDA are CUDA's, where there is a toolkit to compare them with.
#include <gtest/gtest.h>

#if __has_include(<cuda.h>) && __has_include(<nvrtc.h>)
#include <cuda.h>
#include <nvrtc.h>

#include "platform/cuda/driver_api.h"
#include "platform/cuda/nvrtc_api.h"

namespace ejk::detail::cuda {
namespace {

// Functions that a caller cannot tell apart: parameters of equal sizes and of the same kind.
template <class A, class B>
constexpr bool passed_alike =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
template <class R, class... P, class S, class... Q>
constexpr bool alike(R (*)(P...), S (*)(Q...)) {
  if constexpr (sizeof...(P) == sizeof...(Q))
    return sizeof(R) == sizeof(S) && (passed_alike<P, Q> && ...);
  else return false;
}

#define EJK_COMPARE(name, parameters) \
  static_assert(alike(decltype(DriverApi::name){}, decltype(&::name){}), #name);
EJK_CUDA_DRIVER_CALLS(EJK_COMPARE)
EJK_CUDA_NEWER_DRIVER_CALLS(EJK_COMPARE)
#undef EJK_COMPARE
#define EJK_COMPARE(name, parameters) \
  static_assert(alike(decltype(NvrtcApi::name){}, decltype(&::name){}), #name);
EJK_NVRTC_CALLS(EJK_COMPARE)
#undef EJK_COMPARE

constexpr bool equal(auto ours, auto theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(equal(success, CUDA_SUCCESS) && equal(invalid_value, CUDA_ERROR_INVALID_VALUE));
static_assert(equal(out_of_memory, CUDA_ERROR_OUT_OF_MEMORY));
static_assert(equal(not_initialized, CUDA_ERROR_NOT_INITIALIZED));
static_assert(equal(no_device, CUDA_ERROR_NO_DEVICE) &&
              equal(invalid_device, CUDA_ERROR_INVALID_DEVICE));
static_assert(equal(invalid_image, CUDA_ERROR_INVALID_IMAGE));
static_assert(equal(invalid_context, CUDA_ERROR_INVALID_CONTEXT));
static_assert(equal(no_binary_for_gpu, CUDA_ERROR_NO_BINARY_FOR_GPU));
static_assert(equal(ecc_uncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE));
static_assert(equal(invalid_handle, CUDA_ERROR_INVALID_HANDLE) &&
              equal(not_found, CUDA_ERROR_NOT_FOUND));
static_assert(equal(illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS));
static_assert(equal(launch_out_of_resources, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES));
static_assert(equal(misaligned_address, CUDA_ERROR_MISALIGNED_ADDRESS));
static_assert(equal(launch_failed, CUDA_ERROR_LAUNCH_FAILED));

using A = DeviceAttribute;
static_assert(equal(A::max_threads_per_block, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK));
static_assert(equal(A::max_shared_memory_per_block,
                    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
static_assert(equal(A::warp_size, CU_DEVICE_ATTRIBUTE_WARP_SIZE));
static_assert(equal(A::multiprocessor_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
static_assert(equal(A::l2_cache_size, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
static_assert(equal(A::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
static_assert(equal(A::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
static_assert(equal(A::max_shared_memory_per_block_optin,
                    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
static_assert(equal(event_default, CU_EVENT_DEFAULT) && equal(stream_default, CU_STREAM_DEFAULT));

using N = NvrtcStatus;
static_assert(equal(N::success, NVRTC_SUCCESS) &&
              equal(N::out_of_memory, NVRTC_ERROR_OUT_OF_MEMORY));
static_assert(equal(N::invalid_input, NVRTC_ERROR_INVALID_INPUT));
static_assert(equal(N::invalid_program, NVRTC_ERROR_INVALID_PROGRAM));
static_assert(equal(N::invalid_option, NVRTC_ERROR_INVALID_OPTION));
static_assert(equal(N::compilation, NVRTC_ERROR_COMPILATION));

TEST(DeclarationsTest, AreThoseOfCuda) {}  // it has compiled

}  // namespace
}  // namespace ejk::detail::cuda
#else
TEST(DeclarationsTest, AreThoseOfCuda) { GTEST_SKIP() << "there is no toolkit with cuda.h here"; }
#endif
