// SPDX-License-Identifier: Apache-2.0
// What the tests of stores share: a directory of their own, entries, child processes.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ejk/store.h>

#include "base/directory.h"
#include "base/sha256.h"
#include "sanitized.h"
#include "wait.h"

namespace ejk::testing {

namespace fs = std::filesystem;

// Tests with thousands of flushed writes take a minute on a slow disk and a second in memory.
inline fs::path memory_directory() {
  std::error_code ignored;
  return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path(ignored);
}

// An empty directory that goes with the object.
class Scratch {
 public:
  explicit Scratch(const fs::path& parent = fs::temp_directory_path()) {
    std::string name = (parent / "ejk_store_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::perror("mkdtemp");
    path_ = name;
    fs::permissions(path_, fs::perms::all);  // children of another user work in it too
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Collects what a store says.
class Warnings {
 public:
  WarningSink sink() {
    return [this](const std::string& message) {
      const std::lock_guard lock(mutex_);
      messages_.push_back(message);
    };
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return messages_.size();
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    std::string out;
    for (const auto& message : messages_) out += message + "\n";
    return out;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> messages_;
};

inline Value environment() { return Value::object({{"cores", 2}, {"compiler", "gcc 12"}}); }

inline DirectoryStore open_store(const std::string& path, Warnings& warnings,
                                 bool read_only = false) {
  return DirectoryStore(path, {read_only, warnings.sink(), environment()});
}

// The id of the n-th call of an op, with the key and the spec belonging together as in real ones.
inline EntryId call_id(int n, const std::string& op = "add@v1") {
  const std::string spec = R"({"args_spec":[{"dtype":"float32","shape":[)" + std::to_string(n) +
                           R"(]}],"batch_axes":null,"kwargs_spec":{},"method":null})";
  return {"cpu|Test CPU|0123456789abcdef", op, base::sha256_hex(spec, 16), spec};
}

inline Entry make_entry(const EntryId& id, int block = 64, int samples = 40) {
  Entry entry;
  entry.id = id;
  entry.config = Value::object({{"block", block}});
  entry.device = Value::object({{"kind", "cpu"}, {"model", "Test CPU"}});
  entry.environment = environment();
  entry.evidence.seconds = 1e-6;
  entry.evidence.samples = samples;
  entry.evidence.time = "2026-01-02T03:04:05Z";
  return entry;
}

inline std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

inline base::Directory directory_at(const std::string& path) {
  return base::Directory::at(path, base::Absent::fails, base::Trust::all);
}

// All regular files below a directory, relative to it.
inline std::vector<std::string> files_below(const std::string& root) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& item : fs::recursive_directory_iterator(root, error)) {
    if (item.is_regular_file()) out.push_back(fs::relative(item.path(), root).string());
  }
  return out;
}

inline pid_t start_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) try {
      ::_exit(body() ? 0 : 1);
    } catch (const std::exception& error) {  // else the child would go on with the tests behind it
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
  return child;
}

// True if the child ended by itself and was content.
inline bool child_succeeded(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Runs `body` as a user without rights over other users' files.
inline bool as_nobody(const std::function<bool()>& body) {
  return child_succeeded(start_child([&] {
    constexpr uid_t nobody = 65534;
    if (::getuid() == 0 && (::setgid(nobody) != 0 || ::setuid(nobody) != 0)) return false;
    return body();
  }));
}

}  // namespace ejk::testing
