// SPDX-License-Identifier: Apache-2.0
// Which new records a disk tier writes: all, those asked for a second time, or as many bytes a second as it may.
//
// Thread safety: one thread. Time is the caller's, so that no clock is read here.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "tier/disk_tier.h"

namespace hkv {

class WriteAdmitter {
 public:
  explicit WriteAdmitter(const DiskOptions& options) : options_(options), left_(burst()) {
    if (options.admission == WriteAdmission::SecondTouch) refused_.resize(remembered);
  }

  bool admit(const RecordKey& key, std::uint64_t bytes, Deadline now) {
    switch (options_.admission) {
      case WriteAdmission::Always: return true;
      case WriteAdmission::SecondTouch: return second(key);
      case WriteAdmission::Budget: return within_budget(bytes, now);
    }
    return true;
  }

 private:
  static constexpr std::size_t remembered = std::size_t{1}
                                            << 16;  // refused keys; a newer one takes its place

  std::uint64_t burst() const {
    return std::max(options_.budget_burst_bytes, options_.budget_bytes_per_second);
  }
  bool second(const RecordKey& key) {
    // Digests are hashes; what small ones share is a place, and then the later one is remembered.
    const std::uint64_t print = (key.digest.lo ^ key.digest.hi * 0x9E3779B97F4A7C15u ^ key.format.lo) +
                                static_cast<std::uint64_t>(key.kind);
    std::uint64_t& place = refused_[(print ^ print >> 29) % remembered];
    if (place == print) return place = 0, true;
    place = print;
    return false;
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
  std::vector<std::uint64_t> refused_;
  std::uint64_t left_;
  Deadline last_{};
};

}  // namespace hkv
