// SPDX-License-Identifier: Apache-2.0
// The bytes of one file from the first to the last, read ahead, so that whoever looks at them keeps the device busy.
//
// Thread safety: one thread, which waits for the device.
//
// Invariants, and why each holds:
//  1. Each byte is given once, in order, or said to be unreadable: a place moves on by what was given alone.
//  2. Memory that was given is left alone until the next call: only then is its chunk read into again.
//  3. What is unreadable is told by the unit: where a chunk cannot be read, its units are, one by one.
//  4. Nothing is under way when it is gone: the destructor waits.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tier/region_scan.h"

namespace hkv {

class RegionStream {
 public:
  // Requires: io outlives it and is used by nobody else meanwhile; `bytes` is the length of the file.
  RegionStream(Io& io, FileId file, std::uint64_t bytes);
  ~RegionStream();
  RegionStream(const RegionStream&) = delete;
  RegionStream& operator=(const RegionStream&) = delete;

  std::uint64_t at() const { return at_; }
  std::uint64_t end() const { return bytes_; }

  struct Piece {
    std::uint64_t offset = 0, count = 0;  // count 0: the file ends here
    const std::byte* data = nullptr;      // null: the device could not read these, `error` says why
    int error = 0;
  };
  // Effect: goes on by what it gives, at most `most` bytes.
  Piece next(std::uint64_t most);

 private:
  struct Chunk {
    std::unique_ptr<RecoveryRead> read;
    std::uint64_t wanted = 0;
    int tried = 0;
    bool done = true;
    bool whole() const { return read->request.result >= static_cast<std::int64_t>(wanted); }
  };
  void ask(Chunk& chunk, std::uint64_t from, std::uint64_t bytes);
  void submit(Chunk& chunk);
  void take();

  Io& io_;
  const FileId file_;
  const std::uint64_t bytes_;
  std::uint64_t at_ = 0;
  std::uint64_t given_up_to_ = 0;  // chunks below have been read into again
  std::vector<Chunk> chunks_;
  Chunk unit_;  // of a chunk that cannot be read
};

}  // namespace hkv
