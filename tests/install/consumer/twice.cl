// SPDX-License-Identifier: Apache-2.0
// A kernel of a user's own for devices.
__kernel EJK_GROUP(1, 1, 1)
void twice(__global float* x) { x[get_group_id(0)] *= 2; }  // "quoted", \\ and ; [ ] $ { }
