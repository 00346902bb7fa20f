// SPDX-License-Identifier: Apache-2.0
// Scopes: a thread's chain of policy changes and overlays.
#include "choose/scope.h"

#include <ejk/autotune.h>

namespace ejk {

namespace detail {

namespace {

void push(const std::shared_ptr<ScopeNode>& node) {
  if (innermost_scope) node->outer = innermost_scope->self;
  node->self = node;
  innermost_scope = node.get();
}

}  // namespace

ScopeNode* live_scopes() {
  while (innermost_scope && !innermost_scope->active.load(std::memory_order_acquire)) {
    const std::shared_ptr<ScopeNode> ended = std::move(innermost_scope->self);
    innermost_scope = ended->outer.get();
  }
  return innermost_scope;
}

}  // namespace detail

Scope::Scope(std::shared_ptr<detail::ScopeNode> node) : node_(std::move(node)) {
  detail::push(node_);
}

// Ending is a mark; the chain is unwound as far as its top has ended. So scopes that end out of
// order, or on another thread, leave the others alone.
Scope::~Scope() {
  node_->active.store(false, std::memory_order_release);
  detail::live_scopes();
}

Scope policy_override(PolicyUpdates updates) {
  auto node = std::make_shared<detail::ScopeNode>();
  node->updates = updates;
  return Scope(std::move(node));
}

Scope policy_override(const ConfigSelectorChain& selector, PolicyUpdates updates) {
  auto node = std::make_shared<detail::ScopeNode>();
  node->updates = updates;
  node->selector = &selector;
  return Scope(std::move(node));
}

Scope forward_autotune_only() {
  auto node = std::make_shared<detail::ScopeNode>();
  node->forward_only = true;
  return Scope(std::move(node));
}

Scope overlay_cache(const ConfigCache& cache) {
  auto node = std::make_shared<detail::ScopeNode>();
  node->overlay = &cache;
  return Scope(std::move(node));
}

Scope overlay_cache(std::shared_ptr<const ConfigCache> cache) {
  auto node = std::make_shared<detail::ScopeNode>();
  node->overlay = cache.get();
  node->overlay_owner = std::move(cache);
  return Scope(std::move(node));
}

ScopeSnapshot current_scopes() {
  ScopeSnapshot snapshot;
  if (detail::ScopeNode* top = detail::live_scopes()) snapshot.innermost_ = top->self;
  return snapshot;
}

void ScopeSnapshot::run(const std::function<void()>& work) const {
  // A node of our own on top stands for the snapshot; the nodes below are shared, not changed.
  detail::ScopeNode* const before = detail::innermost_scope;
  const auto top = std::make_shared<detail::ScopeNode>();
  top->outer = innermost_;
  top->self = top;
  detail::innermost_scope = innermost_ ? top.get() : nullptr;
  struct Restore {
    detail::ScopeNode* before;
    const std::shared_ptr<detail::ScopeNode>& top;
    ~Restore() {
      detail::innermost_scope = before;
      top->self.reset();
    }
  } restore{before, top};
  work();
}

Scope AutotuningResult::apply() const {
  auto cache = std::make_shared<ConfigCache>();
  for (const Entry& entry : entries)
    if (entry.outcome != Outcome::failed)
      cache->put_any(entry.id, make_config(Value(entry.config)));
  return overlay_cache(std::move(cache));
}

}  // namespace ejk
