// SPDX-License-Identifier: Apache-2.0
// Whether this is a build in which everything takes several times as long.
#pragma once

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif
#else
inline constexpr bool sanitized = false;
#endif

// The allocator of g++ 12's address sanitizer does not prepare for fork: in a child it stays locked
// for ever if another thread was in it.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool may_fork_beside_threads = false;
#else
inline constexpr bool may_fork_beside_threads = true;
#endif
