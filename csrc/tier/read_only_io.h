// SPDX-License-Identifier: Apache-2.0
// An Io that reads and changes nothing: so that recovery can say what it would find without doing anything about it.
//
// Thread safety: as Io. Invariant: no call that changes a name, a length or a byte reaches the Io below. Files are opened
// for reading, whatever is asked; what would change a name is -EROFS; a request that is no read aborts.
#pragma once
#include <cerrno>
#include <string>
#include <vector>

#include "base/check.h"
#include "tier/io.h"

namespace hkv {

class ReadOnlyIo final : public Io {
 public:
  // Requires: io outlives it.
  explicit ReadOnlyIo(Io& io) : io_(io) {}

  int open(const std::string& name, Mode mode, FileId& out) override {
    if (mode == Mode::Create) return -EROFS;
    return io_.open(name, Mode::Read, out);
  }
  int close(FileId file) override { return io_.close(file); }
  int remove(const std::string&) override { return -EROFS; }
  int rename(const std::string&, const std::string&) override { return -EROFS; }
  int list(std::vector<std::string>& out) override { return io_.list(out); }
  int size(FileId file, std::uint64_t& out) override { return io_.size(file, out); }
  int sync_directory() override { return -EROFS; }
  int lock() override { return io_.lock(); }
  int locked_by() override { return io_.locked_by(); }
  std::uint64_t free_bytes() override { return io_.free_bytes(); }
  IoAlignment alignment(FileId file) override { return io_.alignment(file); }

  void submit(IoRequest* request) override {
    HKV_CHECK(request->op == IoRequest::Op::Read);
    io_.submit(request);
  }
  std::size_t depth() const override { return io_.depth(); }
  std::size_t wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) override {
    return io_.wait(out, at_most);
  }
  void wake() override { io_.wake(); }
  const char* name() const override { return io_.name(); }

 private:
  Io& io_;
};

}  // namespace hkv
