// SPDX-License-Identifier: Apache-2.0
// Where tests find the files that they read. Only paths.cpp knows the checkout's place, so that
// ccache has all other tests of another checkout already.
#pragma once

#include <string>

namespace test {

std::string data(const std::string& name);    // a file of tests/data
std::string plugin(const std::string& name);  // a library of tests/plugins: "bad" for libbad.so

}  // namespace test
