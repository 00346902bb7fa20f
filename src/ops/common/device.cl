// SPDX-License-Identifier: Apache-2.0
// What the sources of operations share: elements as floats, vectors of WIDTH of them, folds over the
// items of a group.
//
// Macros of a program: BF16 (elements are bfloat16, else float), WIDTH (1, 2, 4, 8, 16), GROUP (items of
// a group in its first dimension, a power of two).

#define EJK_JOIN_NOW(a, b) a##b
#define EJK_JOIN(a, b) EJK_JOIN_NOW(a, b)

#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)

// ---- elements

#if BF16
typedef ushort Element;
#else
typedef float Element;
#endif

// bfloat16 is the upper half of a float; stored to the nearest one, to the even one of two.
EJK_DEVICE float from_bf16(ushort x) { return as_float((uint)x << 16); }
EJK_DEVICE ushort to_bf16(float x) {
  const uint bits = as_uint(x);
  return (ushort)(x != x ? 0x7fc0u : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

#if BF16
EJK_DEVICE float load1(__global const Element* from) { return from_bf16(from[0]); }
EJK_DEVICE void store1(float v, __global Element* to) { to[0] = to_bf16(v); }
#define EJK_ELEMENTS(N)                                                                            \
  EJK_DEVICE float##N load##N(__global const Element* from) {                                      \
    return as_float##N(convert_uint##N(vload##N(0, from)) << (uint##N)(16u));                      \
  }                                                                                                \
  EJK_DEVICE void store##N(float##N v, __global Element* to) {                                     \
    const uint##N bits = as_uint##N(v);                                                            \
    const uint##N odd = (bits >> (uint##N)(16u)) & (uint##N)(1u);                                  \
    const uint##N near = (bits + (uint##N)(0x7fffu) + odd) >> (uint##N)(16u);                      \
    vstore##N(convert_ushort##N(select(near, (uint##N)(0x7fc0u), v != v)), 0, to);                 \
  }
#else
EJK_DEVICE float load1(__global const Element* from) { return from[0]; }
EJK_DEVICE void store1(float v, __global Element* to) { to[0] = v; }
#define EJK_ELEMENTS(N)                                                                       \
  EJK_DEVICE float##N load##N(__global const Element* from) { return vload##N(0, from); }     \
  EJK_DEVICE void store##N(float##N v, __global Element* to) { vstore##N(v, 0, to); }
#endif
EJK_ELEMENTS(2)
EJK_ELEMENTS(4)
EJK_ELEMENTS(8)
EJK_ELEMENTS(16)

// ---- vectors

EJK_DEVICE float sum1(float v) { return v; }
EJK_DEVICE float sum2(float2 v) { return v.lo + v.hi; }
EJK_DEVICE float sum4(float4 v) { return sum2(v.lo + v.hi); }
EJK_DEVICE float sum8(float8 v) { return sum4(v.lo + v.hi); }
EJK_DEVICE float sum16(float16 v) { return sum8(v.lo + v.hi); }
EJK_DEVICE float largest1(float v) { return v; }
EJK_DEVICE float largest2(float2 v) { return fmax(v.lo, v.hi); }
EJK_DEVICE float largest4(float4 v) { return largest2(fmax(v.lo, v.hi)); }
EJK_DEVICE float largest8(float8 v) { return largest4(fmax(v.lo, v.hi)); }
EJK_DEVICE float largest16(float16 v) { return largest8(fmax(v.lo, v.hi)); }

// exp(x) for x up to 88, with a relative error below 2e-7 and exactly 1 for 0; from -87.69 on down it is
// exactly 0. NaN stays NaN. OpenCL's own exp is a call for each number with some drivers. x is cut into
// n ln 2 and a rest r: near 1.5 * 2^23 an ulp is 1, so that adding that rounds to n, which then stands,
// with the bias of an exponent, in the lowest bits.
#define EJK_EXP(N, F, U, as_f, as_u, limited)                    \
  EJK_DEVICE F fast_exp##N(F given) {                            \
    const F x = limited;                                         \
    const F rounder = (F)(0x1.8p23f + 127.f);                    \
    const F shifted = fma(x, (F)(0x1.715476p0f), rounder);       \
    const F n = shifted - rounder;                               \
    F r = fma(n, (F)(-0x1.62e4p-1f), x);                         \
    r = fma(n, (F)(-0x1.7f7d1cp-20f), r);                        \
    F p = (F)(0.008290294574776168f);                            \
    p = fma(p, r, (F)(0.041898022898460584f));                   \
    p = fma(p, r, (F)(0.16667637017022802f));                    \
    p = fma(p, r, (F)(0.49999148839598634f));                    \
    p = fma(p, r, (F)(0.9999997068226848f));                     \
    p = fma(p, r, (F)(1.f));                                     \
    return p * as_f(as_u(shifted) << (U)(23u));                  \
  }
#define EJK_EXP_OF_VECTORS(N)                                    \
  EJK_EXP(N, float##N, uint##N, as_float##N, as_uint##N,         \
          select(given, (float##N)(-88.f), given < (float##N)(-88.f)))
EJK_EXP(1, float, uint, as_float, as_uint, given < -88.f ? -88.f : given)
EJK_EXP_OF_VECTORS(2)
EJK_EXP_OF_VECTORS(4)
EJK_EXP_OF_VECTORS(8)
EJK_EXP_OF_VECTORS(16)

#ifdef WIDTH
#if WIDTH == 1
#define FLOATS float
#else
#define FLOATS EJK_JOIN(float, WIDTH)
#endif
#define sum_of EJK_JOIN(sum, WIDTH)
#define max_of EJK_JOIN(largest, WIDTH)
#define fast_exp EJK_JOIN(fast_exp, WIDTH)

// Only the end of a row needs these loops, and unrolled they are most of a kernel's compile time.
#define EJK_ROLLED _Pragma("unroll 1")

// The first n elements, WIDTH or fewer; the others are `otherwise`.
EJK_DEVICE FLOATS load(__global const Element* from, int n, float otherwise) {
  if (n == WIDTH) return EJK_JOIN(load, WIDTH)(from);
#if WIDTH == 1
  return otherwise;
#else
  float part[WIDTH];
  EJK_ROLLED for (int i = 0; i < WIDTH; ++i) part[i] = i < n ? load1(from + i) : otherwise;
  return EJK_JOIN(vload, WIDTH)(0, part);
#endif
}
// The first n, and 0 behind them.
EJK_DEVICE FLOATS within(FLOATS v, int n) {
#if WIDTH > 1
  if (n < WIDTH) {
    float part[WIDTH];
    EJK_JOIN(vstore, WIDTH)(v, 0, part);
    EJK_ROLLED for (int i = n; i < WIDTH; ++i) part[i] = 0.f;
    return EJK_JOIN(vload, WIDTH)(0, part);
  }
#endif
  return v;
}
EJK_DEVICE void store(FLOATS v, __global Element* to, int n) {
  if (n == WIDTH) {
    EJK_JOIN(store, WIDTH)(v, to);
    return;
  }
#if WIDTH > 1
  float part[WIDTH];
  EJK_JOIN(vstore, WIDTH)(v, 0, part);
  EJK_ROLLED for (int i = 0; i < n; ++i) store1(part[i], to + i);
#endif
}
#endif

// ---- groups

// group_sum and group_max give every item what all of them have together. GROUP_ROOM(name), in the
// kernel, is the local memory that they need: GROUP floats, or nothing for a group of one.
#ifdef GROUP
#if GROUP == 1
#define GROUP_ROOM(name)
#define group_sum(x, room) (x)
#define group_max(x, room) (x)
#else
#define GROUP_ROOM(name) __local float name[GROUP]
#define EJK_GROUP_FOLD(name, both)                                       \
  EJK_DEVICE float name(float x, EJK_LOCAL_PTR float* room) {            \
    const int item = (int)get_local_id(0);                               \
    room[item] = x;                                                      \
    barrier(CLK_LOCAL_MEM_FENCE);                                        \
    for (int half_of = GROUP / 2; half_of > 0; half_of /= 2) {           \
      if (item < half_of) room[item] = both(room[item], room[item + half_of]); \
      barrier(CLK_LOCAL_MEM_FENCE);                                      \
    }                                                                    \
    const float all = room[0];                                           \
    barrier(CLK_LOCAL_MEM_FENCE); /* before anyone writes there again */ \
    return all;                                                          \
  }
EJK_DEVICE float ejk_plus(float a, float b) { return a + b; }
EJK_GROUP_FOLD(group_sum, ejk_plus)
EJK_GROUP_FOLD(group_max, fmax)
#endif
#endif
