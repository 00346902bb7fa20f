// SPDX-License-Identifier: Apache-2.0
// Batches: one configuration for all elements, which are spread over threads or devices.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ejk/detail/export.h>
#include <ejk/executor.h>

namespace EJK_EXPORT ejk {

// Which axis of an argument runs over the batch: an int, or `none` for an argument that all
// elements share. A std::vector that is not an array itself is a list of elements, with axis 0
// only.
struct Axis {
  // Counted from 0, or from the end if it is negative; empty: the argument has no batch axis.
  std::optional<int> index;
  constexpr Axis(int i) : index(i) {}
  constexpr Axis(std::nullopt_t) {}
};
// The axis of a shared argument: vmap_with_config(executor, kernel, 0, ejk::none).
inline constexpr std::nullopt_t none = std::nullopt;

namespace detail {

// Calls body(worker, begin, end) for parts of [0, count), each on a thread of its own (the first on
// the calling one). Waits for all and throws again the first exception of the lowest part.
void spread(int64_t count, int workers,
            const std::function<void(int64_t begin, int64_t end)>& body);

// Calls body(device) for each of these devices: of several, each on a thread of its own, after what
// the calling thread has begun there. Waits for them unless there is one only.
void spread_over(const std::vector<const Device*>& devices,
                 const std::function<void(const Device* device)>& body);
// Whether kernels on its device can take an array that begins there.
bool begins_where_it_may(const AnyView& array);
[[noreturn]] void elements_on_several_devices(std::string_view op, const Device* one,
                                              const Device* other);

[[noreturn]] void wrong_batch(std::string_view op, int argument, const std::string& problem);

// One element of an array along an axis; owns the shape that the view refers to.
class ArraySlice {
 public:
  ArraySlice(const AnyView& whole, int axis) : array_(whole), axis_(axis) {
    stride_ = array_.strides.empty() ? packed_stride(whole, axis)
                                     : array_.strides[static_cast<size_t>(axis)];
    if (array_.strides.empty() && axis != 0) array_.strides = packed_strides(whole);
    array_.shape.erase(array_.shape.begin() + axis);
    if (!array_.strides.empty()) array_.strides.erase(array_.strides.begin() + axis);
    first_ = static_cast<std::byte*>(array_.data);
    first_offset_ = array_.offset;
  }
  // The i-th element; a packed copy of it, where it lives, if it should be `packed` and is not, or
  // begins where its device cannot take it.
  AnyView at(int64_t i, bool packed) {
    const int64_t begin = i * stride_ * static_cast<int64_t>(dtype_bits(array_.dtype) / 8);
    if (array_.platform == Platform::cpu) array_.data = first_ + begin;
    else array_.offset = first_offset_ + static_cast<size_t>(begin);
    uses_copy_ = (packed && !array_.any().packed()) || !begins_where_it_may(array_.any());
    if (!uses_copy_) return array_.any();
    if (gathered_.rank() != static_cast<int>(array_.shape.size()) || !gathered_.any().data)
      gathered_ = Tensor(array_.dtype, array_.shape,
                         array_.device == nullptr ? cpu_device() : *array_.device);
    copy_elements(array_.any(), gathered_.any());
    AnyView copy = gathered_.any();
    copy.strides = {};
    copy.writable = array_.writable;
    return copy;
  }
  // Puts a copy that the kernel may have written back in its place.
  void put_back() {
    if (uses_copy_ && array_.writable) copy_elements(gathered_.any(), array_.any());
  }

 private:
  static std::vector<int64_t> packed_strides(const AnyView& v) {
    std::vector<int64_t> strides(v.shape.size(), 1);
    for (size_t d = v.shape.size(); d-- > 1;) strides[d - 1] = strides[d] * v.shape[d];
    return strides;
  }
  static int64_t packed_stride(const AnyView& v, int axis) {
    return packed_strides(v)[static_cast<size_t>(axis)];
  }

  ArrayRef array_;
  int axis_;
  int64_t stride_ = 0;
  std::byte* first_ = nullptr;
  size_t first_offset_ = 0;  // on devices, where `data` is a handle
  Tensor gathered_;
  bool uses_copy_ = false;
};

template <class T>
struct Unwrap {
  using type = T;
};
template <class T>
requires(is_wrapper<T> || is_named<T>) struct Unwrap<T> {
  using type = typename Unwrap<typename Wrapped<T>::type>::type;
};

template <class T>
inline constexpr bool needs_packed = false;
template <class T, int R>
inline constexpr bool needs_packed<View<T, R>> = true;
template <class T, size_t N>
inline constexpr bool needs_packed<std::span<T, N>> = true;
template <class T>
requires requires { T::ejk_platforms; }
inline constexpr bool needs_packed<T> = true;  // a view of a device's memory

template <class T>
inline constexpr bool is_read_only = false;
template <class T>
requires(std::is_const_v<typename T::element_type>) inline constexpr bool is_read_only<T> = true;

// A batched argument as an AnyView with its shape beside it.
template <class A>
class WholeArray {
 public:
  explicit WholeArray(A& arg) {
    using U = std::remove_cvref_t<A>;
    if constexpr (DynamicTensor<U>) ref_ = ArrayRef(any_view_of(arg));
    else if constexpr (requires { ArgTraits<U>::array(arg); }) ref_ = ArgTraits<U>::array(arg);
    else {
      std::array<int64_t, 1> size;
      ref_ = ArrayRef(view_vector(arg, size));
      ref_.writable = !std::is_const_v<std::remove_reference_t<A>>;
    }
  }
  AnyView any() const { return ref_.any(); }

 private:
  ArrayRef ref_;
};

template <class A>
concept BatchArray = DynamicTensor<A> || requires(const A& a) {
  ArgTraits<A>::array(a);
} ||(is_a<A, std::vector>&& requires { requires ArrayElement<typename A::value_type>; });

// Elements are bound by value: what run writes through a reference to a number, string or vector
// would be lost.
template <class Raw>
inline constexpr bool loses_writes =
    role_of_raw<Raw>() == Role::in_out &&
    !DynamicTensor<typename Unwrap<std::remove_cvref_t<Raw>>::type> &&
    !ArrayTarget<typename Unwrap<std::remove_cvref_t<Raw>>::type>::is_array;

// Gives run's parameter for each element of one argument.
template <class P, size_t I, class A>
class BatchArgument {
 public:
  using K = typename P::Kernel;
  using Raw = typename P::template Raw<I>;
  using Target = typename Unwrap<typename P::template Param<I>>::type;
  using U = std::remove_cvref_t<A>;

  BatchArgument(A& arg, const Axis& axis) : arg_(arg), batched_(axis.index.has_value()) {
    if (!batched_) return;
    if constexpr (BatchArray<U>) {
      const WholeArray<A> whole(arg);
      const int rank = static_cast<int>(whole.any().shape.size());
      axis_ = *axis.index < 0 ? *axis.index + rank : *axis.index;
      if (axis_ < 0 || axis_ >= rank)
        wrong_batch(K::op_id, static_cast<int>(I),
                    "axis " + std::to_string(*axis.index) + " of an array of shape " +
                        shape_text(whole.any().shape));
      size_ = whole.any().shape[static_cast<size_t>(axis_)];
    } else if constexpr (is_a<U, std::vector>) {
      if (*axis.index != 0)
        wrong_batch(K::op_id, static_cast<int>(I), "a list can only be batched over axis 0");
      size_ = static_cast<int64_t>(arg.size());
    } else wrong_batch(K::op_id, static_cast<int>(I), "it has no axes; pass ejk::none for it");
  }

  // Elements of a list may have different shapes, elements of an array do not.
  static constexpr bool may_differ = !BatchArray<U> && is_a<U, std::vector>;

  std::optional<int64_t> size() const { return batched_ ? std::optional(size_) : std::nullopt; }

  // What a worker needs of its own to walk over the elements.
  class Walker {
   public:
    explicit Walker(const BatchArgument& a) : a_(a) {
      if constexpr (BatchArray<U>)
        if (a.batched_) slice_.emplace(WholeArray<A>(a.arg_).any(), a.axis_);
    }
    // By value or by reference to something that lives as long as the walker.
    typename P::template Param<I> at(int64_t i) {
      const Place place{K::op_id, static_cast<int>(I), {}, P::platform};
      if (!a_.batched_) {
        if constexpr (requires { check_bindable<U>(); })
          return bind<K, static_cast<int>(I), Bound>(place, a_.arg_);
        else
          wrong_batch(K::op_id, static_cast<int>(I),
                      "its elements are needed, not the whole: give it an axis");
      }
      if constexpr (BatchArray<U>) {
        const AnyView element = slice_->at(i, needs_packed<Target>);
        if constexpr (Element<Target> && !ArrayTarget<Target>::is_array) {
          check_array(place, element,
                      {.dtype = dtype_of<Target>, .rank = 0, .packed = false, .writes = false});
          return typename P::template Param<I>(*static_cast<const Target*>(element.data));
        } else if constexpr (ArrayTarget<Target>::is_array)
          return bind<K, static_cast<int>(I), Bound>(place, element);
        else
          wrong_batch(K::op_id, static_cast<int>(I),
                      "the kernel's parameter cannot be an element of an array");
      } else if constexpr (is_a<U, std::vector>)
        return bind<K, static_cast<int>(I), Bound>(place, a_.arg_[static_cast<size_t>(i)]);
      else wrong_batch(K::op_id, static_cast<int>(I), "it has no axes; pass ejk::none for it");
    }
    void done() {
      if constexpr (BatchArray<U> && !is_read_only<Target>)
        if (slice_) slice_->put_back();
    }

   private:
    using Bound = std::remove_cvref_t<Raw>;  // elements are always bound by value
    template <class T>
    static void check_bindable() requires(std::is_same_v<T, Bound> ||
                                          std::is_convertible_v<A&, Bound> ||
                                          std::is_convertible_v<A&, Target> ||
                                          (ArrayTarget<Target>::is_array && BatchArray<T>)) {}
    const BatchArgument& a_;
    std::optional<ArraySlice> slice_;
  };

 private:
  A& arg_;
  bool batched_;
  int axis_ = 0;
  int64_t size_ = 0;
};

}  // namespace detail

// A kernel over a batch. Made by vmap_with_config and pmap_with_config.
//
// It owns a copy of the kernel and refers to the executor, which must outlive it. Several threads
// may call it at once. It calls `run` of one kernel object from several threads: `run` must allow
// that, and no two elements may write to the same memory.
template <class K>
class Batched {
 public:
  // Whether the elements of the batch are spread over this process's threads or over devices.
  enum class Over { threads, devices };
  // Without axes, arrays and lists are batched over their first axis and everything else is shared.
  Batched(const Executor& executor, K kernel, std::vector<Axis> axes, Over over)
      : executor_(executor),
        kernel_(std::move(kernel)),
        axes_(std::move(axes)),
        over_(over),
        workers_(over == Over::threads ? visible_cores() : 1) {}

  // On how many threads elements on the CPU run at most; less than 1 counts as 1. Default: the
  // cores this process may use (vmap), or one, as there is one such device (pmap). Elements on
  // devices do not heed it.
  Batched threads(int count) && {
    workers_ = std::max(1, count);
    return std::move(*this);
  }

  // Runs all elements with one config, chosen for the shape of one of them; elements of a list that
  // have other shapes run with configs of their own. Gives a vector of what `run` returns, in
  // order; nothing if it returns nothing. A batch of size 0 chooses and runs nothing.
  //
  // Arguments are those of `run`, by position, each with its batch axis. The kernel's `prepare` has
  // no place here, and what `run` writes through a reference to a value would be lost: both are
  // compile errors. Where `run` takes a packed array and an element is not packed, each element is
  // copied before `run`, and back after it if `run` may write it.
  //
  // Each thread takes a stretch of elements in order. They see the calling thread's scopes. If an
  // element throws, its thread leaves out those behind it, the other threads finish theirs, and the
  // exception of the first such stretch is thrown again.
  //
  // Throws Error(invalid_argument), before anything runs, if
  //   - there is not one axis for each argument, or no argument has one
  //   - an argument has no such axis, or batches have different sizes
  //   - elements of vmap_with_config live on several devices
  // and Error(no_configuration) as a call of the executor does.
  //
  // On devices elements run where their arrays live. They are begun like other calls of the calling
  // thread; those of several devices, which pmap takes in lists, are done when this returns.
  template <class... Args>
  auto operator()(Args&&... args) const {
    using P = detail::FirstPlan<K, Context::batch, Args...>;
    constexpr detail::Platforms open = detail::call_platforms_of<K, Context::batch, Args...>;
    if constexpr (!P::sound) return detail::NoResult{};
    else if constexpr (!detail::results_agree<K, Context::batch, open>()) {
      static_cast<void>(detail::mistake::runs_of_platforms_return_different_types<K>{});
      return detail::NoResult{};
    } else
      return detail::where_arrays_live<K, Context::batch>(
          [&]<class There>(std::type_identity<There>) {
            return run<There>(std::index_sequence_for<Args...>{}, args...);
          },
          args...);
  }

 private:
  template <class P, size_t... I, class... Args>
  auto run(std::index_sequence<I...>, Args&... args) const {
    static_assert(sizeof...(Args) == P::arity,
                  "ejk: a batched call takes all of run's parameters, by position");
    // A prepare that makes run's arguments from others is the caller's own business here.
    static_assert(!detail::hook_prepare::callable<K, typename P::template Param<I>&...>,
                  "ejk: a batched call takes run's parameters and has no place for the kernel's "
                  "prepare, which would "
                  "change them; prepare them yourself, in a kernel without the hook");
    static_assert((!detail::loses_writes<typename P::template Raw<I>> && ...),
                  "ejk: a batched call would lose what run writes through a reference to a value; "
                  "take a view of one "
                  "element, or return the value");
    check_axes(sizeof...(Args));
    const std::tuple<detail::BatchArgument<P, I, Args>...> batch{{args, axis<Args>(I)}...};
    const int64_t count = common_size(std::get<I>(batch).size()...);

    using Result = typename P::Result;
    using Kept = std::conditional_t<std::is_void_v<Result>, char,
                                    std::optional<std::remove_cvref_t<Result>>>;
    std::vector<Kept> results(std::is_void_v<Result> ? 0 : static_cast<size_t>(count));
    if (count > 0) {
      const auto choices = choose<P>(batch, count, std::index_sequence<I...>{});
      const auto run_some = [&](int64_t begin, int64_t end, const Device* home) {
        std::tuple<typename detail::BatchArgument<P, I, Args>::Walker...> walkers{
            std::get<I>(batch)...};
        for (int64_t i = begin; i < end; ++i) {
          const auto& [config, device] = choices.of(i);
          if (device != home) continue;
          std::tuple<typename P::template Param<I>...> params{std::get<I>(walkers).at(i)...};
          if constexpr (std::is_void_v<Result>) P::run(kernel_, config, params);
          else results[static_cast<size_t>(i)].emplace(P::run(kernel_, config, params));
          (std::get<I>(walkers).done(), ...);
        }
      };
      if constexpr (P::on_device)
        detail::spread_over(homes(choices.all),
                            [&](const Device* home) { run_some(0, count, home); });
      else
        detail::spread(count, workers_,
                       [&](int64_t begin, int64_t end) { run_some(begin, end, nullptr); });
    }
    if constexpr (!std::is_void_v<Result>) {
      std::vector<std::remove_cvref_t<Result>> out;
      out.reserve(results.size());
      for (auto& r : results) out.push_back(std::move(*r));
      return out;
    }
  }

  // One config, or one for each shape and device among the elements.
  template <class Config>
  struct Choices {
    struct OfSome {
      Config config;
      const Device* device;  // null: the CPU
    };
    std::vector<OfSome> all;
    std::vector<size_t> which;  // of each element; empty: the first one
    const OfSome& of(int64_t element) const {
      return all[which.empty() ? 0 : which[static_cast<size_t>(element)]];
    }
  };

  template <class All>
  std::vector<const Device*> homes(const All& choices) const {
    std::vector<const Device*> out;
    for (const auto& choice : choices)
      if (std::find(out.begin(), out.end(), choice.device) == out.end())
        out.push_back(choice.device);
    if (over_ == Over::threads && out.size() > 1)
      detail::elements_on_several_devices(K::op_id, out[0], out[1]);
    return out;
  }

  template <class P, class Batch, size_t... I>
  Choices<typename P::Config> choose(const Batch& batch, int64_t count,
                                     std::index_sequence<I...>) const {
    constexpr bool may_differ = (std::tuple_element_t<I, Batch>::may_differ || ...);
    std::tuple<typename std::tuple_element_t<I, Batch>::Walker...> walkers{std::get<I>(batch)...};
    Value axes = Value::object();
    ((axes[std::to_string(I)] =
          std::get<I>(batch).size() ? Value(axes_.empty() ? 0 : *axes_[I].index) : Value()),
     ...);
    Choices<typename P::Config> choices;
    std::map<std::vector<uint64_t>, size_t> known;
    for (int64_t i = 0; i < (may_differ ? count : 1); ++i) {
      const std::tuple<typename P::template Param<I>...> params{std::get<I>(walkers).at(i)...};
      if constexpr (P::on_device)
        detail::check_devices(K::op_id, P::platform, std::get<I>(params)...);
      if constexpr (may_differ) {
        detail::WordSink words;
        P::emit(kernel_, params, 0, words, typename P::Indices{});
        const auto [at, is_new] = known.try_emplace(
            std::vector(words.data(), words.data() + words.size()), choices.all.size());
        choices.which.push_back(at->second);
        if (!is_new) continue;
      }
      choices.all.push_back(
          {executor_.choose<P>(kernel_, params, {}, axes).config.template as<typename P::Config>(),
           detail::home_of(K::op_id, std::get<I>(params)...).device});
    }
    return choices;
  }

  // Without axes, arrays and lists are batched over their first axis and everything else is shared.
  template <class A>
  Axis axis(size_t i) const {
    if (!axes_.empty()) return axes_[i];
    using U = std::remove_cvref_t<A>;
    return detail::BatchArray<U> || detail::is_a<U, std::vector> ? Axis(0) : Axis(none);
  }

  void check_axes(size_t arguments) const {
    if (!axes_.empty() && axes_.size() != arguments)
      throw Error(ErrorKind::invalid_argument,
                  "[" + std::string(K::op_id) + "] " + std::to_string(axes_.size()) +
                      " axes were given for " + std::to_string(arguments) +
                      " arguments; give one for each (ejk::none for a shared one)");
  }

  template <class... S>
  static int64_t common_size(const S&... sizes) {
    std::optional<int64_t> common;
    int index = 0;
    auto take = [&](const std::optional<int64_t>& size) {
      if (size && common && *size != *common)
        detail::wrong_batch(K::op_id, index,
                            "its batch has " + std::to_string(*size) +
                                " elements, an earlier argument's " + std::to_string(*common));
      if (size) common = size;
      ++index;
    };
    (take(sizes), ...);
    if (!common)
      throw Error(
          ErrorKind::invalid_argument,
          "[" + std::string(K::op_id) + "] no argument is batched; give at least one an axis");
    return *common;
  }

  const Executor& executor_;
  K kernel_;
  std::vector<Axis> axes_;  // empty: the default for each argument
  Over over_;
  int workers_;
};

// The kernel for every element of a batch, with one axis per argument:
//   vmap_with_config(executor, kernel, 0, ejk::none, 1)(a, b, c)
// Elements are spread over threads, or run on the one device that all arrays live on. An output
// must have an axis: elements that shared it would write over each other.
template <class K, std::convertible_to<Axis>... Axes>
Batched<K> vmap_with_config(const Executor& executor, K kernel, Axes... axes) {
  return {executor, std::move(kernel), {Axis(axes)...}, Batched<K>::Over::threads};
}
template <class K>
Batched<K> vmap_with_config(const Executor& executor, K kernel, std::vector<Axis> axes) {
  return {executor, std::move(kernel), std::move(axes), Batched<K>::Over::threads};
}

// The same with one worker per device: elements of lists whose arrays live on several devices of a
// platform run there at the same time, each on a thread and queue of its own, with one choice for
// each device. What the calling thread began on these devices before is waited for. On the CPU that
// is one worker; threads(n) splits it.
template <class K, std::convertible_to<Axis>... Axes>
Batched<K> pmap_with_config(const Executor& executor, K kernel, Axes... axes) {
  return {executor, std::move(kernel), {Axis(axes)...}, Batched<K>::Over::devices};
}
template <class K>
Batched<K> pmap_with_config(const Executor& executor, K kernel, std::vector<Axis> axes) {
  return {executor, std::move(kernel), std::move(axes), Batched<K>::Over::devices};
}

}  // namespace ejk
