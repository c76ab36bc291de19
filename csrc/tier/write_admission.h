// SPDX-License-Identifier: Apache-2.0
// Which new records a disk tier writes: all, those asked for a second time, or as many bytes a second as it may.
//
// Thread safety: one thread. Time is the caller's, so that no clock is read here.
#pragma once
#include <algorithm>
#include <cstdint>

#include "tier/disk_tier.h"
#include "tier/touched_keys.h"

namespace hkv {

class WriteAdmitter {
 public:
  explicit WriteAdmitter(const DiskOptions& options) : options_(options), left_(burst()) {}

  // Whether the key was asked for before; if not, it is from now on. Always true of what admits without that.
  bool touched(const RecordKey& key) {
    return options_.admission != WriteAdmission::SecondTouch || touched_.touch(key);
  }
  // Whether the bytes may be written now; if so, they are taken from the budget.
  bool affordable(std::uint64_t bytes, Deadline now) {
    return options_.admission != WriteAdmission::Budget || within_budget(bytes, now);
  }

 private:
  std::uint64_t burst() const {
    return std::max(options_.budget_burst_bytes, options_.budget_bytes_per_second);
  }
  bool within_budget(std::uint64_t bytes, Deadline now) {
    if (last_ == Deadline{}) last_ = now;
    if (now > last_) {
      const double seconds = std::chrono::duration<double>(now - last_).count();
      const double more = seconds * static_cast<double>(options_.budget_bytes_per_second);
      left_ = static_cast<std::uint64_t>(
          std::min(static_cast<double>(burst()), static_cast<double>(left_) + more));
      last_ = now;
    }
    if (left_ < bytes) return false;
    left_ -= bytes;
    return true;
  }

  const DiskOptions& options_;
  TouchedKeys touched_;
  std::uint64_t left_;
  Deadline last_{};
};

}  // namespace hkv
