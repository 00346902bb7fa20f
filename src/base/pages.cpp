// SPDX-License-Identifier: Apache-2.0
// Huge pages: mapped, asked for, found in what the system says of this process.
#include "base/pages.h"

#include <sys/mman.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <new>
#include <string>
#include <string_view>

namespace ejk::base {
namespace {

// "7f00-7fff rw-p ..." in hexadecimal. False for any other line.
bool read_range(std::string_view line, uintptr_t& begin, uintptr_t& end) {
  const char* const last = line.data() + line.size();
  const auto [dash, wrong] = std::from_chars(line.data(), last, begin, 16);
  if (wrong != std::errc() || dash == last || *dash != '-') return false;
  const auto [blank, wrong_too] = std::from_chars(dash + 1, last, end, 16);
  return wrong_too == std::errc() && blank != last && *blank == ' ';
}

// The number of "Rss:     12 kB".
uint64_t kilobytes(std::string_view line) {
  uint64_t number = 0;
  const size_t at = line.find_first_of("0123456789");
  if (at != line.npos) std::from_chars(line.data() + at, line.data() + line.size(), number);
  return number;
}

}  // namespace

std::shared_ptr<std::byte> huge_pages(size_t bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  const size_t all = (bytes + huge_page - 1) / huge_page * huge_page + huge_page;
  void* const got =
      ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  auto* const pages = static_cast<std::byte*>(got);
  std::shared_ptr<std::byte> owner(pages, [all](std::byte* p) { ::munmap(p, all); });
  const size_t past = reinterpret_cast<uintptr_t>(pages) % huge_page;
  std::byte* const begin = past == 0 ? pages : pages + huge_page - past;
  ask_for_huge_pages(begin, all - huge_page);
  return {std::move(owner), begin};
}

void ask_for_huge_pages(void* begin, size_t bytes) {
  (void)::madvise(begin, bytes, MADV_HUGEPAGE);  // where there are none it stays as it is
}

bool on_huge_pages(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  std::ifstream maps("/proc/self/smaps");
  bool here = false;
  uint64_t there = 0;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    if (read_range(line, begin, end)) {
      if (here) return false;
      here = begin <= address && address < end;
    }
    if (!here) continue;
    if (line.starts_with("Rss:")) there = kilobytes(line);
    if (line.starts_with("AnonHugePages:") && there > 0 && 2 * kilobytes(line) >= there)
      return true;
    if (line.starts_with("VmFlags:")) return line.find(" hg") != line.npos;
  }
  return false;
}

}  // namespace ejk::base
