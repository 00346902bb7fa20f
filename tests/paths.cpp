// SPDX-License-Identifier: Apache-2.0
// The places of the checkout and of its build.
#include "paths.h"

namespace test {

std::string data(const std::string& name) { return EJK_TEST_DATA "/" + name; }
std::string plugin(const std::string& name) { return EJK_TEST_PLUGINS "/lib" + name + ".so"; }

}  // namespace test
