// SPDX-License-Identifier: Apache-2.0
#include "tier/region_check.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"

namespace hkv {
namespace {

bool wrong(const Flaw& flaw) { return flaw.damage != Damage::None || flaw.error != 0; }

void add(std::vector<Flaw>& flaws, const Flaw& flaw) {
  if (wrong(flaw)) flaws.push_back(flaw);
}

Damage envelope_damage(const FooterEntry& entry, std::uint64_t epoch, std::span<const std::byte> bytes,
                       Envelope& envelope) {
  if (const Damage damage = read_envelope(bytes, envelope); damage != Damage::None) return damage;
  if (envelope.epoch != epoch) return Damage::Epoch;
  if (const Damage damage = match_envelope(envelope, entry.key, {}); damage != Damage::None) return damage;
  const std::uint64_t head = std::uint64_t{entry.payload_units} * disk_unit;
  const std::uint64_t whole = std::uint64_t{entry.units} * disk_unit;
  const bool listed = envelope.parent == entry.parent && envelope.flags == entry.flags &&
                      envelope.payload_offset == head && envelope.payload_bytes <= whole - head &&
                      round_up_to_unit(envelope.payload_bytes) == whole - head;
  return listed ? Damage::None : Damage::Header;
}

}  // namespace

std::size_t first_set(std::span<const std::byte> bytes) {
  const auto set = [](std::byte b) { return b != std::byte{0}; };
  return static_cast<std::size_t>(std::find_if(bytes.begin(), bytes.end(), set) - bytes.begin());
}

std::vector<PartEntry> check_head(const FooterEntry& entry, std::uint64_t epoch,
                                  std::span<const std::byte> bytes, WalkedRecord& record) {
  Envelope envelope;
  const Damage damage = envelope_damage(entry, epoch, bytes, envelope);
  if (damage != Damage::None) {
    record.flaws.push_back({FlawAt::Envelope, damage, 0, none_u32, record.offset});
    return {};
  }
  record.identity = envelope.identity;
  record.tokens = envelope.tokens;
  record.payload_bytes = envelope.payload_bytes;
  record.parts = static_cast<std::uint32_t>(envelope.parts.size());
  const std::size_t said = envelope_bytes(envelope.parts.size());
  const std::size_t set = first_set(bytes.subspan(said));
  if (said + set != bytes.size()) {
    record.flaws.push_back({FlawAt::Fill, Damage::Content, 0, none_u32, record.offset + said + set});
  }
  return std::move(envelope.parts);
}

RegionCheck::RegionCheck(Io& io, FileId file, std::span<const FooterEntry> entries, WalkedRegion& region)
    : stream_(io, file, region.bytes), entries_(entries), region_(region) {}

template <class F>
Flaw RegionCheck::pass(FlawAt at, std::uint64_t to, F&& use) {
  Flaw flaw;
  flaw.at = at;
  while (stream_.at() < to) {
    const RegionStream::Piece piece = stream_.next(to - stream_.at());
    if (piece.data != nullptr) {
      use(piece);
      continue;
    }
    if (!wrong(flaw)) {
      flaw.offset = piece.offset;
      flaw.error = piece.error;
      if (piece.count == 0) flaw.damage = Damage::Short;
    }
    if (piece.count == 0) break;
  }
  return flaw;
}

Flaw RegionCheck::pass_zeros(std::uint64_t to) {
  Flaw set;
  set.at = FlawAt::Fill;
  const Flaw flaw = pass(FlawAt::Fill, to, [&](const RegionStream::Piece& piece) {
    const std::size_t at = first_set({piece.data, piece.count});
    if (at == piece.count || wrong(set)) return;
    set.damage = Damage::Content;
    set.offset = piece.offset + at;
  });
  return wrong(flaw) ? flaw : set;
}

void RegionCheck::run() {
  // Header and footer were compared already; here it is whether they, and what is free, can be read.
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::uint64_t from = std::uint64_t{entries_[i].at} * disk_unit;
    add(region_.flaws, pass(FlawAt::File, std::min(from, stream_.end()), [](const auto&) {}));
    check(entries_[i], region_.records[i]);
  }
  add(region_.flaws, pass(FlawAt::File, stream_.end(), [](const auto&) {}));
}

void RegionCheck::check(const FooterEntry& entry, WalkedRecord& record) {
  const std::uint64_t start = record.offset, end = record.offset + record.bytes;
  if (stream_.at() != start && start < stream_.end()) {  // two of the list overlap
    record.flaws.push_back({FlawAt::Envelope, Damage::Header, 0, none_u32, start});
    return;
  }
  head_.assign(std::size_t{entry.payload_units} * disk_unit, std::byte{0});
  const Flaw unread = pass(FlawAt::Envelope, start + head_.size(), [&](const RegionStream::Piece& piece) {
    std::memcpy(head_.data() + (piece.offset - start), piece.data, piece.count);
  });
  std::vector<PartEntry> parts;
  if (wrong(unread)) {
    record.flaws.push_back(unread);
  } else {
    parts = check_head(entry, region_.epoch, head_, record);
  }
  const std::uint64_t payload = start + head_.size();
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    std::uint32_t crc = 0;
    Flaw flaw = pass(FlawAt::Part, payload + parts[i].offset + parts[i].bytes,
                     [&](const RegionStream::Piece& piece) { crc = crc32c(crc, piece.data, piece.count); });
    flaw.part = i;
    if (!wrong(flaw) && crc != parts[i].crc) {
      flaw.damage = Damage::Content;
      flaw.offset = payload + parts[i].offset;
    }
    add(record.flaws, flaw);
  }
  const bool known = record.flaws.empty() || record.flaws.front().at != FlawAt::Envelope;
  if (known) {
    add(record.flaws, pass_zeros(end));
  } else {
    pass(FlawAt::File, end, [](const auto&) {});
  }
}

}  // namespace hkv
