// SPDX-License-Identifier: Apache-2.0
// What a shared libejk exports: what public headers declare, and nothing else of it. In headers
// the namespace is opened with this, so that programs compiled with hidden symbols share it too.
#pragma once

#define EJK_EXPORT [[gnu::visibility("default")]]
