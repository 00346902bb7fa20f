// SPDX-License-Identifier: Apache-2.0
// The emulated driver as tests use it.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

// A test has the emulation as in a new process, and leaves none of its wishes behind.
class EmulatedCuda {
 public:
  EmulatedCuda() {
    setenv("EJK_CUDA_LIBRARY", EJK_TEST_EMULATED_CUDA, 1);
    setenv("EJK_NVRTC_LIBRARY", EJK_TEST_EMULATED_CUDA, 1);
    reset();
  }
  ~EmulatedCuda() {
    for (const char* name : {"EJK_CUDA_LIBRARY", "EJK_NVRTC_LIBRARY", "FAKE_CUDA_FAIL",
                             "FAKE_CUDA_ARCH", "FAKE_CUDA_DEVICES"})
      unsetenv(name);
  }
  EmulatedCuda(const EmulatedCuda&) = delete;
  EmulatedCuda& operator=(const EmulatedCuda&) = delete;

  void set(const char* variable, const std::string& value) {
    setenv(variable, value.c_str(), 1);
    reset();
  }
  // Without forgetting what there is; counts calls from now on.
  void fail(const std::string& call_nth_status) {
    setenv("FAKE_CUDA_FAIL", call_nth_status.c_str(), 1);
    call<void>("fake_cuda_forget_calls");
  }
  void reset() { call<void>("fake_cuda_reset"); }
  std::string finding() { return call<const char*>("fake_cuda_finding"); }
  int calls_of(const char* name) { return call<int>("fake_cuda_calls", name); }

 private:
  template <class R, class... A>
  R call(const char* name, A... arguments) {
    static void* const library = dlopen(EJK_TEST_EMULATED_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<R (*)(A...)>(dlsym(library, name))(arguments...);
  }
};

inline std::string text_of_source(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(std::string(EJK_TEST_CUDA_SOURCES "/") + name).rdbuf();
  if (text.str().empty()) throw std::runtime_error(name + " cannot be read");
  return text.str();
}
