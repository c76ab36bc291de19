// SPDX-License-Identifier: Apache-2.0
#include "tier/region.h"

#include <algorithm>
#include <cstdio>

#include "base/check.h"
#include "base/crc32c.h"
#include "tier/little_endian.h"

namespace hkv {
namespace {

constexpr std::uint32_t superblock_magic = 0x53564B48u;  // "HKVS"
constexpr std::uint32_t header_magic = 0x48564B48u;      // "HKVH"
constexpr std::uint32_t trailer_magic = 0x46564B48u;     // "HKVF"

// Superblock: magic u32 | version u32 | store 16 | region_bytes u64 | crc u32 of the 32 bytes before
constexpr std::size_t superblock_crc_at = 32;
// Header: magic u32 | version u32 | store 16 | epoch u64 | region_bytes u64 | number u32 | crc u32
constexpr std::size_t header_crc_at = 44;
// Trailer: magic u32 | version u32 | store 16 | epoch u64 | number u32 | entries u32 | entries_crc u32 | 16 zero
// bytes | crc u32
constexpr std::size_t trailer_crc_at = 60;
// Entry: digest 16 | format 16 | parent 16 | at u32 | units u32 | payload_units u32 | kind u8 | flags u8 | pinned u8 |
// zero u8

void put_crc(std::byte* bytes, std::size_t at) { put_le(bytes + at, crc32c(0, bytes, at)); }
bool crc_holds(const std::byte* bytes, std::size_t at) {
  return get_le<std::uint32_t>(bytes + at) == crc32c(0, bytes, at);
}

void write_entry(const FooterEntry& entry, std::byte* out) {
  put_le(out, entry.key.digest);
  put_le(out + 16, entry.key.format);
  put_le(out + 32, entry.parent);
  put_le(out + 48, entry.at);
  put_le(out + 52, entry.units);
  put_le(out + 56, entry.payload_units);
  out[60] = static_cast<std::byte>(entry.key.kind);
  out[61] = static_cast<std::byte>(entry.flags);
  out[62] = static_cast<std::byte>(entry.pinned);
  out[63] = std::byte{0};
}

FooterEntry read_entry(const std::byte* in) {
  FooterEntry entry;
  entry.key = {get_le<Key128>(in), get_le<Key128>(in + 16), static_cast<RecordKind>(in[60])};
  entry.parent = get_le<Key128>(in + 32);
  entry.at = get_le<std::uint32_t>(in + 48);
  entry.units = get_le<std::uint32_t>(in + 52);
  entry.payload_units = get_le<std::uint32_t>(in + 56);
  entry.flags = std::to_integer<std::uint8_t>(in[61]);
  entry.pinned = in[62] != std::byte{0};
  return entry;
}

bool sound(const FooterEntry& entry, std::uint64_t region_units) {
  return entry.key.kind >= RecordKind::Block && entry.key.kind <= RecordKind::Tombstone &&
         (entry.key.kind != RecordKind::Tombstone || names_removable(entry.flags)) &&
         entry.at >= region_header_bytes / disk_unit && entry.payload_units >= 1 &&
         entry.payload_units <= entry.units && std::uint64_t{entry.at} + entry.units <= region_units;
}

}  // namespace

void write_superblock(const Superblock& superblock, std::span<std::byte, disk_unit> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  put_le(out.data(), superblock_magic);
  put_le(out.data() + 4, superblock.version);
  put_le(out.data() + 8, superblock.store);
  put_le(out.data() + 24, superblock.region_bytes);
  put_crc(out.data(), superblock_crc_at);
}

SuperblockFault read_superblock(std::span<const std::byte> bytes, Superblock& out) {
  if (bytes.size() < superblock_crc_at + 4) return SuperblockFault::Damaged;
  const std::byte* const at = bytes.data();
  if (get_le<std::uint32_t>(at) != superblock_magic) return SuperblockFault::Damaged;
  if (!crc_holds(at, superblock_crc_at))
    return SuperblockFault::Damaged;  // every layout keeps these 36 bytes
  out.version = get_le<std::uint32_t>(at + 4);
  if (out.version > disk_layout_version) return SuperblockFault::Newer;
  out.store = get_le<Key128>(at + 8);
  out.region_bytes = get_le<std::uint64_t>(at + 24);
  const bool fits = out.version >= 1 && out.region_bytes % disk_unit == 0 &&
                    out.region_bytes >= least_region_bytes && out.region_bytes <= most_region_bytes;
  return fits ? SuperblockFault::None : SuperblockFault::Damaged;
}

void write_region_header(const RegionHeader& header, std::span<std::byte, region_header_bytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  put_le(out.data(), header_magic);
  put_le(out.data() + 4, disk_layout_version);
  put_le(out.data() + 8, header.store);
  put_le(out.data() + 24, header.epoch);
  put_le(out.data() + 32, header.region_bytes);
  put_le(out.data() + 40, header.number);
  put_crc(out.data(), header_crc_at);
}

std::optional<RegionHeader> read_any_region_header(std::span<const std::byte> bytes) {
  if (bytes.size() < header_crc_at + 4) return std::nullopt;
  const std::byte* const at = bytes.data();
  const bool sound = get_le<std::uint32_t>(at) == header_magic && crc_holds(at, header_crc_at) &&
                     get_le<std::uint32_t>(at + 4) == disk_layout_version;
  if (!sound) return std::nullopt;
  return RegionHeader{get_le<Key128>(at + 8), get_le<std::uint32_t>(at + 40), get_le<std::uint64_t>(at + 24),
                      get_le<std::uint64_t>(at + 32)};
}

std::optional<std::uint64_t> read_region_header(std::span<const std::byte> bytes,
                                                const RegionHeader& expected) {
  const std::optional<RegionHeader> found = read_any_region_header(bytes);
  const bool ours = found && found->store == expected.store && found->region_bytes == expected.region_bytes &&
                    found->number == expected.number;
  return ours ? std::optional(found->epoch) : std::nullopt;
}

void write_footer(const RegionHeader& header, std::span<const FooterEntry> entries,
                  std::span<std::byte> out) {
  const std::size_t listed = entries.size() * footer_entry_bytes;
  HKV_CHECK(out.size() == footer_bytes(entries.size()));
  // Entries stand right before the trailer, so that both are found from the end.
  std::byte* const trailer = out.data() + out.size() - footer_trailer_bytes;
  std::byte* const first = trailer - listed;
  std::fill(out.data(), first, std::byte{0});
  for (std::size_t i = 0; i < entries.size(); ++i) write_entry(entries[i], first + i * footer_entry_bytes);
  std::fill(trailer, trailer + footer_trailer_bytes, std::byte{0});
  put_le(trailer, trailer_magic);
  put_le(trailer + 4, disk_layout_version);
  put_le(trailer + 8, header.store);
  put_le(trailer + 24, header.epoch);
  put_le(trailer + 32, header.number);
  put_le(trailer + 36, static_cast<std::uint32_t>(entries.size()));
  put_le(trailer + 40, crc32c(0, first, listed));
  put_crc(trailer, trailer_crc_at);
}

std::optional<FooterTrailer> read_footer_trailer(std::span<const std::byte> tail,
                                                 const RegionHeader& expected) {
  if (tail.size() < footer_trailer_bytes) return std::nullopt;
  const std::byte* const at = tail.data() + tail.size() - footer_trailer_bytes;
  const FooterTrailer trailer{get_le<std::uint64_t>(at + 24), get_le<std::uint32_t>(at + 36),
                              get_le<std::uint32_t>(at + 40)};
  const bool ours = get_le<std::uint32_t>(at) == trailer_magic && crc_holds(at, trailer_crc_at) &&
                    get_le<std::uint32_t>(at + 4) == disk_layout_version &&
                    get_le<Key128>(at + 8) == expected.store &&
                    get_le<std::uint32_t>(at + 32) == expected.number &&
                    trailer.entries <= expected.region_bytes / disk_unit;
  return ours ? std::optional(trailer) : std::nullopt;
}

bool read_footer_entries(std::span<const std::byte> tail, const FooterTrailer& trailer,
                         std::uint64_t region_bytes, std::vector<FooterEntry>& out) {
  const std::size_t listed = trailer.entries * footer_entry_bytes;
  out.clear();
  if (tail.size() < listed + footer_trailer_bytes) return false;
  const std::byte* const first = tail.data() + tail.size() - footer_trailer_bytes - listed;
  if (crc32c(0, first, listed) != trailer.entries_crc) return false;
  out.reserve(trailer.entries);
  for (std::size_t i = 0; i < trailer.entries; ++i) {
    out.push_back(read_entry(first + i * footer_entry_bytes));
    if (!sound(out.back(), region_bytes / disk_unit)) return false;
  }
  return true;
}

std::string text_of(const RegionName& name) {
  char text[40];
  std::snprintf(text, sizeof text, "%06u.region", name.number);
  return name.cut == 0 ? text : text + ("-" + std::to_string(name.cut));
}

std::optional<RegionName> read_region_name(const std::string& text) {
  RegionName name;
  const auto digits = [&](std::size_t from, std::size_t to, std::uint32_t& out) {
    for (std::size_t i = from; i < to; ++i) {
      if (i >= text.size() || text[i] < '0' || text[i] > '9') return;
      out = out * 10 + static_cast<std::uint32_t>(text[i] - '0');
    }
  };
  digits(0, 6, name.number);
  digits(14, std::min<std::size_t>(text.size(), 21), name.cut);
  return text_of(name) == text ? std::optional(name) : std::nullopt;
}

}  // namespace hkv
