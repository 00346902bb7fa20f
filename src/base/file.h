// SPDX-License-Identifier: Apache-2.0
// Files as a shared directory needs them: written whole or not at all, locked, read with a limit.
//
// Nothing here throws for what the file system does: failures are returned with errno and the step
// that failed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ejk::base {

// True if something failed.
struct [[nodiscard]] FileError {
  int code = 0;      // errno
  std::string what;  // the step and the path: "open /a/b"

  explicit operator bool() const noexcept { return code != 0; }
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

 private:
  int fd_ = -1;
};

struct FileText {
  std::string text;
  FileError error;  // ENOENT if there is none, EFBIG if it is larger than the limit
  uid_t owner = 0;
};

// This user or root.
bool owner_is_trusted(uid_t owner);

// Regular files only: a pipe or a device in the place of a file must not block its reader.
FileText read_file(const std::string& path, size_t limit);

// Replaces the file by `text`: readers see the old or the new content, also after a crash of the
// machine if it was `flushed`. Written first to a file of a random name in `tmp_dir`, which must be
// on the same file system.
enum class Written { flushed, unflushed };
FileError replace_file(const std::string& path, std::string_view text, const std::string& tmp_dir,
                       Written how = Written::flushed);

// Writes into an open file at that place, in one step where the file system takes it whole.
FileError write_at(const Fd& fd, std::string_view text, off_t at, const std::string& path);

// Removes what writers that died have left in `tmp_dir`. Files being written are locked and stay.
void remove_leftovers(const std::string& tmp_dir);

// The directory and those above it, with the mode that the umask gives.
FileError make_directories(const std::string& path);

FileError rename_file(const std::string& from, const std::string& to);
FileError remove_file(const std::string& path);

// The names in a directory, sorted, without "." and ".."; none if it cannot be read.
std::vector<std::string> list_directory(const std::string& path);

// Readable, safe as a file name on any file system, and different for different texts even where
// case does not count.
std::string file_name_of(std::string_view text);

// Part of a path before its last '/'.
std::string parent_directory(const std::string& path);

// An exclusive lock between processes and threads, on a file that is made for it. The operating
// system drops it when its holder dies.
class FileLock {
 public:
  enum class AfterUse { keep_file, remove_file };
  using milliseconds = std::chrono::milliseconds;

  // Tries until it has the lock, `patience` is over (error ETIMEDOUT) or something else fails.
  // Polls, at most every `pause`: a waiter must be able to give up, and flock itself cannot.
  FileLock(std::string path, milliseconds patience, milliseconds pause, AfterUse after_use);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const noexcept { return fd_.valid(); }
  const FileError& error() const noexcept { return error_; }

 private:
  bool try_lock();

  std::string path_;
  Fd fd_;
  FileError error_;
  AfterUse after_use_;
  pid_t owner_;
};

}  // namespace ejk::base
