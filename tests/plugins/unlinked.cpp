// SPDX-License-Identifier: Apache-2.0
// A library of kernels that needs what its author forgot to link.
namespace ejk {
int from_a_library_that_is_not_linked();
}
extern "C" int needs_it() { return ejk::from_a_library_that_is_not_linked(); }
