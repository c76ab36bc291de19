// SPDX-License-Identifier: Apache-2.0
// What a store's files look like: the superblock, and of a region its header and its footer. docs/disk-format.md tells
// which write must be durable before which.
//
//     superblock     one file, `disk_unit` bytes
//     NNNNNN.region  header | record | record | ... | free | footer entries | trailer      `region_bytes`, preallocated
//
// Records begin at multiples of disk_unit; their payload too, so that it can be read straight into aligned memory.
// The footer ends with the file. All integers little endian, every byte written is defined.
//
// Thread safety: values and pure functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tier/record.h"

namespace hkv {

inline constexpr std::uint32_t disk_layout_version = 1;
inline constexpr std::size_t disk_unit =
    4096;  // of offsets and lengths on disk, whatever the device asks for
inline constexpr std::size_t region_header_bytes = disk_unit;
inline constexpr std::size_t footer_entry_bytes = 64, footer_trailer_bytes = 64;
inline constexpr std::uint64_t least_region_bytes = 16 * disk_unit;
inline constexpr std::uint64_t most_region_bytes = std::uint64_t{1} << 32;  // offsets are 20 bits of units
inline constexpr std::uint32_t most_regions = 1'000'000;                    // six digits of a name

inline constexpr const char* superblock_name = "superblock";
inline constexpr const char* superblock_draft_name = "superblock.new";
// Who wrote into the store (docs/disk-format.md): kept by who opens it, and neither read nor written here.
inline constexpr const char* writers_name = "writers";
inline constexpr const char* writers_draft_name = "writers.new";
inline constexpr const char* writers_damaged_name = "writers.damaged";

constexpr std::uint64_t round_up_to_unit(std::uint64_t bytes) {
  return (bytes + disk_unit - 1) / disk_unit * disk_unit;
}

// Which store and how it is cut.
struct Superblock {
  std::uint32_t version = disk_layout_version;
  Key128 store;  // drawn at random: a region file of another store is not one of this
  std::uint64_t region_bytes = 0;
};
enum class SuperblockFault : std::uint8_t { None, Damaged, Newer };
void write_superblock(const Superblock& superblock, std::span<std::byte, disk_unit> out);
// Newer: of a layout that this build does not know; only `out.version` is set then.
SuperblockFault read_superblock(std::span<const std::byte> bytes, Superblock& out);

// One life of a region file. Epochs grow by one with each life of any region: their order is the order of writing.
struct RegionHeader {
  Key128 store;
  std::uint32_t number = 0;  // of the file's name: a header that was written to the wrong file is none
  std::uint64_t epoch = 0;
  std::uint64_t region_bytes = 0;
};
void write_region_header(const RegionHeader& header, std::span<std::byte, region_header_bytes> out);
// A header that is sound in itself, of whatever store and file.
std::optional<RegionHeader> read_any_region_header(std::span<const std::byte> bytes);
// Its epoch; nothing where the bytes are no header of this store and file. `expected.epoch` is not looked at.
std::optional<std::uint64_t> read_region_header(std::span<const std::byte> bytes,
                                                const RegionHeader& expected);

// A record of a region, as the footer lists it. Offsets and lengths in units.
struct FooterEntry {
  RecordKey key;
  Key128 parent;
  std::uint32_t at = 0;             // of the envelope, from the start of the region
  std::uint32_t units = 0;          // envelope, payload and fill
  std::uint32_t payload_units = 0;  // from the envelope to the payload
  std::uint8_t flags = 0;           // the writer's own bits
  bool pinned = false;
  friend bool operator==(const FooterEntry&, const FooterEntry&) = default;
};

// Whether the flags of a tombstone say a kind of record that can be removed.
constexpr bool names_removable(std::uint8_t flags) {
  return flags == static_cast<std::uint8_t>(RecordKind::Block) ||
         flags == static_cast<std::uint8_t>(RecordKind::Boundary);
}

// Bytes of a footer of so many entries, whole units.
constexpr std::uint64_t footer_bytes(std::uint64_t entries) {
  return round_up_to_unit(entries * footer_entry_bytes + footer_trailer_bytes);
}
// Requires: out.size() == footer_bytes(entries.size()). It goes to the last out.size() bytes of the region.
void write_footer(const RegionHeader& header, std::span<const FooterEntry> entries, std::span<std::byte> out);
// What the trailer, the last bytes of a region, says.
struct FooterTrailer {
  std::uint64_t epoch = 0;
  std::uint32_t entries = 0;
  std::uint32_t entries_crc = 0;
};
// Nothing where the last bytes of `tail` are no trailer of this store and file. `expected.epoch` is not looked at.
std::optional<FooterTrailer> read_footer_trailer(std::span<const std::byte> tail,
                                                 const RegionHeader& expected);
// The entries, from bytes that end with the region and hold the whole footer.
// Returns: whether they are those of the trailer and each lies within the region.
bool read_footer_entries(std::span<const std::byte> tail, const FooterTrailer& trailer,
                         std::uint64_t region_bytes, std::vector<FooterEntry>& out);

// A region file's name. `cut`: an I/O error made doubtful what lies from this unit on, whatever a later read or sync of
// the same file says, so that it counts no more (NNNNNN.region-CUT); 0: all of it counts.
struct RegionName {
  std::uint32_t number = 0;
  std::uint32_t cut = 0;
  friend bool operator==(const RegionName&, const RegionName&) = default;
};
std::string text_of(const RegionName& name);
// Nothing for other names.
std::optional<RegionName> read_region_name(const std::string& text);

// Where a record's payload begins, and what the record takes, in bytes from its envelope on.
constexpr std::uint64_t payload_offset_of(std::size_t parts) {
  return round_up_to_unit(envelope_bytes(parts));
}
constexpr std::uint64_t record_bytes(std::size_t parts, std::uint64_t payload) {
  return payload_offset_of(parts) + round_up_to_unit(payload);
}

}  // namespace hkv
