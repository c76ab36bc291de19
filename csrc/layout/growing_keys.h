// SPDX-License-Identifier: Apache-2.0
// The keys of a running request: a chain that grows by a few tokens a step, without allocating.
//
// The keys are those of KeyChain (key_chain.h) over the same tokens. Up to a unit the chain that the request
// began with is kept as it is; what follows is kept here, with the ids of the partial last unit alone.
//
// Thread safety: one owner at a time. Progress: wait-free.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/sha256.h"
#include "base/sha256_chain.h"
#include "base/types.h"
#include "layout/key_chain.h"

namespace hkv {

class GrowingKeys {
 public:
  // Begins with the first `tokens` tokens of `start`.
  // Requires: tokens <= start->tokens() and <= max_tokens; where start has no tokens, whole units.
  GrowingKeys(std::shared_ptr<const KeyChain> start, std::int64_t tokens, std::int64_t max_tokens);

  // Takes room for all keys up to max_tokens, or for the first 2^20: up to there nothing is allocated later.
  void reserve();

  std::int64_t tokens() const { return tokens_; }
  std::int64_t unit_tokens() const { return unit_tokens_; }
  std::int64_t whole_units() const { return tokens_ / unit_tokens_; }
  bool has_tokens() const { return base_->has_tokens(); }
  // The chain that the first units are of; what follows tokens() in it is not part of this sequence.
  const std::shared_ptr<const KeyChain>& start() const { return base_; }

  // Key of a whole unit. Requires: 0 <= unit < whole_units().
  Key128 key(std::int64_t unit) const {
    return unit < base_units_ ? base_->keys()[unit] : heads_[static_cast<std::size_t>(unit - base_units_)];
  }
  // What unit `unit` continues. Requires: 0 <= unit <= whole_units().
  Key128 parent_key(std::int64_t unit) const { return unit == 0 ? base_->root() : key(unit - 1); }
  // Key of the partial last unit. Requires: has_tokens(), tokens() no multiple of the unit.
  Key128 tip_key() const;

  // What there is of this sequence, as a chain: of the ids those of the partial last unit. Progress: copies the keys of
  // what was added, and of all where others grew from the same chain.
  std::shared_ptr<KeyChain> chain() const;

  // Adds ids [from, from + n) of `ids`.
  // Throws: ArgumentError (tokens); nothing has changed.
  void append(const TokenView& ids, std::int64_t from, std::int64_t n);
  // The same for one id, known to be one. Requires: has_tokens(), and that it ends no unit.
  void append_inside_unit(std::uint32_t id) {
    rest_.push_back(id);
    ++tokens_;
  }
  // Goes on with the first `tokens` tokens of `keys`.
  // Throws: ArgumentError (keys) where they do not begin with these tokens; nothing has changed.
  void follow(std::shared_ptr<const KeyChain> keys, std::int64_t tokens);

 private:
  bool continued_by(const KeyChain& keys) const;
  void add_whole_units(const TokenView& ids, std::int64_t from, std::int64_t units);
  void close_unit();

  std::shared_ptr<const KeyChain> base_;
  std::int64_t unit_tokens_;
  std::int64_t base_units_;  // units whose keys are base_'s
  std::int64_t tokens_;
  std::int64_t max_tokens_;
  Sha256Record record_;
  Sha256Words last_{};                 // digest of the last whole unit
  std::vector<Key128> heads_, tails_;  // of the units after base_units_
  std::vector<std::uint32_t> rest_;    // ids of the partial last unit
};

}  // namespace hkv
