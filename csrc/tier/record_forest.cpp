// SPDX-License-Identifier: Apache-2.0
#include "tier/record_forest.h"

#include "base/check.h"

namespace hkv {

RecordForest::Node* RecordForest::find(const RecordKey& key) const {
  auto [at, end] = nodes_.equal_range({key.digest, key.kind});
  for (; at != end; ++at) {
    if (at->second->key.format == key.format) return at->second.get();
  }
  return nullptr;
}

bool RecordForest::has_other_format(const RecordKey& key) const {
  const auto [at, end] = nodes_.equal_range({key.digest, key.kind});
  for (auto each = at; each != end; ++each) {
    if (each->second->key.format != key.format) return true;
  }
  return false;
}

RecordForest::Node* RecordForest::parent_of(const RecordKey& key, const Key128& parent) const {
  if (key.kind == RecordKind::Block) return find({parent, key.format, RecordKind::Block});
  const auto found = nodes_.find({parent, RecordKind::Block});
  return found == nodes_.end() ? nullptr : found->second.get();
}

void RecordForest::add(const RecordKey& key, std::shared_ptr<const MemoryRecord> record, Node* parent,
                       bool pinned) {
  auto owned = std::make_unique<Node>();
  Node* const node = owned.get();
  node->key = key;
  node->record = std::move(record);
  node->used = ++touches_;
  node->parent = parent;
  node->chain_bytes = node->record->bytes() + (parent == nullptr ? 0 : parent->chain_bytes);
  nodes_.emplace(Name{key.digest, key.kind}, std::move(owned));
  bytes_ += node->record->bytes();
  if (parent != nullptr) {
    unfile(parent);
    node->next_sibling = parent->first_child;
    if (node->next_sibling != nullptr) node->next_sibling->previous_sibling = node;
    parent->first_child = node;
  }
  file(node);
  if (pinned) hold(node);
}

void RecordForest::touch(Node* node) {
  unfile(node);
  node->used = ++touches_;
  file(node);
}

void RecordForest::hold(Node* node) {
  for (; node != nullptr; node = node->parent) {
    unfile(node);
    if (node->held++ != 0) return;
    held_bytes_ += node->record->bytes();
  }
}

void RecordForest::let_go(Node* node) {
  for (; node != nullptr; node = node->parent) {
    HKV_CHECK(node->held != 0);
    if (--node->held != 0) return;
    held_bytes_ -= node->record->bytes();
    file(node);
  }
}

void RecordForest::drop(Node* node) {
  for (Node* at = node;
       ;) {  // down to a leaf, away with it, and on from its parent: no recursion, however deep
    while (at->first_child != nullptr) at = at->first_child;
    Node* const above = at->parent;
    const bool last = at == node;
    erase(at);
    if (last) return;
    at = above;
  }
}

bool RecordForest::fits(std::uint64_t bytes, std::uint64_t capacity, const Node* parent) const {
  if (held_bytes_ > capacity || bytes > capacity - held_bytes_) return false;
  const std::uint64_t left = capacity - held_bytes_ - bytes;
  if (parent == nullptr || parent->chain_bytes <= left) return true;
  std::uint64_t kept = 0;  // of the chain, what is not held anyway
  for (; parent != nullptr && parent->held == 0; parent = parent->parent) kept += parent->record->bytes();
  return kept <= left;
}

std::optional<std::uint64_t> RecordForest::make_room(std::uint64_t bytes, std::uint64_t capacity,
                                                     Node* parent) {
  if (!fits(bytes, capacity, parent)) return std::nullopt;
  std::uint64_t evicted = 0;
  for (; bytes_ + bytes > capacity; ++evicted) {
    auto first = leaves_.begin();
    if (first != leaves_.end() && first->second == parent) ++first;  // of its chain only it can be a leaf
    HKV_CHECK(first != leaves_.end());
    erase(first->second);
  }
  return evicted;
}

void RecordForest::erase(Node* node) {
  HKV_CHECK(node->first_child == nullptr);
  unfile(node);
  bytes_ -= node->record->bytes();
  Node* const parent = node->parent;
  if (node->held != 0) {
    held_bytes_ -= node->record->bytes();
    if (parent != nullptr) let_go(parent);
  }
  if (node->next_sibling != nullptr) node->next_sibling->previous_sibling = node->previous_sibling;
  if (node->previous_sibling != nullptr) {
    node->previous_sibling->next_sibling = node->next_sibling;
  } else if (parent != nullptr) {
    parent->first_child = node->next_sibling;
    file(parent);
  }
  auto [at, end] = nodes_.equal_range({node->key.digest, node->key.kind});
  while (at != end && at->second.get() != node) ++at;
  HKV_CHECK(at != end);
  nodes_.erase(at);
  ++losses_;
}

void RecordForest::file(Node* node) {
  if (node->first_child == nullptr && node->held == 0) leaves_.insert({node->used, node});
}

void RecordForest::unfile(Node* node) {
  if (node->first_child == nullptr && node->held == 0) leaves_.erase({node->used, node});
}

}  // namespace hkv
