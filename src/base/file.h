// SPDX-License-Identifier: Apache-2.0
// Open files, limited reads and errors as values.
//
// Nothing here throws for what the file system does: failures are returned with errno and the step
// that failed.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ejk::base {

// True if something failed.
struct [[nodiscard]] FileError {
  int code = 0;          // errno
  std::string what;      // the step and the path: "open /a/b"
  bool refused = false;  // by Trust::strict, not by the file system

  explicit operator bool() const noexcept { return code != 0; }
  bool is_absent() const noexcept { return code == ENOENT || code == ENOTDIR; }
  // The file system has no locks.
  bool has_no_locks() const noexcept {
    return code == ENOLCK || code == EOPNOTSUPP || code == ENOSYS;
  }
  std::string text() const;  // "open /a/b: Permission denied"
};

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();

  bool valid() const noexcept { return fd_ >= 0; }
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Calls again what a signal has interrupted.
template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

FileError last_error(std::string_view step, const std::string& path);  // from errno

// Who else may have written a file.
struct Strangers {
  std::optional<uid_t> owner;  // of the file, unless it is this user or root
  bool everyone = false;

  explicit operator bool() const noexcept { return owner || everyone; }
};

struct FileText {
  std::string text;
  FileError error;  // ENOENT if there is none, EFBIG if it is larger than the limit
  Strangers strangers = {};
};

// Regular files only: a pipe or a device in the place of a file must not block its reader.
FileText read_file(const std::string& path, size_t limit);
// The same of an open file; an invalid one is an error from errno. Reads no further than it needs
// to see `until`, unless that is empty.
FileText read_file(const Fd& fd, const std::string& path, size_t limit,
                   std::string_view until = {});

// Writes into an open file at that place, in one step where the file system takes it whole.
FileError write_at(const Fd& fd, std::string_view text, off_t at, const std::string& path);

// The names in a directory, sorted, without "." and ".."; none if it cannot be read.
std::vector<std::string> list_directory(const std::string& path);
std::vector<std::string> list_directory(Fd fd);  // the same of an open one

// Readable, safe as a file name on any file system, and different for different texts even where
// case does not count.
std::string file_name_of(std::string_view text);

}  // namespace ejk::base
