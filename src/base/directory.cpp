// SPDX-License-Identifier: Apache-2.0
// Directories by descriptor, atomic replacement and locks on POSIX file systems.
#include "base/directory.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <random>
#include <sstream>
#include <thread>

#include "base/env.h"
#include "base/time.h"

namespace ejk::base {
namespace {

// Given to open and mkdir, which take the umask off: a cache shared by a group stays shared.
constexpr mode_t file_mode = 0664, directory_mode = 0775, private_mode = 0700;
constexpr std::string_view temporary_suffix = ".tmp";

bool lock_now(const Fd& fd) {
  return retry_interrupted([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) == 0;
}

bool locks_unsupported(int code) { return code == ENOLCK || code == EOPNOTSUPP || code == ENOSYS; }

bool is_temporary(std::string_view name) {
  return name.size() == 16 + temporary_suffix.size() && name.ends_with(temporary_suffix) &&
         name.find_first_not_of("0123456789abcdef") == 16;
}

// Some file systems know no flushing and say EINVAL: then there is nothing to flush.
FileError flush(const Fd& fd, const std::string& path) {
  if (retry_interrupted([&] { return ::fdatasync(fd.get()); }) == 0 || errno == EINVAL) return {};
  return last_error("flush", path);
}

// Part of a path before its last '/'.
std::string parent_directory(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return "";
  return path.substr(0, slash == 0 ? 1 : slash);
}

// The directory and those above it.
FileError make_directories(const std::string& path) {
  if (::mkdir(path.c_str(), directory_mode) == 0 || errno == EEXIST) return {};
  const std::string parent = parent_directory(path);
  if (errno != ENOENT || parent.empty() || parent == path)
    return last_error("create the directory", path);
  if (auto error = make_directories(parent)) return error;
  if (::mkdir(path.c_str(), directory_mode) == 0 || errno == EEXIST) return {};
  return last_error("create the directory", path);
}

}  // namespace

Trust trust_from_environment() {
  return env("EJKERNEL_STORE_TRUST") == "strict" ? Trust::strict : Trust::all;
}

std::string random_digits() {
  uint64_t bits = 0;
  if (retry_interrupted([&] { return ::getrandom(&bits, sizeof bits, 0); }) < 0) return "";
  std::string digits(16, '0');
  for (char& digit : digits) digit = "0123456789abcdef"[bits & 15], bits >>= 4;
  return digits;
}

// ---- opening ------------------------------------------------------------------------------------

// O_PATH: passing through a directory takes no right to list it.
constexpr int directory_flags = O_PATH | O_DIRECTORY | O_CLOEXEC;

Directory Directory::at(const std::string& path, Absent absent, Trust trust) {
  Directory out(path, trust);
  const auto open = [&] {
    return retry_interrupted([&] { return ::open(path.c_str(), directory_flags); });
  };
  int fd = open();
  if (fd < 0 && errno == ENOENT && absent != Absent::fails) {
    if ((out.error_ = make_directories(path))) return out;
    fd = open();
  }
  out.hold(fd);
  return out;
}

Directory Directory::below(const std::string& names, Absent absent) const {
  Directory out(path_of(names), trust_);
  out.error_ = error_, out.exposed_ = exposed_;
  if (error_) return out;
  if (absent == Absent::fails) {
    open_how how{};
    how.flags = directory_flags, how.resolve = RESOLVE_NO_SYMLINKS;
    const auto fd = retry_interrupted(
        [&] { return ::syscall(SYS_openat2, fd_.get(), names.c_str(), &how, sizeof how); });
    // Anything else: an old kernel, a sandbox that does not know the call, or a link, which going
    // step by step finds.
    if (fd >= 0 || errno == ENOENT || errno == ENOTDIR) {
      out.hold(static_cast<int>(fd));
      return out;
    }
  }
  const size_t slash = names.rfind('/');
  if (slash != names.npos)
    return below(names.substr(0, slash), absent).below(names.substr(slash + 1), absent);
  out.hold(step(names, absent));
  return out;
}

// The descriptor of a directory here; -1 with errno if it cannot be opened or made.
int Directory::step(const std::string& name, Absent absent) const {
  Fd fd = open_at(name, directory_flags);
  if (!fd.valid() && errno == ENOENT && absent != Absent::fails) {
    const mode_t mode = absent == Absent::made ? directory_mode : private_mode;
    if (::mkdirat(fd_.get(), name.c_str(), mode) != 0 && errno != EEXIST) return -1;
    fd = open_at(name, directory_flags);
  }
  struct stat info {};
  if (!fd.valid() && errno == ENOTDIR) {
    const bool known = ::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
    errno = known && S_ISLNK(info.st_mode) ? ELOOP : ENOTDIR;
  }
  return fd.release();
}

// An invalid descriptor is an error from errno.
void Directory::hold(int fd) {
  fd_ = Fd(fd);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    error_ = last_error("open the directory", path_);
    return;
  }
  if ((info.st_mode & S_IWOTH) == 0) return;
  if (exposed_.empty()) exposed_ = path_;
  if (trust_ == Trust::strict)
    error_ = {EPERM, "trust " + path_ + ", which everyone may write to", true};
}

Fd Directory::open_at(const std::string& name, int flags) const {
  if (error_) return errno = error_.code, Fd();
  return Fd(retry_interrupted([&] {
    return ::openat(fd_.get(), name.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, file_mode);
  }));
}

// ---- looking ------------------------------------------------------------------------------------

std::vector<std::string> Directory::names() const {
  return list_directory(open_at(".", O_RDONLY | O_DIRECTORY));
}

std::vector<std::string> Directory::some_names(std::string_view suffix, size_t most) const {
  std::vector<std::string> all = names();
  std::erase_if(all, [&](const std::string& name) { return !name.ends_with(suffix); });
  std::ranges::shuffle(all, std::minstd_rand(std::random_device()()));
  all.resize(std::min(all.size(), most));
  return all;
}

bool Directory::is_private() const {
  struct stat info {};
  return !error_ && ::fstat(fd_.get(), &info) == 0 && info.st_uid == ::geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool Directory::has_own_file(const std::string& name) const {
  struct stat info {};
  return !error_ && ::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
         S_ISREG(info.st_mode) && info.st_uid == ::geteuid();
}

bool Directory::has(const std::string& name) const {
  struct stat info {};
  return !error_ && ::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0;
}

// False once the file was removed or another one has taken its name.
bool Directory::still_names(const std::string& name, const Fd& fd) const {
  struct stat open_one {};
  struct stat named_one {};
  return ::fstat(fd.get(), &open_one) == 0 &&
         ::fstatat(fd_.get(), name.c_str(), &named_one, AT_SYMLINK_NOFOLLOW) == 0 &&
         open_one.st_ino == named_one.st_ino && open_one.st_dev == named_one.st_dev;
}

FileText Directory::read(const std::string& name, size_t limit, std::string_view until) const {
  if (error_) return {{}, error_};
  FileText out = read_file(open_at(name, O_RDONLY | O_NONBLOCK), path_of(name), limit, until);
  if (out.strangers && trust_ == Trust::strict)
    out.error = {EPERM, "trust " + path_of(name) + ", which another user may have written"};
  return out;
}

// ---- changing -----------------------------------------------------------------------------------

// A locked file in the temporary directory, removed unless it was renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(const Directory& in)
      : in_(in), name_(random_digits().append(temporary_suffix)) {
    fd_ = in.open_at(name_, O_WRONLY | O_CREAT | O_EXCL);
    if (!fd_.valid()) {
      error_ = last_error("create", in.path_of(name_));
      return;
    }
    // Between the two calls someone who removes leftovers may have taken it for one.
    const bool locked = lock_now(fd_) || locks_unsupported(errno);
    lost_ = !locked || !in.still_names(name_, fd_);
  }
  ~TemporaryFile() {
    if (fd_.valid() && !lost_ && !renamed_) static_cast<void>(in_.remove(name_));
    if (fd_.valid()) ::flock(fd_.get(), LOCK_UN);  // a forked child may hold a copy of it open
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const FileError& error() const { return error_; }
  bool lost() const { return lost_; }

  FileError fill(std::string_view text, Written how) {
    if (auto error = write_at(fd_, text, 0, in_.path_of(name_))) return error;
    return how == Written::flushed ? flush(fd_, in_.path_of(name_)) : FileError{};
  }

  FileError rename_to(const Directory& to, const std::string& name) {
    renamed_ = ::renameat(in_.fd_.get(), name_.c_str(), to.fd_.get(), name.c_str()) == 0;
    return renamed_ ? FileError{} : last_error("rename a temporary file to", to.path_of(name));
  }
  FileError link_to(const Directory& to, const std::string& name) {
    if (::linkat(in_.fd_.get(), name_.c_str(), to.fd_.get(), name.c_str(), 0) == 0) return {};
    return last_error("link a temporary file to", to.path_of(name));
  }

 private:
  const Directory& in_;
  std::string name_;
  Fd fd_;
  FileError error_;
  bool lost_ = false, renamed_ = false;
};

FileError Directory::replace(const std::string& name, std::string_view text,
                             const Directory& temporary, Written how) const {
  return write(name, text, temporary, how, Existing::replaced);
}

FileError Directory::add(const std::string& name, std::string_view text,
                         const Directory& temporary) const {
  return write(name, text, temporary, Written::flushed, Existing::kept);
}

FileError Directory::write(const std::string& name, std::string_view text,
                           const Directory& temporary, Written how, Existing existing) const {
  if (error_ || temporary.error_) return error_ ? error_ : temporary.error_;
  constexpr int tries = 100;  // a file is lost to a cleaner rarely, unless many start at once
  for (int i = 0; i < tries; ++i) {
    TemporaryFile file(temporary);
    if (file.error().code == EEXIST || file.lost()) continue;
    if (file.error()) return file.error();
    if (auto error = file.fill(text, how)) return error;
    return existing == Existing::kept ? file.link_to(*this, name) : file.rename_to(*this, name);
  }
  return {EAGAIN, "create a temporary file in " + temporary.path()};
}

FileError Directory::rename(const std::string& from, const std::string& to) const {
  if (error_ || ::renameat(fd_.get(), from.c_str(), fd_.get(), to.c_str()) == 0) return error_;
  return last_error("rename " + path_of(from) + " to", to);
}

FileError Directory::remove(const std::string& name) const {
  if (error_ || ::unlinkat(fd_.get(), name.c_str(), 0) == 0) return error_;
  return last_error("remove", path_of(name));
}

void Directory::remove_if_empty(const std::string& name) const {
  if (!error_) static_cast<void>(::unlinkat(fd_.get(), name.c_str(), AT_REMOVEDIR));
}

void Directory::remove_leftovers() const {
  for (const std::string& name : some_names(temporary_suffix, 1000)) {
    if (!is_temporary(name) || !has_own_file(name)) continue;
    const Fd fd = open_at(name, O_RDWR | O_NONBLOCK);
    if (fd.valid() && lock_now(fd) && still_names(name, fd)) static_cast<void>(remove(name));
  }
}

// ---- locks --------------------------------------------------------------------------------------

namespace {

// Where process ids mean the same: this boot of this machine, and the container in it.
std::string this_host() {
  std::string boot = read_file("/proc/sys/kernel/random/boot_id", 100).text;
  char space[64];
  const ssize_t n = ::readlink("/proc/self/ns/pid", space, sizeof space);
  if (boot.empty() || n < 0) return "unknown";
  boot.back() = '/';
  return boot.append(space, static_cast<size_t>(n));
}

// For people; in one word.
std::string host_name() {
  utsname names{};
  return ::uname(&names) == 0 ? names.nodename : "unknown";
}

// utime, stime and those of the children it has waited for, as /proc says them; "" if it does not.
std::string computing_time(pid_t process) {
  const std::string stat = read_file("/proc/" + std::to_string(process) + "/stat", 4096).text;
  size_t begin = stat.rfind(')');  // the name before it may hold anything
  for (int field = 2; field < 14 && begin != stat.npos; ++field) begin = stat.find(' ', begin + 1);
  size_t end = begin;
  for (int field = 14; field < 18 && end != stat.npos; ++field) end = stat.find(' ', end + 1);
  return end == stat.npos ? "" : stat.substr(begin, end - begin);
}

// The line that the holder wrote last. The file may hold anything.
std::string line_in(const Fd& fd) {
  char text[256];
  const ssize_t n = retry_interrupted([&] { return ::pread(fd.get(), text, sizeof text, 0); });
  std::string line(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  line.resize(std::min(line.size(), line.find('\n')));
  return line;
}

// What changes as long as the holder lives. At worst its text tells of a process that computes, and
// patience ends the wait. The time of this process grows by waiting.
std::string sign_in(const Fd& fd) {
  const std::string sign = line_in(fd);
  if (sign.empty()) return sign;  // most locks have no signs
  const std::string before_process = " " + this_host() + " ";
  const size_t at = sign.find(before_process);
  if (at == sign.npos) return sign;
  pid_t process = 0;
  std::from_chars(&sign[at + before_process.size()], sign.data() + sign.size(), process);
  return process > 0 && process != ::getpid() ? sign + computing_time(process) : sign;
}

}  // namespace

FileLock::FileLock(Directory in, std::string name, Wait wait, AfterUse after_use)
    : in_(std::move(in)), name_(std::move(name)), after_use_(after_use), owner_(::getpid()) {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + wait.patience;
  int silent_looks = 0;
  // Short waits first: most holders need less than a millisecond.
  for (clock::duration pause = std::chrono::microseconds(100);; pause *= 2) {
    const std::string before = seen_sign_;
    if (try_lock() || error_) return;
    const auto left = end - clock::now();
    silent_looks = pause >= 2 * wait.pause && seen_sign_ == before ? silent_looks + 1 : 0;
    silent_ = wait.silent_looks > 0 && silent_looks >= wait.silent_looks;
    if (left <= clock::duration::zero() || silent_) {
      error_ = {ETIMEDOUT, "lock " + in_.path_of(name_)};
      return;
    }
    pause = std::min<clock::duration>(pause, wait.pause);
    std::this_thread::sleep_for(std::min(pause, left));
  }
}

// False without an error: someone else has it, or its file was just removed by who had it.
bool FileLock::try_lock() {
  Fd fd = in_.open_at(name_, O_RDWR | O_CREAT | O_NONBLOCK);
  if (!fd.valid()) {
    error_ = in_.error() ? in_.error() : last_error("open", in_.path_of(name_));
    return false;
  }
  if (!lock_now(fd)) {
    if (errno == EWOULDBLOCK) seen_sign_ = sign_in(fd);
    else error_ = last_error("lock", in_.path_of(name_));
    return false;
  }
  if (!in_.still_names(name_, fd)) return false;
  fd_ = std::move(fd);
  return true;
}

// A text of its own each time, because times of change are too coarse on some file systems. That
// one is set makes network file systems send the text at once.
void FileLock::give_sign() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  if (since_.empty()) since_ = utc_now();
  const std::string text = std::to_string(now.count()) + " " + this_host() + " " +
                           std::to_string(::getpid()) + " " + since_ + " " + host_name() + "\n";
  static_cast<void>(write_at(fd_, text, 0, in_.path_of(name_)));
  ::futimens(fd_.get(), nullptr);
}

std::optional<FileLock::Holder> FileLock::holder_of(const Directory& in, const std::string& name) {
  const Fd fd = in.open_at(name, O_RDONLY | O_NONBLOCK);
  const auto lock = [&] { return ::flock(fd.get(), LOCK_SH | LOCK_NB); };
  if (!fd.valid() || retry_interrupted(lock) == 0 || errno != EWOULDBLOCK) return std::nullopt;
  std::istringstream line(line_in(fd));
  Holder out;
  std::string time, boot;
  line >> time >> boot >> out.process >> out.since >> out.host;
  return out;
}

// Unlocked by hand because children forked meanwhile share the lock, and not by those children,
// because they share it.
FileLock::~FileLock() {
  if (!fd_.valid() || owner_ != ::getpid()) return;
  if (after_use_ == AfterUse::remove_file) static_cast<void>(in_.remove(name_));
  ::flock(fd_.get(), LOCK_UN);
}

}  // namespace ejk::base
