// SPDX-License-Identifier: Apache-2.0
// The records of a memory tier: found by key, each below its parent, the least recently used leaf first to go.
//
// Thread safety: none; the tier locks. Invariants:
//  1. Prefix-closed: a record that names a parent is in only while that block record is, and is dropped with it. `add`
//     takes the parent's node, and `drop` drops everything below.
//  2. `leaves_` holds exactly the records that have nothing below them and that nothing holds; eviction takes from there
//     alone, so that suffix goes before prefix, and what is pinned stays with everything that it needs.
//  3. held_bytes() is the size of what is held: a record is held as often as it is pinned, plus once by each held record
//     below it; only the move between 0 and 1 goes on to the parent.
//  4. chain_bytes of a node is the size of it and all that it stands on, which never changes while it is in (1).
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tier/record.h"

namespace hkv {

// One record as it lies in memory: envelope and payload, never changed after it was filed.
struct MemoryRecord {
  Envelope envelope;
  std::vector<std::byte> envelope_bytes;
  std::vector<std::byte> payload;
  std::uint64_t bytes() const { return envelope_bytes.size() + payload.size(); }
};

class RecordForest {
 public:
  struct Node {
    RecordKey key;
    std::shared_ptr<const MemoryRecord> record;
    Node* parent = nullptr;
    Node* first_child = nullptr;
    Node* next_sibling = nullptr;
    Node* previous_sibling = nullptr;
    std::uint64_t used = 0;  // when, in touches
    std::uint64_t chain_bytes = 0;
    std::uint32_t held = 0;
  };

  std::uint64_t records() const { return nodes_.size(); }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t held_bytes() const { return held_bytes_; }
  // Records that went, ever.
  std::uint64_t losses() const { return losses_; }

  Node* find(const RecordKey& key) const;
  // Whether there is a record of this digest and kind in some format.
  bool has_other_format(const RecordKey& key) const;
  // The block record that a record of this key with this parent is below: of a block in its own format, of a boundary
  // (whose format says nothing of blocks) in any. nullptr: it is not there.
  Node* parent_of(const RecordKey& key, const Key128& parent) const;

  // Requires: the key is not there; `parent` is nullptr or in.
  void add(const RecordKey& key, std::shared_ptr<const MemoryRecord> record, Node* parent, bool pinned);
  void touch(Node* node);
  // Effect: it and everything that stands on it goes.
  void drop(Node* node);
  // Effect: evicts leaves, the least recently used first, until so many bytes more fit into `capacity`; never `parent`
  // (nullptr: none) or what it stands on. Returns: how many went, or nothing where what must stay leaves too little:
  // then nothing went. Cost: a step for each record that goes; where pins are many, one for each below `parent`.
  std::optional<std::uint64_t> make_room(std::uint64_t bytes, std::uint64_t capacity, Node* parent);

 private:
  struct Name {
    Key128 digest;
    RecordKind kind;
    friend bool operator==(const Name&, const Name&) = default;
  };
  struct NameHash {  // a digest is random already
    std::size_t operator()(const Name& name) const {
      return name.digest.lo ^ static_cast<std::size_t>(name.kind) << 62;
    }
  };

  void hold(Node* node);
  void let_go(Node* node);
  bool fits(std::uint64_t bytes, std::uint64_t capacity, const Node* parent) const;
  void file(Node* node);    // among the leaves, where it belongs there
  void unfile(Node* node);  // from the leaves, where it is there
  void erase(Node* node);   // a node without children

  std::unordered_multimap<Name, std::unique_ptr<Node>, NameHash> nodes_;
  std::set<std::pair<std::uint64_t, Node*>> leaves_;
  std::uint64_t bytes_ = 0, held_bytes_ = 0, touches_ = 0, losses_ = 0;
};

}  // namespace hkv
