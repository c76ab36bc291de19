// SPDX-License-Identifier: Apache-2.0
#include "tier/record.h"

#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "base/crc32c.h"

namespace hkv {
namespace {

constexpr std::size_t reserved_at = 104, reserved_bytes = 20, crc_at = 124;

// Little endian on every machine; compilers make one move of it.
template <class T>
void put(std::byte* at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>(value >> 8 * i);
}
template <class T>
T take(const std::byte* at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(at[i]) << 8 * i);
  return value;
}
void put_key(std::byte* at, const Key128& key) {
  put(at, key.lo);
  put(at + 8, key.hi);
}
Key128 take_key(const std::byte* at) { return {take<std::uint64_t>(at), take<std::uint64_t>(at + 8)}; }

std::uint32_t crc_of(const std::byte* envelope, std::size_t parts) {
  const std::uint32_t fixed = crc32c(0, envelope, crc_at);
  return crc32c(fixed, envelope + envelope_fixed_bytes, part_entry_bytes * parts);
}

auto order_of(const PartLabel& label) { return std::tie(label.group, label.layer, label.block, label.rows); }
bool before(const PartEntry& a, const PartEntry& b) { return order_of(a.label) < order_of(b.label); }

// Labels that ascend are different at a glance, and most writers' do.
bool labels_differ(const std::vector<PartEntry>& parts) {
  const auto same_or_less = [](const PartEntry& a, const PartEntry& b) { return !before(a, b); };
  if (std::adjacent_find(parts.begin(), parts.end(), same_or_less) == parts.end()) return true;
  std::vector<PartEntry> sorted = parts;
  std::sort(sorted.begin(), sorted.end(), before);
  return std::adjacent_find(sorted.begin(), sorted.end(), same_or_less) == sorted.end();
}

// Parts are mostly asked for in the order of the table, so each search goes on where the last one ended.
class PartSearch {
 public:
  explicit PartSearch(const Envelope& envelope) : parts_(envelope.parts) {}

  const PartEntry* next(const PartLabel& label) {
    for (std::size_t tried = 0; tried < parts_.size(); ++tried) {
      const PartEntry& entry = parts_[at_];
      at_ = at_ + 1 == parts_.size() ? 0 : at_ + 1;
      if (entry.label == label) return &entry;
    }
    return nullptr;
  }

 private:
  const std::vector<PartEntry>& parts_;
  std::size_t at_ = 0;
};

// The part table: offsets without gaps from 0 on, their sum as the envelope says, no part without bytes.
bool read_parts(const std::byte* at, std::size_t count, Envelope& out) {
  out.parts.resize(count);
  std::uint64_t end = 0;
  for (PartEntry& entry : out.parts) {
    entry.label = {take<std::uint16_t>(at), take<std::uint16_t>(at + 2), take<std::uint32_t>(at + 4),
                   take<std::uint32_t>(at + 8)};
    entry.crc = take<std::uint32_t>(at + 12);
    entry.offset = take<std::uint64_t>(at + 16);
    entry.bytes = take<std::uint64_t>(at + 24);
    if (entry.offset != end || entry.bytes == 0 || entry.bytes > most_payload_bytes - end) return false;
    end += entry.bytes;
    at += part_entry_bytes;
  }
  return end == out.payload_bytes && labels_differ(out.parts);
}

}  // namespace

const char* name_of(Damage damage) {
  switch (damage) {
    case Damage::None: return "None";
    case Damage::Short: return "Short";
    case Damage::Magic: return "Magic";
    case Damage::Version: return "Version";
    case Damage::Header: return "Header";
    case Damage::Epoch: return "Epoch";
    case Damage::Foreign: return "Foreign";
    case Damage::Format: return "Format";
    case Damage::Parts: return "Parts";
    case Damage::Content: return "Content";
  }
  return "?";
}

std::size_t write_envelope(const Envelope& envelope, std::span<std::byte> out) {
  const std::size_t bytes = envelope_bytes(envelope.parts.size());
  HKV_CHECK(envelope.parts.size() <= most_parts && out.size() >= bytes);
  std::byte* const at = out.data();
  put(at, record_magic);
  put(at + 4, record_version);
  put(at + 6, static_cast<std::uint8_t>(envelope.key.kind));
  put(at + 7, envelope.flags);
  put(at + 8, envelope.epoch);
  put_key(at + 16, envelope.key.digest);
  put_key(at + 32, envelope.key.format);
  put_key(at + 48, envelope.parent);
  put_key(at + 64, envelope.identity);
  put(at + 80, envelope.tokens);
  put(at + 88, envelope.payload_bytes);
  put(at + 96, envelope.payload_offset);
  put(at + 100, static_cast<std::uint32_t>(envelope.parts.size()));
  std::fill_n(at + reserved_at, reserved_bytes, std::byte{0});
  std::byte* entry_at = at + envelope_fixed_bytes;
  for (const PartEntry& entry : envelope.parts) {
    put(entry_at, entry.label.group);
    put(entry_at + 2, entry.label.layer);
    put(entry_at + 4, entry.label.block);
    put(entry_at + 8, entry.label.rows);
    put(entry_at + 12, entry.crc);
    put(entry_at + 16, entry.offset);
    put(entry_at + 24, entry.bytes);
    entry_at += part_entry_bytes;
  }
  put(at + crc_at, crc_of(at, envelope.parts.size()));
  return bytes;
}

Damage read_envelope(std::span<const std::byte> bytes, Envelope& out) {
  if (bytes.size() < envelope_fixed_bytes) return Damage::Short;
  const std::byte* const at = bytes.data();
  if (take<std::uint32_t>(at) != record_magic) return Damage::Magic;
  if (take<std::uint16_t>(at + 4) != record_version) return Damage::Version;
  const std::size_t count = take<std::uint32_t>(at + 100);
  if (count > most_parts) return Damage::Header;
  if (bytes.size() < envelope_bytes(count)) return Damage::Short;
  if (take<std::uint32_t>(at + crc_at) != crc_of(at, count)) return Damage::Header;

  const auto kind = take<std::uint8_t>(at + 6);
  if (kind < 1 || kind > static_cast<std::uint8_t>(RecordKind::Tombstone)) return Damage::Header;
  const std::byte* const reserved = at + reserved_at;
  if (std::any_of(reserved, reserved + reserved_bytes, [](std::byte b) { return b != std::byte{0}; })) {
    return Damage::Header;
  }
  out.key = {take_key(at + 16), take_key(at + 32), static_cast<RecordKind>(kind)};
  out.parent = take_key(at + 48);
  out.identity = take_key(at + 64);
  out.epoch = take<std::uint64_t>(at + 8);
  out.tokens = take<std::uint64_t>(at + 80);
  out.payload_bytes = take<std::uint64_t>(at + 88);
  out.payload_offset = take<std::uint32_t>(at + 96);
  out.flags = take<std::uint8_t>(at + 7);
  if (out.payload_offset < envelope_bytes(count)) return Damage::Header;
  if (out.key.kind == RecordKind::Tombstone && count != 0) return Damage::Header;
  return read_parts(at + envelope_fixed_bytes, count, out) ? Damage::None : Damage::Header;
}

std::size_t envelope_bytes_at(std::span<const std::byte> fixed) {
  if (fixed.size() < envelope_fixed_bytes) return 0;
  if (take<std::uint32_t>(fixed.data()) != record_magic) return 0;
  if (take<std::uint16_t>(fixed.data() + 4) != record_version) return 0;
  const std::size_t count = take<std::uint32_t>(fixed.data() + 100);
  return count > most_parts ? 0 : envelope_bytes(count);
}

Damage match_envelope(const Envelope& envelope, const RecordKey& key, std::span<const Part> wanted) {
  if (envelope.key.digest != key.digest || envelope.key.kind != key.kind) return Damage::Foreign;
  if (envelope.key.format != key.format) return Damage::Format;
  PartSearch search(envelope);
  for (const Part& part : wanted) {
    const PartEntry* entry = search.next(part.label);
    if (entry == nullptr || entry->bytes != part.bytes) return Damage::Parts;
  }
  return Damage::None;
}

Damage check_parts(const Envelope& envelope, std::span<const Part> wanted) {
  PartSearch search(envelope);
  for (const Part& part : wanted) {
    const PartEntry* entry = search.next(part.label);
    HKV_CHECK(entry != nullptr && entry->bytes == part.bytes);
    if (crc32c(0, part.data, part.bytes) != entry->crc) return Damage::Content;
  }
  return Damage::None;
}

const PartEntry* find_part(const Envelope& envelope, const PartLabel& label) {
  return PartSearch(envelope).next(label);
}

}  // namespace hkv
