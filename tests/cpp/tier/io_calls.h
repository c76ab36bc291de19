// SPDX-License-Identifier: Apache-2.0
// One request of an Io from begin to end, and the engines that this machine has.
//
// Thread safety: as Io.
#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "testing.h"
#include "tier/scratch_directory.h"
#include "tier/thread_io.h"
#include "tier/uring_io.h"

namespace hkv {

inline std::int64_t done(Io& io, IoRequest& request) {
  for (const iovec& piece : request.pieces) request.bytes += piece.iov_len;
  io.submit(&request);
  IoRequest* out[1] = {};
  EXPECT_EQ(io.wait(out, std::chrono::seconds(10)), 1u);
  EXPECT_EQ(out[0], &request);
  return request.result;
}
inline std::int64_t moved(Io& io, IoRequest::Op op, FileId file, std::uint64_t offset,
                          std::vector<iovec> pieces) {
  IoRequest request;
  request.op = op;
  request.file = file;
  request.offset = offset;
  request.pieces = pieces;
  return done(io, request);
}
inline std::int64_t allocated(Io& io, FileId file, std::uint64_t offset, std::uint64_t bytes) {
  IoRequest request;
  request.op = IoRequest::Op::Allocate;
  request.file = file;
  request.offset = offset;
  request.bytes = bytes;
  return done(io, request);
}
inline std::int64_t synced(Io& io, FileId file) {
  IoRequest request;
  request.op = IoRequest::Op::Sync;
  request.file = file;
  return done(io, request);
}
inline FileId created(Io& io, const char* name) {
  FileId file = no_file;
  EXPECT_EQ(io.open(name, Io::Mode::Create, file), 0);
  return file;
}

// Whether io_uring is here, said once where it is not. TSan cannot see what the kernel does with shared rings.
inline bool uring_there() {
#if defined(__SANITIZE_THREAD__)
  return false;
#else
  static const bool there = [] {
    const ScratchDirectory scratch;
    try {
      const UringIo io(scratch.path(), false, 4);
    } catch (const Error& error) {
      std::printf("skipped for io_uring: %s\n", error.what());
      return false;
    }
    return true;
  }();
  return there;
#endif
}

// Calls body(name, open) for each engine; open(path, direct) makes an Io of it, of depth 8.
template <class F>
void for_each_engine(F body) {
  body("threads", [](const std::string& path, bool direct) -> std::unique_ptr<Io> {
    return std::make_unique<ThreadIo>(path, direct, 8);
  });
  if (!uring_there()) return;
  body("io_uring", [](const std::string& path, bool direct) -> std::unique_ptr<Io> {
    return std::make_unique<UringIo>(path, direct, 8);
  });
  body("io_uring_polled", [](const std::string& path, bool direct) -> std::unique_ptr<Io> {
    return std::make_unique<UringIo>(path, direct, 8, UringIo::Waiting::Poll);
  });
}

}  // namespace hkv
