// SPDX-License-Identifier: Apache-2.0
// The disk itself: O_DIRECT reads and writes of one file through io_uring, by bare system calls and none of this
// project's code, so that a tier can be measured beside it in the same rounds. Each call is one trial.
#pragma once
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace raw_disk {

// What moving some bytes took. CPU: of the whole process, kernel and its I/O threads included.
struct Cost {
  double seconds = 0, cpu_seconds = 0;
  std::size_t bytes = 0;
  double gb_per_second() const { return static_cast<double>(bytes) / 1e9 / seconds; }
  double cpu_per_gb() const { return cpu_seconds / (static_cast<double>(bytes) / 1e9); }
  double ns_per_byte() const { return seconds * 1e9 / static_cast<double>(bytes); }
};

inline double cpu_seconds_of_process() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Measures from its making on.
class Meter {
 public:
  Meter() : cpu_(cpu_seconds_of_process()), begin_(std::chrono::steady_clock::now()) {}
  Cost of(std::size_t bytes) const {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    return {passed.count(), cpu_seconds_of_process() - cpu_, bytes};
  }

 private:
  double cpu_;
  std::chrono::steady_clock::time_point begin_;
};

[[noreturn]] inline void give_up(const char* what, int error) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(error));
  std::exit(1);
}

// Why this cannot be measured in `directory`; empty where it can.
inline std::string reason_not_to(const std::string& directory) {
  io_uring_params parameters{};
  const int ring = static_cast<int>(syscall(__NR_io_uring_setup, 1, &parameters));
  if (ring < 0) return std::string("no io_uring: ") + std::strerror(errno);
  close(ring);
  const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
  if (file < 0) return "no direct I/O in " + directory + ": " + std::strerror(errno);
  close(file);
  return "";
}

// As small a ring as can be: every entry is submitted at once, completions are waited for one by one.
class Ring {
 public:
  explicit Ring(unsigned entries) {
    io_uring_params p{};
    fd_ = static_cast<int>(syscall(__NR_io_uring_setup, entries, &p));
    if (fd_ < 0) give_up("io_uring", errno);
    const std::size_t bytes = std::max(p.sq_off.array + p.sq_entries * sizeof(unsigned),
                                       p.cq_off.cqes + p.cq_entries * sizeof(io_uring_cqe));
    auto* rings = static_cast<char*>(map(bytes, IORING_OFF_SQ_RING));
    entries_ = static_cast<io_uring_sqe*>(map(p.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    const auto at = [rings](unsigned offset) { return reinterpret_cast<unsigned*>(rings + offset); };
    tail_ = at(p.sq_off.tail);
    mask_ = *at(p.sq_off.ring_mask);
    array_ = at(p.sq_off.array);
    done_head_ = at(p.cq_off.head);
    done_tail_ = at(p.cq_off.tail);
    done_mask_ = *at(p.cq_off.ring_mask);
    done_ = reinterpret_cast<io_uring_cqe*>(rings + p.cq_off.cqes);
  }
  ~Ring() { close(fd_); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  void submit(int opcode, int file, void* memory, std::size_t bytes, std::uint64_t offset, unsigned flags,
              std::uint64_t user) {
    const unsigned tail = *tail_, slot = tail & mask_;
    io_uring_sqe& entry = entries_[slot];
    entry = {};
    entry.opcode = static_cast<std::uint8_t>(opcode);
    entry.fd = file;
    entry.addr = reinterpret_cast<std::uint64_t>(memory);
    entry.len = static_cast<unsigned>(bytes);
    entry.off = offset;
    entry.fsync_flags = flags;
    entry.user_data = user;
    array_[slot] = slot;
    std::atomic_ref<unsigned>(*tail_).store(tail + 1, std::memory_order_release);
    if (syscall(__NR_io_uring_enter, fd_, 1, 0, 0, nullptr, 0) != 1) give_up("io_uring_enter", errno);
  }
  io_uring_cqe wait() {
    const unsigned head = *done_head_;
    while (head == std::atomic_ref<unsigned>(*done_tail_).load(std::memory_order_acquire)) {
      if (syscall(__NR_io_uring_enter, fd_, 0, 1, IORING_ENTER_GETEVENTS, nullptr, 0) < 0 && errno != EINTR) {
        give_up("io_uring_enter", errno);
      }
    }
    const io_uring_cqe done = done_[head & done_mask_];
    std::atomic_ref<unsigned>(*done_head_).store(head + 1, std::memory_order_release);
    return done;
  }

 private:
  void* map(std::size_t bytes, std::uint64_t offset) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_,
                    static_cast<off_t>(offset));
    if (at == MAP_FAILED) give_up("mmap of a ring", errno);
    return at;
  }
  int fd_;
  io_uring_sqe* entries_;
  unsigned *tail_, mask_, *array_, *done_head_, *done_tail_, done_mask_;
  io_uring_cqe* done_;
};

// A file of `bytes`, whole MiB, every byte written once, so that writes are what they are in a file used again. It has
// no name, and is gone with the program.
class Disk {
 public:
  static constexpr std::size_t most_request = std::size_t{8} << 20;
  static constexpr unsigned most_depth = 16;
  static constexpr std::size_t bytes_a_sync = std::size_t{64} << 20;

  Disk(const std::string& directory, std::size_t bytes) : bytes_(bytes), ring_(2 * most_depth) {
    file_ = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (file_ < 0) give_up("a file for direct I/O", errno);
    if (const int error = posix_fallocate(file_, 0, static_cast<off_t>(bytes)))
      give_up("room on the disk", error);
    memory_ = static_cast<char*>(mmap(nullptr, most_request * most_depth, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
    if (memory_ == MAP_FAILED) give_up("memory", errno);
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < most_request * most_depth; i += 8) {
      const std::uint64_t word = random();
      std::memcpy(memory_ + i, &word, 8);
    }
    first_ = write(std::min(most_request, bytes), 8, bytes);
  }
  ~Disk() {
    munmap(memory_, most_request * most_depth);
    close(file_);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // Of the write that filled the preallocated file, in the largest requests.
  const Cost& first_write() const { return first_; }

  // `total` bytes one after another, going on where the last write ended, fdatasync begun every 64 MiB and at the end;
  // until all of it is done.
  Cost write(std::size_t request, unsigned depth, std::size_t total) {
    const Meter meter;
    std::size_t begun = 0, unsynced = 0;
    unsigned flying = 0, syncs = 0;
    std::vector<unsigned> free(depth);
    std::iota(free.begin(), free.end(), 0u);
    while (begun < total || flying + syncs != 0) {
      while (begun < total && flying < depth) {
        if (write_at_ + request > bytes_) write_at_ = 0;
        const unsigned slot = free.back();
        free.pop_back();
        ring_.submit(IORING_OP_WRITE, file_, memory_ + slot * most_request, request, write_at_, 0, slot);
        write_at_ += request;
        begun += request;
        unsynced += request;
        ++flying;
        if (unsynced >= bytes_a_sync && begun < total && syncs < most_depth) {
          ring_.submit(IORING_OP_FSYNC, file_, nullptr, 0, 0, IORING_FSYNC_DATASYNC, of_sync);
          unsynced = 0;
          ++syncs;
        }
      }
      const io_uring_cqe done = ring_.wait();
      if (done.user_data == of_sync) {
        if (done.res < 0) give_up("fdatasync", -done.res);
        --syncs;
        continue;
      }
      if (done.res != static_cast<int>(request)) give_up("a write", done.res < 0 ? -done.res : EIO);
      free.push_back(static_cast<unsigned>(done.user_data));
      if (--flying == 0 && begun >= total) {
        ring_.submit(IORING_OP_FSYNC, file_, nullptr, 0, 0, IORING_FSYNC_DATASYNC, of_sync);
        ++syncs;
      }
    }
    return meter.of(begun);
  }

  // `total` bytes in requests at random places, none twice before the file is used up.
  Cost read(std::size_t request, unsigned depth, std::size_t total, std::uint64_t seed) {
    std::vector<std::uint32_t> places(bytes_ / request);
    std::iota(places.begin(), places.end(), 0u);
    std::shuffle(places.begin(), places.end(), std::mt19937_64(seed));
    std::vector<unsigned> free(depth);
    std::iota(free.begin(), free.end(), 0u);
    const Meter meter;
    const std::size_t count = total / request;
    std::size_t begun = 0;
    unsigned flying = 0;
    while (begun < count || flying != 0) {
      while (begun < count && flying < depth) {
        const unsigned slot = free.back();
        free.pop_back();
        ring_.submit(IORING_OP_READ, file_, memory_ + slot * most_request, request,
                     std::uint64_t{places[begun % places.size()]} * request, 0, slot);
        ++begun;
        ++flying;
      }
      const io_uring_cqe done = ring_.wait();
      if (done.res != static_cast<int>(request)) give_up("a read", done.res < 0 ? -done.res : EIO);
      free.push_back(static_cast<unsigned>(done.user_data));
      --flying;
    }
    return meter.of(count * request);
  }

 private:
  static constexpr std::uint64_t of_sync = ~std::uint64_t{0};
  std::size_t bytes_;
  Ring ring_;
  int file_ = -1;
  char* memory_ = nullptr;
  std::size_t write_at_ = 0;
  Cost first_;
};

}  // namespace raw_disk
