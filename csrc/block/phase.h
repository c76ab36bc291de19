// SPDX-License-Identifier: Apache-2.0
// The phases of one (block, group) and the transition table, as data.
//
// Thread safety: pure values and constants.
#pragma once
#include <array>
#include <cstdint>

namespace hkv {

// What is true in each phase, and who may leave it.
enum class Phase : std::uint8_t {
  Absent = 0,      // no page, no record. Left by a claim (reserve) or when a tier answers.
  TierOnly = 1,    // no page; a tier holds a record. Left by a restore, or when the record goes.
  Filling = 2,     // one owner holds a page nobody else sees. Left by that owner alone.
  Restoring = 3,   // one owner copies a record into a page nobody else sees. Left by that owner alone.
  Ready = 4,       // the page is complete and immutable; may be pinned. Left by evict, retire, offload.
  ReadyCopy = 5,   // ready, and a tier holds the same bytes. Left by evict, retire, or the record's loss.
  Offloading = 6,  // ready; a tier is copying it under a pin of its own; may still be pinned.
  Retiring = 7,    // no new pins; the page goes when the pins reach 0. Left by whoever sees 0 pins.
};
inline constexpr int phase_count = 8;

enum class Event : std::uint8_t {
  Claim,          // reserve takes the block
  Publish,        // the bytes are written
  Abort,          // the owner gives the block up
  TierAnswers,    // a tier says that it holds a record
  RestoreBegins,  // a page is taken to restore into
  Restored,       // the bytes are back and verified
  RestoreFailed,  // cancelled, or the read failed: the record is still there
  RecordCorrupt,  // the record is not what it should be: it is gone
  RecordGone,     // the tier reclaimed its record
  OffloadBegins,  // a tier starts to copy the page
  Offloaded,      // the copy is there
  OffloadFailed,  // it is not
  Evict,          // the page goes now, in one step; only while unpinned
  Retire,         // the page goes once it is unpinned
  Finish,         // the pins reached 0: a retiring page goes
};
inline constexpr int event_count = 15;

enum class PinRule : std::uint8_t { Any, ZeroOnly };

// One legal transition. `gives_up` moves the generation: whoever saw the old one can no longer pin.
struct Transition {
  Phase from;
  Event event;
  Phase to;
  PinRule pins;
  bool gives_up;
};

// A test compiles the table as a variable, to change each row and see that the change is noticed.
#ifndef HKV_TRANSITIONS_ARE
#define HKV_TRANSITIONS_ARE constexpr
#endif
inline HKV_TRANSITIONS_ARE std::array transitions = {
    Transition{Phase::Absent, Event::Claim, Phase::Filling, PinRule::Any, false},
    Transition{Phase::Filling, Event::Publish, Phase::Ready, PinRule::Any, false},
    Transition{Phase::Filling, Event::Abort, Phase::Absent, PinRule::Any, true},
    Transition{Phase::Absent, Event::TierAnswers, Phase::TierOnly, PinRule::Any, false},
    Transition{Phase::TierOnly, Event::RestoreBegins, Phase::Restoring, PinRule::Any, false},
    Transition{Phase::TierOnly, Event::RecordGone, Phase::Absent, PinRule::Any, true},
    Transition{Phase::Restoring, Event::Restored, Phase::ReadyCopy, PinRule::Any, false},
    Transition{Phase::Restoring, Event::RestoreFailed, Phase::TierOnly, PinRule::Any, true},
    Transition{Phase::Restoring, Event::RecordCorrupt, Phase::Absent, PinRule::Any, true},
    Transition{Phase::Ready, Event::OffloadBegins, Phase::Offloading, PinRule::Any, false},
    Transition{Phase::Ready, Event::Evict, Phase::Absent, PinRule::ZeroOnly, true},
    Transition{Phase::Ready, Event::Retire, Phase::Retiring, PinRule::Any, false},
    Transition{Phase::Offloading, Event::Offloaded, Phase::ReadyCopy, PinRule::Any, false},
    Transition{Phase::Offloading, Event::OffloadFailed, Phase::Ready, PinRule::Any, false},
    Transition{Phase::Offloading, Event::Retire, Phase::Retiring, PinRule::Any, false},
    Transition{Phase::ReadyCopy, Event::Evict, Phase::TierOnly, PinRule::ZeroOnly, true},
    Transition{Phase::ReadyCopy, Event::RecordGone, Phase::Ready, PinRule::Any, false},
    Transition{Phase::ReadyCopy, Event::Retire, Phase::Retiring, PinRule::Any, false},
    Transition{Phase::Retiring, Event::Finish, Phase::Absent, PinRule::ZeroOnly, true},
};

namespace phase_detail {
constexpr auto make_rows() {
  std::array<std::array<std::int8_t, event_count>, phase_count> rows{};
  for (auto& of_phase : rows) of_phase.fill(-1);
  for (std::size_t i = transitions.size(); i-- > 0;)
    rows[static_cast<std::size_t>(transitions[i].from)][static_cast<std::size_t>(transitions[i].event)] =
        static_cast<std::int8_t>(i);
  return rows;
}
inline HKV_TRANSITIONS_ARE auto rows = make_rows();  // by phase and event: where the row stands; -1: nowhere
}  // namespace phase_detail

// The row for (from, event), or nullptr where the transition is illegal.
constexpr const Transition* find_transition(Phase from, Event event) {
  const int row = phase_detail::rows[static_cast<int>(from)][static_cast<int>(event)];
  return row < 0 ? nullptr : &transitions[static_cast<std::size_t>(row)];
}

// A page in such a phase may be pinned and read.
constexpr bool usable(Phase phase) {
  return phase == Phase::Ready || phase == Phase::ReadyCopy || phase == Phase::Offloading;
}

// One owner holds a page that nobody else sees, and will publish it or give it back.
constexpr bool in_making(Phase phase) { return phase == Phase::Filling || phase == Phase::Restoring; }

// What a homogeneous manager would call cached: the bytes exist somewhere or are coming back.
constexpr bool known(Phase phase) {
  return usable(phase) || phase == Phase::TierOnly || phase == Phase::Restoring;
}

// The phase in which (block, group) owns a page of the pool.
constexpr bool holds_page(Phase phase) { return phase != Phase::Absent && phase != Phase::TierOnly; }

}  // namespace hkv
