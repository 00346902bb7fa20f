// SPDX-License-Identifier: Apache-2.0
// The shapes that a key leaves out: is_valid and numerics see them, so they are asked once for
// each.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ejk/detail/argument_containers.h>
#include <ejk/detail/bind.h>
#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {
namespace detail {

// How a parameter stands to the key: part of it, left out by the kernel's `key` hook, or Unkeyed.
enum class InKey { yes, no, unkeyed };

template <class P>
inline constexpr bool is_array = DynamicTensor<P> || requires(const P& p) {
  ArgTraits<P>::array(p);
};
template <ArrayElement T, class A>
inline constexpr bool is_array<std::vector<T, A>> = true;

// What has a shape: arrays, and types of the user, which say themselves what counts. What is
// Unkeyed does not count whatever they say, so of that only arrays have one.
template <InKey In, class P>
inline constexpr bool has_shape = is_array<P> || (HasKey<P> && In != InKey::unkeyed);

template <class P>
inline constexpr bool is_list = is_a<P, std::vector> || is_std_array<P>;

template <InKey In, class P>
consteval int shape_words();
template <InKey In, class P, size_t... I>
consteval int shape_words_of_items(std::index_sequence<I...>) {
  return sum_of_words({shape_words<In, std::tuple_element_t<I, P>>()...});
}

// How many words push_shapes gives for a parameter that is part of the key, or is not.
template <InKey In, class P>
consteval int shape_words() {
  if constexpr (is_a<P, Unkeyed>) {
    if constexpr (Argument<typename Wrapped<P>::type>)
      return shape_words<InKey::unkeyed, typename Wrapped<P>::type>();
    else return 0;
  } else if constexpr (is_a<P, Out> || is_named<P>)
    return shape_words<In, typename Wrapped<P>::type>();
  else if constexpr (has_shape<In, P>) return In == InKey::yes ? 0 : ArgTraits<P>::words;
  else if constexpr (is_a<P, std::optional> || is_list<P>)
    return shape_words<In, typename P::value_type>() == 0 ? 0 : any_number_of_words;
  else if constexpr (is_a<P, std::map>)
    return shape_words<In, typename P::mapped_type>() == 0 ? 0 : any_number_of_words;
  else if constexpr (is_a<P, std::tuple> || is_a<P, std::pair>)
    return shape_words_of_items<In, P>(std::make_index_sequence<std::tuple_size_v<P>>{});
  else return 0;
}

// Values are not shapes: one that the key leaves out may be another at every call.
template <InKey In, class P>
void push_shapes(const P& p, auto& sink) {
  if constexpr (shape_words<In, P>() == 0) return;
  else if constexpr (is_a<P, Unkeyed>) push_shapes<InKey::unkeyed>(p.value, sink);
  else if constexpr (is_a<P, Out>) push_shapes<In>(p.view, sink);
  else if constexpr (is_named<P>) push_shapes<In>(p.value, sink);
  else if constexpr (has_shape<In, P>) ArgTraits<P>::emit(p, sink);
  else if constexpr (is_a<P, std::optional>) {
    sink.push(p.has_value());
    if (p) push_shapes<In>(*p, sink);
  } else if constexpr (is_list<P>) {
    sink.push(p.size());
    for (const auto& item : p) push_shapes<In>(item, sink);
  } else if constexpr (is_a<P, std::map>) {
    sink.push(p.size());
    for (const auto& [name, item] : p) push_shapes<In>(item, sink);
  } else std::apply([&](const auto&... item) { (push_shapes<In>(item, sink), ...); }, p);
}

}  // namespace detail
}  // namespace ejk
