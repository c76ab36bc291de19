// SPDX-License-Identifier: Apache-2.0
#include "layout/growing_keys.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "layout/key_message.h"

namespace hkv {
namespace {

// A request may be let grow to a length that it never comes near.
constexpr std::int64_t most_reserved_units = std::int64_t{1} << 20;

}  // namespace

GrowingKeys::GrowingKeys(std::shared_ptr<const KeyChain> start, std::int64_t tokens, std::int64_t max_tokens)
    : base_(std::move(start)),
      unit_tokens_(base_->unit_tokens()),
      base_units_(tokens / unit_tokens_),
      tokens_(tokens),
      max_tokens_(max_tokens),
      record_(key_message::unit_record(unit_tokens_)) {
  HKV_CHECK(tokens <= base_->tokens() && tokens <= max_tokens);
  if (!has_tokens()) {
    HKV_CHECK(tokens % unit_tokens_ == 0);
    return;
  }
  last_ = base_->digest_before(base_units_);
  rest_.resize(static_cast<std::size_t>(tokens % unit_tokens_));
  base_->read_ids(base_units_ * unit_tokens_, tokens % unit_tokens_, rest_.data());
}

void GrowingKeys::reserve() {
  const auto room =
      static_cast<std::size_t>(std::min(max_tokens_ / unit_tokens_ - base_units_, most_reserved_units));
  heads_.reserve(room);
  tails_.reserve(room);
  rest_.reserve(static_cast<std::size_t>(std::min(unit_tokens_, max_tokens_)));
}

Key128 GrowingKeys::tip_key() const {
  HKV_CHECK(has_tokens() && !rest_.empty());
  Sha256 message;
  message.update(rest_.data(), rest_.size() * sizeof(std::uint32_t));
  const std::int64_t unit = whole_units();
  return key_message::tip_key(message, base_->media(), unit * unit_tokens_,
                              static_cast<std::int64_t>(rest_.size()), parent_key(unit));
}

std::shared_ptr<KeyChain> GrowingKeys::chain() const {
  if (has_tokens()) return base_->grown(base_units_, heads_, tails_, rest_);
  return base_->slice(0, base_units_, false);
}

void GrowingKeys::append(const TokenView& ids, std::int64_t from, std::int64_t n) {
  if (n == 0) return;
  if (!has_tokens())
    throw Error(ErrorCode::ArgumentError, "tokens",
                "keys, since the request began with keys made from hashes", "token ids");
  HKV_CHECK(tokens_ + n <= max_tokens_);
  std::uint32_t some[256];
  for (std::int64_t done = 0; done < n;) {  // all are looked at before any is taken
    const std::int64_t here = std::min<std::int64_t>(n - done, 256);
    const std::int64_t bad = read_tokens(ids, from + done, here, some);
    if (bad >= 0)
      throw Error(ErrorCode::ArgumentError, "tokens", "0 <= id < 2**32",
                  token_text(ids, bad) + " at index " + std::to_string(bad));
    done += here;
  }
  while (n > 0) {
    if (rest_.empty() && ids.is_words() && n >= unit_tokens_) {
      const std::int64_t units = n / unit_tokens_;
      add_whole_units(ids, from, units);
      from += units * unit_tokens_;
      n -= units * unit_tokens_;
      continue;
    }
    const auto had = rest_.size();
    const std::int64_t here = std::min(n, unit_tokens_ - static_cast<std::int64_t>(had));
    rest_.resize(had + static_cast<std::size_t>(here));
    read_tokens(ids, from, here, rest_.data() + had);
    tokens_ += here;
    from += here;
    n -= here;
    if (static_cast<std::int64_t>(rest_.size()) == unit_tokens_) close_unit();
  }
}

// Hashed as they lie, several at once, up to those with media of the chain it began with.
void GrowingKeys::add_whole_units(const TokenView& ids, std::int64_t from, std::int64_t units) {
  while (units > 0) {
    const MediaRange media = media_touching(base_->media(), tokens_, tokens_ + units * unit_tokens_);
    std::int64_t plain = units;
    if (media.first != media.last)
      plain = std::max<std::int64_t>(0, (base_->media()[media.first].offset - tokens_) / unit_tokens_);
    if (plain == 0) {
      rest_.resize(static_cast<std::size_t>(unit_tokens_));
      read_tokens(ids, from, unit_tokens_, rest_.data());
      tokens_ += unit_tokens_;
      close_unit();
      plain = 1;
    } else {
      const auto had = heads_.size();
      heads_.resize(had + static_cast<std::size_t>(plain));
      tails_.resize(heads_.size());
      sha256_chain(record_, ids.data + from * 4, static_cast<std::size_t>(plain), last_, &heads_[had],
                   &tails_[had]);
      tokens_ += plain * unit_tokens_;
    }
    from += plain * unit_tokens_;
    units -= plain;
  }
}

void GrowingKeys::close_unit() {
  const std::int64_t start = tokens_ - unit_tokens_;
  Sha256 message;
  message.update(rest_.data(), record_.bytes);
  last_ = sha256_link(last_, key_message::unit_digest(message, base_->media(), start, unit_tokens_));
  heads_.emplace_back();
  tails_.emplace_back();
  sha256_split(last_, heads_.back(), tails_.back());
  rest_.clear();
}

bool GrowingKeys::continued_by(const KeyChain& keys) const {
  const std::int64_t units = whole_units();
  if (keys.unit_tokens() != unit_tokens_ || keys.begin_unit() != 0 || keys.end_unit() < units) return false;
  if (tokens_ == 0) return true;  // nothing is known yet, not even whose request it is
  // A root tells the identity; the last key all that leads to it.
  if (units == 0 ? keys.root() != base_->root() : keys.keys()[units - 1] != key(units - 1)) return false;
  if (tokens_ % unit_tokens_ == 0) return true;
  if (!keys.has_tokens() || keys.tokens() < tokens_) return false;
  return keys.tip_key(units, tokens_ % unit_tokens_) == tip_key();
}

void GrowingKeys::follow(std::shared_ptr<const KeyChain> keys, std::int64_t tokens) {
  HKV_CHECK(tokens_ <= tokens && tokens <= max_tokens_);
  if (tokens > keys->tokens() || !continued_by(*keys))
    throw Error(ErrorCode::ArgumentError, "keys",
                "keys of " + std::to_string(tokens) + " tokens that begin with the request's " +
                    std::to_string(tokens_),
                "keys of another sequence or length");
  if (!keys->has_tokens() && tokens % unit_tokens_ != 0)
    throw Error(ErrorCode::ArgumentError, "computed_tokens",
                "whole units, since the keys are made from hashes", std::to_string(tokens));
  std::vector<std::uint32_t> rest;  // read before anything changes: the caller lent the memory
  if (keys->has_tokens()) {
    rest.resize(static_cast<std::size_t>(tokens % unit_tokens_));
    keys->read_ids(tokens - tokens % unit_tokens_, tokens % unit_tokens_, rest.data());
  }
  base_ = std::move(keys);
  base_units_ = tokens / unit_tokens_;
  tokens_ = tokens;
  heads_.clear();
  tails_.clear();
  rest_.assign(rest.begin(), rest.end());
  if (has_tokens()) last_ = base_->digest_before(base_units_);
}

}  // namespace hkv
