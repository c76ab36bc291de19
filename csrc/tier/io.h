// SPDX-License-Identifier: Apache-2.0
// The seam to a file system: a handful of blocking calls on names, and reads, writes and syncs that complete later.
// Everything that a disk tier does to a disk goes through it, so that a test can be the disk.
//
// Thread safety: one thread uses an Io at a time, except `wake` and what is said of arenas, which any thread may call.
#pragma once
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace hkv {

enum class FileId : std::int32_t {};
inline constexpr FileId no_file{-1};

// One read, write, sync or preallocation. Owned by the caller, who leaves it and its memory alone until it is done,
// however long that takes.
struct IoRequest {
  enum class Op : std::uint8_t { Read, Write, Sync, Allocate };
  Op op = Op::Read;
  FileId file = no_file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;        // sum of the pieces; of Allocate: how much of the file must exist
  std::span<const iovec> pieces;  // of Read and Write
  void* owner = nullptr;          // the caller's own
  // Once done: bytes moved (may be fewer than asked), or -errno. 0 for Sync and Allocate that went well.
  std::int64_t result = 0;
  bool fixed = false;  // once done: whether its memory was known before, by `add_arena`
};

// How memory, offsets and lengths of direct I/O on a file must be aligned. 1, 1 where it goes through the page cache.
struct IoAlignment {
  std::uint32_t memory = 1;
  std::uint32_t offset = 1;
};

class Io {
 public:
  // Waits until everything submitted is done, however long that takes: its memory may be written until then.
  virtual ~Io() = default;

  // ---- names, blocking; each returns 0 or -errno ----------------------------------------------
  // Names are single components, relative to the directory that the Io was made for; others are -EINVAL. Links are not
  // followed (-ELOOP), and what is no regular file is not opened (-EINVAL).
  enum class Mode : std::uint8_t {
    Read,
    Write,
    Create
  };  // Create: new, for this user alone; -EEXIST if it is there
  virtual int open(const std::string& name, Mode mode, FileId& out) = 0;
  virtual int close(FileId file) = 0;
  virtual int remove(const std::string& name) = 0;
  virtual int rename(const std::string& from, const std::string& to) = 0;
  virtual int list(std::vector<std::string>& out) = 0;  // unordered
  virtual int size(FileId file, std::uint64_t& out) = 0;
  virtual int sync_directory() = 0;
  // Takes the directory for this Io until it is destroyed or its process ends. -EWOULDBLOCK: another has it.
  virtual int lock() = 0;
  // The process that took the lock of the directory, where the system tells; 0: not known.
  virtual int locked_by() { return 0; }
  virtual std::uint64_t free_bytes() = 0;  // of the file system, for this user; all ones where nobody knows
  virtual IoAlignment alignment(FileId file) = 0;

  // ---- data -----------------------------------------------------------------------------------
  // Effect: hands the request over; it is done when `wait` gives it back. Never waits for the device.
  // Requires: at most `depth()` requests at a time; alignment as told; at most 1024 pieces; a thread that lives until
  // the request is done. The file system may refuse to preallocate at all: then Allocate sets the length alone.
  virtual void submit(IoRequest* request) = 0;
  virtual std::size_t depth() const = 0;
  // Requests that are done, at most out.size(); waits until there is one, `wake` was called, or the time is over.
  // A wake during no wait ends the next one at once.
  virtual std::size_t wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) = 0;
  virtual void wake() = 0;

  // ---- memory that stays ----------------------------------------------------------------------
  // Effect: requests whose pieces lie in this memory go without the kernel finding its pages each time, where the engine
  // can; its pages are resident meanwhile. May take a while (all pages are found once), holds up no request.
  // Requires: it stays mapped, where it is, until `drop_arena`; overlaps no other. Returns: whether that is so now.
  virtual bool add_arena(void* data, std::size_t bytes);
  virtual void drop_arena(void* data);  // where it begins; of one that was not taken: nothing
  // How many of these pieces, from the first on, would go as one `fixed` request.
  virtual std::size_t fixed_run(std::span<const iovec> pieces) const;

  virtual const char* name() const = 0;  // "io_uring", "threads"
};

enum class IoEngine : std::uint8_t { Auto, Uring, Threads };

// The directory on the local file system, made for this user alone where it is not there. Auto: io_uring where the
// kernel gives it, else a pool of threads. `direct`: around the page cache where the file system can.
// Only the last component of `path` is made; one that is there must be this user's and not writable by others.
// Throws TierError(field "path", "engine" or "depth") where the directory or the engine is not to be had.
std::unique_ptr<Io> open_directory(const std::string& path, IoEngine engine, bool direct, std::size_t depth);

}  // namespace hkv
