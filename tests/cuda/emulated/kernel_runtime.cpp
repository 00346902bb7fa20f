// SPDX-License-Identifier: Apache-2.0
// Linked into every module of the emulation: hears of each access to memory and of undefined
// behaviour, because the compiler puts the calls of its sanitizers there, and tells the driver.
#include "seam.h"

#define EMULATED_HIDDEN extern "C" __attribute__((visibility("hidden")))

EMULATED_HIDDEN emulated::Driver emulated_driver;
emulated::Driver emulated_driver;

namespace {
using emulated::Access;

void tell(const void* at, size_t bytes, Access access, const void* code) {
  emulated_driver.access(at, bytes, access, code);
}
}  // namespace

// ---- the calls of -fsanitize=thread
#define EMULATED_ACCESS(name, bytes, access)              \
  EMULATED_HIDDEN void name(const void* at) {             \
    tell(at, bytes, access, __builtin_return_address(0)); \
  }
#define EMULATED_ACCESSES(n)                                   \
  EMULATED_ACCESS(__tsan_read##n, n, Access::read)             \
  EMULATED_ACCESS(__tsan_write##n, n, Access::write)           \
  EMULATED_ACCESS(__tsan_unaligned_read##n, n, Access::read)   \
  EMULATED_ACCESS(__tsan_unaligned_write##n, n, Access::write) \
  EMULATED_ACCESS(__tsan_volatile_read##n, n, Access::read)    \
  EMULATED_ACCESS(__tsan_volatile_write##n, n, Access::write)
EMULATED_ACCESSES(1)
EMULATED_ACCESSES(2)
EMULATED_ACCESSES(4)
EMULATED_ACCESSES(8)
EMULATED_ACCESSES(16)
EMULATED_HIDDEN void __tsan_read_range(const void* at, size_t bytes) {
  tell(at, bytes, Access::read, __builtin_return_address(0));
}
EMULATED_HIDDEN void __tsan_write_range(const void* at, size_t bytes) {
  tell(at, bytes, Access::write, __builtin_return_address(0));
}
EMULATED_HIDDEN void __tsan_init() {}
EMULATED_HIDDEN void __tsan_func_entry(const void*) {}
EMULATED_HIDDEN void __tsan_func_exit() {}

// ---- the calls of -fsanitize=bounds and others; what they are given begins with a place
namespace {
struct SourcePlace {
  const char* file;
  uint32_t line, column;
};
}  // namespace
#define EMULATED_MISTAKE(name, what)                                             \
  EMULATED_HIDDEN void __ubsan_handle_##name##_abort(const SourcePlace* place) { \
    emulated_driver.mistake(what, place->file, place->line);                     \
  }
EMULATED_MISTAKE(out_of_bounds, "an index is outside of its array")
EMULATED_MISTAKE(type_mismatch_v1, "an address is misaligned")
EMULATED_MISTAKE(shift_out_of_bounds, "a shift is wider than its number")
EMULATED_MISTAKE(divrem_overflow, "a division by zero, or a quotient that does not fit")
EMULATED_MISTAKE(add_overflow, "a sum does not fit")
EMULATED_MISTAKE(sub_overflow, "a difference does not fit")
EMULATED_MISTAKE(mul_overflow, "a product does not fit")
EMULATED_MISTAKE(negate_overflow, "a negation does not fit")
