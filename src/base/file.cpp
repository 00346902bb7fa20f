// SPDX-License-Identifier: Apache-2.0
// Atomic replacement, locks and limited reads on POSIX file systems.
#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <system_error>
#include <thread>

#include <ejk/value.h>

namespace ejk::base {
namespace {

// Given to open and mkdir, which take the umask off: a cache shared by a group must stay shared.
constexpr mode_t file_mode = 0666, directory_mode = 0777;
constexpr std::string_view temporary_suffix = ".tmp";

FileError last_error(std::string_view step, const std::string& path) {
  return {errno, std::string(step) + " " + path};
}

template <typename Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

Fd open_file(const std::string& path, int flags) {
  return Fd(retry_interrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, file_mode); }));
}

bool lock_now(const Fd& fd) {
  return retry_interrupted([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) == 0;
}

// False once the file was removed or another one has taken its name.
bool still_named(const Fd& fd, const std::string& path) {
  struct stat open_one {};
  struct stat named_one {};
  return ::fstat(fd.get(), &open_one) == 0 && ::lstat(path.c_str(), &named_one) == 0 &&
         open_one.st_ino == named_one.st_ino && open_one.st_dev == named_one.st_dev;
}

bool locks_unsupported(int code) { return code == ENOLCK || code == EOPNOTSUPP || code == ENOSYS; }

// From the kernel's random source: the clock or the process id repeat across machines and forks.
std::string random_name() {
  uint64_t bits = 0;
  if (retry_interrupted([&] { return ::getrandom(&bits, sizeof bits, 0); }) < 0) return "";
  std::string name(16, '0');
  for (char& digit : name) digit = "0123456789abcdef"[bits & 15], bits >>= 4;
  return name.append(temporary_suffix);
}

// Writing past RLIMIT_FSIZE raises SIGXFSZ, which ends the process. While this lives the signal is
// held back from this thread and thrown away, so that the write fails like one on a full disk.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    ::sigemptyset(&size_);
    ::sigaddset(&size_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &size_, &before_);
  }
  ~NoSizeSignal() {
    const int saved = errno;
    const timespec at_once{};
    if (!::sigismember(&before_, SIGXFSZ))
      retry_interrupted([&] { return ::sigtimedwait(&size_, nullptr, &at_once); });
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = saved;
  }
  NoSizeSignal(const NoSizeSignal&) = delete;

 private:
  sigset_t size_, before_;
};

FileError write_all(const Fd& fd, std::string_view text, const std::string& path) {
  const NoSizeSignal held_back;
  while (!text.empty()) {
    const ssize_t n =
        retry_interrupted([&] { return ::write(fd.get(), text.data(), text.size()); });
    if (n < 0) return last_error("write", path);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

// Some file systems know no flushing and say EINVAL: then there is nothing to flush.
FileError flush(const Fd& fd, const std::string& path) {
  if (retry_interrupted([&] { return ::fdatasync(fd.get()); }) == 0 || errno == EINVAL) return {};
  return last_error("flush", path);
}

// In every file system, shell and locale.
bool is_safe(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const bool digit = c >= '0' && c <= '9';
  return letter || digit || std::string_view("@_+-.").find(c) != std::string_view::npos;
}

// A locked file in the temporary directory, removed unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& directory) {
    const std::string name = random_name();
    path_ = directory + "/" + name;
    if (!name.empty()) fd_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL);
    if (!fd_.valid()) {
      error_ = last_error("create", path_);
      return;
    }
    // Between the two calls someone who removes leftovers may have taken it for one.
    const bool locked = lock_now(fd_) || locks_unsupported(errno);
    lost_ = !locked || !still_named(fd_, path_);
  }
  ~TemporaryFile() {
    if (fd_.valid() && !lost_ && !renamed_) ::unlink(path_.c_str());
    if (fd_.valid()) ::flock(fd_.get(), LOCK_UN);  // a forked child may hold a copy of it open
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const FileError& error() const { return error_; }
  bool lost() const { return lost_; }

  FileError fill(std::string_view text, Written how) {
    if (auto error = write_all(fd_, text, path_)) return error;
    return how == Written::flushed ? flush(fd_, path_) : FileError{};
  }

  FileError rename_to(const std::string& path) {
    auto error = rename_file(path_, path);
    renamed_ = !error;
    return error;
  }

 private:
  std::string path_;
  Fd fd_;
  FileError error_;
  bool lost_ = false, renamed_ = false;
};

}  // namespace

std::string FileError::text() const { return what + ": " + std::system_category().message(code); }

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

bool owner_is_trusted(uid_t owner) { return owner == ::geteuid() || owner == 0; }

FileText read_file(const std::string& path, size_t limit) {
  const Fd fd = open_file(path, O_RDONLY | O_NONBLOCK);
  if (!fd.valid()) return {{}, last_error("open", path)};
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return {{}, last_error("look at", path)};
  if (!S_ISREG(info.st_mode))
    return {{}, {S_ISDIR(info.st_mode) ? EISDIR : EINVAL, "read " + path}};

  // One byte more than expected, so that the end is seen without a second look at the size.
  FileText out;
  out.owner = info.st_uid;
  const auto expected = static_cast<size_t>(std::max<off_t>(info.st_size, 0));
  if (expected > limit) return {{}, {EFBIG, "read " + path}};
  size_t filled = 0;
  for (;;) {
    if (out.text.size() == filled) out.text.resize(filled == 0 ? expected + 1 : 2 * filled);
    const ssize_t n = retry_interrupted(
        [&] { return ::read(fd.get(), out.text.data() + filled, out.text.size() - filled); });
    if (n < 0) return {{}, last_error("read", path)};
    if (n == 0) break;
    filled += static_cast<size_t>(n);
    if (filled > limit) return {{}, {EFBIG, "read " + path}};
  }
  out.text.resize(filled);
  return out;
}

FileError replace_file(const std::string& path, std::string_view text, const std::string& tmp_dir,
                       Written how) {
  constexpr int tries = 100;  // a file is lost to a cleaner rarely, unless many start at once
  for (int i = 0; i < tries; ++i) {
    TemporaryFile temporary(tmp_dir);
    if (temporary.error().code == EEXIST || temporary.lost()) continue;
    if (temporary.error()) return temporary.error();
    if (auto error = temporary.fill(text, how)) return error;
    return temporary.rename_to(path);
  }
  return {EAGAIN, "create a temporary file in " + tmp_dir};
}

std::string file_name_of(std::string_view text) {
  constexpr size_t most = 48;
  std::string out;
  for (const char c : text.substr(0, most)) {
    const bool hides = out.empty() && c == '.';
    out += is_safe(c) && !hides ? c : '_';
  }
  return out + "-" + short_hash(text);
}

FileError write_at(const Fd& fd, std::string_view text, off_t at, const std::string& path) {
  const NoSizeSignal held_back;
  while (!text.empty()) {
    const ssize_t n =
        retry_interrupted([&] { return ::pwrite(fd.get(), text.data(), text.size(), at); });
    if (n < 0) return last_error("write", path);
    text.remove_prefix(static_cast<size_t>(n));
    at += n;
  }
  return {};
}

void remove_leftovers(const std::string& tmp_dir) {
  for (const std::string& name : list_directory(tmp_dir)) {
    if (!name.ends_with(temporary_suffix)) continue;
    const std::string path = tmp_dir + "/" + name;
    const Fd fd = open_file(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (fd.valid() && lock_now(fd) && still_named(fd, path)) ::unlink(path.c_str());
  }
}

FileError make_directories(const std::string& path) {
  if (::mkdir(path.c_str(), directory_mode) == 0) return {};
  if (errno == ENOENT) {
    const std::string parent = parent_directory(path);
    if (parent.empty() || parent == path) return last_error("create the directory", path);
    if (auto error = make_directories(parent)) return error;
    if (::mkdir(path.c_str(), directory_mode) == 0) return {};
  }
  if (errno != EEXIST) return last_error("create the directory", path);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) errno = ENOTDIR;
  else return {};
  return last_error("use as a directory", path);
}

FileError rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return {};
  return last_error("rename " + from + " to", to);
}

FileError remove_file(const std::string& path) {
  if (::unlink(path.c_str()) == 0) return {};
  return last_error("remove", path);
}

std::vector<std::string> list_directory(const std::string& path) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
  if (!directory) return names;
  while (const dirent* item = ::readdir(directory.get())) {
    const std::string_view name = item->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string parent_directory(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return "";
  return path.substr(0, slash == 0 ? 1 : slash);
}

FileLock::FileLock(std::string path, milliseconds patience, milliseconds pause, AfterUse after_use)
    : path_(std::move(path)), after_use_(after_use), owner_(::getpid()) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + patience;
  // Short waits first: most holders need less than a millisecond.
  for (clock::duration wait = std::chrono::microseconds(100); !try_lock(); wait *= 2) {
    if (error_) return;
    const auto left = end - clock::now();
    if (left <= clock::duration::zero()) {
      error_ = {ETIMEDOUT, "lock " + path_};
      return;
    }
    wait = std::min<clock::duration>(wait, pause);
    std::this_thread::sleep_for(std::min(wait, left));
  }
}

// False without an error: someone else has it, or its file was just removed by who had it.
bool FileLock::try_lock() {
  Fd fd = open_file(path_, O_RDWR | O_CREAT);
  if (!fd.valid()) {
    error_ = last_error("open", path_);
    return false;
  }
  if (!lock_now(fd)) {
    if (errno != EWOULDBLOCK) error_ = last_error("lock", path_);
    return false;
  }
  if (!still_named(fd, path_)) return false;
  fd_ = std::move(fd);
  return true;
}

// Unlocked by hand because children forked meanwhile share the lock, and not by those children,
// because they share it.
FileLock::~FileLock() {
  if (!fd_.valid() || owner_ != ::getpid()) return;
  if (after_use_ == AfterUse::remove_file) ::unlink(path_.c_str());
  ::flock(fd_.get(), LOCK_UN);
}

}  // namespace ejk::base
