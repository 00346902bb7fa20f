// SPDX-License-Identifier: Apache-2.0
// Reads with a limit and writes that fail instead of ending the process.
#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include <ejk/value.h>

namespace ejk::base {
namespace {

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

// In every file system, shell and locale.
bool is_safe(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  const bool digit = c >= '0' && c <= '9';
  return letter || digit || std::string_view("@_+-.").find(c) != std::string_view::npos;
}

}  // namespace

std::string FileError::text() const {
  if (code == ELOOP) return what + ": it is a link, which is not followed";
  return what + ": " + std::system_category().message(code);
}

FileError last_error(std::string_view step, const std::string& path) {
  return {errno, std::string(step) + " " + path};
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

FileText read_file(const std::string& path, size_t limit) {
  constexpr int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC;
  const Fd fd(retry_interrupted([&] { return ::open(path.c_str(), flags); }));
  return read_file(fd, path, limit);
}

FileText read_file(const Fd& fd, const std::string& path, size_t limit, std::string_view until) {
  if (!fd.valid()) return {{}, last_error("open", path)};
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return {{}, last_error("look at", path)};
  if (!S_ISREG(info.st_mode))
    return {{}, {S_ISDIR(info.st_mode) ? EISDIR : EINVAL, "read " + path}};

  // One byte more than expected, so that the end is seen without a second look at the size.
  FileText out;
  if (info.st_uid != ::geteuid() && info.st_uid != 0) out.strangers.owner = info.st_uid;
  out.strangers.everyone = (info.st_mode & S_IWOTH) != 0;
  const auto expected = static_cast<size_t>(std::max<off_t>(info.st_size, 0));
  if (expected > limit) return {{}, {EFBIG, "read " + path}};
  constexpr size_t block = 4096;  // of files that are not read whole
  const size_t first = until.empty() ? expected + 1 : std::min(expected + 1, block);
  size_t filled = 0;
  for (;;) {
    if (out.text.size() == filled) out.text.resize(filled == 0 ? first : 2 * filled);
    const ssize_t n = retry_interrupted(
        [&] { return ::read(fd.get(), out.text.data() + filled, out.text.size() - filled); });
    if (n < 0) return {{}, last_error("read", path)};
    if (n == 0) break;
    filled += static_cast<size_t>(n);
    if (filled > limit) return {{}, {EFBIG, "read " + path}};
    const size_t read = static_cast<size_t>(n) + until.size();  // it may have begun before
    const size_t from = filled - std::min(filled, read);
    if (!until.empty() &&
        std::string_view(out.text).substr(0, filled).find(until, from) != std::string_view::npos)
      break;
  }
  out.text.resize(filled);
  return out;
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

std::vector<std::string> list_directory(const std::string& path) {
  constexpr int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  return list_directory(Fd(::open(path.c_str(), flags)));
}

std::vector<std::string> list_directory(Fd fd) {
  std::vector<std::string> names;
  if (!fd.valid()) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::fdopendir(fd.get()), ::closedir);
  if (!directory) return names;
  fd.release();  // it is closed with the other
  while (const dirent* item = ::readdir(directory.get())) {
    const std::string_view name = item->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ejk::base
