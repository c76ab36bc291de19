// SPDX-License-Identifier: Apache-2.0
// The record: what every tier keeps of a prefix, and the envelope that proves it. docs/record-format.md has a
// worked example, byte by byte.
//
// A *block record* holds the history and indexer pages (Prefix groups) of one block; it is written once and shared by
// every boundary above it. A *boundary record* holds what a resume exactly at one length needs besides: windows,
// chunks, checkpoints, and of a tip the partial history pages. A *tombstone* says that a key was removed.
//
// The envelope goes in front of the payload: 128 bytes, then 32 a part, all integers little endian, no padding:
//
//     0 magic u32 | 4 version u16 | 6 kind u8 | 7 flags u8 | 8 epoch u64 | 16 digest 16 | 32 format 16 | 48 parent 16
//    64 identity 16 | 80 tokens u64 | 88 payload_bytes u64 | 96 payload_offset u32 | 100 part_count u32
//   104 reserved, 20 zero bytes | 124 envelope_crc u32, over bytes 0 to 123 and the part table
//   128 + 32 i: group u16 | layer u16 | block u32 | rows u32 | crc u32 | offset u64 | bytes u64
//
// Parts lie one after another from payload_offset on, without gaps, in the order of the table. Each has a label of its
// own and at least one byte; a record may have no part at all, a tombstone has none.
//
// Thread safety: values and pure functions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/types.h"

namespace hkv {

inline constexpr std::uint32_t record_magic = 0x52564B48u;  // "HKVR"
inline constexpr std::uint16_t record_version = 1;
inline constexpr std::size_t envelope_fixed_bytes = 128;
inline constexpr std::size_t part_entry_bytes = 32;
inline constexpr std::uint32_t most_parts = 1u << 20;
inline constexpr std::uint64_t most_payload_bytes = std::uint64_t{1}
                                                    << 48;  // so that sums of sizes never overflow

enum class RecordKind : std::uint8_t { Block = 1, Boundary = 2, Tombstone = 3 };

// What names a record. `digest` is the key of the block's last unit, or of the unit or tip that ends at the boundary:
// model, weights, adapter, salt and every token before are in it. `format` is the fingerprint of how the bytes of this
// kind of record are laid out, so that a changed format is another record.
struct RecordKey {
  Key128 digest;
  Key128 format;
  RecordKind kind = RecordKind::Block;
  friend constexpr bool operator==(const RecordKey&, const RecordKey&) = default;
};

// Which page a part is: group in spec order, index of the pool's array (0 where a pool is one array), the group's own
// block counted from the start of the prefix, attested rows (0: the whole page).
struct PartLabel {
  std::uint16_t group = 0;
  std::uint16_t layer = 0;
  std::uint32_t block = 0;
  std::uint32_t rows = 0;
  friend constexpr bool operator==(const PartLabel&, const PartLabel&) = default;
};

// Bytes of one part in the caller's memory: source of a put, target of a get.
struct Part {
  void* data = nullptr;
  std::size_t bytes = 0;
  PartLabel label;
};

struct PartEntry {
  PartLabel label;
  std::uint32_t crc = 0;
  std::uint64_t offset = 0;  // from the start of the payload
  std::uint64_t bytes = 0;
};

// What an envelope says.
struct Envelope {
  RecordKey key;
  Key128 parent;             // digest of the block record below it; zero: none
  Key128 identity;           // fingerprint of the identity, for people: the digest decides
  std::uint64_t epoch = 0;   // life of the region that it was written in; 0 outside of regions
  std::uint64_t tokens = 0;  // length of the prefix that ends with it
  std::uint64_t payload_bytes = 0;
  std::uint32_t payload_offset = 0;  // from the start of the envelope
  std::uint8_t flags = 0;            // the writer's own bits, given back by look-ups
  std::vector<PartEntry> parts;
};

// Why bytes are not the record that was asked for. Foreign, Format, Parts: a sound record, but another one.
enum class Damage : std::uint8_t {
  None,
  Short,    // fewer bytes than it says
  Magic,    // not an envelope
  Version,  // of a version that this build does not read
  Header,   // its CRC, or a field that contradicts another
  Epoch,    // of a former life of the region
  Foreign,  // of another digest or kind
  Format,   // of another format
  Parts,    // lacks a part that was asked for, or has it in another size
  Content,  // the CRC of a part
};
inline constexpr int damage_count = 10;
const char* name_of(Damage damage);

// Bytes of an envelope of so many parts.
constexpr std::size_t envelope_bytes(std::size_t parts) {
  return envelope_fixed_bytes + part_entry_bytes * parts;
}

// Writes the envelope to `out`; every byte of it is defined, `parts[].crc` taken as they are.
// Requires: out.size() >= envelope_bytes(parts); offsets without gaps. Returns: bytes written. Progress: wait-free.
std::size_t write_envelope(const Envelope& envelope, std::span<std::byte> out);

// Reads an envelope and checks everything that it says about itself. `out` is unspecified where it returns damage.
// Never reads beyond `bytes`, whatever they hold. Allocates the part table alone, bounded by the bytes given (and a
// copy of it, to find a repeated label, where labels do not ascend).
// Returns: None, Short, Magic, Version, Header. Progress: wait-free.
Damage read_envelope(std::span<const std::byte> bytes, Envelope& out);

// Bytes that the envelope which starts here takes, from its first 128 bytes alone; 0 where they are no envelope.
std::size_t envelope_bytes_at(std::span<const std::byte> fixed);

// Whether a sound envelope is the record asked for: None, Foreign, Format, Parts.
Damage match_envelope(const Envelope& envelope, const RecordKey& key, std::span<const Part> wanted);

// Whether each wanted part, now in memory at `wanted[].data`, has the bytes that the envelope attests.
// Requires: match_envelope gave None. Returns: None or Content.
Damage check_parts(const Envelope& envelope, std::span<const Part> wanted);

// The entry of a label, or nullptr.
const PartEntry* find_part(const Envelope& envelope, const PartLabel& label);

}  // namespace hkv
