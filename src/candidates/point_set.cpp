// SPDX-License-Identifier: Apache-2.0
// Finding points by their place and by their value indices.
#include "candidates/point_set.h"

#include <algorithm>

namespace ejk::detail {

// ---- a list -------------------------------------------------------------------------------------

void PointList::indices(uint64_t point, std::span<uint32_t> out) const {
  std::ranges::copy(at(point), out.begin());
}

std::optional<uint64_t> PointList::find(std::span<const uint32_t> indices) const {
  for (uint64_t i = 0; i < size_; ++i)
    if (std::ranges::equal(at(i), indices)) return i;
  return std::nullopt;
}

std::vector<uint64_t> PointList::neighbours(uint64_t point) const {
  const auto self = at(point);
  std::vector<uint64_t> out;
  for (uint64_t i = 0; i < size_; ++i) {
    size_t differences = 0;
    for (size_t k = 0; k < width_ && differences < 2; ++k) differences += at(i)[k] != self[k];
    if (differences == 1) out.push_back(i);
  }
  return out;
}

// ---- the nodes of one depth ---------------------------------------------------------------------

namespace {

class EdgeHash {
 public:
  void add(uint32_t value, uint32_t child) {
    state_ = (state_ ^ (uint64_t{value} << 32 | child)) * 0x9E3779B97F4A7C15;
    state_ ^= state_ >> 29;
  }
  uint64_t get() const { return state_ * 0xBF58476D1CE4E5B9 >> 16; }

 private:
  uint64_t state_ = 0x2545F4914F6CDD1D;
};

}  // namespace

uint64_t TreeLayer::hash_of(uint32_t node) const {
  EdgeHash hash;
  for (size_t i = first_[node]; i < first_[node + 1]; ++i)
    hash.add(values_[i], is_last_ ? 0 : children_[i]);
  return hash.get();
}

bool TreeLayer::has_edges(uint32_t node, const std::vector<Edge>& edges) const {
  if (edge_count(node) != edges.size()) return false;
  for (size_t i = 0; i < edges.size(); ++i) {
    const size_t at = first_[node] + i;
    if (values_[at] != edges[i].value || (!is_last_ && children_[at] != edges[i].child))
      return false;
  }
  return true;
}

void TreeLayer::append(const std::vector<Edge>& edges) {
  uint64_t before = 0;
  for (size_t i = 0; i < edges.size(); ++i) {
    ascending_ = ascending_ && (i == 0 || edges[i - 1].value < edges[i].value);
    values_.push_back(edges[i].value);
    if (is_last_) continue;
    children_.push_back(edges[i].child);
    before_.push_back(before);
    before += edges[i].leaves;
  }
  first_.push_back(values_.size());
  if (!is_last_) leaves_.push_back(before);
}

void TreeLayer::grow_slots() {
  slots_.assign(std::max<size_t>(16, 2 * slots_.size()), 0);
  for (uint32_t node = 0; node + 1 < first_.size(); ++node) {
    size_t at = hash_of(node) & (slots_.size() - 1);
    while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = node + 1;
  }
}

uint32_t TreeLayer::add(const std::vector<Edge>& edges) {
  if (2 * first_.size() > slots_.size()) grow_slots();
  EdgeHash hash;
  for (const Edge& e : edges) hash.add(e.value, is_last_ ? 0 : e.child);
  size_t at = hash.get() & (slots_.size() - 1);
  for (; slots_[at] != 0; at = (at + 1) & (slots_.size() - 1))
    if (has_edges(slots_[at] - 1, edges)) return slots_[at] - 1;
  const auto node = static_cast<uint32_t>(first_.size() - 1);
  append(edges);
  slots_[at] = node + 1;
  return node;
}

void TreeLayer::finish() {
  slots_ = {};
  first_.shrink_to_fit();
  values_.shrink_to_fit();
  children_.shrink_to_fit();
  before_.shrink_to_fit();
  leaves_.shrink_to_fit();
}

TreeLayer::Step TreeLayer::step(uint32_t node, size_t edge) const {
  const size_t at = first_[node] + edge;
  if (is_last_) return {values_[at], 0, edge};
  return {values_[at], children_[at], before_[at]};
}

TreeLayer::Step TreeLayer::step_to_leaf(uint32_t node, uint64_t leaf) const {
  if (is_last_) return step(node, leaf);
  const auto edges = std::span(before_).subspan(first_[node], edge_count(node));
  const auto after = std::ranges::upper_bound(edges, leaf);
  return step(node, static_cast<size_t>(after - edges.begin()) - 1);
}

std::optional<TreeLayer::Step> TreeLayer::step_by_value(uint32_t node, uint32_t value) const {
  const auto edges = std::span(values_).subspan(first_[node], edge_count(node));
  const auto at =
      ascending_ ? std::ranges::lower_bound(edges, value) : std::ranges::find(edges, value);
  if (at == edges.end() || *at != value) return std::nullopt;
  return step(node, static_cast<size_t>(at - edges.begin()));
}

// ---- a tree -------------------------------------------------------------------------------------

PointTree::PointTree(std::vector<TreeLayer> layers, uint64_t leaves,
                     std::vector<uint32_t> free_counts)
    : layers_(std::move(layers)), leaves_(leaves), free_counts_(std::move(free_counts)) {
  if (leaves_ > 0)
    for (const uint32_t count : free_counts_) free_points_ *= count;
}

void PointTree::indices(uint64_t point, std::span<uint32_t> out) const {
  uint64_t leaf = point / free_points_, rest = point % free_points_;
  uint32_t node = 0;
  for (size_t depth = 0; depth < layers_.size(); ++depth) {
    const auto step = layers_[depth].step_to_leaf(node, leaf);
    out[depth] = step.value;
    node = step.child;
    leaf -= step.before;
  }
  for (size_t i = free_counts_.size(); i-- > 0; rest /= free_counts_[i])
    out[layers_.size() + i] = static_cast<uint32_t>(rest % free_counts_[i]);
}

std::optional<uint64_t> PointTree::leaf_below(size_t depth, uint32_t node,
                                              std::span<const uint32_t> indices) const {
  uint64_t leaf = 0;
  for (; depth < layers_.size(); ++depth) {
    const auto step = layers_[depth].step_by_value(node, indices[depth]);
    if (!step) return std::nullopt;
    leaf += step->before;
    node = step->child;
  }
  return leaf;
}

std::optional<uint64_t> PointTree::find(std::span<const uint32_t> indices) const {
  if (size() == 0) return std::nullopt;
  const auto leaf = leaf_below(0, 0, indices);
  if (!leaf) return std::nullopt;
  uint64_t point = *leaf;
  for (size_t i = 0; i < free_counts_.size(); ++i) {
    const uint32_t index = indices[layers_.size() + i];
    if (index >= free_counts_[i]) return std::nullopt;
    point = point * free_counts_[i] + index;
  }
  return point;
}

void PointTree::append_tree_neighbours(uint64_t point, std::span<const uint32_t> indices,
                                       std::vector<uint64_t>& out) const {
  const uint64_t rest = point % free_points_;
  uint32_t node = 0;
  uint64_t before = 0;
  for (size_t depth = 0; depth < layers_.size(); ++depth) {
    const TreeLayer& layer = layers_[depth];
    TreeLayer::Step own{};
    for (size_t edge = 0; edge < layer.edge_count(node); ++edge) {
      const auto step = layer.step(node, edge);
      if (step.value == indices[depth]) own = step;
      else if (const auto leaf = leaf_below(depth + 1, step.child, indices))
        out.push_back((before + step.before + *leaf) * free_points_ + rest);
    }
    before += own.before;
    node = own.child;
  }
}

void PointTree::append_free_neighbours(uint64_t point, std::span<const uint32_t> indices,
                                       std::vector<uint64_t>& out) const {
  uint64_t stride = free_points_;
  for (size_t i = 0; i < free_counts_.size(); ++i) {
    stride /= free_counts_[i];
    const uint32_t own = indices[layers_.size() + i];
    for (uint32_t value = 0; value < free_counts_[i]; ++value)
      if (value != own) out.push_back(point - own * stride + value * stride);
  }
}

std::vector<uint64_t> PointTree::neighbours(uint64_t point) const {
  std::vector<uint32_t> own(layers_.size() + free_counts_.size());
  indices(point, own);
  std::vector<uint64_t> out;
  append_tree_neighbours(point, own, out);
  append_free_neighbours(point, own, out);
  std::ranges::sort(out);
  return out;
}

}  // namespace ejk::detail
