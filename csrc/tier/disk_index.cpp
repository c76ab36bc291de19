// SPDX-License-Identifier: Apache-2.0
#include "tier/disk_index.h"

#include <algorithm>

namespace hkv {

DiskIndex::DiskIndex() : formats_(new Key128[index_formats]) {}

std::uint64_t DiskIndex::hash_of(const Key128& digest, RecordKind kind) {
  // Digests are of SHA-256, but a test's or another caller's may be small numbers.
  std::uint64_t h = digest.lo ^ (digest.hi + static_cast<std::uint64_t>(kind)) * 0x9E3779B97F4A7C15u;
  h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
  h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
  return h ^ h >> 32;
}

std::uint32_t DiskIndex::format_number(const Key128& format) const {
  // (45) acquire-load synchronizes-with (46)
  const std::uint32_t count = format_count_.load(at(45, acquire));
  for (std::uint32_t i = 0; i < count; ++i) {
    if (formats_[i] == format) return i;
  }
  return none_u32;
}

std::uint32_t DiskIndex::intern(const Key128& format) {
  const std::uint32_t known = format_number(format);
  const std::uint32_t count = format_count_.load();
  if (known != none_u32 || count == index_formats) return known;
  formats_[count] = format;
  // (46) release-store synchronizes-with (45)
  format_count_.store(count + 1, at(46, release));
  return count;
}

Presence DiskIndex::look(const RecordKey& key) const {
  const std::uint32_t format = format_number(key.format);
  Presence out;
  buckets_.candidates(hash_of(key.digest, key.kind), [&](std::uint32_t n) {
    IndexCell::Seen seen;
    if (!cell(n).read(seen) || seen.digest != key.digest || seen.word.kind() != key.kind) return false;
    if (seen.word.format() != format) {
      out.answer = Presence::Answer::OtherFormat;
      return false;
    }
    out = {Presence::Answer::Here, seen.word.flags()};
    return true;
  });
  return out;
}

void DiskIndex::touch(const RecordKey& key) {
  const std::uint32_t format = format_number(key.format);
  buckets_.candidates(hash_of(key.digest, key.kind), [&](std::uint32_t n) {
    IndexCell::Seen seen;
    if (!cell(n).read(seen) || seen.digest != key.digest || seen.word.kind() != key.kind ||
        seen.word.format() != format) {
      return false;
    }
    cell(n).hit(seen.word);
    return true;
  });
}

DiskIndex::Number DiskIndex::find(const Key128& digest, RecordKind kind, std::uint32_t format) const {
  Number found = none_u32;
  buckets_.candidates(hash_of(digest, kind), [&](std::uint32_t n) {
    const CellWord word = cell(n).word();
    const bool same =
        word.kind() == kind && cell(n).digest() == digest && (format == none_u32 || word.format() == format);
    if (same) found = n;
    return same;
  });
  return found;
}

DiskIndex::Number DiskIndex::find(const RecordKey& key) const {
  const std::uint32_t format = format_number(key.format);
  return format == none_u32 ? none_u32 : find(key.digest, key.kind, format);
}

DiskIndex::Number DiskIndex::find_parent(RecordKind kind, std::uint32_t format, const Key128& parent) const {
  if (kind == RecordKind::Block && format == none_u32) return none_u32;
  return find(parent, RecordKind::Block, kind == RecordKind::Block ? format : none_u32);
}

bool DiskIndex::has_parent(const RecordKey& key, const Key128& parent) const {
  return parent == Key128{} || find_parent(key.kind, format_number(key.format), parent) != none_u32;
}

std::vector<Key128> DiskIndex::formats_in_use() const {
  std::vector<bool> used(format_count_.load());
  for (Number n = 0; n < made_; ++n) {
    if (holds(n)) used[word(n).format()] = true;
  }
  std::vector<Key128> out;
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (used[i]) out.push_back(formats_[i]);
  }
  return out;
}

DiskIndex::Number DiskIndex::take_cell() {
  if (spare_ != none_u32) return std::exchange(spare_, cell(spare_).next);
  if (made_ == index_chunk * index_chunks - 1) return none_u32;
  auto& chunk = chunks_[made_ / index_chunk];
  if (chunk == nullptr) chunk.reset(new IndexCell[index_chunk]);
  return made_++;
}

DiskIndex::Number DiskIndex::load(const RecordKey& key, std::uint8_t flags, bool pinned,
                                  const RecordPlace& place) {
  const std::uint32_t format = intern(key.format);
  const Number n = format == none_u32 ? none_u32 : take_cell();
  if (n == none_u32) return n;
  cell(n).parent = cell(n).first_child = cell(n).next = cell(n).before = none_u32;
  cell(n).set_place(place);
  cell(n).open(key, format, flags, pinned);
  buckets_.insert(hash_of(key.digest, key.kind), n, [&](Number other) { return hash_of(other); });
  records_.store(records_.load() + 1);
  return n;
}

void DiskIndex::reload(Number n, std::uint8_t flags, bool pinned, const RecordPlace& place) {
  const RecordKey same = key(n);
  const std::uint32_t format = cell(n).word().format();
  cell(n).close();
  cell(n).set_place(place);
  cell(n).open(same, format, flags, pinned);
}

DiskIndex::Insert DiskIndex::insert(const RecordKey& key, const Key128& parent, std::uint8_t flags,
                                    bool pinned, const RecordPlace& place, Number& out) {
  Number below = none_u32;
  if (parent != Key128{}) {
    below = find_parent(key.kind, format_number(key.format), parent);
    if (below == none_u32) return Insert::NoParent;
  }
  out = load(key, flags, pinned, place);
  if (out == none_u32) return Insert::Full;
  link(out, below);
  return Insert::Done;
}

void DiskIndex::link(Number n, Number parent) {
  cell(n).parent = parent;
  if (parent == none_u32) return;
  const Number first = cell(parent).first_child;
  cell(n).next = first;
  if (first != none_u32) cell(first).before = n;
  cell(parent).first_child = n;
}

void DiskIndex::take_out(Number n) {
  IndexCell& leaf = cell(n);
  const std::uint64_t hash = hash_of(n);
  if (leaf.before != none_u32) {
    cell(leaf.before).next = leaf.next;
  } else if (leaf.parent != none_u32) {
    cell(leaf.parent).first_child = leaf.next;
  }
  if (leaf.next != none_u32) cell(leaf.next).before = leaf.before;
  leaf.close();
  buckets_.erase(hash, n);
  leaf.next = spare_;
  spare_ = n;
  records_.store(records_.load() - 1);
  losses_.note();
}

RecordKey DiskIndex::key(Number n) const {
  const CellWord word = cell(n).word();
  return {cell(n).digest(), formats_[word.format()], word.kind()};
}

Key128 DiskIndex::parent_digest(Number n) const {
  return cell(n).parent == none_u32 ? Key128{} : cell(cell(n).parent).digest();
}

std::uint32_t DiskIndex::tree_size(Number n, std::uint32_t most) const {
  std::uint32_t counted = 1;
  Number at = n;
  while (counted < most) {
    if (cell(at).first_child != none_u32) {
      at = cell(at).first_child;
    } else {
      while (at != n && cell(at).next == none_u32) at = cell(at).parent;
      if (at == n) break;
      at = cell(at).next;
    }
    ++counted;
  }
  return counted;
}

// Walks down to a record whose standing is known, then settles those passed on the way back.
DiskIndex::Standing DiskIndex::judge(Number n, std::span<const Loaded> loaded,
                                     std::vector<Standing>& standing,
                                     std::vector<std::uint64_t>& removed_at) {
  std::vector<Number> passed;
  Number at = n;
  Standing below = Standing::Kept;
  std::uint64_t removed_below = 0;
  for (;;) {
    if (standing[at] == Standing::Visiting) {
      below = Standing::Orphan;  // a cycle: no root
      break;
    }
    if (standing[at] != Standing::Unknown) {
      below = standing[at];
      removed_below = removed_at[at];
      break;
    }
    standing[at] = Standing::Visiting;
    passed.push_back(at);
    const Key128& parent = loaded[at].parent;
    if (parent == Key128{}) break;
    // Records of a chain were mostly written one after another.
    const CellWord word = cell(at).word();
    const bool before = at != 0 && word.kind() == RecordKind::Block && cell(at - 1).digest() == parent &&
                        cell(at - 1).word().kind() == RecordKind::Block &&
                        cell(at - 1).word().format() == word.format();
    const Number next = before ? at - 1 : find_parent(word.kind(), word.format(), parent);
    if (next == none_u32) {
      below = Standing::Orphan;
      break;
    }
    cell(at).parent = next;
    at = next;
  }
  for (; !passed.empty(); passed.pop_back()) {
    at = passed.back();
    removed_at[at] = std::max(removed_below, loaded[at].removed_at);
    const bool removed = loaded[at].order < removed_at[at];
    standing[at] = below != Standing::Kept ? below : removed ? Standing::Removed : Standing::Kept;
    below = standing[at];
    removed_below = removed_at[at];
  }
  return standing[n];
}

}  // namespace hkv
