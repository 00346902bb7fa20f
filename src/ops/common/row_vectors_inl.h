// SPDX-License-Identifier: Apache-2.0
// Walks along a row of float or bfloat16 elements in vectors of float: for operations over the last
// axis. Included once per instruction set.
#if defined(EJK_OPS_ROW_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef EJK_OPS_ROW_VECTORS_INL_H
#undef EJK_OPS_ROW_VECTORS_INL_H
#else
#define EJK_OPS_ROW_VECTORS_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "ops/common/rows.h"
#include "ops/simd/vectors_inl.h"

// For functions that are slow unless all they call becomes part of them. Sanitizers would take
// minutes to compile that.
#undef EJK_FLATTEN
#if defined(__SANITIZE_ADDRESS__)
#define EJK_FLATTEN
#else
#define EJK_FLATTEN HWY_FLATTEN
#endif

HWY_BEFORE_NAMESPACE();
namespace ejk::ops::HWY_NAMESPACE {

// Where a walk is: a whole vector of columns ...
struct Whole {
  int64_t column;
  template <class T>
  HWY_INLINE Vector operator()(const T* row) const {
    return load(row + column);
  }
  template <class T>
  HWY_INLINE void put(Vector v, T* row) const {
    store(v, row + column);
  }
  HWY_INLINE Vector or_else(Vector v, Vector) const { return v; }
  HWY_INLINE Whole as_usual() const { return *this; }  // written into the caches
};
// ... the same, written past the caches ...
struct WholeStreamed : Whole {
  template <class T>
  HWY_INLINE void put(Vector v, T* row) const {
    stream(v, row + column);
  }
};
// ... or fewer columns than a vector has. The lanes behind them are zero, or what or_else says.
struct Some {
  int64_t column;
  size_t count;
  template <class T>
  HWY_INLINE Vector operator()(const T* row) const {
    return load_some(Floats(), row + column, static_cast<int64_t>(count));
  }
  template <class T>
  HWY_INLINE void put(Vector v, T* row) const {
    T lanes_of_it[lanes];
    store(v, lanes_of_it);
    std::memcpy(row + column, lanes_of_it, count * sizeof(T));
  }
  HWY_INLINE Vector or_else(Vector v, Vector other) const {
    return hn::IfThenElse(hn::FirstN(Floats(), count), v, other);
  }
  HWY_INLINE Some as_usual() const { return *this; }
};

template <class At>
HWY_INLINE At at_column(int64_t column) {
  At at;
  at.column = column;
  return at;
}

// step(at) for all columns from `column` on.
template <class At = Whole, class Step>
HWY_INLINE void walk(int64_t columns, Step step, int64_t column = 0) {
  for (; column + lanes <= columns; column += lanes) step(at_column<At>(column));
  if (column < columns) step(Some{column, static_cast<size_t>(columns - column)});
}

// The same, where all that is put goes to `out`, past the caches.
template <class T, class Step>
HWY_INLINE void walk_streamed(const T* out, int64_t columns, Step step) {
  const size_t bytes = static_cast<size_t>(lanes) * sizeof(T);
  const size_t over = reinterpret_cast<uintptr_t>(out) % bytes;
  if (over % sizeof(T) != 0) return walk(columns, step);
  int64_t column = over == 0 ? 0 : static_cast<int64_t>((bytes - over) / sizeof(T));
  if (column > columns) column = columns;
  if (column > 0) step(Some{0, static_cast<size_t>(column)});
  walk<WholeStreamed>(columns, step, column);
}

// Writes a row by write(at), past the caches if it is streamed.
template <class T, class Write>
HWY_INLINE void write_row(const RowsOut<T>& rows, int64_t row, int64_t columns, bool streamed,
                          Write write) {
  if (streamed) walk_streamed(rows[row], columns, write);
  else walk(columns, write);
  rows.done(row);
}

// Asks for a part of a row that is needed when the next one is worked on. Into the second level: in
// the first it would take the few places for pending lines from the loads and streamed stores that
// are under way.
template <class T>
HWY_INLINE void fetch(const T* row, int64_t column) {
  __builtin_prefetch(row + column, 0, 2);
}
// The same for four vectors of columns.
template <class T>
HWY_INLINE void fetch_four(const T* row, int64_t column) {
  constexpr auto line = static_cast<int64_t>(64 / sizeof(T));
  for (int64_t c = 0; c < 4 * lanes; c += line) fetch(row, column + c);
}
// Four vectors that are needed next, from the second level, where they are, into the first.
template <class T>
HWY_INLINE void fetch_near(const T* row, int64_t column) {
  constexpr auto line = static_cast<int64_t>(64 / sizeof(T));
  for (int64_t c = 4 * line; c < 4 * line + 4 * lanes; c += line)
    __builtin_prefetch(row + column + c, 0, 3);
}
// Both, for a walk that has reached `column`. All of it must be inlined where something is stored:
// g++ drops calls of functions that do nothing but ask.
template <class Soon, class... Near>
HWY_INLINE void fetch_rows(int64_t column, const Soon* soon, const Near*... near) {
  fetch_four(soon, column);
  (fetch_near(near, column), ...);
}
HWY_INLINE void fetch_rows(int64_t) {}

// Four accumulators side by side, so that none waits for itself at every vector: step(at, sum)
// updates one, join(sum, other) puts two together. The order depends on the columns alone.
// A step that also stores should load first: a load that comes behind a store waits for it if their
// addresses end in the same 12 bits, and rows of different arrays often do.
// `ahead`: nothing, or a row to fetch for later and rows to fetch from near.
template <class At = Whole, class Sum, class Step, class Join, class... Ahead>
HWY_INLINE Sum fold(int64_t columns, const Sum& start, Step step, Join join, Ahead... ahead) {
  Sum a = start, b = start, c = start, d = start;
  int64_t column = 0;
  for (; column + 4 * lanes <= columns; column += 4 * lanes) {
    fetch_rows(column, ahead...);
    step(at_column<At>(column), a);
    step(at_column<At>(column + lanes), b);
    step(at_column<At>(column + 2 * lanes), c);
    step(at_column<At>(column + 3 * lanes), d);
  }
  fetch_rows(column, ahead...);
  walk<At>(
      columns, [&](auto at) HWY_ATTR { step(at, a); }, column);
  join(a, b);
  join(c, d);
  join(a, c);
  return a;
}

struct OneSum {
  Vector a;
};
struct TwoSums {
  Vector a, b;
};

// The sum of term(at) over all columns; a term of zeros is zero.
template <class At = Whole, class Term, class... Ahead>
HWY_INLINE float sum(int64_t columns, Term term, Ahead... ahead) {
  const OneSum total = fold<At>(
      columns, OneSum{hn::Zero(Floats())},
      [&](auto at, OneSum& s) HWY_ATTR { s.a = term(at, s.a); },
      [](OneSum& s, const OneSum& o) HWY_ATTR { s.a = hn::Add(s.a, o.a); }, ahead...);
  return sum_of_lanes(total.a);
}

// Whether rows are to be streamed with the next ones worked on ahead, and a vector of columns can
// be streamed to the beginning of each.
template <class Rows>
HWY_INLINE bool can_stream_ahead(const Rows& rows) {
  if (!rows.streamed || !rows.ahead) return false;
  const auto *first = rows.out[0], *second = rows.out[1];
  const auto bytes = static_cast<uintptr_t>(lanes) * sizeof(*first);
  return reinterpret_cast<uintptr_t>(first) % bytes == 0 &&
         reinterpret_cast<uintptr_t>(second) % bytes == 0;
}

}  // namespace ejk::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
