// SPDX-License-Identifier: Apache-2.0
// The word as a value: every accessor against a naive loop over random words.
// One thread: left out under ThreadSanitizer.
#include "block/word.h"

#include <random>

#include "testing.h"

namespace hkv {
namespace {

bool usable_number(std::uint64_t phase) { return phase == 4 || phase == 5 || phase == 6; }
bool known_number(std::uint64_t phase) { return usable_number(phase) || phase == 1 || phase == 3; }

}  // namespace

HKV_TEST("spread puts bit s of a mask at bit 3 s") {
  for (unsigned mask = 0; mask < 256; ++mask) {
    std::uint32_t want = 0;
    for (int slot = 0; slot < 8; ++slot) {
      if (mask & 1u << slot) want += 1u << (3 * slot);
    }
    EXPECT_EQ(word_detail::spread[mask], want);
  }
}

HKV_TEST("accessors of a million random words equal naive ones") {
  std::mt19937_64 random(7);
  int failures = 0;
  for (int i = 0; i < 1000000; ++i) {
    const std::uint64_t bits = random();
    const Word word(bits);
    std::uint32_t usable_bits = 0, known_bits = 0;
    SlotMask usable_mask = 0, in[8] = {};
    for (int slot = 0; slot < 8; ++slot) {
      const std::uint64_t phase = (bits >> (3 * slot)) % 8;
      if (usable_number(phase))
        usable_bits |= 1u << (3 * slot), usable_mask |= static_cast<SlotMask>(1u << slot);
      if (known_number(phase)) known_bits |= 1u << (3 * slot);
      in[phase] = static_cast<SlotMask>(in[phase] | 1u << slot);
      failures += word.usable_slot(slot) != usable_number(phase);
      failures += word.known_slot(slot) != known_number(phase);
      failures += static_cast<std::uint64_t>(word.phase(slot)) != phase;
    }
    failures += word.usable_spread() != usable_bits;
    failures += word.known_spread() != known_bits;
    const auto required = static_cast<SlotMask>(random());
    failures += word.usable(required) != ((usable_mask & required) == required);
    for (int phase = 0; phase < 8; ++phase) {
      failures += word.slots_in(static_cast<Phase>(phase)) != in[phase];
      failures += word.any(static_cast<Phase>(phase)) != (in[phase] != 0);
    }
    const std::uint64_t pins = bits / (1ull << 24) % 65536, generation = bits / (1ull << 40);
    failures += word.pins() != pins || word.generation() != generation;
    failures += word.closed() != (pins == 65535) || word.tentative() != (pins == 65534) ||
                word.live() != (pins < 65534);
    failures += word.empty() != (bits % (1ull << 40) == 0) || word.no_phase() != (bits % (1ull << 24) == 0);
    const Word closed = word.closed_next();
    failures +=
        !closed.closed() || closed.generation() != (generation + 1) % (1u << 24) || !closed.no_phase();
    failures += word.next_generation().bits() != ((generation + 1) % (1u << 24) << 40) + bits % (1ull << 40);
  }
  EXPECT_EQ(failures, 0);
}

HKV_TEST("pins count up to their limit beside the phases and the generation") {
  Word word(Word::bare(9, 0).bits() | 0xFFFFFF);
  for (std::uint32_t i = 0; i < Word::pins_max; ++i) word = Word(word.bits() + Word::pin_one);
  EXPECT_EQ(word.pins(), Word::pins_max);
  EXPECT(word.live());
  EXPECT_EQ(word.generation(), 9u);
  EXPECT_EQ(word.bits() & Word::phase_mask, 0xFFFFFFull);
}

}  // namespace hkv
