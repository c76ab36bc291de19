// SPDX-License-Identifier: Apache-2.0
#include "tier/region_scan.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"

namespace hkv {
namespace {

constexpr std::uint64_t window_bytes = std::uint64_t{1} << 20;

}  // namespace

RecoveryRead::RecoveryRead(FileId file, std::uint64_t offset, std::size_t bytes) : memory(bytes) {
  request.op = IoRequest::Op::Read;
  request.file = file;
  request.offset = offset;
  request.bytes = bytes;
  piece = {memory.data(), bytes};
}

std::span<const std::byte> RecoveryRead::bytes() const {
  return {memory.data(), static_cast<std::size_t>(std::max<std::int64_t>(request.result, 0))};
}

void read_all(Io& io, std::span<RecoveryRead* const> reads, const std::string& name) {
  constexpr int tries = 2;
  std::vector<RecoveryRead*> left(reads.begin(), reads.end());
  for (int tried = 0; tried < tries && !left.empty(); ++tried) {
    std::size_t next = 0, under_way = 0;
    std::array<IoRequest*, 16> done;
    while (next < left.size() || under_way != 0) {
      for (; next < left.size() && under_way < io.depth(); ++next, ++under_way) {
        left[next]->request.pieces = {&left[next]->piece, 1};
        io.submit(&left[next]->request);
      }
      under_way -= io.wait(done, std::chrono::hours(1));
    }
    // A file may be shorter than it should be; that a device says so once proves nothing.
    const bool last = tried + 1 == tries;
    std::erase_if(left, [last](const RecoveryRead* read) {
      const auto whole = static_cast<std::int64_t>(read->request.bytes);
      return read->request.result == whole || (last && read->request.result >= 0);
    });
  }
  if (left.empty()) return;
  throw Error(ErrorCode::TierError, "path", "a store that the device can read (without " + name + " it may)",
              name + ": " + std::strerror(static_cast<int>(-left.front()->request.result)));
}

RegionScan::RegionScan(Io& io, FileId file, const RegionHeader& header, std::uint64_t limit,
                       ScanLosses& losses)
    : io_(io), file_(file), header_(header), limit_(limit), losses_(losses) {}

std::span<const std::byte> RegionScan::view(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t end = std::min(offset + bytes, header_.region_bytes);
  if (offset < window_at_ || end > window_at_ + window_bytes_) {
    const std::uint64_t from = offset / disk_unit * disk_unit;
    const std::uint64_t to =
        std::min(std::max(from + window_bytes, round_up_to_unit(end)), header_.region_bytes);
    RecoveryRead read(file_, from, to - from);
    RecoveryRead* const one = &read;
    read_all(io_, {&one, 1}, text_of({header_.number, 0}));
    window_at_ = from;
    window_bytes_ = read.bytes().size();
    window_ = std::move(read.memory);
  }
  const std::uint64_t have = std::min(end, window_at_ + window_bytes_);
  if (have <= offset) return {};
  return {window_.data() + (offset - window_at_), have - offset};
}

bool RegionScan::next(FooterEntry& out) {
  for (;;) {
    Found found = look(out);
    if (found != Found::Record && end_ < limit_) {  // once more, from the device
      window_bytes_ = 0;
      found = look(out);
    }
    losses_.torn += found == Found::Torn || found == Found::Damaged;
    losses_.stale += found == Found::Stale;
    if (found != Found::Record && found != Found::Torn) return false;
    end_ += std::uint64_t{out.units} * disk_unit;
    if (found == Found::Record) return true;
  }
}

RegionScan::Found RegionScan::look(FooterEntry& out) {
  if (end_ >= limit_) return Found::End;
  const std::size_t bytes = envelope_bytes_at(view(end_, disk_unit));
  if (bytes == 0) return Found::End;
  Envelope envelope;
  if (read_envelope(view(end_, bytes), envelope) != Damage::None) return Found::Damaged;
  if (envelope.epoch != header_.epoch) return Found::Stale;
  if (envelope.key.kind == RecordKind::Tombstone && !names_removable(envelope.flags)) return Found::Damaged;
  const std::uint64_t room = limit_ - end_;
  if (envelope.payload_offset % disk_unit != 0 || envelope.payload_offset > room ||
      envelope.payload_bytes > room - envelope.payload_offset) {
    return Found::Damaged;
  }
  out.key = envelope.key;
  out.parent = envelope.parent;
  out.flags = envelope.flags;
  out.pinned = false;
  out.at = static_cast<std::uint32_t>(end_ / disk_unit);
  out.payload_units = envelope.payload_offset / disk_unit;
  out.units = static_cast<std::uint32_t>(
      (envelope.payload_offset + round_up_to_unit(envelope.payload_bytes)) / disk_unit);
  return payload_is_whole(end_ + envelope.payload_offset, envelope) ? Found::Record : Found::Torn;
}

bool RegionScan::payload_is_whole(std::uint64_t at, const Envelope& envelope) {
  for (const PartEntry& entry : envelope.parts) {
    std::uint32_t crc = 0;
    for (std::uint64_t done = 0; done < entry.bytes;) {
      const auto some = view(at + entry.offset + done, std::min(entry.bytes - done, window_bytes / 2));
      if (some.empty()) return false;
      crc = crc32c(crc, some.data(), some.size());
      done += some.size();
    }
    if (crc != entry.crc) return false;
  }
  return true;
}

}  // namespace hkv
