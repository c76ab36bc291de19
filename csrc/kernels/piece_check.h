// SPDX-License-Identifier: Apache-2.0
// What a list of pieces must keep to before a kernel of the CPU takes it.
//
// Thread safety: any thread; each has memory of its own for the search for pieces named twice.
#pragma once
#include <cstdint>
#include <string>

#include "kernels/paged_copy.h"

namespace hkv {

// Requires: lists readable. Throws: Error(KernelContract) naming "page_ids" or "rows", with `suffix` behind it, where an
// id is below -1 or not below `pages`, a row below -1 or not below `rows`, or, where `unique`, a piece that is not
// missing is there twice. Progress: finishes by itself; allocates where a list is longer than any before on this thread.
void check_pieces(const PieceList& pieces, std::int64_t pages, std::int64_t rows, bool unique,
                  const std::string& suffix);

}  // namespace hkv
