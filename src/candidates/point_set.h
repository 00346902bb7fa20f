// SPDX-License-Identifier: Apache-2.0
// Which combinations of value indices a set of candidates has: a tree of them, or a list.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ejk::detail {

// Points 0 .. size()-1, each a value index per parameter.
class PointSet {
 public:
  virtual ~PointSet() = default;
  virtual uint64_t size() const = 0;
  virtual void indices(uint64_t point, std::span<uint32_t> out) const = 0;
  virtual std::optional<uint64_t> find(std::span<const uint32_t> indices) const = 0;
  // The points that differ in exactly one index, ascending.
  virtual std::vector<uint64_t> neighbours(uint64_t point) const = 0;
};

class PointList final : public PointSet {
 public:
  // Point after point, for each of the `width` parameters the index of its value.
  PointList(uint64_t size, size_t width, std::vector<uint32_t> cells)
      : size_(size), width_(width), cells_(std::move(cells)) {}
  uint64_t size() const override { return size_; }
  void indices(uint64_t point, std::span<uint32_t> out) const override;
  std::optional<uint64_t> find(std::span<const uint32_t> indices) const override;
  std::vector<uint64_t> neighbours(uint64_t point) const override;

 private:
  std::span<const uint32_t> at(uint64_t point) const {
    return std::span(cells_).subspan(point * width_, width_);
  }

  uint64_t size_;
  size_t width_;
  std::vector<uint32_t> cells_;
};

// The nodes of one depth of a tree. Nodes with the same edges are kept once, so that a constraint
// between two parameters does not cost a copy of all that is below for each value between them.
class TreeLayer {
 public:
  struct Edge {
    uint32_t value;
    uint32_t child;   // a node of the next layer; 0 in the last
    uint64_t leaves;  // below it; 1 in the last layer
  };
  struct Step {
    uint32_t value, child;
    uint64_t before;  // leaves of the node under the edges before this one
  };

  explicit TreeLayer(bool is_last) : is_last_(is_last) {}

  // The node that has these edges.
  uint32_t add(const std::vector<Edge>& edges);
  // No more nodes will be added.
  void finish();

  uint64_t leaves(uint32_t node) const { return is_last_ ? edge_count(node) : leaves_[node]; }
  size_t edge_count(uint32_t node) const { return first_[node + 1] - first_[node]; }
  Step step(uint32_t node, size_t edge) const;
  Step step_to_leaf(uint32_t node, uint64_t leaf) const;
  std::optional<Step> step_by_value(uint32_t node, uint32_t value) const;

 private:
  bool has_edges(uint32_t node, const std::vector<Edge>& edges) const;
  uint64_t hash_of(uint32_t node) const;
  void append(const std::vector<Edge>& edges);
  void grow_slots();

  bool is_last_;
  bool ascending_ = true;  // the values of each node so far
  // Node n has the edges first_[n] .. first_[n + 1] - 1. Those of the last layer have no more than
  // a value: there may be ten million of them.
  std::vector<size_t> first_ = {0};
  std::vector<uint32_t> values_, children_;
  std::vector<uint64_t> before_, leaves_;
  std::vector<uint32_t> slots_;  // of a hash table of nodes: node + 1, or 0
};

// The parameters of the layers depend on each other; those after them are free: any combination of
// their values goes with any leaf, so they take no nodes.
class PointTree final : public PointSet {
 public:
  // Without layers there are 0 or 1 leaves. Leaves times the product of `free_counts` must fit.
  PointTree(std::vector<TreeLayer> layers, uint64_t leaves, std::vector<uint32_t> free_counts);
  uint64_t size() const override { return leaves_ * free_points_; }
  void indices(uint64_t point, std::span<uint32_t> out) const override;
  std::optional<uint64_t> find(std::span<const uint32_t> indices) const override;
  std::vector<uint64_t> neighbours(uint64_t point) const override;

 private:
  // The leaf below this node that is reached with these indices, counted from the node's first.
  std::optional<uint64_t> leaf_below(size_t depth, uint32_t node,
                                     std::span<const uint32_t> indices) const;
  void append_tree_neighbours(uint64_t point, std::span<const uint32_t> indices,
                              std::vector<uint64_t>& out) const;
  void append_free_neighbours(uint64_t point, std::span<const uint32_t> indices,
                              std::vector<uint64_t>& out) const;

  std::vector<TreeLayer> layers_;
  uint64_t leaves_;
  std::vector<uint32_t> free_counts_;
  uint64_t free_points_ = 1;
};

// a * b; nullopt if it does not fit.
inline std::optional<uint64_t> product(uint64_t a, uint64_t b) {
  uint64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

}  // namespace ejk::detail
