// SPDX-License-Identifier: Apache-2.0
// The index of a disk tier: one writer, and a reader that must not take one record for another nor miss one that is
// there throughout.
#include "relacy/harness.h"

#include "tier/index_buckets.h"
#include "tier/index_cell.h"
#include "tier/loss_count.h"

namespace hkv::relacy {
namespace {

// A cell under one key in one life and under another in the next: what is read belongs to one of them.
template <bool lo_differs>
struct CellReuse : rl::test_suite<CellReuse<lo_differs>, 2> {
  static constexpr Key128 first{1, 2}, second = lo_differs ? Key128{3, 2} : Key128{1, 4};
  IndexCell cell;
  CellWord life;
  void before() {
    cell.open({first, {}, RecordKind::Block}, 0, 5, false);
    life = cell.word();
  }
  void thread(unsigned t) {
    if (t == 0) {
      cell.close();
      cell.open({second, {}, RecordKind::Block}, 0, 6, false);
      return;
    }
    IndexCell::Seen seen;
    if (!cell.read(seen)) return;
    const bool old = seen.word.same_life(life);
    RL_ASSERT(seen.digest == (old ? first : second));
    RL_ASSERT(seen.word.flags() == (old ? 5 : 6));
  }
};

// A use counted beside a new life is of the life that was seen, or lost.
struct HitAgainstReuse : rl::test_suite<HitAgainstReuse, 2> {
  IndexCell cell;
  void before() { cell.open({{1, 2}, {}, RecordKind::Block}, 0, 0, false); }
  void thread(unsigned t) {
    if (t == 0) {
      cell.close();
      cell.open({{3, 4}, {}, RecordKind::Block}, 0, 0, false);
      cell.pin();
      return;
    }
    IndexCell::Seen seen;
    if (cell.read(seen) && seen.digest == Key128{1, 2}) cell.hit(seen.word);
  }
  void after() { RL_ASSERT(cell.word().hits() == 0 && cell.word().pinned()); }
};

// Who reads that a record was lost finds it gone.
struct LossTold : rl::test_suite<LossTold, 2> {
  IndexCell cell;
  LossCount losses;
  void before() { cell.open({{1, 2}, {}, RecordKind::Block}, 0, 0, false); }
  void thread(unsigned t) {
    if (t == 0) {
      cell.close();
      losses.note();
      return;
    }
    const bool lost = losses.read() != 0;
    IndexCell::Seen seen;
    RL_ASSERT(!(lost && cell.read(seen)));
  }
  void after() { RL_ASSERT(losses.read() == 1); }
};

// Hashes by number, over buckets of one slot. Number 0 moves from bucket 0 to bucket 1 in the first split, while the
// writer goes on: its old slot is cleared, taken by another, cleared again.
struct SplitWorld {
  static constexpr std::uint64_t hashes[4] = {1, 0, 4, 2};
  IndexBuckets buckets;
  Plain<int> cells[4];
  void insert(std::uint32_t number) {
    cells[number].set(static_cast<int>(number) + 1);
    buckets.insert(hashes[number], number, [](std::uint32_t n) { return hashes[n]; });
  }
  bool find(std::uint32_t number) {
    return buckets.candidates(hashes[number], [&](std::uint32_t n) {
      RL_ASSERT(cells[n].get() ==
                static_cast<int>(n) + 1);  // what stood in the cell before its number was shown
      return n == number;
    });
  }
};

template <int steps>
struct FoundThroughout : rl::test_suite<FoundThroughout<steps>, 2>, SplitWorld {
  void before() { insert(0); }
  void thread(unsigned t) {
    if (t == 1) {
      RL_ASSERT(find(0));
      return;
    }
    insert(1);
    if (steps > 1) insert(2);
    if (steps > 2) buckets.erase(hashes[2], 2);
  }
};

// What is shown in a further line is what was put there.
struct FurtherLine : rl::test_suite<FurtherLine, 2>, SplitWorld {
  void before() { insert(1); }
  void thread(unsigned t) {
    if (t == 0) {
      insert(3);
    } else {
      find(3);
    }
  }
  void after() { RL_ASSERT(find(1) && find(3)); }
};

// Erased and put again in the same slot.
struct SlotReuse : rl::test_suite<SlotReuse, 2>, SplitWorld {
  void before() { insert(0); }
  void thread(unsigned t) {
    if (t == 0) {
      buckets.erase(hashes[0], 0);
      insert(1);
    } else {
      find(0);
      find(1);
    }
  }
  void after() { RL_ASSERT(find(1)); }
};

}  // namespace
}  // namespace hkv::relacy

int main() {
  using namespace hkv::relacy;
  search<CellReuse<true>>("cell: halves lo differ");
  search<CellReuse<false>>("cell: halves hi differ");
  search<HitAgainstReuse>("cell: a hit beside reuse");
  search<LossTold>("loss: told after it happened");
  search<SlotReuse>("slot: another number");
  search<FurtherLine>("line: a further one");
  search<FoundThroughout<1>>("split: its slot cleared");
  search<FoundThroughout<2>>("split: its slot taken");
  search<FoundThroughout<3>>("split: its slot erased");
  return failed ? 1 : 0;
}
