// SPDX-License-Identifier: Apache-2.0
#include "labels.h"

void fuzz::check(std::string_view bytes) { check_labels(bytes); }
