// SPDX-License-Identifier: Apache-2.0
// One matrix product on an OpenCL or CUDA device, or many of equal sizes: what the matrix
// operations are made of there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ejk/gpu.h>
#include <ejk/ops/matmul.h>
#include <ejk/space.h>

namespace ejk::ops {

// A packed array of a device without its types.
struct DeviceArray {
  const Device* device = nullptr;
  void* memory = nullptr;
  size_t offset = 0;
};
template <class T, int Rank>
DeviceArray device_array(const DeviceView<T, Rank>& view) {
  return {view.device, view.memory, view.offset};
}
inline DeviceArray device_array(const Tensor& packed) {
  const AnyView view = packed.any();
  return {view.device, view.data, view.offset};
}

// What a program is made for, beside its blocking.
struct ProductKind {
  DType a = DType::float32, b = DType::float32, c = DType::float32;
  bool a_across = false, b_across = false;  // they lie transposed: a[k, m], b[n, k]
  bool bias = false;                        // of the type of a
  enum class Groups {
    none,
    of_rows,   // rows of a and c belong to groups, each with a b of its own
    of_depth,  // columns of a and rows of b do, each with a c of its own
  };
  Groups groups = Groups::none;
};

// c[m, n] = a[m, k] b[k, n] + bias[n], `batch` times.
struct ProductSizes {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t groups = 0;  // of rows: how many there are; of depth: that is the batch
};

struct DeviceProduct {
  ProductKind kind;
  ProductSizes sizes;
  DeviceArray a, b, c;
  bool a_serves_all = false, b_serves_all = false;  // one matrix for the whole batch
  DeviceArray bias = {};                            // if there is one
  DeviceArray group_sizes = {};                     // int32, if there are groups
};

// Throws Error(invalid_argument) for a blocking that no device can run, or for sizes beyond 2^30.
void run_on_device(std::string_view op, const MatmulGpuBlocking& blocking, const DeviceProduct& p);

// to[columns] = the sums of from[rows, columns] over the rows, both float32 or bfloat16.
void sum_rows_on_device(int64_t rows, int64_t columns, const DeviceArray& from, DType from_type,
                        const DeviceArray& to, DType to_type);

// to[batch, columns, rows] = from[batch, rows, columns] transposed, of float32 or bfloat16.
void transpose_on_device(std::string_view op, int64_t batch, int64_t rows, int64_t columns,
                         DType dtype, const DeviceArray& from, const DeviceArray& to);

// Whether a device can run it.
bool product_can_run(const MatmulGpuBlocking& blocking, const ProductKind& kind,
                     const Device& device);
// The local memory that a group takes.
int64_t product_local_bytes(const MatmulGpuBlocking& blocking, const ProductKind& kind);
// The same of all products of an operation, whose gradients are of type `gradient`.
template <class Config>
int64_t products_local_bytes(const Config& config, const ProductKind& forward, DType gradient,
                             bool with_gradient) {
  const int64_t bytes = product_local_bytes(config.forward, forward);
  const ProductKind kind{.c = gradient};
  return with_gradient ? std::max({bytes, product_local_bytes(config.grad_a, kind),
                                   product_local_bytes(config.grad_b, kind)})
                       : bytes;
}
MatmulGpuBlocking product_guess(const ProductKind& kind, const ProductSizes& sizes,
                                const Device& device);
// The guess and some others, for products that are tuned beside another one.
std::vector<MatmulGpuBlocking> product_variations(const MatmulGpuBlocking& guess,
                                                  const ProductKind& kind, const Device& device);

// What is worth measuring, field by field: most values depend on the fields before.
class BlockingChoices {
 public:
  using B = MatmulGpuBlocking;
  BlockingChoices(const ProductKind& kind, const ProductSizes& sizes, const Device& device)
      : kind_(kind), sizes_(sizes), device_(&device) {}

  std::vector<B::Way> ways() const;
  std::vector<int> tm(const B& so_far) const;
  std::vector<int> tn(const B& so_far) const;
  std::vector<int> width(const B& so_far) const;
  bool has_sensible_tile(const B& so_far) const;
  std::vector<MatmulBlocking::Pack> pack(const B& so_far) const;
  std::vector<int> bm(const B& so_far) const;
  std::vector<int> bn(const B& so_far) const;
  std::vector<int> bk(const B& so_far) const;
  std::vector<int> stages(const B& so_far) const;
  std::vector<int> pad(const B& so_far) const;
  bool accepts(const B& blocking) const;

 private:
  ProductKind kind_;
  ProductSizes sizes_;
  const Device* device_;
};

// One of the products of an operation and its gradients.
struct KnownProduct {
  ProductKind kind;
  ProductSizes sizes;
};

// What an operation has of them, in the fields of its GpuConfig.
struct KnownProducts {
  KnownProduct forward, grad_a, grad_b;

  template <class Config>
  Config guess(const Device& device) const {
    const auto one = [&](const KnownProduct& p) { return product_guess(p.kind, p.sizes, device); };
    return {one(forward), one(grad_a), one(grad_b)};
  }
  template <class Config>
  bool can_run(const Config& config, const Device& device) const {
    return product_can_run(config.forward, forward.kind, device) &&
           product_can_run(config.grad_a, grad_a.kind, device) &&
           product_can_run(config.grad_b, grad_b.kind, device);
  }
  template <class Config>
  Space<Config> space(const Device& device, bool backward) const;
};

template <class Config>
Space<Config> KnownProducts::space(const Device& device, bool backward) const {
  using B = MatmulGpuBlocking;
  constexpr auto field = &Config::forward;
  const Config guessed = guess<Config>(device);
  const BlockingChoices choices(forward.kind, forward.sizes, device);
  const auto of_gradient = [&](const B& b, const KnownProduct& p) {
    return backward ? product_variations(b, p.kind, device) : std::vector{b};
  };
  const auto values = [=](auto of) {
    return [=](const Config& c) { return (choices.*of)(c.*field); };
  };
  using Choices = BlockingChoices;
  return ejk::space<Config>()
      .param(field, &B::way, choices.ways())
      .param(field, &B::tm, values(&Choices::tm))
      .param(field, &B::tn, values(&Choices::tn))
      .param(field, &B::width, values(&Choices::width))
      .where(values(&Choices::has_sensible_tile))
      .param(field, &B::pack, values(&Choices::pack))
      .param(field, &B::bm, values(&Choices::bm))
      .param(field, &B::bn, values(&Choices::bn))
      .param(field, &B::bk, values(&Choices::bk))
      .param(field, &B::stages, values(&Choices::stages))
      .param(field, &B::pad, values(&Choices::pad))
      .where(values(&Choices::accepts))
      .param(&Config::grad_a, of_gradient(guessed.grad_a, grad_a))
      .param(&Config::grad_b, of_gradient(guessed.grad_b, grad_b));
}

}  // namespace ejk::ops
