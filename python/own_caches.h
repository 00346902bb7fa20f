// SPDX-License-Identifier: Apache-2.0
// Caches that are Python objects of the program's own: anything with `get` and `put`.
#pragma once

#include "bind.h"

namespace ejk::python {

// The kernel's side of the selection that this thread is in. Its `own_cache` and `own_persistent`
// are such caches: the core keeps no reference to them, for they may lead back to the selector.
extern thread_local nb::handle selection;

std::shared_ptr<ConfigCache> own_cache();
std::shared_ptr<Store> own_store();
// One that is laid over for as long as the caller keeps it.
std::shared_ptr<ConfigCache> own_overlay(nb::handle cache);

}  // namespace ejk::python
