// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "output.h"

namespace ejk::cli {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  const int code = errno;
  throw Failure(code == ENOENT ? exit_nothing : exit_failed,
                "cannot " + what + " " + path + ": " + std::strerror(code));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd > STDERR_FILENO) ::close(fd);
  }
};

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

// Some hundred thousand entries; something that never ends must not take all memory.
constexpr size_t largest = size_t{2} << 30;

std::string read_whole(const std::string& path) {
  Descriptor file{path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail("read", path);
  const StillWorking working("reading " + (path == "-" ? "standard input" : path));
  std::string out;
  std::array<char, 1 << 16> buffer{};
  while (true) {
    const ssize_t count = ::read(file.fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read", path);
    if (count == 0) return out;
    if (out.size() > largest) {
      errno = EFBIG;
      fail("read", path);
    }
    out.append(buffer.data(), static_cast<size_t>(count));
  }
}

void write_whole(const std::string& path, std::string_view text) {
  struct stat status {};
  // A device or a pipe cannot be replaced, only written to.
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
    Descriptor file{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
    if (file.fd < 0 || !write_all(file.fd, text)) fail("write", path);
    return;
  }
  std::string temporary = path + ".XXXXXX";
  Descriptor file{::mkostemp(temporary.data(), O_CLOEXEC)};
  if (file.fd < 0) fail("write", path);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  const bool written = ::fchmod(file.fd, 0666 & ~mask) == 0 && write_all(file.fd, text) &&
                       ::fsync(file.fd) == 0 && ::rename(temporary.c_str(), path.c_str()) == 0;
  if (written) return;
  const int code = errno;
  ::unlink(temporary.c_str());
  errno = code;
  fail("write", path);
}

}  // namespace ejk::cli
