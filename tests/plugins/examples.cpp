// SPDX-License-Identifier: Apache-2.0
// Kernels of the examples as a shared library, so that the tool can tune what the tour recorded.
#include "../../examples/kernels.h"

#include <ejk/registry.h>

EJK_REGISTER(examples::Saxpy);
EJK_REGISTER(examples::Transpose);
