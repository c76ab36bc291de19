// SPDX-License-Identifier: Apache-2.0
// Question: what does the key chain cost per unit, beside the forms that were not taken?
//
// Prints min / median ns per unit of 16, 64 and 256 tokens, from memory in L2, for each path. "stream" is
// SHA-256 over the tokens alone in one running state (no padding, no parent); "one message" is
// SHA-256(parent || tokens) per unit. Method: clean short trials (limits/bench.hpp).
#include "limits/bench.hpp"

#include "base/sha256.h"
#include "base/sha256_chain.h"

int main(int argc, char** argv) {
  const bool smoke = argc > 1 && std::strcmp(argv[1], "--smoke") == 0;
  const std::size_t tokens = std::size_t{1} << (smoke ? 12 : 17);
  const int trials = smoke ? 3 : 15;
  std::vector<std::uint32_t> ids(tokens);
  Rng random(3);
  for (auto& id : ids) id = random() % 129280;
  const char trailer[32] = "the trailer of a unit, 32 bytes";
  for (const auto path : {hkv::Sha256Path::ShaNi, hkv::Sha256Path::Portable}) {
    if (!hkv::sha256_supported(path)) {
      std::printf("%s: not on this machine\n", hkv::sha256_name(path));
      continue;
    }
    hkv::sha256_choose(path);
    for (const std::size_t unit : {16, 64, 256}) {
      const std::size_t units = tokens / unit, bytes = unit * sizeof(std::uint32_t);
      std::vector<hkv::Key128> heads(units), tails(units);
      const hkv::Sha256Record record(bytes, trailer, sizeof trailer);
      auto report = [&](const char* what, auto run) {
        const Stat s = repeat(trials, [&] { return par(1, [&](int) { run(); }); });
        std::printf("%-9s unit %3zu  %-12s %8.1f / %8.1f ns per unit  (%d of %d trials clean)\n",
                    hkv::sha256_name(path), unit, what, s.mn / units, s.md / units, s.clean, s.all);
        std::fflush(stdout);
      };
      report("chain", [&] {
        hkv::Sha256Words chain = hkv::sha256_start;
        hkv::sha256_chain(record, ids.data(), units, chain, heads.data(), tails.data());
        keep(chain[0]);
      });
      report("stream", [&] {
        hkv::Sha256Words state = hkv::sha256_start;
        hkv::sha256_blocks(state, ids.data(), tokens * sizeof(std::uint32_t) / hkv::sha256_block_bytes);
        keep(state[0]);
      });
      report("one message", [&] {
        hkv::Sha256Digest parent{};
        for (std::size_t i = 0; i < units; ++i) {
          parent = hkv::sha256_bytes(
              hkv::Sha256().update(parent.data(), 32).update(ids.data() + i * unit, bytes).finish());
        }
        keep(parent[0]);
      });
    }
  }
}
