// SPDX-License-Identifier: Apache-2.0
// Arrays and options as the arguments of each operation's kernel.
#include "named_ops.h"

#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ejk/ejk.h>
#include <ejk/ops.h>

namespace ejk::python {
namespace {

// ---- options and arrays -------------------------------------------------------------------------

const Value* option(const Value& options, std::string_view name) {
  const Value* found = options.find(name);
  return found == nullptr || found->is_null() ? nullptr : found;
}
bool flag(const Value& options, std::string_view name) {
  const Value* found = option(options, name);
  return found != nullptr && found->as_bool();
}
std::optional<float> number(const Value& options, std::string_view name) {
  const Value* found = option(options, name);
  if (found == nullptr) return std::nullopt;
  return static_cast<float>(found->as_double());
}
std::optional<int64_t> whole(const Value& options, std::string_view name) {
  const Value* found = option(options, name);
  if (found == nullptr) return std::nullopt;
  return found->as_int();
}

// The inputs one after the other.
class Inputs {
 public:
  Inputs(std::string_view op, const OpCall& call) : op_(op), call_(call) {}
  const Tensor& next() {
    if (at_ == call_.inputs.size())
      throw Error(ErrorKind::invalid_argument, "[" + std::string(op_) + "] " + std::to_string(at_) +
                                                   " arrays were given: more are needed");
    return call_.inputs[at_++];
  }
  // The next one if the option of that name says that it is there.
  std::optional<Tensor> next_if(std::string_view name) {
    if (!flag(call_.options, name)) return std::nullopt;
    return next();
  }
  std::vector<int32_t> next_numbers_if(std::string_view name) {
    const std::optional<Tensor> found = next_if(name);
    if (!found) return {};
    const auto numbers = found->view<const int32_t, 1>().span();
    return {numbers.begin(), numbers.end()};
  }
  // That was all of them.
  void end() const {
    if (at_ != call_.inputs.size())
      throw Error(ErrorKind::invalid_argument,
                  "[" + std::string(op_) + "] " + std::to_string(call_.inputs.size()) +
                      " arrays were given: " + std::to_string(at_) + " are needed");
  }

 private:
  std::string_view op_;
  const OpCall& call_;
  size_t at_ = 0;
};

// What run and pull work with, as far as their kernels do not look at it themselves.
class Checks {
 public:
  Checks(std::string_view op, std::span<const Tensor> results) : op_(op), results_(results) {}

  void count(size_t least, size_t most) const {
    if (results_.size() < least || results_.size() > most)
      refuse(std::to_string(results_.size()) + " results",
             std::to_string(least) + (least == most ? "" : " or " + std::to_string(most)) +
                 " of them");
  }
  void rank(std::string_view name, const Tensor& array, int needed) const {
    if (array.rank() != needed)
      refuse(text(name, array), "an array with " + std::to_string(needed) + " axes");
  }
  void type(std::string_view name, const Tensor& array, DType dtype,
            const std::vector<int64_t>& shape) const {
    if (array.dtype() != dtype || array.shape() != shape)
      refuse(text(name, array), std::string(dtype_name(dtype)) + shape_text(shape));
  }
  void like(std::string_view name, const Tensor& array, const Tensor& other) const {
    type(name, array, other.dtype(), other.shape());
  }
  void result(size_t i, DType dtype, const std::vector<int64_t>& shape) const {
    if (i < results_.size()) type("result " + std::to_string(i), results_[i], dtype, shape);
  }
  void result(size_t i, const Tensor& like) const { result(i, like.dtype(), like.shape()); }

 private:
  static std::string text(std::string_view name, const Tensor& array) {
    return std::string(name) + " of " + std::string(dtype_name(array.dtype())) +
           shape_text(array.shape());
  }
  [[noreturn]] void refuse(const std::string& given, const std::string& needed) const {
    throw Error(ErrorKind::invalid_argument,
                "[" + std::string(op_) + "] got " + given + "; expected " + needed);
  }
  std::string_view op_;
  std::span<const Tensor> results_;
};

[[noreturn]] void refuse_elements(std::string_view op, DType dtype) {
  throw Error(ErrorKind::invalid_argument, "[" + std::string(op) + "] elements of " +
                                               std::string(dtype_name(dtype)) +
                                               " were given: float32 or bfloat16 are needed");
}

template <class F>
decltype(auto) with_element(std::string_view op, DType dtype, const F& f) {
  if (dtype == DType::float32) return f.template operator()<float>();
  if (dtype == DType::bfloat16) return f.template operator()<BFloat16>();
  refuse_elements(op, dtype);
}

template <class T>
std::optional<std::span<const T>> line(const std::optional<Tensor>& tensor) {
  if (!tensor) return std::nullopt;
  return tensor->view<const T, 1>().span();
}

void give(const Tensor& gradient, const Tensor& result) {
  copy_elements(gradient.any(), result.any());
}

DType result_type(const Value& options, DType otherwise) {
  const Value* name = option(options, "result");
  return name == nullptr ? otherwise : dtype_from_name(name->as_string());
}

// ---- what an operation must say -----------------------------------------------------------------

// Its kernel's type and arguments for a call, `with(call, out, f)`: f(kernel, arguments...).
// Without `out` the arguments are only looked at, and their elements need not be there. `run` if
// the kernel returns its result, or can give more than that; `pull`; and `call`, on tensors.
template <class Op>
class Named final : public NamedOp {
 public:
  Value heuristic(const OpCall& call) const override {
    return Op::with(call, nullptr, [](const auto& kernel, const auto&... args) {
      return to_value(kernel.heuristic_cfg(invocation(kernel, args...)));
    });
  }
  std::vector<Value> candidates(const OpCall& call, bool backward) const override {
    return Op::with(call, nullptr, [&](const auto& kernel, const auto&... args) {
      Invocation inv = invocation(kernel, args...);
      inv.backward = backward;
      std::vector<Value> out;
      for (const auto& config : kernel.candidate_cfgs(inv).configs())
        out.push_back(to_value(config));
      return out;
    });
  }
  bool is_valid(const Value& value, const OpCall& call) const override {
    return Op::with(call, nullptr, [&]<class K>(const K& kernel, const auto&... args) {
      const auto config = from_value<typename K::Config>(value);
      return kernel.is_valid(config, invocation(kernel, args...));
    });
  }
  AnyConfig read(const Value& config, DType dtype, const Value& options) const override {
    return Op::with_kernel(dtype, options, [&]<class K>(const K&) {
      return make_config(from_value<typename K::Config>(config));
    });
  }
  Tensor call(const OpCall& call) const override { return Op::call(call); }
  void check(const OpCall& call, std::span<const Tensor> results, bool pull) const override {
    Inputs inputs(Op::name, call);
    Op::check(inputs, Checks(Op::name, results), pull);
    inputs.end();
  }
  void run(const AnyConfig& config, const OpCall& call,
           std::span<const Tensor> results) const override {
    if constexpr (requires { Op::run(config, call, results); }) Op::run(config, call, results);
    else
      Op::with(call, &results[0], [&]<class K>(const K& kernel, const auto&... args) {
        kernel.run(config.as<typename K::Config>(), args...);
      });
  }
  void pull(const AnyConfig& config, const OpCall& call,
            std::span<const Tensor> results) const override {
    Op::pull(config, call, results);
  }

 private:
  template <class K, class... Args>
  static Invocation invocation(const K& kernel, const Args&... args) {
    using P = detail::Plan<K, Context::plain, Platform::cpu>;
    return P::invocation(kernel, P::bind_all(args...), typename P::Indices{});
  }
};

// ---- over the last axis -------------------------------------------------------------------------

struct SoftmaxOp {
  static constexpr std::string_view name = "softmax";
  template <class F>
  static auto with_kernel(DType dtype, const Value&, const F& f) {
    return with_element(name, dtype, [&]<class T>() { return f(ops::Softmax<T>{}); });
  }
  template <class F>
  static auto with(const OpCall& call, const Tensor* out, const F& f) {
    const Tensor& x = Inputs(name, call).next();
    return with_element(name, x.dtype(), [&]<class T>() {
      return f(ops::Softmax<T>{}, x.strided<const T, 2>(), scale(call),
               Out((out != nullptr ? *out : x).strided<T, 2>()));
    });
  }
  static Tensor call(const OpCall& call) {
    return ops::softmax(Inputs(name, call).next(), scale(call));
  }
  static void check(Inputs& inputs, const Checks& checks, bool pull) {
    const Tensor& x = inputs.next();
    checks.rank("x", x, 2);
    if (pull) checks.like("dy", inputs.next(), x);
    checks.count(1, 1), checks.result(0, x);
  }
  // y, dy -> dx
  static void pull(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    Inputs inputs(name, call);
    const Tensor &y = inputs.next(), &dy = inputs.next();
    with_element(name, y.dtype(), [&]<class T>() {
      const auto out = y.strided<const T, 2>();
      give(std::get<0>(ops::Softmax<T>{}.vjp(config.as<ops::RowConfig>(), {}, out,
                                             dy.strided<const T, 2>(), out, scale(call),
                                             Out(y.strided<T, 2>()))),
           results[0]);
    });
  }
  static float scale(const OpCall& call) { return number(call.options, "scale").value_or(1.f); }
};

struct RmsNormOp {
  static constexpr std::string_view name = "rms_norm";
  template <class F>
  static auto with_kernel(DType dtype, const Value&, const F& f) {
    return with_element(name, dtype, [&]<class T>() { return f(ops::RmsNorm<T>{}); });
  }
  template <class F>
  static auto with(const OpCall& call, const Tensor* out, const F& f) {
    Inputs inputs(name, call);
    const Tensor& x = inputs.next();
    const auto weight = inputs.next_if("weight");
    return with_element(name, x.dtype(), [&]<class T>() {
      return f(ops::RmsNorm<T>{}, x.strided<const T, 2>(), line<T>(weight), eps(call),
               Out((out != nullptr ? *out : x).strided<T, 2>()));
    });
  }
  static Tensor call(const OpCall& call) {
    Inputs inputs(name, call);
    const Tensor& x = inputs.next();
    return ops::rms_norm(x, inputs.next_if("weight"), eps(call));
  }
  static void check(Inputs& inputs, const Checks& checks, bool pull) {
    const Tensor& x = inputs.next();
    checks.rank("x", x, 2);
    const int64_t rows = x.shape()[0], columns = x.shape()[1];
    const auto weight = inputs.next_if("weight");
    if (weight) checks.type("weight", *weight, x.dtype(), {columns});
    if (pull) {
      checks.type("scales", inputs.next(), DType::float32, {rows});
      checks.like("dy", inputs.next(), x);
    }
    const size_t gradients = weight ? 2 : 1;
    checks.count(pull ? gradients : 1, pull ? gradients : 2), checks.result(0, x);
    if (pull) checks.result(1, x.dtype(), {columns});
    else checks.result(1, DType::float32, {rows});
  }
  // x, weight -> out, scales
  static void run(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    with(call, &results[0], [&](const auto& kernel, const auto&... args) {
      const auto& how = config.as<ops::RowConfig>();
      if (results.size() == 1) return kernel.run(how, args...);
      const auto kept = kernel.fwd_with_residuals(how, args...).second;
      std::ranges::copy(kept.scales, results[1].data<float>());
    });
  }
  // x, weight, scales, dy -> dx, dweight
  static void pull(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    Inputs inputs(name, call);
    const Tensor& x = inputs.next();
    const auto weight = inputs.next_if("weight");
    const auto scales = inputs.next().view<const float, 1>().span();
    const Tensor& dy = inputs.next();
    with_element(name, x.dtype(), [&]<class T>() {
      const auto [dx, dweight] = ops::RmsNorm<T>{}.vjp(
          config.as<ops::RowConfig>(), {{scales.begin(), scales.end()}}, dy.strided<const T, 2>(),
          x.strided<const T, 2>(), line<T>(weight), eps(call), Out(x.strided<T, 2>()));
      give(dx, results[0]);
      if (dweight) give(*dweight, results[1]);
    });
  }
  static float eps(const OpCall& call) { return number(call.options, "eps").value_or(1e-6f); }
};

struct LayerNormOp {
  static constexpr std::string_view name = "layer_norm";
  template <class F>
  static auto with_kernel(DType dtype, const Value&, const F& f) {
    return with_element(name, dtype, [&]<class T>() { return f(ops::LayerNorm<T>{}); });
  }
  template <class F>
  static auto with(const OpCall& call, const Tensor* out, const F& f) {
    Inputs inputs(name, call);
    const Tensor& x = inputs.next();
    const auto weight = inputs.next_if("weight"), bias = inputs.next_if("bias");
    return with_element(name, x.dtype(), [&]<class T>() {
      return f(ops::LayerNorm<T>{}, x.strided<const T, 2>(), line<T>(weight), line<T>(bias),
               eps(call), Out((out != nullptr ? *out : x).strided<T, 2>()));
    });
  }
  static Tensor call(const OpCall& call) {
    Inputs inputs(name, call);
    const Tensor& x = inputs.next();
    const auto weight = inputs.next_if("weight"), bias = inputs.next_if("bias");
    return ops::layer_norm(x, weight, bias, eps(call));
  }
  static void check(Inputs& inputs, const Checks& checks, bool pull) {
    const Tensor& x = inputs.next();
    checks.rank("x", x, 2);
    const int64_t rows = x.shape()[0], columns = x.shape()[1];
    size_t gradients = 1;
    for (const char* line : {"weight", "bias"})
      if (const auto given = inputs.next_if(line))
        checks.type(line, *given, x.dtype(), {columns}), ++gradients;
    if (pull) {
      checks.type("moments", inputs.next(), DType::float32, {rows, 3});
      checks.like("dy", inputs.next(), x);
    }
    checks.count(pull ? gradients : 1, pull ? gradients : 2), checks.result(0, x);
    if (!pull) return checks.result(1, DType::float32, {rows, 3});
    for (size_t i = 1; i < gradients; ++i) checks.result(i, x.dtype(), {columns});
  }
  // x, weight, bias -> out, moments [rows, 3]
  static void run(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    with(call, &results[0], [&](const auto& kernel, const auto&... args) {
      const auto& how = config.as<ops::RowConfig>();
      if (results.size() == 1) return kernel.run(how, args...);
      const auto kept = kernel.fwd_with_residuals(how, args...).second;
      float* to = results[1].data<float>();
      for (const ops::RowMoments& m : kept.moments)
        *to++ = m.mean, *to++ = m.rest_of_mean, *to++ = m.scale;
    });
  }
  // x, weight, bias, moments, dy -> dx, dweight, dbias
  static void pull(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    Inputs inputs(name, call);
    const Tensor& x = inputs.next();
    const auto weight = inputs.next_if("weight"), bias = inputs.next_if("bias");
    const auto moments = inputs.next().view<const float, 2>();
    const Tensor& dy = inputs.next();
    with_element(name, x.dtype(), [&]<class T>() {
      typename ops::LayerNorm<T>::Residuals kept;
      for (int64_t i = 0; i < moments.shape[0]; ++i)
        kept.moments.push_back({moments(i, 0), moments(i, 1), moments(i, 2)});
      const auto [dx, dweight, dbias] = ops::LayerNorm<T>{}.vjp(
          config.as<ops::RowConfig>(), kept, dy.strided<const T, 2>(), x.strided<const T, 2>(),
          line<T>(weight), line<T>(bias), eps(call), Out(x.strided<T, 2>()));
      size_t at = 0;
      give(dx, results[at++]);
      if (dweight) give(*dweight, results[at++]);
      if (dbias) give(*dbias, results[at]);
    });
  }
  static float eps(const OpCall& call) { return number(call.options, "eps").value_or(1e-5f); }
};

// ---- products -----------------------------------------------------------------------------------

// f with the element types of a product.
template <class F>
decltype(auto) with_product(std::string_view op, DType dtype, const Value& options, const F& f) {
  if (dtype == DType::float32) return f.template operator()<float, float>();
  if (dtype != DType::bfloat16) refuse_elements(op, dtype);
  if (result_type(options, DType::bfloat16) == DType::float32)
    return f.template operator()<BFloat16, float>();
  return f.template operator()<BFloat16, BFloat16>();
}

struct MatmulOp {
  static constexpr std::string_view name = "matmul";

  // [batch, rows, columns] in the order of the product.
  template <class T>
  static StridedView<T, 3> matrices(const Tensor& t, bool transpose) {
    auto v = t.strided<T, 3>();
    if (transpose) std::swap(v.shape[1], v.shape[2]), std::swap(v.strides[1], v.strides[2]);
    return v;
  }
  struct Arguments {
    Tensor a, b;
    std::optional<Tensor> bias;
    bool transpose_a, transpose_b;
    Arguments(Inputs& inputs, const OpCall& call)
        : a(inputs.next()),
          b(inputs.next()),
          bias(inputs.next_if("bias")),
          transpose_a(flag(call.options, "transpose_a")),
          transpose_b(flag(call.options, "transpose_b")) {}

    // f(kernel, a, b, bias, c)
    template <class F>
    auto apply(const Value& options, const Tensor* c, const F& f) const {
      return with_product(name, a.dtype(), options, [&]<class In, class Result>() {
        const auto left = matrices<const In>(a, transpose_a);
        const auto right = matrices<const In>(b, transpose_b);
        std::optional<StridedView<const In, 1>> row;
        if (bias) row = bias->strided<const In, 1>();
        StridedView<Result, 3> product(View<Result, 3>{
            nullptr, {std::max(left.shape[0], right.shape[0]), left.shape[1], right.shape[2]}});
        if (c != nullptr) product = c->strided<Result, 3>();
        return f(ops::Matmul<In, Result>{}, left, right, row, Out(product));
      });
    }
  };

  template <class F>
  static auto with_kernel(DType dtype, const Value& options, const F& f) {
    return with_product(name, dtype, options,
                        [&]<class In, class Result>() { return f(ops::Matmul<In, Result>{}); });
  }
  template <class F>
  static auto with(const OpCall& call, const Tensor* out, const F& f) {
    Inputs inputs(name, call);
    return Arguments(inputs, call).apply(call.options, out, f);
  }
  static Tensor call(const OpCall& call) {
    Inputs inputs(name, call);
    const Arguments given(inputs, call);
    ops::MatmulOptions options{given.transpose_a, given.transpose_b, given.bias};
    options.result = result_type(call.options, given.a.dtype());
    return ops::matmul(given.a, given.b, options);
  }
  static void check(Inputs& inputs, const Checks& checks, bool pull) {
    const Tensor &a = inputs.next(), &b = inputs.next();
    const auto bias = inputs.next_if("bias");
    if (!pull) return checks.count(1, 1);
    inputs.next();
    const size_t gradients = bias ? 3 : 2;
    checks.count(gradients, gradients), checks.result(0, a), checks.result(1, b);
    if (bias) checks.result(2, *bias);
  }
  // a, b, bias, dc -> da, db, dbias
  static void pull(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    Inputs inputs(name, call);
    const Arguments given(inputs, call);
    const Tensor& dc = inputs.next();
    given.apply(call.options, &dc,
                [&]<class K>(const K& kernel, const auto& a, const auto& b, const auto& bias,
                             const auto& c) {
                  const auto [da, db, dbias] =
                      kernel.vjp(config.as<typename K::Config>(), {}, *c, a, b, bias, c);
                  give(given.transpose_a ? da.transposed({0, 2, 1}) : da, results[0]);
                  give(given.transpose_b ? db.transposed({0, 2, 1}) : db, results[1]);
                  if (dbias) give(*dbias, results[2]);
                });
  }
};

struct GroupedMatmulOp {
  static constexpr std::string_view name = "grouped_matmul";
  template <class F>
  static auto with_kernel(DType dtype, const Value& options, const F& f) {
    return with_product(name, dtype, options, [&]<class In, class Result>() {
      return f(ops::GroupedMatmul<In, Result>{});
    });
  }
  // f(kernel, a, b, group sizes, c)
  template <class F>
  static auto with(const OpCall& call, const Tensor* c, const F& f) {
    Inputs inputs(name, call);
    const Tensor &a = inputs.next(), &b = inputs.next(), &sizes = inputs.next();
    return with_product(name, a.dtype(), call.options, [&]<class In, class Result>() {
      const auto rows = a.strided<const In, 2>();
      const auto matrices = b.strided<const In, 3>();
      StridedView<Result, 2> product(View<Result, 2>{nullptr, {rows.shape[0], matrices.shape[2]}});
      if (c != nullptr) product = c->strided<Result, 2>();
      return f(ops::GroupedMatmul<In, Result>{}, rows, matrices,
               sizes.view<const int32_t, 1>().span(), Out(product));
    });
  }
  static Tensor call(const OpCall& call) {
    Inputs inputs(name, call);
    const Tensor &a = inputs.next(), &b = inputs.next(), &sizes = inputs.next();
    return ops::grouped_matmul(a, b, sizes, result_type(call.options, a.dtype()));
  }
  static void check(Inputs& inputs, const Checks& checks, bool pull) {
    const Tensor &a = inputs.next(), &b = inputs.next();
    inputs.next();
    if (!pull) return checks.count(1, 1);
    inputs.next();
    checks.count(2, 2), checks.result(0, a), checks.result(1, b);
  }
  // a, b, group sizes, dc -> da, db
  static void pull(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    with(call, &call.inputs.back(),
         [&]<class K>(const K& kernel, const auto& a, const auto& b, const auto& sizes,
                      const auto& c) {
           const auto [da, db] =
               kernel.vjp(config.as<typename K::Config>(), {}, *c, a, b, sizes, c);
           give(da, results[0]), give(db, results[1]);
         });
  }
};

// ---- attention ----------------------------------------------------------------------------------

struct FlashAttentionOp {
  static constexpr std::string_view name = "flash_attention";
  struct Arguments {
    Tensor q, k, v;
    ops::AttentionOptions options;
    Arguments(Inputs& inputs, const OpCall& call)
        : q(inputs.next()), k(inputs.next()), v(inputs.next()) {
      options.causal = flag(call.options, "causal");
      options.window_left = whole(call.options, "window_left");
      options.window_right = whole(call.options, "window_right");
      options.softcap = number(call.options, "softcap");
      options.scale = number(call.options, "scale");
      options.query_seq_lengths = inputs.next_numbers_if("query_seq_lengths");
      options.key_value_seq_lengths = inputs.next_numbers_if("key_value_seq_lengths");
    }
  };
  template <class F>
  static auto with_kernel(DType, const Value&, const F& f) {
    return f(ops::FlashAttention{});
  }
  template <class F>
  static auto with(const OpCall& call, const Tensor*, const F& f) {
    // Of the lengths only their presence counts, and without elements they cannot be read.
    OpCall bare{{call.inputs.begin(), call.inputs.begin() + std::min<long>(3, ssize(call.inputs))},
                call.options};
    for (const char* lengths : {"query_seq_lengths", "key_value_seq_lengths"})
      bare.options[lengths] = false;
    Inputs inputs(name, bare);
    const Arguments given(inputs, bare);
    return f(ops::FlashAttention{}, given.q, given.k, given.v, given.options);
  }
  static Tensor call(const OpCall& call) {
    Inputs inputs(name, call);
    const Arguments given(inputs, call);
    return ops::flash_attention(given.q, given.k, given.v, given.options);
  }
  static void check(Inputs& inputs, const Checks& checks, bool pull) {
    const Tensor &q = inputs.next(), &k = inputs.next(), &v = inputs.next();
    checks.rank("q", q, 4);
    for (const char* lengths : {"query_seq_lengths", "key_value_seq_lengths"})
      if (const auto given = inputs.next_if(lengths))
        checks.type(lengths, *given, DType::int32, {q.shape()[0]});
    const std::vector<int64_t> lse{q.shape()[0], q.shape()[2], q.shape()[1]};
    checks.result(0, q);
    if (!pull) return checks.count(1, 2), checks.result(1, DType::float32, lse);
    checks.like("out", inputs.next(), q);
    checks.type("lse", inputs.next(), DType::float32, lse);
    checks.like("dout", inputs.next(), q);
    checks.count(3, 3), checks.result(1, k), checks.result(2, v);
  }
  // q, k, v, lengths of queries, lengths of keys -> out, lse
  static void run(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    Inputs inputs(name, call);
    const Arguments given(inputs, call);
    ops::FlashAttention{}.write(config.as<ops::FlashAttention::Config>(), given.q, given.k, given.v,
                                results[0].any(), given.options,
                                results.size() > 1 ? results[1].data<float>() : nullptr);
  }
  // q, k, v, lengths of queries, lengths of keys, out, lse, dout -> dq, dk, dv
  static void pull(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    Inputs inputs(name, call);
    const Arguments given(inputs, call);
    const Tensor &out = inputs.next(), &lse = inputs.next(), &dout = inputs.next();
    const auto [dq, dk, dv] =
        ops::FlashAttention{}.vjp(config.as<ops::FlashAttention::Config>(), {lse}, out, dout,
                                  given.q, given.k, given.v, given.options);
    give(dq, results[0]), give(dk, results[1]), give(dv, results[2]);
  }
};

template <bool Paged>
struct DecodeAttentionOp {
  static constexpr std::string_view name = Paged ? "paged_decode_attention" : "decode_attention";
  using Kernel = std::conditional_t<Paged, ops::PagedDecodeAttention, ops::DecodeAttention>;

  template <class F>
  static auto with_kernel(DType, const Value&, const F& f) {
    return f(Kernel{});
  }
  // f(q, k, v, [block table,] lengths, options)
  template <class F>
  static auto apply(const OpCall& call, bool with_lengths, const F& f) {
    Inputs inputs(name, call);
    const Tensor &q = inputs.next(), &k = inputs.next(), &v = inputs.next();
    const ops::DecodeOptions options{whole(call.options, "window_left"),
                                     number(call.options, "softcap"),
                                     number(call.options, "scale")};
    std::optional<Tensor> table;
    if constexpr (Paged) table = inputs.next();
    std::span<const int32_t> lengths;
    std::optional<Tensor> given;
    if (with_lengths && (given = inputs.next_if("lengths")))
      lengths = given->view<const int32_t, 1>().span();
    if constexpr (Paged) return f(q, k, v, *table, lengths, options);
    else return f(q, k, v, lengths, options);
  }
  template <class F>
  static auto with(const OpCall& call, const Tensor*, const F& f) {
    return apply(call, false, [&](const auto&... args) { return f(Kernel{}, args...); });
  }
  static Tensor call(const OpCall& call) {
    return apply(call, true, [](const auto&... args) {
      if constexpr (Paged) return ops::decode_attention_paged(args...);
      else return ops::decode_attention(args...);
    });
  }
  static void run(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    const auto& how = config.as<ops::DecodeConfig>();
    const AnyView out = results[0].any();
    apply(call, true, [&](const auto&... args) { write(how, out, args...); });
  }
  static void check(Inputs& inputs, const Checks& checks, bool pull) {
    const Tensor &q = inputs.next(), &k = inputs.next(), &v = inputs.next();
    checks.rank("q", q, 3);
    if constexpr (Paged) inputs.next();
    if (const auto lengths = inputs.next_if("lengths"))
      checks.type("lengths", *lengths, DType::int32, {q.shape()[0]});
    checks.result(0, q);
    if (!pull) return checks.count(1, 1);
    checks.like("dout", inputs.next(), q);
    checks.count(3, 3), checks.result(1, k), checks.result(2, v);
  }
  // q, k, v, [block table,] lengths, dout -> dq, dk, dv
  static void pull(const AnyConfig& config, const OpCall& call, std::span<const Tensor> results) {
    const auto& how = config.as<ops::DecodeConfig>();
    apply(call, true, [&](const auto&... args) {
      const auto [dq, dk, dv] = Kernel{}.vjp(how, {}, call.inputs.back(), args...);
      give(dq, results[0]), give(dk, results[1]), give(dv, results[2]);
    });
  }

 private:
  static void write(const ops::DecodeConfig& how, const AnyView& out, const Tensor& q,
                    const Tensor& k, const Tensor& v, std::span<const int32_t> lengths,
                    const ops::DecodeOptions& options) {
    ops::DecodeAttention{}.write(how, q, k, v, lengths, out, options);
  }
  static void write(const ops::DecodeConfig& how, const AnyView& out, const Tensor& q,
                    const Tensor& k, const Tensor& v, const Tensor& table,
                    std::span<const int32_t> lengths, const ops::DecodeOptions& options) {
    ops::PagedDecodeAttention{}.write(how, q, k, v, table, lengths, out, options);
  }
};

template <class... Op>
std::map<std::string_view, std::unique_ptr<NamedOp>> made() {
  std::map<std::string_view, std::unique_ptr<NamedOp>> all;
  (all.emplace(Op::name, std::make_unique<Named<Op>>()), ...);
  return all;
}

}  // namespace

const NamedOp& named_op(std::string_view name) {
  static const auto* const all =
      new auto(made<SoftmaxOp, RmsNormOp, LayerNormOp, MatmulOp, GroupedMatmulOp, FlashAttentionOp,
                    DecodeAttentionOp<false>, DecodeAttentionOp<true>>());
  const auto found = all->find(name);
  if (found != all->end()) return *found->second;
  std::string names;
  for (const auto& [known, op] : *all) names += (names.empty() ? "" : ", ") + std::string(known);
  throw Error(ErrorKind::invalid_argument,
              "no built-in operation is called '" + std::string(name) + "': there are " + names);
}

}  // namespace ejk::python
