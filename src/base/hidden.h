// SPDX-License-Identifier: Apache-2.0
// A class that public headers only name is exported with them, member by member, unless its
// definition says this.
#pragma once

#define EJK_HIDDEN [[gnu::visibility("hidden")]]
