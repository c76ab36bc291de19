// SPDX-License-Identifier: Apache-2.0
// Of the disk store: the oldest region is written over. What was of use since it was written is written again first.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tier/disk_store.h"

namespace hkv {
namespace {

constexpr std::uint32_t pinned_score = CellWord::most_hits + 1;
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
    copy_next();
    const bool copied =
        preparation_.next == preparation_.kept.size() && !copy_read_.busy && !copy_read_.ready;
    if (!copied || preparation_.unsettled != 0) return;
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

void DiskStore::copy_next() {
  while (!copy_read_.busy && !copy_read_.ready && preparation_.next < preparation_.kept.size()) {
    const auto& [number, place] = preparation_.kept[preparation_.next];
    copy_read_.number = number;
    copy_read_.place = place;
    copy_read_.region = preparation_.region;
    if (!index_.holds(number) || index_.place(number) != place || preparation_.failed) {
      skip_copy();
      continue;
    }
    copy_read_.memory = stock_.take(std::uint64_t{place.units} * disk_unit);
    copy_read_.busy = true;
    ++copy_read_.region->readers;
    read_copy(0);
  }
}

void DiskStore::skip_copy() {
  preparation_.reserved -= std::uint64_t{copy_read_.place.units} * disk_unit;
  ++preparation_.next;
  stock_.give_back(std::move(copy_read_.memory));
}

void DiskStore::read_copy(std::uint64_t from) {
  const std::uint64_t bytes = std::uint64_t{copy_read_.place.units} * disk_unit - from;
  copy_read_.piece = {copy_read_.memory.data() + from, bytes};
  IoRequest& request = copy_read_.request;
  request.op = IoRequest::Op::Read;
  request.file = copy_read_.region->file;
  request.offset = std::uint64_t{copy_read_.place.at} * disk_unit + from;
  request.bytes = bytes;
  request.pieces = {&copy_read_.piece, 1};
  queue_.add(&request, Priority::Write);
}

void DiskStore::copy_read(std::int64_t result) {
  const std::uint64_t whole = std::uint64_t{copy_read_.place.units} * disk_unit;
  const std::uint64_t before = whole - copy_read_.request.bytes;
  const std::uint64_t more = result <= 0 ? 0 : static_cast<std::uint64_t>(result) / disk_unit * disk_unit;
  if (more != 0 && before + more < whole) return read_copy(before + more);
  --copy_read_.region->readers;
  copy_read_.busy = false;
  counts_.add(counts_.bytes_read, before + more);
  if (before + more == whole && copy_is_sound()) {
    copy_read_.ready = true;
    return;
  }
  counts_.add(counts_.io_errors, result < 0 ? 1 : 0);
  counts_.add(counts_.dropped, 1);
  drop_place(copy_read_.number, copy_read_.place);
  skip_copy();
}

// What is damaged is not written again under a fresh epoch.
bool DiskStore::copy_is_sound() {
  const std::size_t bytes = std::size_t{copy_read_.place.units} * disk_unit;
  Envelope& envelope = copy_read_.envelope;
  if (!index_.holds(copy_read_.number)) return false;
  if (read_envelope({copy_read_.memory.data(), bytes}, envelope) != Damage::None) return false;
  if (envelope.key != index_.key(copy_read_.number) || envelope.epoch != copy_read_.region->epoch)
    return false;
  if (std::uint64_t{envelope.payload_offset} + envelope.payload_bytes > bytes) return false;
  std::vector<Part> parts;
  for (const PartEntry& entry : envelope.parts) {
    parts.push_back(
        {copy_read_.memory.data() + envelope.payload_offset + entry.offset, entry.bytes, entry.label});
  }
  return check_parts(envelope, parts) == Damage::None;
}

// The copy that was read, with its place; nothing where it is not needed any more.
std::unique_ptr<DiskStore::Pending> DiskStore::take_copy() {
  copy_read_.ready = false;
  auto copy = std::make_unique<Pending>();
  copy->kind = Pending::Kind::Copy;
  copy->bytes = copy->head_bytes = std::uint64_t{copy_read_.place.units} * disk_unit;
  const bool wanted = index_.holds(copy_read_.number) && index_.place(copy_read_.number) == copy_read_.place;
  if (!wanted || current_ == nullptr || !has_room(*copy)) {
    preparation_.failed = preparation_.failed || wanted;
    skip_copy();
    return nullptr;
  }
  copy->key = copy_read_.envelope.key;
  copy->parent = copy_read_.envelope.parent;
  copy->flags = copy_read_.envelope.flags;
  copy->pinned = index_.word(copy_read_.number).pinned();
  copy->payload_units = copy_read_.envelope.payload_offset / disk_unit;
  copy->number = copy_read_.number;
  copy->from = copy_read_.place;
  copy->head = std::move(copy_read_.memory);
  give_place(*copy);
  copy_read_.envelope.epoch = copy->epoch;
  write_envelope(copy_read_.envelope, {copy->head.data(), copy->head_bytes});
  ++preparation_.unsettled;
  skip_copy();
  return copy;
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
