// SPDX-License-Identifier: Apache-2.0
// Question: what does the longest length at which every group can resume cost, once planes are there?
//
//   planes [--json] [--smoke]
//
// hkv::longest over N blocks and 6 groups with the rules of limits/prefix.cpp: Prefix, a window of 8 blocks, a
// state at the block, and the same three again; the last 5 blocks are gone, windows and states have holes (half
// of them in the first half, 1 in 64 in the second). Beside it, in the same rounds, the usual fix-point that looks
// at one block after the other. Both must give the same length. Then a sequence of 1M tokens at unit 256 (4,096
// blocks).
#include "limits/bench.hpp"

#include "reuse/planes.h"
#include "rounds.hpp"

namespace {

constexpr std::int64_t unit_tokens = 16, window_blocks = 8;
constexpr int groups = 6;

hkv::Layout layout_of_six() {
  std::vector<hkv::Group> made;
  for (int g = 0; g < groups; ++g) {
    hkv::Group group;
    group.name = std::to_string(g);
    group.coverage = g % 3 == 0   ? hkv::Coverage{hkv::Rule::Prefix, 0}
                     : g % 3 == 1 ? hkv::Coverage{hkv::Rule::Window, window_blocks * unit_tokens + 1}
                                  : hkv::Coverage{hkv::Rule::Checkpoint, 0};
    made.push_back(group);
  }
  return hkv::make_layout(unit_tokens, std::move(made));
}

// State of a block in a group: 5 bits, of which the first alone must be set.
bool there(std::uint64_t states, int g) { return (states >> (5 * g) & 31) == 1; }

std::int64_t fix_point(const std::vector<std::uint64_t>& states) {
  auto length = static_cast<std::int64_t>(states.size());
  for (bool changed = true; changed && length > 0;) {
    changed = false;
    for (int g = 0; g < groups; ++g) {
      std::int64_t usable = 0;
      if (g % 3 == 0) {
        while (usable < length && there(states[usable], g)) ++usable;
      } else if (g % 3 == 2) {
        for (usable = length; usable > 0 && !there(states[usable - 1], g);) --usable;
      } else {
        std::int64_t run = 0;
        for (std::int64_t i = length; i > 0; --i) {
          if (!there(states[i - 1], g)) {
            run = 0;
          } else if (++run == window_blocks) {
            usable = i - 1 + window_blocks;
            break;
          } else if (i == 1) {
            usable = run;
          }
        }
      }
      if (usable < length) {
        length = usable;
        changed = true;
      }
    }
  }
  return length;
}

void run(Report& report, std::int64_t blocks, bool smoke) {
  const hkv::Layout layout = layout_of_six();
  Rng random(static_cast<std::uint64_t>(blocks + groups));
  std::vector<std::uint64_t> states(static_cast<std::size_t>(blocks));
  for (auto& s : states) {
    for (int g = 0; g < groups; ++g) s |= std::uint64_t{1} << (5 * g);
  }
  for (std::int64_t i = blocks - 5; i < blocks; ++i) states[i] = 0;
  for (std::int64_t i = 0; i < blocks; ++i) {
    for (int g = 0; g < groups; ++g) {
      if (g % 3 != 0 && (i < blocks / 2 ? random() % 2 : random() % 64 == 0))
        states[i] ^= std::uint64_t{2} << (5 * g);
    }
  }
  hkv::Plane planes[groups];
  for (int g = 0; g < groups; ++g) {
    planes[g].reset(blocks);
    for (std::int64_t i = 0; i < blocks; ++i) {
      if (there(states[i], g)) planes[g].set(i);
    }
  }
  const auto ask = [&] {
    return hkv::longest(
        layout, blocks * unit_tokens, [&](int g) { return planes[g].first_zero(); },
        [&](int g) -> const hkv::Plane& { return planes[g]; }, [](int, std::int64_t, std::int64_t) {});
  };
  const std::int64_t by_planes = ask() / unit_tokens, by_blocks = fix_point(states);
  const int times = smoke ? 10 : 20000;
  Rounds all;
  for (int round = 0; round < (smoke ? 2 : 25); ++round) {
    all.add("planes", par(1, [&](int) {
                        for (int i = 0; i < times; ++i) keep(ask());
                      }) / times);
    const int few = smoke ? 1 : 20;
    all.add("blocks", par(1, [&](int) {
                        for (int i = 0; i < few; ++i) keep(fix_point(states));
                      }) / few);
  }
  const std::string name = std::to_string(blocks);
  report.line(
      "%7lld blocks x 6: planes %.0f / %.0f ns (min / median), per-block fix-point %.0f / %.0f ns: %.0f "
      "times; "
      "lengths %lld and %lld%s\n",
      static_cast<long long>(blocks), all.min("planes"), all.median("planes"), all.min("blocks"),
      all.median("blocks"), all.ratio("blocks", "planes"), static_cast<long long>(by_planes),
      static_cast<long long>(by_blocks), by_planes == by_blocks ? "" : "  THEY DIFFER");
  report.figure("planes_" + name + "_ns", all.median("planes"));
  report.figure("planes_" + name + "_times_fix_point", all.ratio("blocks", "planes"));
  report.figure("planes_" + name + "_differ", by_planes != by_blocks);
}

}  // namespace

int main(int argc, char** argv) {
  bool json = false, smoke = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) json = true;
    if (std::strcmp(argv[i], "--smoke") == 0) smoke = true;
  }
  Report report(json);
  for (const std::int64_t blocks : {4096, 65536}) run(report, smoke ? blocks / 64 : blocks, smoke);
}
