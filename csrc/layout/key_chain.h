// SPDX-License-Identifier: Apache-2.0
// KeyChain: the 128-bit names of a sequence's units, each naming its unit and everything before it.
//
// Definition (key profile 1). All integers are little endian, token ids are u32, `||` joins bytes, [a:b]
// are bytes a to b. Everything is SHA-256 as published, of whole messages: no hash is invented, and any
// library gives the same values (tests/python/test_keys_definition.py is the definition over hashlib).
//
//   body(from, n) = ids of tokens [from, from + n)
//                   || for each media span that touches them: u64 offset || u64 length || u64 bytes || digest
//                   || u64 number of those spans || u64 n
//   root          = SHA-256(u64 unit_tokens || for each part of the identity: u64 bytes || part
//                           || "hybridkv root  1")
//   local(u)      = SHA-256(body(u * unit_tokens, unit_tokens) || "hybridkv unit  1")
//   chain(-1)     = root;  chain(u) = SHA-256(chain(u-1)[0:28] || local(u)[0:27])
//   key(u)        = chain(u)[0:16];  key(-1) = root[0:16]
//   tip(u, n)     = SHA-256(body(u * unit_tokens, n) || key(u-1) || "hybridkv tip   1")[0:16]
//   directory(u)  = SHA-256(key(u-1) || "hybridkv tips  1")[0:16]
//   root of an engine's own hashes = SHA-256(u64 unit_tokens || "hybridkv hashes1")
//
// Why equal keys mean equal identity, unit and tokens from the start:
// 1. Messages of two kinds are never equal. Messages of a link have 55 bytes, no other message has (without
//    media the others are a multiple of four long, with media longer than 60, a root at least 64), and
//    the others end in sixteen bytes that name their kind.
// 2. Within a kind a message can be read back in one way only: from its end the counts, then from its
//    start the ids, then the spans, each behind its length; parts of the root stand behind their
//    lengths. So ("ab", "c") is not ("a", "bc"), and ids cannot pass for a span, a part or a parent.
// 3. Hence two different sequences with equal chain(u) hold a collision of SHA-256 or of its truncation to
//    224 or 216 bits (base/sha256_chain.h): 2^108 work. The key keeps 128 bits of chain(u), 2^64 work for
//    a pair under one known root; but 28 bytes of chain(u) are carried on, not the key, so such a pair
//    does not make the units after it collide.
// 4. `Identity.salt` is a part of the root. Where it is secret nobody outside can compute a key or look
//    for colliding pairs. Extending a message is no matter: keys are names, not authentication codes.
//
// Thread safety: immutable once built, so any thread may read; two threads may extend one chain.
// Progress: the readers are wait-free and allocate nothing, except that tip keys of a unit read its tokens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/atomic.h"
#include "base/sha256.h"
#include "base/types.h"
#include "layout/key_chain_tokens.h"

namespace hkv {

inline constexpr int key_profile = 1;
inline constexpr std::size_t identity_parts = 5;

class KeyChain {
 public:
  // The root of chains of this unit and identity: model, weights, adapter, salt, extra.
  static Sha256Words identity_root(std::int64_t unit_tokens,
                                   std::span<const std::string_view, identity_parts> parts);

  // Names every whole unit of `tokens`. The view is kept; a partial last unit is copied now, so that the
  // tip which is published is the one that was hashed. `identity`: what stands for it, for who looks into a store.
  // Throws: ArgumentError (unit_tokens, tokens, media); nothing has changed.
  static std::shared_ptr<KeyChain> build(const Sha256Words& root, std::int64_t unit_tokens, TokenView tokens,
                                         std::vector<MediaSpan> media, Key128 identity = {});

  // An engine's own hashes, 16 bytes each. Such a chain has no tokens, so no tips and no continuation.
  static std::shared_ptr<KeyChain> from_hashes(std::vector<Key128> keys, std::int64_t unit_tokens);

  // The whole chain with `tokens` after this one's whole units; its partial rest is replaced, its media
  // are kept (a span may be given again, equal). Nothing is hashed twice, and where this chain is the
  // last to have grown, nothing is copied either.
  // Throws: ArgumentError (parent, tokens, media); nothing has changed.
  std::shared_ptr<KeyChain> extend(TokenView tokens, std::vector<MediaSpan> media) const;

  // Units [begin, end), counted from the start of the sequence, still chained to what precedes them; with
  // `keep_rest` the partial rest stays. Requires: begin_unit() <= begin <= end <= end_unit().
  std::shared_ptr<KeyChain> slice(std::int64_t begin, std::int64_t end, bool keep_rest) const;

  // This chain's first `units` units, then units of these digests (first and last 16 bytes of each), then a partial last
  // unit of these ids: of a sequence whose tokens in between nobody kept. Requires: has_tokens(), units <= end_unit(), as
  // many tails as heads, fewer ids than a unit has.
  std::shared_ptr<KeyChain> grown(std::int64_t units, std::span<const Key128> heads,
                                  std::span<const Key128> tails, std::span<const std::uint32_t> rest) const;

  // The chain cut behind the first `tokens` tokens: what is left of the unit cut becomes the partial rest, so that its
  // tip is the one of that length here. Requires: begin_unit() * unit_tokens() <= tokens <= tokens(); has_tokens() where
  // a unit is cut. Throws: ArgumentError as tip_key.
  std::shared_ptr<KeyChain> head(std::int64_t tokens) const;

  // Keys of the whole sequence from unit 0, slices included; length end_unit().
  const Key128* keys() const { return digests_->head.get(); }
  std::int64_t begin_unit() const { return begin_unit_; }
  std::int64_t end_unit() const { return end_unit_; }
  std::int64_t unit_tokens() const { return unit_tokens_; }
  // End of the sequence in tokens from its start, a partial rest included.
  std::int64_t tokens() const { return end_unit_ * unit_tokens_ + rest_tokens(); }
  std::int64_t rest_tokens() const { return static_cast<std::int64_t>(rest_.size()); }
  Key128 root() const { return root_key_; }
  // What stands for the identity in the root, its salt left out; no part of any key. Zero: nobody said.
  Key128 identity() const { return identity_; }
  bool has_tokens() const { return has_tokens_; }
  // Tokens of units below it may not be here: no tips are named there.
  std::int64_t first_tip_unit() const { return first_tip_unit_; }
  const std::vector<MediaSpan>& media() const { return media_; }

  // The ids of tokens [from, from + n). Requires: has_tokens(), all of them in this sequence and known to it.
  // Throws: ArgumentError as tip_key.
  void read_ids(std::int64_t from, std::int64_t n, std::uint32_t* out) const;

  // chain(unit - 1), from which the units from `unit` on continue. Requires: 0 <= unit <= end_unit().
  Sha256Words digest_before(std::int64_t unit) const;

  // Key of the tip that holds the first `length` tokens of unit `unit`. Costs one SHA-256.
  // Requires: has_tokens(), 0 < length < unit_tokens(), first_tip_unit() <= unit <= end_unit(),
  // unit * unit_tokens() + length <= tokens().
  // Throws: ArgumentError where the caller has since put ids out of range into the tokens it lent.
  Key128 tip_key(std::int64_t unit, std::int64_t length) const;

  // Key of the directory of tips whose parent is unit - 1 (0: the root). Requires: unit <= end_unit().
  Key128 tip_directory_key(std::int64_t unit) const;

  // Same unit, same span of units, same keys, same partial rest.
  bool equals(const KeyChain& other) const;

 private:
  // Digests of units from 0 on, shared by chains that grew from one another: a chain owns the first
  // end_unit() of them, and whoever grows from the last one claims what follows it.
  struct Digests {
    explicit Digests(std::int64_t capacity);
    bool claim(std::int64_t from, std::int64_t to) noexcept;  // [from, to) is the caller's alone
    std::int64_t capacity;
    std::unique_ptr<Key128[]> head, tail;  // first and last 16 bytes of chain(u)
    Atom<std::int64_t> used;               // units claimed so far
  };

  // Tokens [begin, begin + view.count), the newest first; a unit is looked up in the first segment that
  // begins at or before it. A segment begins where a unit does.
  struct Segment {
    Segment(std::int64_t begin, TokenView view, std::shared_ptr<Segment> previous)
        : begin(begin), view(std::move(view)), previous(std::move(previous)) {}
    ~Segment();
    std::int64_t begin;
    TokenView view;
    std::shared_ptr<Segment> previous;
  };

  KeyChain() = default;
  Key128 parent_key(std::int64_t unit) const { return unit == 0 ? root_key_ : keys()[unit - 1]; }
  void append(TokenView tokens, const std::shared_ptr<Digests>& before);
  void own_digests(const std::shared_ptr<Digests>& before, std::int64_t from, std::int64_t to);
  void hash_units(const TokenView& tokens, std::int64_t from_unit);

  std::int64_t unit_tokens_ = 0;
  std::int64_t begin_unit_ = 0;
  std::int64_t end_unit_ = 0;
  std::int64_t first_tip_unit_ = 0;
  bool has_tokens_ = true;
  Sha256Words root_{};
  Key128 root_key_;
  Key128 identity_;  // kept by every chain that is made of this one
  std::shared_ptr<Digests> digests_;
  std::shared_ptr<Segment> newest_;
  std::vector<std::uint32_t> rest_;  // ids of the partial last unit
  std::vector<MediaSpan> media_;     // sorted, disjoint
};

}  // namespace hkv
