// SPDX-License-Identifier: Apache-2.0
// Opens a store: its superblock, made where there is none; its regions; the index of what is there.
//
// A region with a sound footer is what the footer says, and its payload is not read: a footer is written only after a
// sync of all that it lists. Any other is scanned, and there no CRC is taken on trust. Of a key the last record counts;
// a tombstone takes what was written before it, with everything above; a record whose parent is not there is left out.
//
// Thread safety: one thread, which waits for the device, before any other knows of the store.
#pragma once
#include "tier/disk_store.h"
#include "tier/disk_tier.h"

namespace hkv {

// Throws Error(TierError), with nothing on disk changed: as open_disk_tier; besides, a device that cannot read.
void check_options(const DiskOptions& options);
// A record that lies on disk, the last of its key, and is not in the index.
struct LeftOut {
  RecordPlace place;
  DiskIndex::Left why;
};
// Effect: fills `index`, which is empty, and `recovered`; `left_out`, where it is given, with orphans and what was
// removed. Returns: what a DiskStore begins with.
DiskContent recover(Io& io, const DiskOptions& options, DiskIndex& index, Recovered& recovered,
                    std::vector<LeftOut>* left_out = nullptr);

}  // namespace hkv
