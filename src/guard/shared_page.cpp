// SPDX-License-Identifier: Apache-2.0
// Maps the page that a guarded child and its parent share.
#include "guard/shared_page.h"

#include <sys/mman.h>

#include "base/process.h"

namespace ejk::detail {

void* map_board(int file) {
  const size_t page = base::page_size();
  void* const pages = ::mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  void* const middle = board_in(pages);
  const int access = PROT_READ | PROT_WRITE;
  const int kind = MAP_SHARED | MAP_FIXED | (file < 0 ? MAP_ANONYMOUS : 0);
  if (::mmap(middle, page, access, kind, file, 0) != MAP_FAILED) return pages;
  unmap_board(pages);
  return nullptr;
}

void* board_in(void* mapped) { return static_cast<std::byte*>(mapped) + base::page_size(); }

void unmap_board(void* mapped) { ::munmap(mapped, 3 * base::page_size()); }

}  // namespace ejk::detail
