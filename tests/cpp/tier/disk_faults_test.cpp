// SPDX-License-Identifier: Apache-2.0
// The disk store when the power goes at any call, and when any call goes wrong.
#include <cstdlib>

#include "testing.h"
#include "tier/disk_history.h"

namespace hkv {
namespace {

// HKV_STEPS: more histories.
int histories(int usual) {
  const char* steps = std::getenv("HKV_STEPS");
  return steps != nullptr ? std::max(usual, std::atoi(steps)) : usual;
}

std::string named(std::uint64_t seed, std::size_t cut, bool after, std::size_t way, const std::string& what) {
  return "history " + std::to_string(seed) + ", power cut " + (after ? "after" : "at") + " call " + std::to_string(cut) +
         ", way " + std::to_string(way) + ": " + what;
}

HKV_TEST("the power goes at any call: what was told to be durable is there, what was removed is not") {
  std::size_t states = 0, recovered_records = 0;
  int shown = 0;
  for (std::uint64_t seed = 1; seed <= static_cast<std::uint64_t>(histories(2)); ++seed) {
    const auto steps = random_history(seed, 60);
    HistoryRun whole{SimulatedDisk(), seed};
    EXPECT(whole.run(steps));
    for (std::size_t cut = 0; cut < whole.calls() && shown < 5; ++cut) {
      for (const bool after : {false, true}) {
        HistoryRun run{SimulatedDisk(), seed};
        if (run.run(steps, cut, after)) continue;
        for (const std::string& what : run.wrong()) testing::fail(__FILE__, __LINE__, named(seed, cut, after, 0, what));
        const SimulatedDisk disk = run.disk();
        std::size_t way = 0;
        for (const Survives& survives : ways_to_survive(disk.uncertain(), 6, seed * 1000 + cut)) {
          const std::string what = check_reopened(run, disk.restart(survives), 5, true);
          ++states;
          ++way;
          if (what.empty() || shown++ >= 5) continue;
          testing::fail(__FILE__, __LINE__, named(seed, cut, after, way, what));
        }
      }
    }
    recovered_records += whole.world()->index.records();
  }
  std::printf("     %zu crashed disks opened, %zu records in the whole histories' ends\n", states, recovered_records);
  EXPECT(recovered_records > 0);
}

}  // namespace
}  // namespace hkv
