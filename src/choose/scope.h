// SPDX-License-Identifier: Apache-2.0
// The chain of scopes of a thread.
#pragma once

#include <atomic>
#include <memory>

#include <ejk/selector.h>

namespace ejk::detail {

// A node never changes but for `active`. Snapshots on other threads share it.
struct ScopeNode {
  std::shared_ptr<ScopeNode> outer;
  std::shared_ptr<ScopeNode> self;  // keeps the node while it is on a thread's chain
  std::atomic<bool> active{true};

  const ConfigSelectorChain* selector = nullptr;  // nullptr: every one
  PolicyUpdates updates;
  bool forward_only = false;
  const ConfigCache* overlay = nullptr;
  std::shared_ptr<const ConfigCache> overlay_owner;
  std::shared_ptr<Recording> recording;
};

// Drops scopes that have ended from the top of the calling thread's chain and returns the rest.
ScopeNode* live_scopes();

}  // namespace ejk::detail
