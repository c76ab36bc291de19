// SPDX-License-Identifier: Apache-2.0
// A tier that keeps its records, and does nothing until told: the test decides which operation ends when, and how.
//
// Thread safety: one thread.
#pragma once
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "tier/tier.h"

namespace hkv {

class HeldTier : public Tier {
 public:
  struct Stored {
    std::vector<std::byte> envelope, payload;
    std::uint8_t flags = 0;
  };
  using Name = std::pair<std::uint64_t, int>;

  explicit HeldTier(const TierLimits& limits = {}) : Tier(limits) {}
  ~HeldTier() override { close(); }

  TierCaps caps() const override { return {false, true, depth, std::size_t{1} << 30}; }
  Presence look(const RecordKey& key) const override {
    ++looks;
    const auto found = stored.find(name_of(key));
    if (found == stored.end()) return {};
    Envelope envelope;
    read_envelope(found->second.envelope, envelope);
    const bool same = envelope.key.format == key.format;
    return {same ? Presence::Answer::Here : Presence::Answer::OtherFormat, found->second.flags};
  }
  void touch(const RecordKey&) override { ++touches; }
  std::uint64_t losses() const override { return lost; }
  // The record goes by itself, and where `told`, the tier says so.
  void lose(RecordKind kind, Key128 digest, bool told = true) {
    stored.erase({digest.lo, static_cast<int>(kind)});
    lost += told ? 1 : 0;
  }

  // Ends the oldest operation that waits, as a sound tier would, or with a status.
  void end_one(TierStatus status = TierStatus::Ok) {
    Operation* const operation = waiting.front();
    waiting.pop_front();
    if (status != TierStatus::Ok) return finish(operation, status);
    if (operation->kind == Operation::Kind::Put) return keep(operation);
    if (operation->kind == Operation::Kind::Get) return give(operation);
    finish(operation, TierStatus::Ok);
  }
  void end_all() {
    while (!waiting.empty()) end_one();
  }
  std::size_t count(RecordKind kind) const {
    return static_cast<std::size_t>(std::count_if(stored.begin(), stored.end(), [&](const auto& each) {
      return each.first.second == static_cast<int>(kind);
    }));
  }
  static Name name_of(const RecordKey& key) { return {key.digest.lo, static_cast<int>(key.kind)}; }

  std::size_t depth = 64;
  std::deque<Operation*> waiting;
  std::map<Name, Stored> stored;
  mutable std::int64_t looks = 0;
  std::int64_t touches = 0;
  std::uint64_t lost = 0;

 protected:
  void begin(Operation* operation) override { waiting.push_back(operation); }
  void end() override {
    while (!waiting.empty()) end_one(TierStatus::Cancelled);
  }

 private:
  void keep(Operation* operation) {
    const Envelope envelope =
        seal(*operation, 0, static_cast<std::uint32_t>(envelope_bytes(operation->parts.size())));
    Stored made;
    made.envelope.resize(envelope_bytes(operation->parts.size()));
    write_envelope(envelope, made.envelope);
    for (const Part& part : operation->parts) {
      const auto* from = static_cast<const std::byte*>(part.data);
      made.payload.insert(made.payload.end(), from, from + part.bytes);
    }
    made.flags = operation->flags;
    stored.emplace(name_of(operation->key), std::move(made));
    finish(operation, TierStatus::Ok);
  }
  void give(Operation* operation) {
    const auto found = stored.find(name_of(operation->key));
    if (found == stored.end()) return finish(operation, TierStatus::Miss);
    operation->envelope = found->second.envelope;
    Envelope envelope;
    read_envelope(operation->envelope, envelope);
    for (const Part& part : operation->parts) {
      const PartEntry* const entry = find_part(envelope, part.label);
      if (entry != nullptr)
        std::memcpy(part.data, found->second.payload.data() + entry->offset,
                    std::min(part.bytes, entry->bytes));
    }
    finish(operation, TierStatus::Ok);
  }
};

}  // namespace hkv
