// SPDX-License-Identifier: Apache-2.0
// Copies between pages of device memory and page-locked host memory, begun and asked after, never waited for.
//
// A copy is many runs of bytes. They go to a lane, one for each device and way, which is a stream of its own: not
// ordered with any of the engine's, so that a lane neither waits for a step nor holds one up, and the two ways move at
// once. A lane takes runs in pieces with an event behind each. `poll` asks for the events, oldest first, and sends what
// waits.
//
// Thread safety: one thread at a time; DeviceCopy is read by that thread alone.
// Invariants, and why each holds:
//  1. A copy that is not Moving touches its memory no more, unless it is Lost: its pieces are over when the driver says
//     that the event behind them has passed, and a piece of which nothing was taken was never there.
//  2. A driver call here never waits for a copy: host memory is page-locked, and at most `most_runs_moving` runs of a lane
//     are with the driver, well below the thousand or so at which its queue is full and a call would wait.
//  3. The engine may capture a graph meanwhile, on any thread: calls are made in the relaxed mode of capture, and the
//     thread's context and mode are as before afterwards.
//  4. Once a device answers with an error it is lost, as the driver itself has it: what is under way there is Lost, and
//     what comes later Failed at once.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda_api.h"

namespace hkv {

enum class CopyWay : std::uint8_t { ToHost, ToDevice };

struct CopyRun {
  std::uint64_t device_address = 0;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
  int device = 0;
};

class DeviceCopy {
 public:
  enum class State : std::uint8_t {
    Moving,
    Done,
    Failed,  // the driver refused a part of it; nothing moves any more
    Lost,    // the device is gone: nobody can say what still touches the memory
  };
  State state() const {
    if (pieces_left_ != 0) return State::Moving;
    return lost_ ? State::Lost : error_.empty() ? State::Done : State::Failed;
  }
  const std::string& error() const { return error_; }  // what the driver said; empty: nothing failed

 private:
  friend class DeviceCopies;
  std::size_t pieces_left_ = 0;
  bool lost_ = false;
  std::string error_;
};

class DeviceCopies {
 public:
  static constexpr std::size_t most_runs_of_piece = 128, most_runs_moving = 512;

  // Requires: api outlives it.
  explicit DeviceCopies(const CudaApi& api) : api_(api) {}
  // Requires: no copy is Moving. What a lost device may still touch is never given back.
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // What the driver says of an address: memory of one device, or why not, for people.
  struct Place {
    int device = -1;
    std::string otherwise;
  };
  Place place_of(std::uint64_t address);

  // Page-locked memory, for as long as this lives. The device's context must be there: `device` is one that holds a
  // pool. Returns: null and `error` where the driver gives none. Progress: the driver's, which may wait for devices: so
  // few calls, and early.
  std::byte* take_memory(int device, std::size_t bytes, std::string& error);

  // Effect: begins to copy. Requires: devices as place_of said; host memory of take_memory; nobody writes the source, and
  // nobody reads or writes the target, until it is over. Progress: the driver's for a bounded number of calls.
  std::shared_ptr<const DeviceCopy> begin(CopyWay way, std::vector<CopyRun> runs);
  // Effect: notes what has ended, sends what waits. Progress: as begin.
  void poll();
  // Whether a copy is under way.
  bool moving() const;

 private:
  struct Piece {
    std::shared_ptr<DeviceCopy> copy;
    std::vector<CopyRun> runs;
    cuda::Event* event = nullptr;
  };
  struct Lane {
    int device;
    CopyWay way;
    cuda::Stream* stream = nullptr;
    std::deque<Piece> waiting, moving;
    std::size_t runs_moving = 0;
    std::vector<cuda::Event*> spare;
    std::string lost;  // what the driver said when the device was lost
  };
  class Entered;  // a device's context and the relaxed mode, for the time of some calls

  cuda::Context* context_of(int device, std::string& error);
  Lane& lane_of(int device, CopyWay way);
  void poll(Lane& lane);
  void retire(Lane& lane);
  void send(Lane& lane);
  bool send_runs(Lane& lane, Piece& piece);
  std::string make_ready(Lane& lane, Piece& piece);
  void lose(Lane& lane, CudaApi::Result result, const char* call);
  static void end(Piece& piece, const std::string& error, bool lost);
  std::string said(const char* call, CudaApi::Result result) const {
    return std::string(call) + ": " + api_.told(result);
  }

  const CudaApi& api_;
  std::vector<cuda::Context*> contexts_;  // by device; null: not asked for yet
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::pair<int, void*>> memory_;  // (device, address)
};

}  // namespace hkv
