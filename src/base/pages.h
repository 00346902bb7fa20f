// SPDX-License-Identifier: Apache-2.0
// Memory on huge pages. Rows of large arrays lie on many small ones: who walks down a column waits
// for the page table more than for memory. Many systems give huge pages only to those who ask.
#pragma once

#include <cstddef>
#include <memory>

namespace ejk::base {

constexpr size_t huge_page = size_t{2} << 20;

// Zeroed memory that nothing else lies on, from the begin of a huge page on. It costs nothing until
// it is touched. Throws std::bad_alloc.
std::shared_ptr<std::byte> huge_pages(size_t bytes);

// For memory that was not touched yet: what was stays on the pages it has.
void ask_for_huge_pages(void* begin, size_t bytes);

// Whether huge pages were asked for there, or are there.
bool on_huge_pages(const void* at);

}  // namespace ejk::base
