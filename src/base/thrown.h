// SPDX-License-Identifier: Apache-2.0
// What was thrown, whatever it is.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <string>

namespace ejk::base {

// In a catch block: for people. A thread that is being cancelled throws on.
inline std::string what_was_thrown() {
  try {
    throw;
  } catch (const std::exception& e) {
    return e.what();
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text == nullptr ? "a null pointer" : text;
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return "something that is not a std::exception";
  }
}

}  // namespace ejk::base
