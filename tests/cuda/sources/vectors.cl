// SPDX-License-Identifier: Apache-2.0
// Everything that the dialect has of vectors, on one vector of WIDTH floats: lane i of result r of
// to[r * WIDTH + i] is what the host computes for x[i] and y[i].
#define JOINED(a, b) a##b
#define JOIN(a, b) JOINED(a, b)
#define FLOATS JOIN(float, WIDTH)
#define INTS JOIN(int, WIDTH)
#define VLOAD JOIN(vload, WIDTH)
#define VSTORE JOIN(vstore, WIDTH)

__kernel EJK_GROUP(1, 1, 1) void arithmetic(__global const float* x, __global const float* y,
                                            __global float* to) {
  const FLOATS a = VLOAD(0, x), b = VLOAD(0, y);
  int r = 0;
  VSTORE(a + b, r++, to);
  VSTORE(a - b, r++, to);
  VSTORE(a * b, r++, to);
  VSTORE(a / b, r++, to);
  VSTORE(-a, r++, to);
  VSTORE(2.f * a + 1.f, r++, to);
  VSTORE(fma(a, b, (FLOATS)(3.f)), r++, to);
  VSTORE(fmax(a, b), r++, to);
  VSTORE(fmin(a, b), r++, to);
  VSTORE(fabs(a), r++, to);
  VSTORE(exp(a), r++, to);
  VSTORE(exp2(a), r++, to);
  VSTORE(log(b), r++, to);
  VSTORE(log2(b), r++, to);
  VSTORE(sqrt(b), r++, to);
  VSTORE(rsqrt(b), r++, to);
  VSTORE(rint(a), r++, to);
  VSTORE(tanh(a), r++, to);
  VSTORE(select(a, b, a < b), r++, to);
  VSTORE(JOIN(convert_float, WIDTH)(a >= b), r++, to);
  VSTORE(JOIN(convert_float, WIDTH)(JOIN(convert_int, WIDTH)(a)), r++, to);
  VSTORE(JOIN(as_float, WIDTH)(JOIN(as_int, WIDTH)(a) & (INTS)(0x7fffffff)), r++, to);
  VSTORE(JOIN(as_float, WIDTH)((JOIN(as_uint, WIDTH)(a) >> 16) << 16), r++, to);
  FLOATS sum = a;
  sum += b;
  sum *= a;
  VSTORE(sum, r++, to);
}

// The halves of halves, down to one number.
__kernel EJK_GROUP(1, 1, 1) void parts(__global const float* x, __global float* to) {
  const float16 all = vload16(0, x);
  const float8 eight = all.lo + all.hi;
  const float4 four = eight.lo + eight.hi;
  const float2 two = four.lo + four.hi;
  to[0] = two.lo + two.hi;
  to[1] = two.x + two.y;
  to[2] = four.s0 + four.s1 + four.s2 + four.s3;
  to[3] = four.x + four.y + four.z + four.w;
  to[4] = all.s0 + all.s9 + all.sa + all.sf;
  to[5] = eight.s7;
}

__kernel EJK_GROUP(1, 1, 1) void numbers(__global const float* x, __global half* halves,
                                         __global float* to, __global int* count) {
  for (int i = 0; i < 4; ++i) {
    vstore_half(x[i], i, halves);
    to[i] = vload_half(i, halves);
  }
  to[4] = as_float(as_uint(x[0]) & 0xffff0000u);
  to[5] = max(3, 4) + min(3, 4);
  to[6] = x[0] < INFINITY ? 1.f : 0.f;
  atomic_add(count, 3);
}
