// SPDX-License-Identifier: Apache-2.0
// OpenCL C as CUDA's compiler reads it; stands before every program that is built for CUDA.
//
// What a source has to keep to, so that both read it alike:
// - arrays in local memory are declared `__local float tile[SIZE]`, in kernels; pointers into it carry
//   EJK_LOCAL_PTR instead of __local, as CUDA has no such pointers;
// - vectors are made from one number, `(float4)(x)`, or by vload; (float4)(a, b, c, d) would be d alone;
// - which of two vectors: select(no, yes, which), as C++ has no ?: for them.

#define EJK_CUDA 1
#define EJK_DEVICE static __device__ __forceinline__
#define EJK_GROUP(x, y, z) __launch_bounds__((x) * (y) * (z))
#define EJK_LOCAL_PTR

#define __kernel extern "C" __global__
#define __global
#define __local __shared__
#define __private
#define restrict __restrict__

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e38f
#define FLT_MIN 1.175494351e-38f
#endif

// ---- work-items

#define EJK_DIMENSION(of, d) ((d) == 0 ? of.x : (d) == 1 ? of.y : of.z)
EJK_DEVICE size_t get_local_id(int d) { return EJK_DIMENSION(threadIdx, d); }
EJK_DEVICE size_t get_group_id(int d) { return EJK_DIMENSION(blockIdx, d); }
EJK_DEVICE size_t get_local_size(int d) { return EJK_DIMENSION(blockDim, d); }
EJK_DEVICE size_t get_num_groups(int d) { return EJK_DIMENSION(gridDim, d); }
EJK_DEVICE size_t get_global_size(int d) { return get_num_groups(d) * get_local_size(d); }
EJK_DEVICE size_t get_global_id(int d) { return get_group_id(d) * get_local_size(d) + get_local_id(d); }

#define CLK_LOCAL_MEM_FENCE 1
#define CLK_GLOBAL_MEM_FENCE 2
#define barrier(fences) __syncthreads()

#define atomic_add atomicAdd
#define atomic_max atomicMax
#define atomic_min atomicMin
#define atomic_xchg atomicExch

// ---- vectors

template <class T, int N>
struct EjkVector;

// The names of a vector's numbers and halves.
template <class T, int N>
struct EjkHalfOf {
  typedef EjkVector<T, N / 2> Type;
};
template <class T>
struct EjkHalfOf<T, 2> {
  typedef T Type;
};
template <class T, int N>
struct EjkParts;
#define EJK_PARTS(N, ...)        \
  template <class T>             \
  struct EjkParts<T, N> {        \
    union {                      \
      T s[N];                    \
      struct {                   \
        T __VA_ARGS__;           \
      };                         \
      struct {                   \
        typename EjkHalfOf<T, N>::Type lo, hi; \
      };                         \
      EJK_LETTERS_##N            \
    };                           \
  };
#define EJK_LETTERS_2 struct { T x, y; };
#define EJK_LETTERS_4 struct { T x, y, z, w; };
#define EJK_LETTERS_8
#define EJK_LETTERS_16
EJK_PARTS(2, s0, s1)
EJK_PARTS(4, s0, s1, s2, s3)
EJK_PARTS(8, s0, s1, s2, s3, s4, s5, s6, s7)
EJK_PARTS(16, s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, sa, sb, sc, sd, se, sf)

#define EJK_EACH(N) _Pragma("unroll") for (int i = 0; i < N; ++i)

template <class T, int N>
struct alignas(sizeof(T) * (N < 4 ? N : 4)) EjkVector : EjkParts<T, N> {
  EjkVector() = default;
  __device__ EjkVector(T all) { EJK_EACH(N) this->s[i] = all; }

#define EJK_OPERATOR(op)                                                        \
  friend __device__ EjkVector operator op(EjkVector a, const EjkVector& b) {    \
    EJK_EACH(N) a.s[i] = a.s[i] op b.s[i];                                      \
    return a;                                                                   \
  }                                                                             \
  friend __device__ EjkVector& operator op##=(EjkVector& a, const EjkVector& b) { \
    return a = a op b;                                                          \
  }
  EJK_OPERATOR(+)
  EJK_OPERATOR(-)
  EJK_OPERATOR(*)
  EJK_OPERATOR(/)
  EJK_OPERATOR(&)
  EJK_OPERATOR(|)
  EJK_OPERATOR(<<)
  EJK_OPERATOR(>>)
#undef EJK_OPERATOR

// -1 where it is so, else 0.
#define EJK_COMPARISON(op)                                                                    \
  friend __device__ EjkVector<int, N> operator op(const EjkVector& a, const EjkVector& b) {   \
    EjkVector<int, N> result;                                                                 \
    EJK_EACH(N) result.s[i] = -(a.s[i] op b.s[i]);                                            \
    return result;                                                                            \
  }
  EJK_COMPARISON(<)
  EJK_COMPARISON(<=)
  EJK_COMPARISON(>)
  EJK_COMPARISON(>=)
  EJK_COMPARISON(==)
  EJK_COMPARISON(!=)
#undef EJK_COMPARISON

  friend __device__ EjkVector operator-(EjkVector a) {
    EJK_EACH(N) a.s[i] = -a.s[i];
    return a;
  }
};

#define EJK_VECTORS(T)               \
  typedef EjkVector<T, 2> ejk_##T##2;  \
  typedef EjkVector<T, 4> ejk_##T##4;  \
  typedef EjkVector<T, 8> ejk_##T##8;  \
  typedef EjkVector<T, 16> ejk_##T##16;
EJK_VECTORS(float)
EJK_VECTORS(int)
EJK_VECTORS(uint)
EJK_VECTORS(ushort)
#undef EJK_VECTORS
// CUDA has types of these names that cannot calculate.
#define float2 ejk_float2
#define float4 ejk_float4
#define float8 ejk_float8
#define float16 ejk_float16
#define int2 ejk_int2
#define int4 ejk_int4
#define int8 ejk_int8
#define int16 ejk_int16
#define uint2 ejk_uint2
#define uint4 ejk_uint4
#define uint8 ejk_uint8
#define uint16 ejk_uint16
#define ushort2 ejk_ushort2
#define ushort4 ejk_ushort4
#define ushort8 ejk_ushort8
#define ushort16 ejk_ushort16

// ---- loads and stores, from any address; sixteen bytes at a time where it is aligned

struct alignas(16) EjkSixteenBytes {
  uint part[4];
};
template <int N, class T>
EJK_DEVICE EjkVector<T, N> ejk_vload(size_t at, const T* from) {
  from += at * N;
  EjkVector<T, N> v;
  if (sizeof(v) % 16 == 0 && (reinterpret_cast<size_t>(from) & 15) == 0) {
    EJK_EACH(sizeof(v) / 16)
      reinterpret_cast<EjkSixteenBytes*>(v.s)[i] = reinterpret_cast<const EjkSixteenBytes*>(from)[i];
  } else {
    EJK_EACH(N) v.s[i] = from[i];
  }
  return v;
}
template <class T, int N>
EJK_DEVICE void ejk_vstore(const EjkVector<T, N>& v, size_t at, T* to) {
  to += at * N;
  if (sizeof(v) % 16 == 0 && (reinterpret_cast<size_t>(to) & 15) == 0) {
    EJK_EACH(sizeof(v) / 16)
      reinterpret_cast<EjkSixteenBytes*>(to)[i] = reinterpret_cast<const EjkSixteenBytes*>(v.s)[i];
  } else {
    EJK_EACH(N) to[i] = v.s[i];
  }
}
#define vload2 ejk_vload<2>
#define vload4 ejk_vload<4>
#define vload8 ejk_vload<8>
#define vload16 ejk_vload<16>
#define vstore2 ejk_vstore
#define vstore4 ejk_vstore
#define vstore8 ejk_vstore
#define vstore16 ejk_vstore

// ---- numbers of half the size; of bfloat16 only the bits are known, as ushort

struct EjkHalf {
  ushort bits;
};
#define half EjkHalf
#ifdef EJK_EMULATED_CUDA
EJK_DEVICE float ejk_from_half(half x) { return __builtin_bit_cast(_Float16, x.bits); }
EJK_DEVICE half ejk_to_half(float x) { return {__builtin_bit_cast(ushort, static_cast<_Float16>(x))}; }
#else
EJK_DEVICE float ejk_from_half(half x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
EJK_DEVICE half ejk_to_half(float x) {
  half result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
#endif
EJK_DEVICE float vload_half(size_t at, const half* from) { return ejk_from_half(from[at]); }
EJK_DEVICE void vstore_half(float x, size_t at, half* to) { to[at] = ejk_to_half(x); }

// ---- functions of numbers and vectors

#define EJK_FUNCTION_1(name, of_floats)                       \
  EJK_DEVICE float ejk_##name(float a) { return of_floats(a); } \
  template <int N>                                            \
  EJK_DEVICE EjkVector<float, N> ejk_##name(EjkVector<float, N> a) { \
    EJK_EACH(N) a.s[i] = of_floats(a.s[i]);                   \
    return a;                                                 \
  }
EJK_FUNCTION_1(exp, expf)
EJK_FUNCTION_1(exp2, exp2f)
EJK_FUNCTION_1(log, logf)
EJK_FUNCTION_1(log2, log2f)
EJK_FUNCTION_1(sqrt, sqrtf)
EJK_FUNCTION_1(rsqrt, rsqrtf)
EJK_FUNCTION_1(fabs, fabsf)
EJK_FUNCTION_1(rint, rintf)
EJK_FUNCTION_1(tanh, tanhf)
#undef EJK_FUNCTION_1

#define EJK_FUNCTION_2(name, of_floats)                                                       \
  EJK_DEVICE float ejk_##name(float a, float b) { return of_floats(a, b); }                     \
  template <int N>                                                                            \
  EJK_DEVICE EjkVector<float, N> ejk_##name(EjkVector<float, N> a, const EjkVector<float, N>& b) { \
    EJK_EACH(N) a.s[i] = of_floats(a.s[i], b.s[i]);                                           \
    return a;                                                                                 \
  }
EJK_FUNCTION_2(fmax, fmaxf)
EJK_FUNCTION_2(fmin, fminf)
#undef EJK_FUNCTION_2

EJK_DEVICE float ejk_fma(float a, float b, float c) { return fmaf(a, b, c); }
template <int N>
EJK_DEVICE EjkVector<float, N> ejk_fma(const EjkVector<float, N>& a, const EjkVector<float, N>& b,
                                       EjkVector<float, N> c) {
  EJK_EACH(N) c.s[i] = fmaf(a.s[i], b.s[i], c.s[i]);
  return c;
}
#define exp ejk_exp
#define exp2 ejk_exp2
#define log ejk_log
#define log2 ejk_log2
#define sqrt ejk_sqrt
#define rsqrt ejk_rsqrt
#define fabs ejk_fabs
#define rint ejk_rint
#define tanh ejk_tanh
#define fmax ejk_fmax
#define fmin ejk_fmin
#define fma ejk_fma

// Of integers, as OpenCL's: both of one type.
template <class T>
EJK_DEVICE T ejk_max(T a, T b) { return a < b ? b : a; }
template <class T>
EJK_DEVICE T ejk_min(T a, T b) { return b < a ? b : a; }
#define max ejk_max
#define min ejk_min

EJK_DEVICE float select(float no, float yes, int which) { return which ? yes : no; }
EJK_DEVICE int select(int no, int yes, int which) { return which ? yes : no; }
template <class T, int N>
EJK_DEVICE EjkVector<T, N> select(EjkVector<T, N> no, const EjkVector<T, N>& yes,
                                  const EjkVector<int, N>& which) {
  EJK_EACH(N) no.s[i] = which.s[i] < 0 ? yes.s[i] : no.s[i];
  return no;
}

// ---- conversions: of values, and of bits. No macros: sources join their names from parts.

template <class To, class From>
EJK_DEVICE To ejk_as(From x) {
  static_assert(sizeof(From) == sizeof(To), "both have the same size");
  union {
    From from;
    To to;
  } bits;
  bits.from = x;
  return bits.to;
}
#define EJK_CONVERSION(T, N)                                            \
  template <class From>                                                 \
  EJK_DEVICE EjkVector<T, N> convert_##T##N(const EjkVector<From, N>& v) { \
    EjkVector<T, N> result;                                             \
    EJK_EACH(N) result.s[i] = static_cast<T>(v.s[i]);                   \
    return result;                                                      \
  }                                                                     \
  template <class From>                                                 \
  EJK_DEVICE EjkVector<T, N> as_##T##N(const EjkVector<From, N>& v) {   \
    EjkVector<T, N> result;                                             \
    EJK_EACH(N) result.s[i] = ejk_as<T>(v.s[i]);                        \
    return result;                                                      \
  }
#define EJK_CONVERSIONS(T)                                                     \
  template <class From>                                                        \
  EJK_DEVICE T convert_##T(From x) { return static_cast<T>(x); }               \
  template <class From>                                                        \
  EJK_DEVICE T as_##T(From x) { return ejk_as<T>(x); }                         \
  EJK_CONVERSION(T, 2)                                                         \
  EJK_CONVERSION(T, 4)                                                         \
  EJK_CONVERSION(T, 8)                                                         \
  EJK_CONVERSION(T, 16)
EJK_CONVERSIONS(float)
EJK_CONVERSIONS(int)
EJK_CONVERSIONS(uint)
EJK_CONVERSIONS(ushort)

// ---- tensor cores

// d += a b of the tiles that the 32 threads of a warp hold together: a is 16 x 16, b 16 x 8, of bfloat16.
EJK_DEVICE void ejk_mma_bf16(float (&d)[4], const uint (&a)[4], const uint (&b)[2]) {
#ifdef EJK_EMULATED_CUDA
  emulated_mma_bf16(d, a, b, d);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}
