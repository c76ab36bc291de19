// SPDX-License-Identifier: Apache-2.0
// Pages that are cached and that no usable length needs: history whose windows or checkpoints are gone everywhere
// behind it, states whose history is gone, and blocks of a window of which others are missing.
//
// Looked at in memory alone: where a tier has what is missing, a restore would make them useful.
// It goes by what each descriptor continues, as its writer noted (recency.h), so it knows nothing where no order of
// eviction is set, nor of a layout without history. Blocks of states that end between two blocks of history count for
// every branch that goes on there, since nothing tells which is theirs: what is told is stranded, and where there are
// such blocks that is perhaps not all.
//
// Thread safety: any thread; what moves meanwhile may be seen as it was or as it is. Exact when idle, but for the above.
// Cost: three passes over all descriptors and a sort by length, and for a block of a window as many steps up the tree as
// it has nodes; about half a microsecond for each unit that is known, and 80 bytes of scratch for each descriptor
// (bench/test_bench_metrics.py). Never part of a match.
#pragma once
#include <cstdint>
#include <vector>

#include "block/store.h"
#include "layout/group.h"

namespace hkv {

// Returns: pages of each group. Requires: writers note what they continue (an order of eviction is set); some group is
// Prefix.
std::vector<std::int64_t> stranded_pages(const Layout& layout, const BlockStore& store);

}  // namespace hkv
