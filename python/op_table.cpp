// SPDX-License-Identifier: Apache-2.0
// Arrays and options as the arguments of each operation's kernel.
#include "op_table.h"

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include <ejk/ejk.h>

#include "op_arrays.h"
#include "ops/list.h"

namespace ejk::python {
namespace {

using ops::Description;

template <class K>
using PlanOf = detail::Plan<K, Context::plain, Platform::cpu>;

// ---- arguments ----------------------------------------------------------------------------------

template <class T>
inline constexpr bool is_array = std::same_as<T, Tensor> || std::same_as<T, std::vector<int32_t>>;
template <class T, int Rank>
inline constexpr bool is_array<StridedView<T, Rank>> = true;
template <class T>
inline constexpr bool is_array<std::span<T>> = true;
template <class T>
inline constexpr bool is_array<std::optional<T>> = is_array<T>;

template <class V>
struct ViewOf;
template <class T, int Rank>
struct ViewOf<StridedView<T, Rank>> {
  static auto of(const Tensor& array) { return array.strided<T, Rank>(); }
};
template <class T>
struct ViewOf<std::span<T>> {
  static auto of(const Tensor& array) { return array.view<T, 1>().span(); }
};

// Parameters from the arrays and options of a call, one after the other.
template <class Op>
class Arguments {
 public:
  Arguments(const Description& op, const OpCall& call, const Tensor* result)
      : op_(op), call_(call), given_(arrays_of(op, call)), result_(result) {}

  // The parameters of the kernel's run, which takes some arrays in another order of axes.
  template <class P>
  detail::ParamsOf<P> of_run() {
    if constexpr (requires { Op::seen("", Tensor(), Value()); }) {
      seen_.reserve(op_.arrays.size());
      for (size_t i = 0; i < op_.arrays.size(); ++i)
        if (const Tensor*& array = given_.arrays[i])
          array = &seen_.emplace_back(Op::seen(op_.arrays[i].name, *array, call_.options));
    }
    return all(static_cast<detail::ParamsOf<P>*>(nullptr));
  }
  // Those of the function on tensors.
  template <class... P>
  Tensor apply(Tensor (*function)(P...)) {
    return std::apply(function, all(static_cast<std::tuple<std::remove_cvref_t<P>...>*>(nullptr)));
  }

 private:
  template <class... T>
  std::tuple<T...> all(std::tuple<T...>*) {
    return {next<T>()...};  // in order
  }
  template <class T>
  T next() {
    if constexpr (detail::is_a<T, Out>) return T(of_array<decltype(T::view)>(result_));
    else if constexpr (is_array<T>) return of_array<T>(given_.arrays[array_++]);
    else if constexpr (std::same_as<T, DType>)
      return result_type(op_, call_.options, call_.inputs[0].dtype());
    else if constexpr (std::same_as<T, float>) return of_option<T>(op_.options[option_++].name);
    else {
      T fields;
      detail::for_each_field(fields, [&]<class F>(std::string_view name, F& field) {
        if constexpr (std::same_as<F, DType>) field = next<DType>();
        else if constexpr (is_array<F>) field = of_array<F>(array_named(name));
        else field = of_option<F>(name);
      });
      return fields;
    }
  }

  // Numbers whose elements are not there (only types and shapes are) cannot be read, and none of
  // them counts.
  template <class T>
  static T of_array(const Tensor* array) {
    using Numbers = std::span<const int32_t>;
    if constexpr (detail::is_a<T, std::optional>)
      return array != nullptr ? T(of_array<typename T::value_type>(array)) : T();
    else if constexpr (std::same_as<T, std::vector<int32_t>>) {
      const auto numbers = of_array<Numbers>(array);
      return T(numbers.begin(), numbers.end());
    } else if constexpr (std::same_as<T, Numbers>)
      return array == nullptr || array->any().data == nullptr ? T() : ViewOf<T>::of(*array);
    else if constexpr (std::same_as<T, Tensor>) return *array;
    else return ViewOf<T>::of(*array);
  }
  const Tensor* array_named(std::string_view name) const {
    const auto has_name = [&](const ops::DescribedArray& array) { return array.name == name; };
    return given_.arrays[static_cast<size_t>(std::ranges::find_if(op_.arrays, has_name) -
                                             op_.arrays.begin())];
  }
  template <class T>
  T of_option(std::string_view name) const {
    const Value* found = option(op_, call_.options, name);
    if constexpr (detail::is_a<T, std::optional>)
      return found != nullptr ? T(of_option<typename T::value_type>(name)) : T();
    else if constexpr (std::same_as<T, bool>) return found->as_bool();
    else if constexpr (std::same_as<T, float>) return static_cast<float>(found->as_double());
    else return found->as_int();
  }

  const Description& op_;
  const OpCall& call_;
  OpArrays given_;
  const Tensor* result_;
  std::vector<Tensor> seen_;
  size_t array_ = 0, option_ = 0;
};

// ---- which kernel -------------------------------------------------------------------------------

template <class V>
inline constexpr std::optional<DType> element_of = std::nullopt;  // of any type
template <class T, int Rank>
inline constexpr std::optional<DType> element_of<StridedView<T, Rank>> = dtype_of<T>;
template <class V>
inline constexpr std::optional<DType> element_of<Out<V>> = element_of<V>;

template <class K>
bool takes(DType first, DType result) {
  using P = PlanOf<K>;
  constexpr auto of_first = element_of<typename P::template Param<0>>;
  constexpr auto of_result = element_of<typename P::template Param<P::arity - 1>>;
  return of_first.value_or(first) == first && of_result.value_or(result) == result;
}

// f with the first kernel that takes these types.
template <class F, class K, class... Rest>
auto with_kernel(ops::KernelTypes<K, Rest...>, const Description& op, DType first, DType result,
                 const F& f) {
  if (takes<K>(first, result)) return f(K{});
  if constexpr (sizeof...(Rest) > 0)
    return with_kernel(ops::KernelTypes<Rest...>{}, op, first, result, f);
  throw Error(ErrorKind::invalid_argument, "[" + std::string(op.name) + "] elements of " +
                                               std::string(dtype_name(first)) +
                                               " were given: float32 or bfloat16 are needed");
}

// ---- what is kept for the gradient --------------------------------------------------------------

void copy_bytes(const AnyView& from, const AnyView& to) {
  if (from.bytes() != to.bytes())
    throw Error(ErrorKind::invalid_argument, "what is kept for the gradient has another size");
  if (to.bytes() > 0) std::memcpy(to.data, from.data, to.bytes());
}

template <class T>
AnyView bytes_of(std::vector<T>& numbers, std::array<int64_t, 1>& size) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(float) == 0);
  size = {std::ssize(numbers) * static_cast<int64_t>(sizeof(T) / sizeof(float))};
  return {numbers.data(), DType::float32, Platform::cpu, size, {}, true};
}

// copy(field as an array, array of that field) for each.
template <class Residuals, class F>
void with_kept(Residuals& kept, std::span<const Tensor> arrays, const F& copy) {
  if constexpr (!std::is_empty_v<Residuals>) {
    size_t at = 0;
    detail::for_each_field(kept, [&]<class Field>(std::string_view, Field& field) {
      const Tensor& array = arrays[at++];
      if constexpr (std::same_as<Field, Tensor>) copy(field.any(), array.any());
      else {
        std::array<int64_t, 1> size;
        copy(bytes_of(field, size), array.any());
      }
    });
  }
}

template <class Residuals>
Residuals kept_in(std::span<const Tensor> arrays) {
  Residuals kept;
  if constexpr (!std::is_empty_v<Residuals>) {
    size_t at = 0;
    detail::for_each_field(kept, [&]<class Field>(std::string_view, Field& field) {
      if constexpr (std::same_as<Field, Tensor>) field = arrays[at++];
      else field.resize(static_cast<size_t>(arrays[at++].shape()[0]));
    });
    with_kept(kept, arrays, [](const AnyView& field, const AnyView& array) {
      if (field.data != array.data) copy_bytes(array, field);
    });
  }
  return kept;
}

// ---- the operations -----------------------------------------------------------------------------

template <class Op>
class Named final : public NamedOp {
 public:
  const Description& description() const override { return op_; }
  Value heuristic(const OpCall& call) const override {
    return described(call, [](const auto& kernel, const Invocation& inv) {
      return to_value(kernel.heuristic_cfg(inv));
    });
  }
  std::vector<Value> candidates(const OpCall& call, bool backward) const override {
    return described(call, [&](const auto& kernel, Invocation inv) {
      inv.backward = backward;
      std::vector<Value> out;
      for (const auto& config : kernel.candidate_cfgs(inv).configs())
        out.push_back(to_value(config));
      return out;
    });
  }
  bool is_valid(const Value& config, const OpCall& call) const override {
    return described(call, [&]<class K>(const K& kernel, const Invocation& inv) {
      return kernel.is_valid(from_value<typename K::Config>(config), inv);
    });
  }
  Value numerics(const Value& config, const OpCall& call) const override {
    return described(call, [&]<class K>(const K& kernel, const Invocation& inv) {
      const auto read = from_value<typename K::Config>(config);
      if constexpr (requires { kernel.numerics(read, inv); })
        return to_value(kernel.numerics(read, inv));
      else return to_value(kernel.numerics(read));
    });
  }
  std::vector<ArrayType> results(const OpCall& call) const override {
    const OpSizes sizes = sizes_of(call);
    std::vector<ArrayType> out{sizes.type(op_.result)};
    for (const ops::DescribedArray& kept : op_.kept) out.push_back(sizes.type(kept));
    return out;
  }
  AnyConfig read(const Value& config, DType dtype, const Value& options) const override {
    return with(dtype, options, [&]<class K>(const K&) {
      return make_config(from_value<typename K::Config>(config));
    });
  }
  Tensor call(const OpCall& call) const override {
    return Arguments<Op>(op_, call, nullptr).apply(Op::call);
  }
  void check(const OpCall& call, std::span<const Tensor> results, bool pull) const override {
    OpSizes sizes = sizes_of(call);
    const OpArrays given = arrays_of(op_, call);
    const std::vector<const ops::DescribedArray*> more = pull ? behind_arrays() : nothing;
    if (given.behind.size() < more.size())
      throw Error(ErrorKind::invalid_argument, count_text(call) + "more are needed");
    if (given.behind.size() > more.size())
      throw Error(ErrorKind::invalid_argument,
                  count_text(call) +
                      std::to_string(call.inputs.size() - given.behind.size() + more.size()) +
                      " are needed");
    for (size_t i = 0; i < more.size(); ++i)
      sizes.meet(
          i + 1 == more.size() ? "d" + std::string(more[i]->name) : std::string(more[i]->name),
          *more[i], given.behind[i]);
    if (pull) check_gradients(given, results);
    else check_results(sizes, results);
  }
  void run(const AnyConfig& config, const OpCall& call,
           std::span<const Tensor> results) const override {
    with_params(call, results[0], [&]<class K>(const K& kernel, auto& params) {
      const auto& how = config.as<typename K::Config>();
      if constexpr (writes<K>) write(kernel, how, params, results);
      else if (results.size() == 1) std::apply([&](auto&... p) { kernel.run(how, p...); }, params);
      else {
        auto forward =
            std::apply([&](auto&... p) { return kernel.fwd_with_residuals(how, p...); }, params);
        if constexpr (requires { forward.second; })
          with_kept(forward.second, results.subspan(1), copy_bytes);
      }
    });
  }
  void pull(const AnyConfig& config, const OpCall& call,
            std::span<const Tensor> results) const override {
    const Tensor& dy = call.inputs.back();
    with_params(call, dy, [&]<class K>(const K& kernel, auto& params) {
      const OpArrays given = arrays_of(op_, call);
      const bool takes_result = op_.gradient_takes_result == TakesResult::after_arrays;
      const Tensor& y = takes_result ? given.behind[0] : call.inputs[0];
      const auto kept = kept_in<typename K::Residuals>(given.behind.subspan(takes_result ? 1 : 0));
      std::vector<std::optional<Tensor>> gradients;
      const auto& how = config.as<typename K::Config>();
      std::apply(
          [&](const auto&... p) {
            using Dy = Cotangent<K>;
            if constexpr (requires { kernel.vjp(how, kept, Dy::of(y), Dy::of(dy), p...); })
              detail::append_gradients(kernel.vjp(how, kept, Dy::of(y), Dy::of(dy), p...),
                                       gradients);
            else detail::append_gradients(kernel.vjp(how, kept, Dy::of(dy), p...), gradients);
          },
          params);
      give(gradients, call.options, results);
    });
  }

 private:
  using TakesResult = Description::TakesResult;

  // The cotangent is what the kernel writes, read only, or a tensor.
  template <class Last>
  struct CotangentOf {
    static const Tensor& of(const Tensor& array) { return array; }
  };
  template <class T, int Rank>
  struct CotangentOf<Out<StridedView<T, Rank>>> {
    static auto of(const Tensor& array) { return array.strided<const T, Rank>(); }
  };
  template <class K>
  using Cotangent = CotangentOf<typename PlanOf<K>::template Param<PlanOf<K>::arity - 1>>;

  // Kernels that return their result can also write it where it is wanted: it stands before the
  // options, which are last, and what is kept may follow.
  template <class K>
  static constexpr bool writes = !std::is_void_v<typename PlanOf<K>::Result>;
  template <class K, class... P>
  static void write(const K& kernel, const typename K::Config& config,
                    const std::tuple<P...>& params, std::span<const Tensor> results) {
    [&]<size_t... I>(std::index_sequence<I...>) {
      const auto& options = std::get<sizeof...(I)>(params);
      const AnyView out = results[0].any();
      float* const kept = results.size() > 1 ? results[1].data<float>() : nullptr;
      if constexpr (requires { kernel.write(config, std::get<I>(params)..., out, options, kept); })
        kernel.write(config, std::get<I>(params)..., out, options, kept);
      else kernel.write(config, std::get<I>(params)..., out, options);
    }
    (std::make_index_sequence<sizeof...(P) - 1>{});
  }

  static Tensor seen(size_t i, const Tensor& array, const Value& options) {
    if constexpr (requires { Op::seen("", array, options); })
      return Op::seen(op_.arrays[i].name, array, options);
    else return array;
  }

  template <class F>
  static auto with(DType first, const Value& options, const F& f) {
    return with_kernel(typename Op::Kernels{}, op_, first, result_type(op_, options, first), f);
  }
  // f(kernel, parameters of run), `result` being what it writes.
  template <class F>
  static auto with_params(const OpCall& call, const Tensor& result, const F& f) {
    return with(call.inputs[0].dtype(), call.options, [&]<class K>(const K& kernel) {
      Arguments<Op> arguments(op_, call, &result);
      auto params = arguments.template of_run<PlanOf<K>>();
      return f(kernel, params);
    });
  }
  // f(kernel, invocation) for arrays without elements.
  template <class F>
  static auto described(const OpCall& call, const F& f) {
    const auto [dtype, shape] = sizes_of(call).type(op_.result);
    const Tensor result = Tensor::around({nullptr, dtype, Platform::cpu, shape, {}, true});
    return with_params(call, result, [&]<class K>(const K& kernel, const auto& params) {
      return f(kernel, PlanOf<K>::invocation(kernel, params, typename PlanOf<K>::Indices{}));
    });
  }

  static OpSizes sizes_of(const OpCall& call) {
    const OpArrays given = arrays_of(op_, call);
    OpSizes sizes(op_, call);
    for (size_t i = 0; i < given.arrays.size(); ++i)
      if (given.arrays[i] != nullptr)
        sizes.meet(std::string(op_.arrays[i].name), op_.arrays[i],
                   seen(i, *given.arrays[i], call.options));
    return sizes;
  }
  // What the gradient takes after the arrays; the last is the cotangent.
  static std::vector<const ops::DescribedArray*> behind_arrays() {
    std::vector<const ops::DescribedArray*> out;
    if (op_.gradient_takes_result == TakesResult::after_arrays) out.push_back(&op_.result);
    for (const ops::DescribedArray& kept : op_.kept) out.push_back(&kept);
    out.push_back(&op_.result);
    return out;
  }
  static void check_count(std::span<const Tensor> results, size_t least, size_t most) {
    if (results.size() < least || results.size() > most)
      refuse_arrays(op_, std::to_string(results.size()) + " results",
                    std::to_string(least) + (least == most ? "" : " or " + std::to_string(most)) +
                        " of them");
  }
  static std::string count_text(const OpCall& call) {
    return "[" + std::string(op_.name) + "] " + std::to_string(call.inputs.size()) +
           " arrays were given: ";
  }
  static void check_results(OpSizes& sizes, std::span<const Tensor> results) {
    check_count(results, 1, 1 + op_.kept.size());
    for (size_t i = 0; i < results.size(); ++i)
      sizes.meet("result " + std::to_string(i), i == 0 ? op_.result : op_.kept[i - 1], results[i]);
  }
  // Of the arrays that are there, each like its array.
  static void check_gradients(const OpArrays& given, std::span<const Tensor> results) {
    std::vector<const Tensor*> wanted(given.arrays.begin(),
                                      given.arrays.begin() + static_cast<long>(op_.gradients));
    std::erase(wanted, nullptr);
    check_count(results, wanted.size(), wanted.size());
    for (size_t i = 0; i < results.size(); ++i)
      if (results[i].dtype() != wanted[i]->dtype() || results[i].shape() != wanted[i]->shape())
        refuse_arrays(op_, "result " + std::to_string(i) + " of " + text(results[i]),
                      text(*wanted[i]));
  }
  static std::string text(const Tensor& array) {
    return std::string(dtype_name(array.dtype())) + shape_text(array.shape());
  }
  static void give(const std::vector<std::optional<Tensor>>& gradients, const Value& options,
                   std::span<const Tensor> results) {
    size_t at = 0;
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i]) copy_elements(gradients[i]->any(), seen(i, results[at++], options).any());
  }

  static inline const std::vector<const ops::DescribedArray*> nothing;
  static inline const Description op_ = Op::description();
};

using OpTable = std::map<std::string_view, std::unique_ptr<NamedOp>>;

const OpTable& op_table() {
  static const auto* const all = [] {
    auto* table = new OpTable;
    ops::BuiltInOps::for_each([&]<class Op>() {
      auto named = std::make_unique<Named<Op>>();
      const std::string_view name = named->description().name;
      table->emplace(name, std::move(named));
    });
    return table;
  }();
  return *all;
}

}  // namespace

std::vector<std::string> op_names() {
  std::vector<std::string> out;
  for (const auto& [name, op] : op_table()) out.emplace_back(name);
  return out;
}

const NamedOp& named_op(std::string_view name) {
  const auto found = op_table().find(name);
  if (found != op_table().end()) return *found->second;
  std::string names;
  for (const std::string& known : op_names()) names += (names.empty() ? "" : ", ") + known;
  throw Error(ErrorKind::invalid_argument,
              "no built-in operation is called '" + std::string(name) + "': there are " + names);
}

}  // namespace ejk::python
