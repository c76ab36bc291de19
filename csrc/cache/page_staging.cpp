// SPDX-License-Identifier: Apache-2.0
#include "cache/page_staging.h"

#include <algorithm>

#include "base/check.h"

namespace hkv {
namespace {

constexpr std::size_t grain = 4096;  // what direct I/O of a tier may take as it is

std::size_t in_grains(std::size_t bytes) { return (bytes + grain - 1) / grain * grain; }

}  // namespace

PageStaging::PageStaging(const CudaLibrary& library, std::size_t most_bytes)
    : library_(library), most_bytes_(in_grains(most_bytes)) {
  if (library.api != nullptr) copies_ = std::make_unique<DeviceCopies>(*library.api);
}

PageStaging::~PageStaging() = default;

void PageStaging::check(std::size_t group, const std::string& name, const PoolMemory& memory) {
  if (devices_.size() > group && !devices_[group].empty()) return;
  const auto refuse = [&](std::int64_t array, const std::string& got) {
    std::string field = "pools[" + name + "]";
    if (memory.rows() > 1) field += "[" + std::to_string(array) + "]";
    throw Error(ErrorCode::ArgumentError, field, "a pool in host memory, or in memory of a CUDA device", got);
  };
  if (copies_ == nullptr) refuse(0, "device memory, and CUDA is not available: " + library_.reason);
  std::vector<int> found;
  for (std::int64_t array = 0; array < memory.rows(); ++array) {
    const DeviceCopies::Place place = copies_->place_of(memory.address(array, 0));
    if (place.device < 0) refuse(array, place.otherwise);
    found.push_back(place.device);
  }
  if (devices_.size() <= group) devices_.resize(group + 1);
  devices_[group] = std::move(found);
}

void PageStaging::prepare(const PoolMemory& memory) {
  if (copies_ == nullptr || !slabs_.empty()) return;
  std::string unused;
  const DeviceCopies::Place place = copies_->place_of(memory.address(0, 0));
  if (place.device >= 0) add_slab(most_bytes_, place.device, unused);
}

void PageStaging::forget(std::size_t group) {
  if (group < devices_.size()) devices_[group].clear();
}

PageStaging::Taken PageStaging::take(std::span<Part> parts, std::span<const std::size_t> room,
                                     std::span<const PoolMemory> memory, bool patient, StagedParts& staged,
                                     std::string& error) {
  std::size_t bytes = 0;
  int device = -1;
  const auto bytes_of = [&](const Part& part) {
    return room.empty() ? part.bytes : room[static_cast<std::size_t>(&part - parts.data())];
  };
  for (const Part& part : parts) {
    if (!on_device(part, memory)) continue;
    bytes += bytes_of(part);
    if (device < 0) device = device_of(part, memory[part.label.group]);
  }
  if (bytes == 0) return Taken::Unneeded;
  const std::size_t rounded = in_grains(bytes);
  const auto wait = [&] { return taken_bytes_ == stuck_bytes_ ? Taken::Never : Taken::Later; };
  if (patient && patient_bytes_ != 0 && patient_bytes_ + rounded > most_bytes_ / 4 * 3) return wait();
  const auto holds = [&](const Slab& slab) { return slab.bytes >= rounded; };
  if (std::none_of(slabs_.begin(), slabs_.end(), holds) && !add_slab(rounded, device, error))
    return Taken::Never;
  staged.place = find_place(rounded);
  if (staged.place == nullptr) return wait();
  staged.bytes = rounded;
  staged.patient = patient;
  taken_bytes_ += rounded;
  if (patient) patient_bytes_ += rounded;
  std::byte* to = staged.place;
  for (Part& part : parts) {
    if (!on_device(part, memory)) continue;
    const CopyRun run{reinterpret_cast<std::uint64_t>(part.data), to, bytes_of(part),
                      device_of(part, memory[part.label.group])};
    CopyRun* const last = staged.runs.empty() ? nullptr : &staged.runs.back();
    if (last != nullptr && last->device == run.device &&
        last->device_address + last->bytes == run.device_address) {
      last->bytes += run.bytes;
    } else {
      staged.runs.push_back(run);
    }
    part.data = to;
    to += run.bytes;
  }
  return Taken::Yes;
}

// The first gap that is wide enough: records of a group are alike, so gaps are filled as they come.
std::byte* PageStaging::find_place(std::size_t bytes) {
  for (Slab& slab : slabs_) {
    std::size_t at = 0;
    for (const auto& [offset, length] : slab.taken) {
      if (offset - at >= bytes) break;
      at = offset + length;
    }
    if (slab.bytes - at < bytes) continue;
    slab.taken.emplace(at, bytes);
    return slab.data + at;
  }
  return nullptr;
}

bool PageStaging::add_slab(std::size_t bytes, int device, std::string& error) {
  const std::size_t size = std::max(bytes, slabs_.empty() ? most_bytes_ : 0);
  std::byte* const data = copies_->take_memory(device, size, error);
  if (data == nullptr) return false;
  slabs_.push_back({data, size, {}});
  return true;
}

void PageStaging::begin(StagedParts& staged, CopyWay way) {
  HKV_CHECK(!staged.moving());
  staged.copy = copies_->begin(way, staged.runs);
}

void PageStaging::note_stuck(StagedParts& staged) {
  if (staged.stuck) return;
  staged.stuck = true;
  stuck_bytes_ += staged.bytes;
}

void PageStaging::give_back(StagedParts& staged) {
  HKV_CHECK(!staged.moving());
  if (staged.lost()) return note_stuck(staged);
  for (Slab& slab : slabs_) {
    if (staged.place < slab.data || staged.place >= slab.data + slab.bytes) continue;
    slab.taken.erase(static_cast<std::size_t>(staged.place - slab.data));
  }
  taken_bytes_ -= staged.bytes;
  if (staged.patient) patient_bytes_ -= staged.bytes;
  if (staged.stuck) stuck_bytes_ -= staged.bytes;
}

}  // namespace hkv
