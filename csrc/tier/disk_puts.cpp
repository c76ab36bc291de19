// SPDX-License-Identifier: Apache-2.0
// Of the disk store: what is put or removed gets a place in a region and goes there in pieces.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tier/disk_store.h"

namespace hkv {
namespace {

constexpr std::size_t piece_bytes = std::size_t{1} << 20;
constexpr std::size_t eager_pieces = 2;  // so many writes under way before a piece waits to be filled

}  // namespace

void DiskStore::begin_put(TierOperation* operation, Deadline now) {
  std::uint64_t payload = 0;
  for (const Part& part : operation->parts) payload += part.bytes;
  const std::uint64_t bytes = record_bytes(operation->parts.size(), payload);
  if (bytes > most_record_bytes()) return answer(operation, TierStatus::Invalid);
  if (known(operation)) return;
  if (counts_.read_only.load()) return answer(operation, TierStatus::ReadOnly);
  // First, so that a prefix has all its records touched by one try, whose blocks find no parent yet.
  if (!operation->pinned && !admitter_.touched(operation->key)) {
    return answer(operation, TierStatus::Declined);
  }
  if (!index_.has_parent(operation->key, operation->parent) &&
      !parent_is_coming(operation->key, operation->parent)) {
    return answer(operation, TierStatus::Miss);
  }
  if (!operation->pinned && !admitter_.affordable(bytes, now)) {
    return answer(operation, TierStatus::Declined);
  }
  auto pending = std::make_unique<Pending>();
  pending->operations.push_back(operation);
  pending->key = operation->key;
  pending->parent = operation->parent;
  pending->flags = operation->flags;
  pending->pinned = operation->pinned;
  pending->payload_units = static_cast<std::uint32_t>(payload_offset_of(operation->parts.size()) / disk_unit);
  pending->head_bytes = payload_offset_of(operation->parts.size());
  pending->payload_bytes = payload;
  pending->bytes = bytes;
  pending_.emplace(pending->key.digest, pending.get());
  unplaced_.push_back(std::move(pending));
}

// A key that is there, or on its way, is not written again.
bool DiskStore::known(TierOperation* operation) {
  if (const DiskIndex::Number n = index_.find(operation->key); n != none_u32) {
    counts_.add(counts_.put_known, 1);
    if (operation->pinned) index_.pin(n);
    if (!operation->durable) {
      answer(operation, TierStatus::Ok);
      return true;
    }
    Waiter waiter;
    waiter.operation = operation;
    waiter.key = operation->key;
    waiter.is_put = true;
    const RecordPlace place = index_.place(n);
    waiter.own = regions_[place.region].get();
    waiter.own_end = std::uint64_t{place.at + place.units} * disk_unit;
    wait_durable(std::move(waiter));
    return true;
  }
  Pending* pending = find_pending(operation->key.digest, operation->key.kind, &operation->key.format);
  if (pending == nullptr) return false;
  counts_.add(counts_.put_known, 1);
  pending->pinned = pending->pinned || operation->pinned;
  pending->operations.push_back(operation);
  return true;
}

DiskStore::Pending* DiskStore::find_pending(const Key128& digest, RecordKind kind,
                                            const Key128* format) const {
  const auto [first, last] = pending_.equal_range(digest);
  for (auto at = first; at != last; ++at) {
    Pending* pending = at->second;
    if (pending->key.kind == kind && (format == nullptr || pending->key.format == *format) &&
        !pending->doomed && pending->failure == TierStatus::Ok) {
      return pending;
    }
  }
  return nullptr;
}

void DiskStore::forget(Pending& pending) {
  const auto [first, last] = pending_.equal_range(pending.key.digest);
  for (auto at = first; at != last; ++at) {
    if (at->second != &pending) continue;
    pending_.erase(at);
    return;
  }
}

bool DiskStore::parent_is_coming(const RecordKey& key, const Key128& parent) const {
  return find_pending(parent, RecordKind::Block, key.kind == RecordKind::Block ? &key.format : nullptr) !=
         nullptr;
}

void DiskStore::begin_remove(TierOperation* operation) {
  if (counts_.read_only.load()) return answer(operation, TierStatus::ReadOnly);
  const DiskIndex::Number n = index_.find(operation->key);
  Pending* coming = find_pending(operation->key.digest, operation->key.kind, &operation->key.format);
  const bool there = n != none_u32 || coming != nullptr;
  // What no index knows may still lie on disk, or be on its way there, and be found when the store is opened again.
  if (!there && lingering() == 0 && !pending_.contains(operation->key.digest)) {
    return answer(operation, TierStatus::Miss);
  }
  if (n != none_u32) erase(n);
  if (coming != nullptr) coming->doomed = true;
  auto pending = std::make_unique<Pending>();
  pending->kind = Pending::Kind::Tombstone;
  pending->operations.push_back(operation);
  pending->key = {operation->key.digest, operation->key.format, RecordKind::Tombstone};
  pending->flags = static_cast<std::uint8_t>(operation->key.kind);  // whose tombstone
  pending->answer = there ? TierStatus::Ok : TierStatus::Miss;
  pending->head_bytes = pending->bytes = disk_unit;
  unplaced_.push_back(std::move(pending));
}

void DiskStore::begin_flush(TierOperation* operation) {
  auto pending = std::make_unique<Pending>();
  pending->kind = Pending::Kind::Flush;
  pending->operations.push_back(operation);
  unplaced_.push_back(std::move(pending));
}

// ---- places ---------------------------------------------------------------------------------

void DiskStore::place_all() {
  for (;;) {
    if (filling_ == nullptr) filling_ = next_to_place();
    if (filling_ == nullptr) break;
    if (filling_->failure == TierStatus::Ok && !copy(*filling_)) break;
    placed_.push_back(std::move(filling_));
  }
  if (open_piece_ != nullptr && !turn_over_ && pieces_under_way_ < eager_pieces) submit_piece();
}

// The next record, with its place; nothing while there is none for it.
std::unique_ptr<DiskStore::Pending> DiskStore::next_to_place() {
  if (std::unique_ptr<Pending> taken = take_copy()) return taken;
  if (unplaced_.empty()) return nullptr;
  Pending& next = *unplaced_.front();
  if (next.kind != Pending::Kind::Flush && next.failure == TierStatus::Ok) {
    if (counts_.read_only.load()) {
      next.failure = TierStatus::ReadOnly;
    } else if (!enter_region(next)) {
      if (next.failure == TierStatus::Ok) return nullptr;
    } else {
      give_place(next);
    }
  }
  std::unique_ptr<Pending> out = std::move(unplaced_.front());
  unplaced_.pop_front();
  return out;
}

bool DiskStore::has_room(const Pending& pending) const {
  const bool is_copy = pending.kind == Pending::Kind::Copy;
  const std::uint64_t later = is_copy ? 0 : preparation_.kept.size() - preparation_.next;
  const std::uint64_t entries = current_->entries.size() + current_->unpublished + 1 + later;
  const std::uint64_t taken = current_->tail + pending.bytes + footer_bytes(entries);
  const std::uint64_t left = superblock_.region_bytes - std::min(taken, superblock_.region_bytes);
  if (is_copy || ready_ != nullptr) return taken <= superblock_.region_bytes;
  if (preparation_.step != Step::None)
    return taken <= superblock_.region_bytes && preparation_.reserved <= left;
  // Not begun: what it will keep finds its room.
  return taken <= superblock_.region_bytes && (kept_share() <= left || !will_reclaim());
}

std::uint64_t DiskStore::kept_share() const {
  return static_cast<std::uint64_t>(options_.keep_share * static_cast<double>(superblock_.region_bytes));
}

// Whether the next record waits for a region.
bool DiskStore::stalled() const {
  return filling_ == nullptr && !unplaced_.empty() && unplaced_.front()->kind != Pending::Kind::Flush &&
         (current_ == nullptr || !has_room(*unplaced_.front()));
}

// Whether the open region has room for the record; goes to the next region where that is what it takes.
bool DiskStore::enter_region(Pending& pending) {
  if (current_ != nullptr && has_room(pending)) return true;
  if (ready_ == nullptr) {
    if (!prepare_next()) pending.failure = TierStatus::NoSpace;
    return false;
  }
  if (current_ != nullptr) start_seal(*current_);
  current_ = std::exchange(ready_, nullptr);
  current_->phase = RegionPhase::Open;
  dirty_.push_back(current_);
  if (!closing_) prepare_next();
  return has_room(pending);
}

void DiskStore::give_place(Pending& pending) {
  pending.region = current_;
  pending.epoch = current_->epoch;
  pending.offset = current_->tail;
  current_->tail += pending.bytes;
  ++current_->unpublished;
  if (pending.kind != Pending::Kind::Copy) write_head(pending);
}

void DiskStore::write_head(Pending& pending) {
  pending.head = stock_.take(pending.head_bytes);
  std::memset(pending.head.data(), 0, pending.head_bytes);
  Envelope envelope;
  if (pending.kind == Pending::Kind::Put) {
    envelope = TierEngine::seal(*pending.operations.front(), pending.epoch,
                                static_cast<std::uint32_t>(pending.head_bytes));
  } else {
    envelope.key = pending.key;
    envelope.flags = pending.flags;
    envelope.epoch = pending.epoch;
    envelope.payload_offset = static_cast<std::uint32_t>(pending.head_bytes);
  }
  write_envelope(envelope, {pending.head.data(), pending.head_bytes});
}

// ---- pieces ---------------------------------------------------------------------------------

// Effect: copies the record, or what is left of it, into pieces. Returns: whether all of it found room.
bool DiskStore::copy(Pending& pending) {
  while (pending.copied < pending.bytes) {
    Piece* piece = turn_over_ ? nullptr : piece_for(pending);
    if (piece == nullptr) return false;
    const std::size_t bytes =
        std::min<std::uint64_t>(piece->memory.size() - piece->filled, pending.bytes - pending.copied);
    copy_some(pending, piece->memory.data() + piece->filled, bytes);
    piece->filled += bytes;
    piece->records.push_back(&pending);
    ++pending.writes;
    if (piece->filled < piece->memory.size()) continue;
    submit_piece();
    turn_over_ = true;  // the disk has something to do: first hear what it has done
  }
  stock_.give_back(std::move(pending.head));
  return true;
}

void DiskStore::copy_some(Pending& pending, std::byte* to, std::size_t bytes) {
  while (bytes != 0) {
    std::size_t count;
    if (pending.copied < pending.head_bytes) {
      count = std::min<std::uint64_t>(bytes, pending.head_bytes - pending.copied);
      std::memcpy(to, pending.head.data() + pending.copied, count);
    } else if (pending.copied < pending.head_bytes + pending.payload_bytes) {
      const Part& part = pending.operations.front()->parts[pending.part];
      count = std::min<std::uint64_t>(bytes, part.bytes - pending.part_at);
      std::memcpy(to, static_cast<const std::byte*>(part.data) + pending.part_at, count);
      pending.part_at += count;
      if (pending.part_at == part.bytes) ++pending.part, pending.part_at = 0;
    } else {
      count = bytes;  // fill up to the unit
      std::memset(to, 0, count);
    }
    pending.copied += count;
    to += count;
    bytes -= count;
  }
}

// A piece that goes on where the record stands; nothing while all are under way.
DiskStore::Piece* DiskStore::piece_for(const Pending& pending) {
  const std::uint64_t at = pending.offset + pending.copied;
  if (open_piece_ != nullptr) {
    if (open_piece_->region == pending.region && open_piece_->offset + open_piece_->filled == at) {
      return open_piece_;
    }
    submit_piece();
  }
  if (free_pieces_.empty()) {
    if (pieces_.size() >= std::max<std::size_t>(4, options_.depth)) return nullptr;
    const std::size_t bytes =
        std::min<std::uint64_t>(piece_bytes, superblock_.region_bytes / 4 / disk_unit * disk_unit);
    pieces_.push_back(std::make_unique<Piece>(bytes));
    pieces_.back()->memory.make_known(io_);
    free_pieces_.push_back(pieces_.back().get());
  }
  open_piece_ = free_pieces_.back();
  free_pieces_.pop_back();
  open_piece_->region = pending.region;
  open_piece_->offset = at;
  open_piece_->filled = open_piece_->written = 0;
  return open_piece_;
}

void DiskStore::submit_piece() {
  Piece& piece = *std::exchange(open_piece_, nullptr);
  const std::size_t left = piece.filled - piece.written;
  piece.piece = {piece.memory.data() + piece.written, left};
  piece.request.op = IoRequest::Op::Write;
  piece.request.file = piece.region->file;
  piece.request.offset = piece.offset + piece.written;
  piece.request.bytes = left;
  piece.request.pieces = {&piece.piece, 1};
  ++pieces_under_way_;
  queue_.add(&piece.request, Priority::Write);
}

void DiskStore::written(Piece& piece) {
  --pieces_under_way_;
  const std::int64_t result = piece.request.result;
  if (result > 0) counts_.add(counts_.bytes_written, static_cast<std::uint64_t>(result));
  if (result >= 0 && static_cast<std::uint64_t>(result) < piece.request.bytes) {
    // Short: what is left goes again, from the last whole unit on; none at all is an error.
    const auto whole = static_cast<std::size_t>(result) / disk_unit * disk_unit;
    if (whole != 0) {
      piece.written += whole;
      Piece* const open = std::exchange(open_piece_, &piece);
      submit_piece();
      open_piece_ = open;
      return;
    }
  }
  if (result != static_cast<std::int64_t>(piece.request.bytes)) {
    const bool full = result == -ENOSPC || result == -EDQUOT;
    for (Pending* record : piece.records) {
      record->failure = full ? TierStatus::NoSpace : TierStatus::IoError;
    }
    give_up(*piece.region, full);
  } else {
    full_writes_ = 0;
  }
  settle_piece(piece);
}

void DiskStore::settle_piece(Piece& piece) {
  for (Pending* record : piece.records) --record->writes;
  piece.records.clear();
  free_pieces_.push_back(&piece);
}

void DiskStore::fail_unplaced(TierStatus status) {
  for (auto& pending : unplaced_) {
    if (pending->kind != Pending::Kind::Flush) pending->failure = status;
  }
}

}  // namespace hkv
