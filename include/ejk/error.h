// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library and its few kinds.
#pragma once

#include <stdexcept>
#include <string>

#include <ejk/detail/export.h>

namespace EJK_EXPORT ejk {

// What a program can do about an error; the message says the rest.
enum class ErrorKind {
  invalid_argument,  // a wrong shape, dtype, device, name or value was given
  no_configuration,  // every tier was asked and none had a configuration
  parse,             // text that should be JSON, a config or an entry is not
  io,                // a file could not be read or written
  device,            // a device, its driver or its compiler failed (DeviceError in gpu.h)
};

// Messages begin with "[op]" where an op is involved and say what was given, what was expected
// and what to do about it. A failing candidate, a sick store or a corrupt file is never thrown:
// those are data or events. Only misuse and "nothing left" throw.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const noexcept { return kind_; }  // to decide by; what() is for people

 private:
  ErrorKind kind_;
};

}  // namespace ejk
