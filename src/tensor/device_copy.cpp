// SPDX-License-Identifier: Apache-2.0
// Packed elements are copied as bytes by the device's backend; others are put in order on the CPU.
#include "tensor/device_copy.h"

#include <vector>

#include "platform/backend.h"
#include "platform/place.h"

namespace ejk::detail {
namespace {

// The block of memory that a view's elements lie in, brought to the CPU.
class Staged {
 public:
  explicit Staged(const AnyView& view) : view_(view), extent_(byte_extent(view)) {
    if (view.device == nullptr) return;
    block_.resize(extent_.bytes);
    backend_of(*view.device).read(block_.data(), view.data, begin(), block_.size());
  }
  // The same elements in CPU memory.
  AnyView view() {
    AnyView here = view_;
    if (view_.device == nullptr) return here;
    here.data = block_.data() - extent_.first;
    here.platform = Platform::cpu, here.device = nullptr, here.offset = 0;
    return here;
  }
  void put_back() const {
    if (view_.device != nullptr)
      backend_of(*view_.device).write(view_.data, begin(), block_.data(), block_.size());
  }

 private:
  size_t begin() const {
    return static_cast<size_t>(static_cast<int64_t>(view_.offset) + extent_.first);
  }

  AnyView view_;
  ByteExtent extent_;
  std::vector<std::byte> block_;
};

bool is_bytes(const AnyView& view) {
  return view.packed() && static_cast<size_t>(view.size()) * dtype_bits(view.dtype) % 8 == 0;
}

bool overlap(const AnyView& a, const AnyView& b) {
  return a.data == b.data && a.offset < b.offset + b.bytes() && b.offset < a.offset + a.bytes();
}

void copy_bytes(const AnyView& from, const AnyView& to) {
  const size_t bytes = from.bytes();
  if (from.device == nullptr)
    return backend_of(*to.device).write(to.data, to.offset, from.data, bytes);
  Backend& source = backend_of(*from.device);
  if (to.device == nullptr) return source.read(to.data, from.data, from.offset, bytes);
  if (from.device == to.device && !overlap(from, to))
    return source.copy(to.data, to.offset, from.data, from.offset, bytes);
  std::vector<std::byte> between(bytes);
  source.read(between.data(), from.data, from.offset, bytes);
  backend_of(*to.device).write(to.data, to.offset, between.data(), bytes);
}

}  // namespace

ByteExtent byte_extent(const AnyView& array) {
  if (array.strides.empty()) return {0, array.bytes()};
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < array.shape.size(); ++d) {
    if (array.shape[d] == 0) return {0, 0};
    const int64_t far = (array.shape[d] - 1) * array.strides[d];
    (far < 0 ? low : high) += far;
  }
  const auto bits = static_cast<int64_t>(dtype_bits(array.dtype));
  return {low * bits / 8, static_cast<size_t>(((high - low + 1) * bits + 7) / 8)};
}

void copy_by_device(const AnyView& from, const AnyView& to) {
  if (is_bytes(from) && is_bytes(to)) return copy_bytes(from, to);
  Staged source(from), target(to);
  copy_elements(source.view(), target.view());
  target.put_back();
}

}  // namespace ejk::detail
