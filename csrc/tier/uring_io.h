// SPDX-License-Identifier: Apache-2.0
// Io by io_uring, through raw system calls: the kernel is asked for many requests at once and no thread waits for one.
//
// Thread safety: as Io. Requests end with an error where the thread that submitted them ends before they are done.
#pragma once
#include <mutex>
#include <optional>

#include "tier/directory.h"
#include "tier/uring_arenas.h"
#include "tier/uring_ring.h"

namespace hkv {

class UringIo final : public DirectoryIo {
 public:
  // How to wait: within the ring, or by poll of the ring and of the wake's eventfd, as before Linux 5.11.
  enum class Waiting : std::uint8_t { Best, Poll };
  static constexpr std::uint32_t fixed_buffers = 8192;

  // `buffers`: that can be fixed at a time.
  // Throws TierError: "path" as DirectoryIo, "engine" where io_uring is not to be had. Requires: depth >= 1.
  UringIo(const std::string& path, bool direct, std::size_t depth, Waiting waiting = Waiting::Best,
          std::uint32_t buffers = fixed_buffers);
  // Waits for what is under way: the kernel may write the memory of a request until then.
  ~UringIo() override;

  void submit(IoRequest* request) override;
  std::size_t depth() const override { return depth_; }
  std::size_t wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) override;
  void wake() override;
  bool add_arena(void* data, std::size_t bytes) override { return arenas_->add(data, bytes); }
  void drop_arena(void* data) override { arenas_->drop(data); }
  std::size_t fixed_run(std::span<const iovec> pieces) const override { return arenas_->find(pieces).pieces; }
  const char* name() const override { return "io_uring"; }

 private:
  using Clock = std::chrono::steady_clock;
  void prepare(IoRequest* request, bool forced);
  void prepare_move(IoRequest& request, uring::Submission& entry) const;
  void arm();
  bool finish(const uring::Completion& completion, IoRequest*& out);
  std::size_t take(std::span<IoRequest*> out, bool& woken);
  void wait_in_ring(std::chrono::nanoseconds at_most);
  bool wait_by_poll(std::chrono::nanoseconds at_most);
  void end_wake();

  const std::size_t depth_;
  std::size_t in_flight_ = 0;
  UringRing ring_;
  std::optional<UringArenas> arenas_;  // once the ring is open
  bool in_ring_;                       // how it waits
  int wake_ = -1;                      // eventfd
  std::uint64_t wakes_ = 0;            // what a read of it in the ring writes
  bool armed_ = false;                 // that read is under way
  std::mutex wake_mutex_;
  bool wake_pending_ = false;  // the eventfd was written since a wait was last ended by it; under wake_mutex_
};

}  // namespace hkv
