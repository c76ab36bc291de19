// SPDX-License-Identifier: Apache-2.0
// Kernels allocate nothing once as many threads and as long lists have been seen: operator new is counted.
#include <numeric>
#include <vector>

#include "counted_new.h"
#include "kernels/fingerprint.h"
#include "kernels/paged_copy.h"
#include "kernels/piece_check.h"
#include "testing.h"

namespace hkv {

HKV_TEST("no allocation in a warm gather, scatter, check and fingerprint, on one thread and on three") {
  constexpr std::int64_t pages = 512, page_bytes = 8192;
  std::vector<std::byte> pool(pages * page_bytes), buffer(pages * page_bytes);
  std::vector<std::int32_t> ids(pages), status(pages);
  std::vector<std::uint64_t> prints(pages);
  std::iota(ids.begin(), ids.end(), 0);
  const PoolLayer layer{pool.data(), page_bytes};
  PagedCopy copy{&layer, 1, {1, page_bytes, page_bytes, 0, page_bytes}, {}, buffer.data()};
  copy.pieces.page_ids = ids.data();
  copy.pieces.count = pages;
  copy.status = status.data();
  const FingerprintGroup group{&layer, 1, copy.page, copy.pieces, prints.data()};
  const std::string suffix;
  const auto all = [&] {
    for (const int threads : {1, 3}) {
      check_pieces(copy.pieces, pages, 1, true, suffix);
      gather(&copy, 1, threads);
      scatter(&copy, 1, threads);
      fingerprint(&group, 1, threads);
    }
  };
  all();
  const long before = allocations.load();
  for (int round = 0; round < 20; ++round) all();
  EXPECT_EQ(allocations.load() - before, 0L);
  EXPECT(before > 0);
}

}  // namespace hkv
