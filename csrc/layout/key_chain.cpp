// SPDX-License-Identifier: Apache-2.0
#include "layout/key_chain.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/sha256_chain.h"
#include "layout/key_message.h"

namespace hkv {

using namespace key_message;

namespace {

// Units are hashed about this many bytes at a time, after their ids were checked or, where they are not an
// array of 32-bit words, converted into a buffer: more would leave L2, less would cost restarts.
constexpr std::int64_t portion_bytes = 65536;
constexpr std::int64_t largest_unit_tokens = std::int64_t{1} << 24;

void check_unit(std::int64_t unit_tokens) {
  if (unit_tokens >= 1 && unit_tokens <= largest_unit_tokens) return;
  throw Error{ErrorCode::ArgumentError, "unit_tokens", "1 <= unit_tokens <= 2**24",
              std::to_string(unit_tokens)};
}

[[noreturn]] void refuse_token(const TokenView& tokens, std::int64_t index) {
  throw Error{ErrorCode::ArgumentError, "tokens", "0 <= id < 2**32",
              token_text(tokens, index) + " at index " + std::to_string(index)};
}

void read_or_refuse(const TokenView& tokens, std::int64_t from, std::int64_t n, std::uint32_t* out) {
  const std::int64_t bad = read_tokens(tokens, from, n, out);
  if (bad >= 0) refuse_token(tokens, bad);
}

}  // namespace

KeyChain::Digests::Digests(std::int64_t capacity)
    : capacity(capacity),
      head(std::make_unique_for_overwrite<Key128[]>(static_cast<std::size_t>(capacity))),
      tail(std::make_unique_for_overwrite<Key128[]>(static_cast<std::size_t>(capacity))) {}

// Relaxed is enough: the claim only keeps two writers apart, and what the winner writes reaches other
// threads with the chain it returns.
bool KeyChain::Digests::claim(std::int64_t from, std::int64_t to) noexcept {
  return to <= capacity && used.compare_exchange(from, to);
}

// One by one: a chain grown a unit at a time has as many segments, too many for recursion.
KeyChain::Segment::~Segment() {
  std::shared_ptr<Segment> next = std::move(previous);
  while (next != nullptr && next.use_count() == 1) next = std::exchange(next->previous, nullptr);
}

Sha256Words KeyChain::identity_root(std::int64_t unit_tokens,
                                    std::span<const std::string_view, identity_parts> parts) {
  check_unit(unit_tokens);
  Sha256 message;
  message.update_u64(static_cast<std::uint64_t>(unit_tokens));
  for (const std::string_view part : parts) message.update_u64(part.size()).update(part.data(), part.size());
  return message.update(root_tag, tag_bytes).finish();
}

std::shared_ptr<KeyChain> KeyChain::build(const Sha256Words& root, std::int64_t unit_tokens, TokenView tokens,
                                          std::vector<MediaSpan> media, Key128 identity) {
  check_unit(unit_tokens);
  check_media(media, tokens.count);
  std::shared_ptr<KeyChain> chain(new KeyChain);
  chain->unit_tokens_ = unit_tokens;
  chain->root_ = root;
  chain->root_key_ = head_of(root);
  chain->identity_ = identity;
  chain->media_ = std::move(media);
  chain->append(std::move(tokens), nullptr);
  return chain;
}

std::shared_ptr<KeyChain> KeyChain::from_hashes(std::vector<Key128> keys, std::int64_t unit_tokens) {
  check_unit(unit_tokens);
  std::shared_ptr<KeyChain> chain(new KeyChain);
  chain->unit_tokens_ = unit_tokens;
  chain->root_ =
      Sha256().update_u64(static_cast<std::uint64_t>(unit_tokens)).update(hashes_tag, tag_bytes).finish();
  chain->root_key_ = head_of(chain->root_);
  chain->has_tokens_ = false;
  chain->end_unit_ = static_cast<std::int64_t>(keys.size());
  chain->digests_ = std::make_shared<Digests>(chain->end_unit_);
  std::copy(keys.begin(), keys.end(), chain->digests_->head.get());
  return chain;
}

std::shared_ptr<KeyChain> KeyChain::extend(TokenView tokens, std::vector<MediaSpan> media) const {
  if (!has_tokens_) {
    throw Error{ErrorCode::ArgumentError, "parent", "keys made from tokens", "keys made from hashes"};
  }
  const std::int64_t start = end_unit_ * unit_tokens_;
  if (tokens.count > std::numeric_limits<std::int64_t>::max() - start) {
    throw Error{ErrorCode::ArgumentError, "tokens", "a length that can be counted", "more"};
  }
  std::erase_if(media, [&](const MediaSpan& span) {
    return std::find(media_.begin(), media_.end(), span) != media_.end();
  });
  for (const MediaSpan& span : media) {
    if (span.offset >= start) continue;
    throw Error{ErrorCode::ArgumentError, "media",
                "new spans from the parent's last whole unit on, token " + std::to_string(start),
                span_text(span)};
  }
  media.insert(media.end(), media_.begin(), media_.end());
  check_media(media, start + tokens.count);
  std::shared_ptr<KeyChain> chain(new KeyChain);
  chain->unit_tokens_ = unit_tokens_;
  chain->end_unit_ = end_unit_;
  chain->root_ = root_;
  chain->root_key_ = root_key_;
  chain->identity_ = identity_;
  chain->first_tip_unit_ = first_tip_unit_;
  chain->media_ = std::move(media);
  chain->newest_ = newest_;
  chain->append(std::move(tokens), digests_);
  return chain;
}

std::shared_ptr<KeyChain> KeyChain::slice(std::int64_t begin, std::int64_t end, bool keep_rest) const {
  HKV_CHECK(begin_unit_ <= begin && begin <= end && end <= end_unit_);
  std::shared_ptr<KeyChain> chain(new KeyChain(*this));
  chain->begin_unit_ = begin;
  chain->end_unit_ = end;
  if (keep_rest && end == end_unit_) return chain;
  chain->rest_.clear();
  std::erase_if(chain->media_, [&](const MediaSpan& span) { return span.offset >= end * unit_tokens_; });
  return chain;
}

std::shared_ptr<KeyChain> KeyChain::head(std::int64_t tokens) const {
  const std::int64_t unit = tokens / unit_tokens_, rest = tokens % unit_tokens_;
  HKV_CHECK(begin_unit_ <= unit && tokens <= this->tokens());
  HKV_CHECK(rest == 0 || (has_tokens_ && first_tip_unit_ <= unit));
  std::shared_ptr<KeyChain> chain = slice(begin_unit_, unit, false);
  if (rest == 0) return chain;
  chain->rest_.resize(static_cast<std::size_t>(rest));
  read_ids(unit * unit_tokens_, rest, chain->rest_.data());
  chain->media_ = media_;
  std::erase_if(chain->media_, [&](const MediaSpan& span) { return span.offset >= tokens; });
  return chain;
}

// Room for digests of units [from, to) behind those in `before` (null: none).
void KeyChain::own_digests(const std::shared_ptr<Digests>& before, std::int64_t from, std::int64_t to) {
  if (before == nullptr) {
    digests_ = std::make_shared<Digests>(to);
    digests_->claim(0, to);
  } else if (from == to || before->claim(from, to)) {
    digests_ = before;
  } else {  // another grew from the same unit, or there is no room: a copy with room for half as much again
    digests_ = std::make_shared<Digests>(to + to / 2 + 16);
    digests_->claim(0, to);
    std::copy_n(before->head.get(), from, digests_->head.get());
    std::copy_n(before->tail.get(), from, digests_->tail.get());
  }
}

std::shared_ptr<KeyChain> KeyChain::grown(std::int64_t units, std::span<const Key128> heads,
                                          std::span<const Key128> tails,
                                          std::span<const std::uint32_t> rest) const {
  HKV_CHECK(has_tokens_ && begin_unit_ == 0 && 0 <= units && units <= end_unit_);
  HKV_CHECK(heads.size() == tails.size() && std::ssize(rest) < unit_tokens_);
  std::shared_ptr<KeyChain> chain(new KeyChain(*this));
  const std::int64_t to = units + std::ssize(heads);
  chain->own_digests(digests_, units, to);
  std::copy(heads.begin(), heads.end(), chain->digests_->head.get() + units);
  std::copy(tails.begin(), tails.end(), chain->digests_->tail.get() + units);
  chain->end_unit_ = to;
  if (!heads.empty()) chain->first_tip_unit_ = to;
  chain->rest_.assign(rest.begin(), rest.end());
  std::erase_if(chain->media_, [&](const MediaSpan& span) { return span.offset >= chain->tokens(); });
  return chain;
}

// Adds the whole units of `tokens` after end_unit_, whose digests so far are in `before` (null: none).
void KeyChain::append(TokenView tokens, const std::shared_ptr<Digests>& before) {
  const std::int64_t from = end_unit_, units = tokens.count / unit_tokens_, to = from + units;
  const std::int64_t rest = tokens.count % unit_tokens_;
  rest_.resize(static_cast<std::size_t>(rest));
  read_or_refuse(tokens, tokens.count - rest, rest, rest_.data());
  own_digests(before, from, to);
  end_unit_ = to;
  hash_units(tokens, from);
  while (newest_ != nullptr && newest_->begin >= from * unit_tokens_) newest_ = newest_->previous;
  if (units != 0) {
    newest_ = std::make_shared<Segment>(from * unit_tokens_, std::move(tokens), std::move(newest_));
  }
}

Sha256Words KeyChain::digest_before(std::int64_t unit) const {
  if (unit == 0) return root_;
  return sha256_join(digests_->head[unit - 1], digests_->tail[unit - 1]);
}

// Digests of units [from_unit, end_unit_), whose ids are `tokens`.
void KeyChain::hash_units(const TokenView& tokens, std::int64_t from_unit) {
  if (from_unit == end_unit_) return;
  const Sha256Record record = unit_record(unit_tokens_);
  const std::int64_t per_portion =
      std::max<std::int64_t>(1, portion_bytes / static_cast<std::int64_t>(record.bytes));
  std::vector<std::uint32_t> buffer;
  Sha256Words chain = digest_before(from_unit);
  for (std::int64_t unit = from_unit; unit < end_unit_;) {
    // Up to the next unit with media, and that one by itself.
    const std::int64_t start = unit * unit_tokens_;
    const MediaRange ahead = media_touching(media_, start, end_unit_ * unit_tokens_);
    const std::int64_t media_unit =
        ahead.first == ahead.last ? end_unit_ : std::max(media_[ahead.first].offset / unit_tokens_, unit);
    const bool by_itself = media_unit == unit;
    std::int64_t n = by_itself ? 1 : media_unit - unit;
    const void* ids;
    n = std::min(n, per_portion);
    if (tokens.is_words()) {
      const std::int64_t bad = check_words(tokens, (unit - from_unit) * unit_tokens_, n * unit_tokens_);
      if (bad >= 0) refuse_token(tokens, bad);
      ids = tokens.data + (unit - from_unit) * static_cast<std::int64_t>(record.bytes);
    } else {
      buffer.resize(static_cast<std::size_t>(n * unit_tokens_));
      read_or_refuse(tokens, (unit - from_unit) * unit_tokens_, n * unit_tokens_, buffer.data());
      ids = buffer.data();
    }
    if (by_itself) {
      Sha256 message;
      message.update(ids, record.bytes);
      chain = sha256_link(chain, unit_digest(message, media_, start, unit_tokens_));
      sha256_split(chain, digests_->head[unit], digests_->tail[unit]);
    } else {
      sha256_chain(record, ids, static_cast<std::size_t>(n), chain, digests_->head.get() + unit,
                   digests_->tail.get() + unit);
    }
    unit += n;
  }
}

void KeyChain::read_ids(std::int64_t from, std::int64_t n, std::uint32_t* out) const {
  HKV_CHECK(has_tokens_ && first_tip_unit_ * unit_tokens_ <= from && 0 <= n && from + n <= tokens());
  const std::int64_t whole = end_unit_ * unit_tokens_;
  while (n > 0) {
    std::int64_t here = n;
    if (from >= whole) {
      std::copy_n(rest_.data() + (from - whole), n, out);
    } else {
      const Segment* segment = newest_.get();
      while (segment->begin > from) segment = segment->previous.get();
      here = std::min({n, whole - from, segment->begin + segment->view.count - from});
      read_or_refuse(segment->view, from - segment->begin, here, out);
    }
    from += here;
    out += here;
    n -= here;
  }
}

Key128 KeyChain::tip_key(std::int64_t unit, std::int64_t length) const {
  HKV_CHECK(has_tokens_ && first_tip_unit_ <= unit && unit <= end_unit_);
  HKV_CHECK(0 < length && length < unit_tokens_ && unit * unit_tokens_ + length <= tokens());
  const std::int64_t start = unit * unit_tokens_;
  Sha256 message;
  if (unit == end_unit_) {
    message.update(rest_.data(), static_cast<std::size_t>(length) * sizeof(std::uint32_t));
  } else {
    const Segment* segment = newest_.get();
    while (segment->begin > start) segment = segment->previous.get();
    std::uint32_t ids[256];
    for (std::int64_t done = 0; done < length;) {
      const std::int64_t n = std::min<std::int64_t>(length - done, 256);
      read_or_refuse(segment->view, start - segment->begin + done, n, ids);
      message.update(ids, static_cast<std::size_t>(n) * sizeof(std::uint32_t));
      done += n;
    }
  }
  return key_message::tip_key(message, media_, start, length, parent_key(unit));
}

Key128 KeyChain::tip_directory_key(std::int64_t unit) const {
  HKV_CHECK(0 <= unit && unit <= end_unit_);
  return directory_key(parent_key(unit));
}

bool KeyChain::equals(const KeyChain& other) const {
  if (unit_tokens_ != other.unit_tokens_ || begin_unit_ != other.begin_unit_ ||
      end_unit_ != other.end_unit_ || rest_.size() != other.rest_.size()) {
    return false;
  }
  // A key names everything before it, so the slice decides, and the last key or the root where it is empty.
  if (!std::equal(keys() + begin_unit_, keys() + end_unit_, other.keys() + begin_unit_)) return false;
  if (begin_unit_ == end_unit_ && !(parent_key(end_unit_) == other.parent_key(end_unit_))) return false;
  return rest_.empty() || tip_key(end_unit_, rest_tokens()) == other.tip_key(end_unit_, rest_tokens());
}

}  // namespace hkv
