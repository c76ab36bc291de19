// SPDX-License-Identifier: Apache-2.0
// What the lists of a tail compression must keep to before a kernel of the CPU takes them.
//
// Thread safety: any thread; each has memory of its own for the search for rows taken twice.
#pragma once
#include "kernels/compress.h"

namespace hkv {

// Requires: lists readable. Throws: Error(KernelContract) naming "starts", "positions", "out", "page_ids" or "carry":
// starts that do not ascend from 0 to the rows, a position below 0 or beyond int32, an entry without a row of the
// pages or a column, an id out of range, a row that two entries would take, a carry that is needed and not there.
// Progress: finishes by itself; allocates where a call has more windows than any before on this thread.
void check_compress(const CompressTail& call);

}  // namespace hkv
