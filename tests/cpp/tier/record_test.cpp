// SPDX-License-Identifier: Apache-2.0
// One thread: left out under ThreadSanitizer.
#include "tier/record.h"

#include <algorithm>
#include <fstream>
#include <random>
#include <string>

#include "base/crc32c.h"
#include "stress/steps.h"
#include "testing.h"

namespace hkv {
namespace {

using Bytes = std::vector<std::byte>;

// A record as a whole, envelope and payload, and where its parts came from.
struct Written {
  Envelope envelope;
  std::vector<Bytes> pages;
  Bytes bytes;

  std::vector<Part> parts() {
    std::vector<Part> all;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      all.push_back({pages[i].data(), pages[i].size(), envelope.parts[i].label});
    }
    return all;
  }
};

// `gap`: bytes between envelope and payload, as a disk's alignment leaves them.
void write(Written& record, std::size_t gap = 0) {
  Envelope& envelope = record.envelope;
  const std::size_t front = envelope_bytes(record.pages.size());
  envelope.payload_offset = static_cast<std::uint32_t>(front + gap);
  envelope.payload_bytes = 0;
  for (std::size_t i = 0; i < record.pages.size(); ++i) {
    const Bytes& page = record.pages[i];
    envelope.parts[i].crc = crc32c(0, page.data(), page.size());
    envelope.parts[i].offset = envelope.payload_bytes;
    envelope.parts[i].bytes = page.size();
    envelope.payload_bytes += page.size();
  }
  record.bytes.assign(front + gap, std::byte{0});
  EXPECT_EQ(write_envelope(envelope, record.bytes), front);
  for (const Bytes& page : record.pages) record.bytes.insert(record.bytes.end(), page.begin(), page.end());
}

Bytes counted(std::size_t bytes, unsigned from) {
  Bytes page(bytes);
  for (auto& byte : page) byte = static_cast<std::byte>(from++);
  return page;
}

// The records of the golden files; docs/record-format.md explains the first to the byte.
Written block_record() {
  Written record;
  record.envelope.key = {
      {0x0706050403020100, 0x0F0E0D0C0B0A0908}, {0x1716151413121110, 0x1F1E1D1C1B1A1918}, RecordKind::Block};
  record.envelope.parent = {0x2726252423222120, 0x2F2E2D2C2B2A2928};
  record.envelope.identity = {0x3736353433323130, 0x3F3E3D3C3B3A3938};
  record.envelope.epoch = 5;
  record.envelope.tokens = 512;
  record.envelope.flags = 3;
  record.envelope.parts = {{{0, 0, 1, 0}, 0, 0, 0}, {{2, 1, 1, 64}, 0, 0, 0}};
  record.pages = {counted(8, 0xA0), counted(5, 0xB0)};
  write(record);
  return record;
}

Written boundary_record() {
  Written record;
  record.envelope.key = {{1, 2}, {3, 4}, RecordKind::Boundary};
  record.envelope.parent = {5, 6};
  record.envelope.identity = {7, 8};
  record.envelope.tokens = 1000003;
  record.envelope.parts = {{{4, 0, 15625, 3}, 0, 0, 0}};
  record.pages = {counted(16, 0)};
  write(record, 96);
  return record;
}

// Of a tip: its flags are those of csrc/cache/tier_link.h.
Written tip_record() {
  Written record;
  record.envelope.key = {{9, 10}, {3, 4}, RecordKind::Boundary};
  record.envelope.parent = {5, 6};
  record.envelope.identity = {7, 8};
  record.envelope.tokens = 18;
  record.envelope.flags = 0x80;
  record.envelope.parts = {{{0, 0, 4, 2}, 0, 0, 0}, {{3, 0, 4, 0}, 0, 0, 0}};
  record.pages = {counted(8, 0xC0), counted(4, 0xD0)};
  write(record);
  return record;
}

Written listing_record() {
  Written record = tip_record();
  record.envelope.key.digest = {11, 12};
  record.envelope.tokens = 16;
  record.envelope.flags = 0x40;
  record.envelope.parts.clear();
  record.pages.clear();
  write(record);
  return record;
}

Written tombstone_record() {
  Written record;
  record.envelope.key = {{1, 2}, {3, 4}, RecordKind::Tombstone};
  record.envelope.epoch = ~0ull;
  write(record);
  return record;
}

std::string in_tree(const std::string& path) { return std::string(HKV_ROOT "/") + path; }

// Hex digits of a text, whatever stands between them; what follows a '#' on its line is for people.
Bytes bytes_of_hex(std::istream& text) {
  std::string digits;
  for (std::string line; std::getline(text, line);) {
    for (const char c : line.substr(0, line.find('#'))) {
      if (std::isxdigit(static_cast<unsigned char>(c))) digits += c;
    }
  }
  Bytes bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

void expect_same(const Envelope& a, const Envelope& b) {
  EXPECT(a.key == b.key && a.parent == b.parent && a.identity == b.identity);
  EXPECT(a.epoch == b.epoch && a.tokens == b.tokens && a.flags == b.flags);
  EXPECT(a.payload_bytes == b.payload_bytes && a.payload_offset == b.payload_offset);
  EXPECT_EQ(a.parts.size(), b.parts.size());
  for (std::size_t i = 0; i < std::min(a.parts.size(), b.parts.size()); ++i) {
    EXPECT(a.parts[i].label == b.parts[i].label && a.parts[i].crc == b.parts[i].crc);
    EXPECT(a.parts[i].offset == b.parts[i].offset && a.parts[i].bytes == b.parts[i].bytes);
  }
}

// What a tier does with bytes that it got for a key: the damage, or None and the wanted parts filled.
Damage take(std::span<const std::byte> bytes, const RecordKey& key, std::span<const Part> wanted) {
  Envelope envelope;
  if (const Damage damage = read_envelope(bytes, envelope); damage != Damage::None) return damage;
  if (const Damage damage = match_envelope(envelope, key, wanted); damage != Damage::None) return damage;
  for (const Part& part : wanted) {
    const PartEntry* const entry = find_part(envelope, part.label);
    const std::uint64_t at = envelope.payload_offset + entry->offset;
    if (at > bytes.size() || entry->bytes > bytes.size() - at) return Damage::Short;
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), part.bytes,
                static_cast<std::byte*>(part.data));
  }
  return check_parts(envelope, wanted);
}

template <class Change>
Damage changed(Change&& change) {  // a block record with something else in its envelope, under a sound CRC
  Written record = block_record();
  change(record.envelope);
  Bytes bytes(record.bytes);
  write_envelope(record.envelope, bytes);
  Envelope out;
  return read_envelope(bytes, out);
}

void seal_again(Bytes& bytes, std::size_t parts) {  // a CRC that fits, whatever the bytes say
  std::uint32_t crc = crc32c(0, bytes.data(), 124);
  crc = crc32c(crc, bytes.data() + 128, 32 * parts);
  for (int i = 0; i < 4; ++i) bytes[124 + static_cast<std::size_t>(i)] = static_cast<std::byte>(crc >> 8 * i);
}

}  // namespace

HKV_TEST("an envelope reads back as it was written, and says its size in its first bytes") {
  for (const Written& record : {block_record(), boundary_record(), tombstone_record()}) {
    Envelope read;
    EXPECT_EQ(read_envelope(record.bytes, read), Damage::None);
    expect_same(read, record.envelope);
    const std::span<const std::byte> fixed = std::span(record.bytes).first(128);
    EXPECT_EQ(envelope_bytes_at(fixed), envelope_bytes(record.pages.size()));
    EXPECT_EQ(envelope_bytes_at(fixed.first(127)), 0u);
  }
  Bytes bytes = block_record().bytes;
  bytes[0] ^= std::byte{1};
  EXPECT_EQ(envelope_bytes_at(bytes), 0u);
  bytes = block_record().bytes;
  bytes[4] ^= std::byte{2};
  EXPECT_EQ(envelope_bytes_at(bytes), 0u);
  bytes = block_record().bytes;
  bytes[103] = std::byte{1};
  EXPECT_EQ(envelope_bytes_at(bytes), 0u);
}

HKV_TEST("the golden files are what is written today, and are read") {
  const std::pair<const char*, Written> golden[] = {{"record-v1-block.hex", block_record()},
                                                    {"record-v1-boundary.hex", boundary_record()},
                                                    {"record-v1-tip.hex", tip_record()},
                                                    {"record-v1-listing.hex", listing_record()},
                                                    {"record-v1-tombstone.hex", tombstone_record()}};
  for (const auto& [name, record] : golden) {
    std::ifstream file(in_tree(std::string("tests/golden/") + name));
    const Bytes bytes = bytes_of_hex(file);
    EXPECT(bytes == record.bytes);
    Envelope read;
    EXPECT_EQ(read_envelope(bytes, read), Damage::None);
    expect_same(read, record.envelope);
    Written room = record;
    for (Bytes& page : room.pages) std::fill(page.begin(), page.end(), std::byte{0});
    EXPECT_EQ(take(bytes, record.envelope.key, room.parts()), Damage::None);
    EXPECT(room.pages == record.pages);
  }
}

HKV_TEST("the worked example of docs/record-format.md is the golden block record") {
  std::ifstream page(in_tree("docs/record-format.md"));
  std::string example, line;
  while (std::getline(page, line) && line != "```hex") {
  }
  while (std::getline(page, line) && line != "```") example += line + "\n";
  std::istringstream text(example);
  EXPECT(bytes_of_hex(text) == block_record().bytes);
}

HKV_TEST(
    "every flipped bit and every truncation is told, for each subset of parts, and never Ok with other "
    "bytes") {
  const Written record = block_record();
  for (unsigned subset = 0; subset < 4; ++subset) {
    const auto taken = [&](std::span<const std::byte> bytes, std::size_t changed_at) {
      Written room = record;
      for (Bytes& page : room.pages) std::fill(page.begin(), page.end(), std::byte{0});
      std::vector<Part> wanted;
      for (std::size_t i = 0; i < 2; ++i) {
        if (subset >> i & 1) wanted.push_back(room.parts()[i]);
      }
      const Damage damage = take(bytes, record.envelope.key, wanted);
      if (damage == Damage::None) {
        for (std::size_t i = 0; i < 2; ++i) EXPECT(!(subset >> i & 1) || room.pages[i] == record.pages[i]);
        // Only a change of bytes that nobody asked for may go unseen.
        const bool first = changed_at >= 192 && changed_at < 200, second = changed_at >= 200;
        EXPECT(changed_at == record.bytes.size() || (first && !(subset & 1)) || (second && !(subset & 2)));
      }
      return damage;
    };
    EXPECT_EQ(taken(record.bytes, record.bytes.size()), Damage::None);
    for (std::size_t bit = 0; bit < record.bytes.size() * 8; ++bit) {
      Bytes bytes = record.bytes;
      bytes[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
      const Damage damage = taken(bytes, bit / 8);
      if (bit / 8 < 4) EXPECT_EQ(damage, Damage::Magic);
      if (bit / 8 >= 4 && bit / 8 < 6) EXPECT_EQ(damage, Damage::Version);
      if (bit / 8 >= 6 && bit / 8 < 100) EXPECT_EQ(damage, Damage::Header);
      if (bit / 8 >= 104 && bit / 8 < 192) EXPECT_EQ(damage, Damage::Header);
      if (bit / 8 >= 192 && damage != Damage::None) EXPECT_EQ(damage, Damage::Content);
    }
    for (std::size_t bytes = 0; bytes < record.bytes.size(); ++bytes) {
      const Bytes cut(record.bytes.begin(), record.bytes.begin() + static_cast<std::ptrdiff_t>(bytes));
      const Damage damage = taken(cut, bytes);
      if (bytes < 192) EXPECT_EQ(damage, Damage::Short);
    }
  }
}

HKV_TEST("fields that contradict each other are refused under a sound CRC") {
  using E = Envelope;
  EXPECT_EQ(changed([](E&) {}), Damage::None);
  EXPECT_EQ(changed([](E& e) { e.key.kind = RecordKind{0}; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.key.kind = RecordKind{4}; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.key.kind = RecordKind::Tombstone; }), Damage::Header);  // with parts
  EXPECT_EQ(changed([](E& e) { e.payload_bytes += 1; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.payload_offset = 191; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.payload_offset = 0; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.parts[0].offset = 1; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.parts[1].offset = 7; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.parts[1].offset = 9; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) { e.parts[1].label = e.parts[0].label; }), Damage::Header);
  EXPECT_EQ(changed([](E& e) {
              e.parts[0].bytes = 0;
              e.parts[1].offset = 0;
              e.payload_bytes = 5;
            }),
            Damage::Header);
  EXPECT_EQ(changed([](E& e) {  // sizes that wrap around to the right sum
              e.parts[0].bytes = ~0ull - 3;
              e.parts[1].offset = ~0ull - 3;
              e.parts[1].bytes = 17;
            }),
            Damage::Header);
  EXPECT_EQ(changed([](E& e) {
              e.parts[1].bytes = most_payload_bytes - 8;
              e.payload_bytes = most_payload_bytes;
            }),
            Damage::None);
  EXPECT_EQ(changed([](E& e) {
              e.parts[1].bytes = most_payload_bytes - 7;
              e.payload_bytes = most_payload_bytes + 1;
            }),
            Damage::Header);
  for (std::size_t at = 104; at < 124; ++at) {
    Bytes bytes = block_record().bytes;
    bytes[at] = std::byte{1};
    seal_again(bytes, 2);
    Envelope out;
    EXPECT_EQ(read_envelope(bytes, out), Damage::Header);
  }
}

HKV_TEST("a part count is bounded by the bytes that are there") {
  for (const std::uint32_t count : {3u, 1000u, most_parts, most_parts + 1, ~0u}) {
    Bytes bytes = block_record().bytes;
    for (int i = 0; i < 4; ++i)
      bytes[100 + static_cast<std::size_t>(i)] = static_cast<std::byte>(count >> 8 * i);
    Envelope out;
    EXPECT_EQ(read_envelope(bytes, out), count > most_parts ? Damage::Header : Damage::Short);
    EXPECT(out.parts.capacity() == 0);
  }
}

HKV_TEST("a repeated label is found wherever it stands, and labels need not ascend") {
  Written record = block_record();
  record.envelope.parts.clear();
  record.pages.clear();
  for (std::uint32_t i = 0; i < 40; ++i) {
    record.envelope.parts.push_back({{static_cast<std::uint16_t>(i * 7 % 40), 0, i % 3, 0}, 0, 0, 0});
    record.pages.push_back(counted(1 + i % 5, i));
  }
  write(record);
  Envelope out;
  EXPECT_EQ(read_envelope(record.bytes, out), Damage::None);
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(find_part(out, record.envelope.parts[i].label), &out.parts[i]);
    Written twice = record;
    twice.envelope.parts[i].label = record.envelope.parts[(i * 3 + 11) % 40].label;
    write(twice);
    EXPECT_EQ(read_envelope(twice.bytes, out), i == (i * 3 + 11) % 40 ? Damage::None : Damage::Header);
    EXPECT_EQ(read_envelope(record.bytes, out), Damage::None);
  }
  EXPECT(find_part(out, {100, 0, 0, 0}) == nullptr);
}

HKV_TEST("a sound record is told from the one that was asked for") {
  Written record = block_record();
  const Envelope& envelope = record.envelope;
  const auto match = [&](auto&& change, std::vector<Part> wanted) {
    RecordKey key = envelope.key;
    change(key);
    return match_envelope(envelope, key, wanted);
  };
  const std::vector<Part> all = record.parts();
  const auto same = [](RecordKey&) {};
  EXPECT_EQ(match(same, all), Damage::None);
  EXPECT_EQ(match(same, {}), Damage::None);
  EXPECT_EQ(match(same, {all[1], all[0]}), Damage::None);
  EXPECT_EQ(match([](RecordKey& k) { k.digest.lo ^= 1; }, all), Damage::Foreign);
  EXPECT_EQ(match([](RecordKey& k) { k.digest.hi ^= 1; }, all), Damage::Foreign);
  EXPECT_EQ(match([](RecordKey& k) { k.kind = RecordKind::Boundary; }, all), Damage::Foreign);
  EXPECT_EQ(match([](RecordKey& k) { k.format.lo ^= 1; }, all), Damage::Format);
  EXPECT_EQ(match([](RecordKey& k) { k.format.hi ^= 1; }, all), Damage::Format);
  std::vector<Part> shorter = all;
  shorter[1].bytes -= 1;
  EXPECT_EQ(match(same, shorter), Damage::Parts);
  std::vector<Part> elsewhere = all;
  elsewhere[0].label.block += 1;
  EXPECT_EQ(match(same, elsewhere), Damage::Parts);

  EXPECT_EQ(check_parts(envelope, all), Damage::None);
  record.pages[1][4] ^= std::byte{1};
  EXPECT_EQ(check_parts(envelope, all), Damage::Content);
  EXPECT_EQ(check_parts(envelope, {all.data(), 1}), Damage::None);
}

// Bytes at random, and sound records with fields replaced under a sound CRC: whatever they say, reading stays within
// them (AddressSanitizer watches: each is an allocation of its own), and what is taken for sound keeps every rule.
HKV_TEST("hostile bytes are never read beyond their end, and what passes keeps the rules") {
  const std::uint64_t steps = stress::steps_wanted(200000, 20000000);
  std::mt19937_64 random(11);
  const Bytes seeds[] = {block_record().bytes, boundary_record().bytes, tombstone_record().bytes};
  const std::size_t fields[] = {6, 80, 88, 96, 100, 128, 130, 136, 144, 152, 160, 176, 184};
  std::uint64_t passed = 0;
  for (std::uint64_t step = 0; step < steps; ++step) {
    Bytes bytes = seeds[random() % 3];
    for (std::uint64_t changes = random() % 4; changes-- != 0;) {
      std::size_t at = random() % 3 != 0 ? fields[random() % std::size(fields)] : random() % bytes.size();
      const std::uint64_t value = random() % 2 != 0 ? random() : random() % 300 - 20;
      for (std::uint64_t i = 0, count = 1 + random() % 8; i < count && at < bytes.size(); ++i, ++at) {
        bytes[at] = static_cast<std::byte>(value >> 8 * i);
      }
    }
    bytes.resize(random() % 4 != 0 ? bytes.size() : random() % (bytes.size() + 1));
    bytes.shrink_to_fit();
    if (bytes.size() >= 128 && random() % 8 != 0) {
      const std::size_t front = envelope_bytes_at(bytes);
      if (front >= 128 && front <= bytes.size()) seal_again(bytes, (front - 128) / 32);
    }
    Envelope out;
    if (read_envelope(bytes, out) != Damage::None) continue;
    ++passed;
    std::uint64_t end = 0;
    for (const PartEntry& entry : out.parts) {
      EXPECT(entry.offset == end && entry.bytes != 0 && entry.bytes <= most_payload_bytes);
      EXPECT_EQ(find_part(out, entry.label), &entry);
      end += entry.bytes;
    }
    EXPECT(end == out.payload_bytes && out.payload_offset >= envelope_bytes(out.parts.size()));
    Bytes again(envelope_bytes(out.parts.size()));
    write_envelope(out, again);
    EXPECT(std::equal(again.begin(), again.end(), bytes.begin()));  // nothing in it that reading passed over
  }
  EXPECT(passed > steps / 20);
}

}  // namespace hkv
