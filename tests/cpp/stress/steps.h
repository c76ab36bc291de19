// SPDX-License-Identifier: Apache-2.0
// How long a stress run is, from which seed, and how fast it went.
//
// Thread safety: none needed.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <random>

namespace hkv::stress {

// Sanitizers make each step so much slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::uint64_t slower = 20;
#else
inline constexpr std::uint64_t slower = 1;
#endif

inline bool soak() { return std::getenv("HYBRIDKV_SOAK") != nullptr; }

// HKV_STEPS, or so many in a test run, or so many in a soak.
inline std::uint64_t steps_wanted(std::uint64_t short_run, std::uint64_t in_a_soak) {
  if (const char* given = std::getenv("HKV_STEPS")) return std::strtoull(given, nullptr, 10);
  return soak() ? in_a_soak : short_run / slower;
}

// HKV_SEED, or a fresh one; runs print it.
inline std::uint64_t seed_of_run() {
  const char* given = std::getenv("HKV_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double rate(std::uint64_t steps) const { return static_cast<double>(steps) / seconds(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline unsigned long long shown(std::uint64_t n) { return n; }

}  // namespace hkv::stress
