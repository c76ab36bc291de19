// SPDX-License-Identifier: Apache-2.0
// The choice of an engine.
#include "tier/io.h"

#include "base/check.h"
#include "tier/thread_io.h"
#include "tier/uring_io.h"

namespace hkv {

bool Io::add_arena(void*, std::size_t) { return false; }

void Io::drop_arena(void*) {}

std::size_t Io::fixed_run(std::span<const iovec>) const { return 0; }

std::unique_ptr<Io> open_directory(const std::string& path, IoEngine engine, bool direct, std::size_t depth) {
  if (depth == 0) throw Error{ErrorCode::TierError, "depth", "at least 1", "0"};
  if (engine != IoEngine::Threads) {
    try {
      return std::make_unique<UringIo>(path, direct, depth);
    } catch (const Error& error) {
      if (engine == IoEngine::Uring || error.field != "engine") throw;
    }
  }
  return std::make_unique<ThreadIo>(path, direct, depth);
}

}  // namespace hkv
