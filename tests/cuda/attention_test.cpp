// SPDX-License-Identifier: Apache-2.0
// Attention on the emulated CUDA driver: the same sources and the same checks as on OpenCL.
#include <gtest/gtest.h>

#include "cuda/emulated_cuda.h"
#include "ops/devices/decode_attention.h"
#include "ops/devices/flash_attention.h"
#include "platform/backend.h"

namespace ops_test {
namespace {

class AttentionOnCuda : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(emulation.finding(), ""); }
  // Threads keep kernels, so nothing is closed.
  static const ejk::Device& device() {
    const auto& platform = *new ejk::detail::OpenedPlatform(ejk::detail::open_cuda());
    if (platform.devices.empty()) throw std::runtime_error(platform.why_none);
    return platform.devices[0];
  }
  EmulatedCuda emulation;
};

TEST_F(AttentionOnCuda, FlashIsRight) { check_flash(device()); }
TEST_F(AttentionOnCuda, FlashKeepsOutWhatIsNotSeen) { check_flash_with_infinities(device()); }
TEST_F(AttentionOnCuda, DecodingIsRight) { check_decode(device()); }
TEST_F(AttentionOnCuda, DecodingDoesNotReadPagesThatDoNotExist) {
  check_decode_without_a_page(device());
}

}  // namespace
}  // namespace ops_test
