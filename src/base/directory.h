// SPDX-License-Identifier: Apache-2.0
// Directories that others may write to as well: nothing they put there is followed, files are
// written whole or not at all, and locked.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file.h"

namespace ejk::base {

// Whether to use what others may have written: everyone, or a user other than this one and root.
enum class Trust { all, strict };
Trust trust_from_environment();  // $EJKERNEL_STORE_TRUST: "strict", else all

enum class Absent { fails, made, made_private };  // private: for this user alone
enum class Written { flushed, unflushed };

// An open directory. The path it began with may lead over links; below it no link is followed, and
// what is done here is done in this very directory, whatever takes its name meanwhile. One that
// could not be opened answers everything with why.
//
// What is made gets the mode that the umask gives, but never one for everyone to write.
class Directory {
 public:
  static Directory at(const std::string& path, Absent absent, Trust trust);
  // One name, or several with '/' between them.
  Directory below(const std::string& names, Absent absent = Absent::fails) const;

  const FileError& error() const noexcept { return error_; }
  const std::string& path() const noexcept { return path_; }
  std::string path_of(const std::string& name) const { return path_ + "/" + name; }
  // The first directory on the way here that everyone may write to; "" if none was seen. Of several
  // names only the last one is looked at, unless they may be made. With Trust::strict such a
  // directory is not opened (EPERM).
  const std::string& exposed() const noexcept { return exposed_; }
  bool refused() const noexcept { return error_.refused; }
  bool is_private() const;  // it is this user's, and no other user may write here

  std::vector<std::string> names() const;  // sorted; none if it cannot be read
  // Those that end so, at most so many: others may have put any number there. At random, so that
  // none hides another for ever.
  std::vector<std::string> some_names(std::string_view suffix, size_t most) const;
  bool has_own_file(const std::string& name) const;  // a regular file of this user
  bool has(const std::string& name) const;           // whatever it is
  // No further than it needs to see `until`, unless that is empty.
  FileText read(const std::string& name, size_t limit, std::string_view until = {}) const;
  // Replaces the file by `text`: readers see the old or the new content, also after a crash of the
  // machine if it was `flushed`. Written first to a file of a random name in `temporary`, which
  // must be on the same file system.
  FileError replace(const std::string& name, std::string_view text, const Directory& temporary,
                    Written how = Written::flushed) const;
  // The same where nothing has the name yet; else EEXIST.
  FileError add(const std::string& name, std::string_view text, const Directory& temporary) const;
  FileError rename(const std::string& from, const std::string& to) const;
  FileError remove(const std::string& name) const;
  void remove_if_empty(const std::string& name) const;  // a directory
  // Removes what writers of this user that died have left here, and nothing that only looks alike.
  // Files being written are locked and stay.
  void remove_leftovers() const;

 private:
  friend class FileLock;
  friend class TemporaryFile;
  Directory(std::string path, Trust trust) : path_(std::move(path)), trust_(trust) {}
  void hold(int fd);
  int step(const std::string& name, Absent absent) const;
  Fd open_at(const std::string& name, int flags) const;
  enum class Existing { replaced, kept };
  FileError write(const std::string& name, std::string_view text, const Directory& temporary,
                  Written how, Existing existing) const;
  bool still_names(const std::string& name, const Fd& fd) const;

  std::string path_;
  Trust trust_;
  Fd fd_;
  FileError error_;
  std::string exposed_;
};

// 16 hex digits from the kernel's random source: the clock or the process id repeat across machines
// and forks. "" if there are none.
std::string random_digits();

// An exclusive lock between processes and threads, on a file that is made for it. The operating
// system drops it when its holder dies.
class FileLock {
 public:
  using milliseconds = std::chrono::milliseconds;
  enum class AfterUse { keep_file, remove_file };
  // Tries until it has the lock, `patience` is over (error ETIMEDOUT) or something else fails.
  // Polls, at most every `pause`: a waiter must be able to give up, and flock itself cannot.
  struct Wait {
    milliseconds patience, pause;
    // Gives up after so many looks in a row, `pause` apart, without a sign of the holder; 0: never.
    // Looks and not a time, so that no holder seems silent because the whole machine stood still.
    int silent_looks = 0;
  };

  FileLock(Directory in, std::string name, Wait wait, AfterUse after_use);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  bool held() const noexcept { return fd_.valid(); }
  const FileError& error() const noexcept { return error_; }
  const Fd& file() const noexcept { return fd_; }
  // Who holds the lock of that file, as far as its signs tell. nullopt: it is free.
  struct Holder {
    std::string host;     // its name
    std::string process;  // its number there
    std::string since;    // UTC, ISO 8601
  };
  static std::optional<Holder> holder_of(const Directory& in, const std::string& name);

  // To those who wait. Once it has given one, a holder in another process of the same host gives
  // further ones by computing.
  void give_sign();
  bool holder_is_silent() const noexcept { return silent_; }  // why this one gave up

 private:
  bool try_lock();

  Directory in_;
  std::string name_;
  Fd fd_;
  FileError error_;
  AfterUse after_use_;
  pid_t owner_;
  std::string seen_sign_;  // of the holder that this one waits for
  std::string since_;      // when this one gave its first sign
  bool silent_ = false;
};

}  // namespace ejk::base
