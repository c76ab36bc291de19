// SPDX-License-Identifier: Apache-2.0
// An Io that hands on to another which a test keeps, so that it can look at the disk when the tier is gone.
//
// Thread safety: as Io.
#pragma once
#include "tier/io.h"

namespace hkv {

class LentIo final : public Io {
 public:
  explicit LentIo(Io& io) : io_(io) {}
  int open(const std::string& name, Mode mode, FileId& out) override { return io_.open(name, mode, out); }
  int close(FileId file) override { return io_.close(file); }
  int remove(const std::string& name) override { return io_.remove(name); }
  int rename(const std::string& from, const std::string& to) override { return io_.rename(from, to); }
  int list(std::vector<std::string>& out) override { return io_.list(out); }
  int size(FileId file, std::uint64_t& out) override { return io_.size(file, out); }
  int sync_directory() override { return io_.sync_directory(); }
  int lock() override { return io_.lock(); }
  int locked_by() override { return io_.locked_by(); }
  std::uint64_t free_bytes() override { return io_.free_bytes(); }
  IoAlignment alignment(FileId file) override { return io_.alignment(file); }
  void submit(IoRequest* request) override { io_.submit(request); }
  std::size_t depth() const override { return io_.depth(); }
  std::size_t wait(std::span<IoRequest*> out, std::chrono::nanoseconds at_most) override {
    return io_.wait(out, at_most);
  }
  void wake() override { io_.wake(); }
  bool add_arena(void* data, std::size_t bytes) override { return io_.add_arena(data, bytes); }
  void drop_arena(void* data) override { io_.drop_arena(data); }
  std::size_t fixed_run(std::span<const iovec> pieces) const override { return io_.fixed_run(pieces); }
  const char* name() const override { return io_.name(); }

 private:
  Io& io_;
};

}  // namespace hkv
