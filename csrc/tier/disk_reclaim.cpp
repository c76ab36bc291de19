// SPDX-License-Identifier: Apache-2.0
// Of the disk store: the oldest region is written over. What was of use since it was written is written again first.
#include <algorithm>
#include <tuple>

#include "base/check.h"
#include "tier/disk_store.h"

namespace hkv {
namespace {

constexpr std::uint32_t pinned_score = CellWord::most_hits + 1;
constexpr std::uint64_t most_copying_bytes = std::uint64_t{8} << 20;
constexpr std::uint32_t tree_counted = 64;  // descendants that count: a bound for the time it takes

struct Candidate {
  DiskIndex::Number number = none_u32;
  std::uint32_t score = 0, tree = 0;
};

// What lies in a region, with a score each: what is needed for something is worth at least as much as that.
std::vector<Candidate> candidates_of(const DiskIndex& index, const DiskRegion& region,
                                     std::unordered_map<DiskIndex::Number, std::size_t>& where) {
  std::vector<Candidate> out;
  for (const DiskIndex::Number n : region.numbers) {
    if (!index.holds(n) || index.place(n).region != region.number || where.contains(n)) continue;
    where.emplace(n, out.size());
    const CellWord word = index.word(n);
    out.push_back({n, word.hits() + (word.pinned() ? pinned_score : 0), index.tree_size(n, tree_counted)});
  }
  for (const Candidate& candidate : out) {
    for (auto up = where.find(index.parent(candidate.number)); up != where.end();) {
      Candidate& below = out[up->second];
      if (below.score >= candidate.score) break;
      below.score = candidate.score;
      up = where.find(index.parent(below.number));
    }
  }
  return out;
}

}  // namespace

void DiskStore::choose_kept(DiskRegion& region) {
  auto& kept = preparation_.kept;
  kept.clear();
  preparation_.next = 0;
  preparation_.reserved = 0;
  preparation_.failed = false;
  if (current_ == nullptr) return;
  std::unordered_map<DiskIndex::Number, std::size_t> where;
  const std::vector<Candidate> all = candidates_of(index_, region, where);
  std::vector<std::size_t> order(all.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(all[a].score, all[a].tree) > std::pair(all[b].score, all[b].tree);
  });
  const std::uint64_t taken =
      current_->tail + footer_bytes(current_->entries.size() + current_->unpublished + all.size());
  std::uint64_t left =
      std::min(kept_share(), superblock_.region_bytes - std::min(taken, superblock_.region_bytes));
  for (const std::size_t i : order) {  // what a record needs has at least its score, and a larger tree
    if (all[i].score == 0) break;
    const RecordPlace place = index_.place(all[i].number);
    const std::uint64_t bytes = std::uint64_t{place.units} * disk_unit;
    if (bytes > left) continue;
    left -= bytes;
    preparation_.reserved += bytes;
    kept.emplace_back(all[i].number, place);
  }
}

void DiskStore::go_on_reclaiming() {
  DiskRegion* const region = preparation_.region;
  if (preparation_.step == Step::Copying) {
    begin_copies();
    if (preparation_.next != preparation_.kept.size() || preparation_.unsettled != 0) return;
    if (std::exchange(preparation_.failed, false)) {  // a copy was lost: the region stays what it is
      preparation_.step = Step::None;
      return;
    }
    drop_rest(*region);
    preparation_.step = Step::Readers;
  }
  // Whoever reads there would find bytes of the next life, and would notice; but it would be a loss.
  if (preparation_.step != Step::Readers || region->readers != 0 || region->syncing) return;
  if (region->phase != RegionPhase::GivenUp) return write_header();
  preparation_.step = Step::None;
  remove_file(*region);  // which the device had trouble with: a new file takes its place
}

void DiskStore::drop_rest(DiskRegion& region) {
  const std::uint64_t before = index_.records();
  for (const DiskIndex::Number n : region.numbers) {
    if (index_.holds(n) && index_.place(n).region == region.number) erase(n);
  }
  region.numbers.clear();
  counts_.add(counts_.reclaimed, before - index_.records());
}

// ---- copies ---------------------------------------------------------------------------------

// As many reads at a time as a device is quick with; what is read waits for its place in memory.
void DiskStore::begin_copies() {
  for (;;) {
    const std::size_t at = preparation_.next + copies_.size();
    if (at == preparation_.kept.size()) return;
    auto copy = std::make_unique<CopyRead>();
    std::tie(copy->number, copy->place) = preparation_.kept[at];
    copy->region = preparation_.region;
    if (!copies_.empty() && copying_bytes_ + copy->bytes() > most_copying_bytes) return;
    copying_bytes_ += copy->bytes();
    copies_.push_back(std::move(copy));
    CopyRead& begun = *copies_.back();
    if (preparation_.failed || !still_wanted(begun)) {
      begun.state = CopyRead::State::Skipped;
      continue;
    }
    begun.memory = stock_.take(begun.bytes());
    ++begun.region->readers;
    read_copy(begun, 0);
  }
}

bool DiskStore::still_wanted(const CopyRead& copy) const {
  return index_.holds(copy.number) && index_.place(copy.number) == copy.place;
}

void DiskStore::read_copy(CopyRead& copy, std::uint64_t from) {
  const std::uint64_t bytes = copy.bytes() - from;
  copy.piece = {copy.memory.data() + from, bytes};
  IoRequest& request = copy.request;
  request.op = IoRequest::Op::Read;
  request.file = copy.region->file;
  request.offset = std::uint64_t{copy.place.at} * disk_unit + from;
  request.bytes = bytes;
  request.pieces = {&copy.piece, 1};
  queue_.add(&request, Priority::Write);
}

void DiskStore::copy_read(CopyRead& copy) {
  const std::int64_t result = copy.request.result;
  const std::uint64_t before = copy.bytes() - copy.request.bytes;
  const std::uint64_t more = result <= 0 ? 0 : static_cast<std::uint64_t>(result) / disk_unit * disk_unit;
  if (more != 0 && before + more < copy.bytes()) return read_copy(copy, before + more);
  --copy.region->readers;
  counts_.add(counts_.bytes_read, before + more);
  if (before + more == copy.bytes() && is_sound(copy)) {
    copy.state = CopyRead::State::Sound;
    return;
  }
  copy.state = CopyRead::State::Skipped;
  counts_.add(counts_.io_errors, result < 0 ? 1 : 0);
  drop_place(copy.number, copy.place);
}

// What is damaged is not written again under a fresh epoch.
bool DiskStore::is_sound(CopyRead& copy) const {
  Envelope& envelope = copy.envelope;
  if (!index_.holds(copy.number)) return false;
  if (read_envelope({copy.memory.data(), copy.bytes()}, envelope) != Damage::None) return false;
  if (envelope.key != index_.key(copy.number) || envelope.epoch != copy.region->epoch) return false;
  if (std::uint64_t{envelope.payload_offset} + envelope.payload_bytes > copy.bytes()) return false;
  std::vector<Part> parts;
  for (const PartEntry& entry : envelope.parts) {
    parts.push_back({copy.memory.data() + envelope.payload_offset + entry.offset, entry.bytes, entry.label});
  }
  return check_parts(envelope, parts) == Damage::None;
}

// The first copy is placed, or will not be.
void DiskStore::end_copy() {
  CopyRead& copy = *copies_.front();
  preparation_.reserved -= copy.bytes();
  copying_bytes_ -= copy.bytes();
  ++preparation_.next;
  stock_.give_back(std::move(copy.memory));
  copies_.pop_front();
}

// The next copy that was read, with its place; nothing where none is at hand. Parents come first, as they were chosen.
std::unique_ptr<DiskStore::Pending> DiskStore::take_copy() {
  for (; !copies_.empty() && copies_.front()->state != CopyRead::State::Reading; end_copy()) {
    CopyRead& read = *copies_.front();
    const bool wanted = read.state == CopyRead::State::Sound && still_wanted(read);
    auto copy = std::make_unique<Pending>();
    copy->kind = Pending::Kind::Copy;
    copy->bytes = copy->head_bytes = read.bytes();
    if (!wanted || preparation_.failed || current_ == nullptr || !has_room(*copy)) {
      preparation_.failed = preparation_.failed || wanted;
      continue;
    }
    copy->key = read.envelope.key;
    copy->parent = read.envelope.parent;
    copy->flags = read.envelope.flags;
    copy->pinned = index_.word(read.number).pinned();
    copy->payload_units = read.envelope.payload_offset / disk_unit;
    copy->number = read.number;
    copy->from = read.place;
    copy->head = std::move(read.memory);
    give_place(*copy);
    read.envelope.epoch = copy->epoch;
    write_envelope(read.envelope, {copy->head.data(), copy->head_bytes});
    ++preparation_.unsettled;
    end_copy();
    return copy;
  }
  return nullptr;
}

// The index turns to a copy once it is durable, so that an error on the way leaves the old one.
void DiskStore::copy_settled(Pending& copy, bool durable) {
  --preparation_.unsettled;
  DiskRegion& to = *copy.region;
  if (!durable) {
    preparation_.failed = true;
    return;
  }
  if (!index_.holds(copy.number) || index_.place(copy.number) != copy.from) {
    ++to.lingering;  // removed meanwhile
    return;
  }
  index_.move(copy.number, place_of(copy));
  DiskRegion& from = *regions_[copy.from.region];
  --from.live;
  ++from.lingering;
  ++to.live;
  to.numbers.push_back(copy.number);
}

}  // namespace hkv
