// SPDX-License-Identifier: Apache-2.0
// Operations are templates over element types that share an op: a call is made with the first of
// them that it fits. New operations are added at the end.
#include "ops.h"

#include <memory>
#include <string>
#include <utility>

#include <ejk/error.h>
#include <ejk/ops.h>
#include <ejk/registry.h>

#if __has_include(<ejk/ops/matmul.h>)
#include <ejk/ops/matmul.h>
#endif
#if __has_include(<ejk/ops/grouped_matmul.h>)
#include <ejk/ops/grouped_matmul.h>
#endif
#if __has_include(<ejk/ops/flash_attention.h>)
#include <ejk/ops/flash_attention.h>
#endif
#if __has_include(<ejk/ops/decode_attention.h>)
#include <ejk/ops/decode_attention.h>
#endif
#if __has_include(<ejk/ops/rms_norm.h>)
#include <ejk/ops/rms_norm.h>
#endif
#if __has_include(<ejk/ops/layer_norm.h>)
#include <ejk/ops/layer_norm.h>
#endif
#if __has_include(<ejk/ops/softmax.h>)
#include <ejk/ops/softmax.h>
#endif

namespace ejk::cli {
namespace {

template <class K>
void try_kernel(const RecordedCall& call, std::unique_ptr<RebuiltCall>& made, std::string& why) {
  if (made != nullptr) return;
  try {
    auto candidate = detail::rebuild_kernel<K>(call);
    if (call.id.spec.empty() || candidate->invocation().spec() == call.id.spec)
      made = std::move(candidate);
    else why = "no element type gives the recorded key";
  } catch (const Error& error) {
    why = error.what();
  }
}

template <class... K>
std::unique_ptr<RebuiltCall> rebuild_any(const RecordedCall& call) {
  std::unique_ptr<RebuiltCall> made;
  std::string why;
  (try_kernel<K>(call, made, why), ...);
  if (made == nullptr) throw Error(ErrorKind::invalid_argument, why);
  return made;
}

// All types are of one op.
template <class First, class... Rest>
[[maybe_unused]] void register_types() {
  KernelType type = detail::kernel_type<First>();
  type.rebuild = &rebuild_any<First, Rest...>;
  register_kernel(std::move(type));
}

}  // namespace

void register_ops() {
#if __has_include(<ejk/ops/matmul.h>)
  register_types<ops::Matmul<float>, ops::Matmul<BFloat16>, ops::Matmul<BFloat16, BFloat16>>();
#endif
#if __has_include(<ejk/ops/grouped_matmul.h>)
  register_types<ops::GroupedMatmul<float>, ops::GroupedMatmul<BFloat16>,
                 ops::GroupedMatmul<BFloat16, BFloat16>>();
#endif
#if __has_include(<ejk/ops/flash_attention.h>)
  register_types<ops::FlashAttention>();
#endif
#if __has_include(<ejk/ops/decode_attention.h>)
  register_types<ops::DecodeAttention>();
  register_types<ops::PagedDecodeAttention>();
#endif
#if __has_include(<ejk/ops/rms_norm.h>)
  register_types<ops::RmsNorm<float>, ops::RmsNorm<BFloat16>>();
#endif
#if __has_include(<ejk/ops/layer_norm.h>)
  register_types<ops::LayerNorm<float>, ops::LayerNorm<BFloat16>>();
#endif
#if __has_include(<ejk/ops/softmax.h>)
  register_types<ops::Softmax<float>, ops::Softmax<BFloat16>>();
#endif
}

}  // namespace ejk::cli
