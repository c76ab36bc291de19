// SPDX-License-Identifier: Apache-2.0
// Of the disk store: reads. The parts go straight into the asker's memory where it can take direct I/O and they are the
// first of the record, else through memory of the store. Parts that lie in arenas are read by requests of their own,
// beside that of the envelope: a request is fixed only where all of it lies in one.
#include <algorithm>
#include <cstring>

#include "tier/disk_store.h"

namespace hkv {
namespace {

constexpr std::size_t most_pieces = 1000;  // below IOV_MAX
// A further request costs the CPU as much as finding the pages of some 64 KiB, and takes a place at the device
// (bench/disk_tier.cpp): so runs of twice that at least.
constexpr std::size_t least_run_bytes = std::size_t{128} << 10, most_runs = 8;

bool aligned(const void* data, std::uint32_t unit) {
  return reinterpret_cast<std::uintptr_t>(data) % unit == 0;
}

}  // namespace

void DiskStore::begin_get(TierOperation* operation) {
  const DiskIndex::Number n = index_.find(operation->key);
  if (n == none_u32) return answer(operation, TierStatus::Miss);
  index_.hit(n);
  auto get = std::make_unique<Get>();
  get->operation = operation;
  get->place = index_.place(n);
  get->region = regions_[get->place.region].get();
  get->epoch = get->region->epoch;
  ++get->region->readers;
  operation->engine = get.get();
  if (!plan_straight(*get)) plan_whole(*get);
  Get& started = *get;
  gets_.emplace(get.get(), std::move(get));
  submit_get(started);
}

// Envelope into the store's memory, parts into the asker's: taken for the first parts of the record, in order, which
// the envelope then confirms or not.
bool DiskStore::plan_straight(Get& get) {
  const IoAlignment unit = io_.alignment(get.region->file);
  const std::vector<Part>& parts = get.operation->parts;
  if (get.place.payload_units == 0 || parts.size() > most_pieces) return false;
  std::uint64_t bytes = std::uint64_t{get.place.payload_units} * disk_unit;
  for (const Part& part : parts) {
    if (!aligned(part.data, unit.memory) || part.bytes % unit.offset != 0 || part.bytes % unit.memory != 0)
      return false;
    bytes += part.bytes;
  }
  if (bytes > std::uint64_t{get.place.units} * disk_unit) return false;
  const std::size_t head = std::size_t{get.place.payload_units} * disk_unit;
  get.memory = stock_.take(head);
  get.pieces.push_back({get.memory.data(), head});
  const std::byte* end = nullptr;  // of the last part
  for (const Part& part : parts) {
    if (part.data == end) {
      get.pieces.back().iov_len += part.bytes;
    } else {
      get.pieces.push_back({part.data, part.bytes});
    }
    end = static_cast<const std::byte*>(part.data) + part.bytes;
  }
  get.request.bytes = bytes;
  get.straight = true;
  plan_runs(get);
  return true;
}

// Of a straight read: a request for each run of parts that lies in an arena, where all of them do and none is small.
void DiskStore::plan_runs(Get& get) {
  std::vector<std::span<iovec>> runs;
  const std::span<iovec> pieces = std::span(get.pieces).subspan(1);
  for (std::size_t from = 0; from < pieces.size();) {
    const std::size_t count = io_.fixed_run(pieces.subspan(from));
    if (count == 0 || runs.size() == most_runs) return;
    runs.push_back(pieces.subspan(from, count));
    from += count;
  }
  std::uint64_t at = get.pieces[0].iov_len;
  std::vector<std::unique_ptr<Run>> made;
  for (const std::span<iovec> run : runs) {
    auto next = std::make_unique<Run>();
    next->get = &get;
    next->request.offset = at;  // within the record
    next->request.pieces = run;
    for (const iovec& piece : run) next->request.bytes += piece.iov_len;
    if (next->request.bytes < least_run_bytes) return;
    at += next->request.bytes;
    made.push_back(std::move(next));
  }
  if (made.empty()) return;
  get.runs = std::move(made);
  get.request.bytes = get.pieces[0].iov_len;
}

void DiskStore::plan_whole(Get& get) {
  const std::size_t bytes = std::size_t{get.place.units} * disk_unit;
  stock_.give_back(std::move(get.memory));
  get.memory = stock_.take(bytes);
  get.pieces.assign(1, {get.memory.data(), bytes});
  get.request.bytes = bytes;
  get.straight = false;
  get.done = 0;
  get.runs.clear();
}

void DiskStore::submit_get(Get& get) {
  get.request.op = IoRequest::Op::Read;
  get.request.file = get.region->file;
  get.request.offset = std::uint64_t{get.place.at} * disk_unit + get.done;
  get.request.pieces = std::span(get.pieces).first(get.runs.empty() ? get.pieces.size() : 1);
  get.under_way = 1 + get.runs.size();
  get.error = 0;
  get.is_short = false;
  for (const auto& run : get.runs) {
    run->request.op = IoRequest::Op::Read;
    run->request.file = get.region->file;
    run->request.offset += get.request.offset;
  }
  queue_.add(&get.request, get.operation->priority);
  for (const auto& run : get.runs) queue_.add(&run->request, get.operation->priority);
}

// One of its requests is done; with the last one it goes on, since the others may still write the asker's memory.
void DiskStore::got(Get& get, const IoRequest& request) {
  const std::int64_t result = request.result;
  if (result < 0) {
    get.error = result;
  } else {
    counts_.add(counts_.bytes_read, static_cast<std::uint64_t>(result));
    get.is_short = get.is_short || static_cast<std::uint64_t>(result) < request.bytes;
    if (&request != &get.request && request.fixed) counts_.add(counts_.arena_reads, 1);
  }
  if (--get.under_way != 0) return;
  if (get.error == 0 && get.is_short && read_again(get, result)) return;
  judge_read(get);
}

// After a short read: what is left; a read into several places begins again, into one. Returns: whether it goes on.
bool DiskStore::read_again(Get& get, std::int64_t result) {
  const std::uint64_t more = static_cast<std::uint64_t>(result) / disk_unit * disk_unit;
  if (get.straight) {
    plan_whole(get);
  } else if (more != 0) {
    get.done += more;
    get.request.bytes -= more;
    get.pieces[0] = {get.memory.data() + get.done, get.request.bytes};
  } else {
    return false;
  }
  submit_get(get);
  return true;
}

void DiskStore::judge_read(Get& get) {
  const auto own = [&] {
    auto node = gets_.extract(&get);
    return std::move(node.mapped());
  };
  if (get.error != 0) return finish_get(own(), TierStatus::IoError, Damage::None, true);
  if (get.is_short) return finish_get(own(), TierStatus::Corrupt, Damage::Short, true);
  const std::size_t head = std::size_t{get.straight ? get.place.payload_units : get.place.units} * disk_unit;
  Envelope envelope;
  Damage damage = read_envelope({get.memory.data(), head}, envelope);
  if (damage == Damage::None) damage = judge(get, envelope);
  if (damage != Damage::None) return finish_get(own(), TierStatus::Corrupt, damage, true);
  TierOperation& operation = *get.operation;
  if (get.straight && !straight_holds(get, envelope)) {
    plan_whole(get);
    return submit_get(get);
  }
  operation.envelope.assign(get.memory.data(), get.memory.data() + envelope_bytes(envelope.parts.size()));
  if (!get.straight) bring_parts(get, envelope);
  finish_get(own(), TierStatus::Ok, Damage::None, false);
}

// Whether the bytes are the record that the index means. (Whether its parts are whole is the tier's to check.)
Damage DiskStore::judge(const Get& get, const Envelope& envelope) const {
  if (envelope.epoch != get.epoch) return Damage::Epoch;
  const RecordKey& key = get.operation->key;
  if (envelope.key.digest != key.digest || envelope.key.kind != key.kind) return Damage::Foreign;
  if (envelope.key.format != key.format) return Damage::Format;
  const std::uint64_t most = std::uint64_t{get.place.units} * disk_unit;
  const std::uint64_t units = envelope.payload_offset / disk_unit;
  if (envelope.payload_offset % disk_unit != 0 || envelope.payload_offset > most ||
      envelope.payload_bytes > most - envelope.payload_offset) {
    return Damage::Header;
  }
  return get.place.payload_units != 0 && get.place.payload_units != units ? Damage::Header : Damage::None;
}

bool DiskStore::straight_holds(const Get& get, const Envelope& envelope) const {
  std::uint64_t at = 0;
  std::size_t i = 0;
  for (const Part& part : get.operation->parts) {
    if (i >= envelope.parts.size()) return false;
    const PartEntry& entry = envelope.parts[i++];
    if (entry.label != part.label || entry.bytes != part.bytes || entry.offset != at) return false;
    at += part.bytes;
  }
  return true;
}

void DiskStore::bring_parts(Get& get, const Envelope& envelope) {
  std::size_t at = 0;  // parts are mostly asked for in order
  for (const Part& part : get.operation->parts) {
    const bool next = at < envelope.parts.size() && envelope.parts[at].label == part.label;
    const PartEntry* entry = next ? &envelope.parts[at] : find_part(envelope, part.label);
    if (entry == nullptr || entry->bytes != part.bytes) return;  // which the tier tells
    at = static_cast<std::size_t>(entry - envelope.parts.data()) + 1;
    std::memcpy(part.data, get.memory.data() + envelope.payload_offset + entry->offset, part.bytes);
  }
}

void DiskStore::finish_get(std::unique_ptr<Get> get, TierStatus status, Damage damage, bool drop) {
  --get->region->readers;
  if (status == TierStatus::IoError) counts_.add(counts_.io_errors, 1);
  if (drop) {
    const DiskIndex::Number n = index_.find(get->operation->key);
    if (n != none_u32) drop_place(n, get->place);
  }
  answer(get->operation, status, damage);
  stock_.give_back(std::move(get->memory));
}

void DiskStore::drop(const TierOperation& operation) {
  const Get& get = *static_cast<const Get*>(operation.engine);
  const DiskIndex::Number n = index_.find(operation.key);
  if (n != none_u32) drop_place(n, get.place);
}

void DiskStore::drop_place(DiskIndex::Number number, const RecordPlace& place) {
  if (!index_.holds(number) || index_.place(number) != place) return;
  counts_.add(counts_.dropped, 1);
  erase(number);
}

}  // namespace hkv
