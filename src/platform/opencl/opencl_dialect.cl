// SPDX-License-Identifier: Apache-2.0
// Stands before every program that is built for OpenCL: what CUDA says differently, under one name.

// Before functions of a source's own.
#define EJK_DEVICE static inline
// On every kernel: its items per group in each dimension.
#define EJK_GROUP(x, y, z) __attribute__((reqd_work_group_size(x, y, z)))
// Before the type that a pointer into local memory points to.
#define EJK_LOCAL_PTR __local
