// SPDX-License-Identifier: Apache-2.0
#include "kernels/device_copies.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hkv {

// The thread's context and mode of capture are put back, whatever happens between.
class DeviceCopies::Entered {
 public:
  Entered(const CudaApi& api, cuda::Context* context) : api_(api) {
    result_ = context == nullptr ? -1 : api.push_current(context);
    if (result_ == CudaApi::success) api.exchange_capture_mode(&mode_);
  }
  ~Entered() {
    if (result_ != CudaApi::success) return;
    api_.exchange_capture_mode(&mode_);
    cuda::Context* popped = nullptr;
    api_.pop_current(&popped);
  }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  CudaApi::Result result() const { return result_; }

 private:
  const CudaApi& api_;
  CudaApi::Result result_;
  int mode_ = CudaApi::relaxed_capture;
};

DeviceCopies::~DeviceCopies() {
  HKV_CHECK(!moving());
  const bool lost =
      std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return !lane->lost.empty(); });
  std::string unused;
  for (const auto& lane : lanes_) {
    const Entered entered(api_, context_of(lane->device, unused));
    for (cuda::Event* event : lane->spare) api_.event_destroy(event);
    if (lane->stream != nullptr) api_.stream_destroy(lane->stream);
  }
  if (lost) return;
  for (const auto& [device, address] : memory_) {
    const Entered entered(api_, context_of(device, unused));
    api_.host_free(address);
  }
}

DeviceCopies::Place DeviceCopies::place_of(std::uint64_t address) {
  unsigned type = 0;
  int managed = 0;
  Place place;
  if (const auto result = api_.pointer_attribute(&type, CudaApi::of_memory_type, address)) {
    place.otherwise = "memory that the CUDA driver does not know (" + api_.told(result) + ")";
  } else if (api_.pointer_attribute(&managed, CudaApi::of_managed, address) == CudaApi::success &&
             managed != 0) {
    place.otherwise = "managed memory, which lies on no device for good";
  } else if (type != CudaApi::device_memory) {
    place.otherwise = "memory of the host";
  } else if (const auto failed = api_.pointer_attribute(&place.device, CudaApi::of_device, address)) {
    place.device = -1;
    place.otherwise = said("cuPointerGetAttribute", failed);
  }
  return place;
}

// The primary context, which is the one that frameworks use. Kept for good: pools of the device live in it.
cuda::Context* DeviceCopies::context_of(int device, std::string& error) {
  const auto at = static_cast<std::size_t>(device);
  if (contexts_.size() <= at) contexts_.resize(at + 1);
  if (contexts_[at] != nullptr) return contexts_[at];
  int handle = 0;
  if (const auto result = api_.device(&handle, device)) {
    error = said("cuDeviceGet", result);
  } else if (const auto refused = api_.retain_primary(&contexts_[at], handle)) {
    error = said("cuDevicePrimaryCtxRetain", refused);
    contexts_[at] = nullptr;
  }
  return contexts_[at];
}

std::byte* DeviceCopies::take_memory(int device, std::size_t bytes, std::string& error) {
  cuda::Context* const context = context_of(device, error);
  if (context == nullptr) return nullptr;
  const Entered entered(api_, context);
  void* address = nullptr;
  auto result = entered.result();
  if (result == CudaApi::success) result = api_.host_alloc(&address, bytes, CudaApi::portable);
  if (result != CudaApi::success) {
    error = said("cuMemHostAlloc", result);
    return nullptr;
  }
  memory_.emplace_back(device, address);
  return static_cast<std::byte*>(address);
}

DeviceCopies::Lane& DeviceCopies::lane_of(int device, CopyWay way) {
  for (const auto& lane : lanes_) {
    if (lane->device == device && lane->way == way) return *lane;
  }
  lanes_.push_back(std::make_unique<Lane>());
  lanes_.back()->device = device;
  lanes_.back()->way = way;
  return *lanes_.back();
}

std::shared_ptr<const DeviceCopy> DeviceCopies::begin(CopyWay way, std::vector<CopyRun> runs) {
  auto copy = std::make_shared<DeviceCopy>();
  Lane* before = nullptr;
  for (const CopyRun& run : runs) {
    Lane& lane = lane_of(run.device, way);
    if (&lane != before || lane.waiting.back().runs.size() == most_runs_of_piece) {
      lane.waiting.push_back({copy, {}, nullptr});
      ++copy->pieces_left_;
    }
    lane.waiting.back().runs.push_back(run);
    before = &lane;
  }
  for (const auto& lane : lanes_) send(*lane);
  return copy;
}

void DeviceCopies::poll() {
  for (const auto& lane : lanes_) poll(*lane);
}

bool DeviceCopies::moving() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return !lane->moving.empty() || !lane->waiting.empty(); });
}

void DeviceCopies::poll(Lane& lane) {
  if (!lane.moving.empty()) retire(lane);
  send(lane);
}

void DeviceCopies::retire(Lane& lane) {
  std::string unused;
  const Entered entered(api_, context_of(lane.device, unused));
  if (entered.result() != CudaApi::success) return lose(lane, entered.result(), "cuCtxPushCurrent");
  while (!lane.moving.empty()) {
    Piece& oldest = lane.moving.front();
    const auto result = api_.event_query(oldest.event);
    if (result == CudaApi::not_ready) return;
    if (result != CudaApi::success) return lose(lane, result, "cuEventQuery");
    lane.spare.push_back(oldest.event);
    lane.runs_moving -= oldest.runs.size();
    end(oldest, {}, false);
    lane.moving.pop_front();
  }
}

// Sends pieces until as many runs as may be are with the driver. What cannot be sent is over.
void DeviceCopies::send(Lane& lane) {
  while (!lane.waiting.empty()) {
    Piece& next = lane.waiting.front();
    if (!lane.moving.empty() && lane.runs_moving + next.runs.size() > most_runs_moving) return;
    const bool pointless = !next.copy->error_.empty();
    std::string error = pointless ? next.copy->error_ : lane.lost;
    if (error.empty()) error = make_ready(lane, next);
    if (!error.empty()) {
      end(next, error, false);
    } else if (send_runs(lane, next)) {
      lane.runs_moving += next.runs.size();
      lane.moving.push_back(std::move(next));
    } else {
      end(next, lane.lost, true);
    }
    lane.waiting.pop_front();
  }
}

// The stream, and an event for the piece. Returns: why they cannot be had; nothing has begun then.
std::string DeviceCopies::make_ready(Lane& lane, Piece& piece) {
  std::string error;
  cuda::Context* const context = context_of(lane.device, error);
  if (context == nullptr) return error;
  const Entered entered(api_, context);
  if (entered.result() != CudaApi::success) return said("cuCtxPushCurrent", entered.result());
  if (lane.stream == nullptr) {
    if (const auto result = api_.stream_create(&lane.stream, CudaApi::non_blocking)) {
      lane.stream = nullptr;
      return said("cuStreamCreate", result);
    }
  }
  if (!lane.spare.empty()) {
    piece.event = lane.spare.back();
    lane.spare.pop_back();
  } else if (const auto result = api_.event_create(&piece.event, CudaApi::without_timing)) {
    return said("cuEventCreate", result);
  }
  return {};
}

// Returns: false where the device is lost. Where the driver refuses a run, those before it move all the same, and the
// event tells when they have ended.
bool DeviceCopies::send_runs(Lane& lane, Piece& piece) {
  std::string error;
  const Entered entered(api_, context_of(lane.device, error));
  for (const CopyRun& run : piece.runs) {
    const bool out = lane.way == CopyWay::ToHost;
    const auto result = out ? api_.to_host(run.host, run.device_address, run.bytes, lane.stream)
                            : api_.to_device(run.device_address, run.host, run.bytes, lane.stream);
    if (result == CudaApi::success) continue;
    piece.copy->error_ = said(out ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", result);
    break;
  }
  const auto result = api_.event_record(piece.event, lane.stream);
  if (result == CudaApi::success) return true;
  lose(lane, result, "cuEventRecord");
  return false;
}

// The event of a lost piece is never asked for or used again.
void DeviceCopies::lose(Lane& lane, CudaApi::Result result, const char* call) {
  lane.lost = said(call, result);
  for (Piece& piece : lane.moving) end(piece, lane.lost, true);
  lane.moving.clear();
  lane.runs_moving = 0;
}

void DeviceCopies::end(Piece& piece, const std::string& error, bool lost) {
  DeviceCopy& copy = *piece.copy;
  if (copy.error_.empty()) copy.error_ = error;
  copy.lost_ |= lost;
  --copy.pieces_left_;
}

}  // namespace hkv
