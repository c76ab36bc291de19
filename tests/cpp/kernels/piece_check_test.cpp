// SPDX-License-Identifier: Apache-2.0
#include "kernels/piece_check.h"

#include <algorithm>
#include <random>
#include <vector>

#include "base/check.h"
#include "testing.h"

namespace hkv {
namespace {

// The field that is refused, or "" where the list is taken.
std::string refused(const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& rows, bool unique,
                    std::int64_t null_page = -1) {
  const PieceList pieces{ids.data(), rows.empty() ? nullptr : rows.data(), true,
                         static_cast<std::int64_t>(ids.size()), null_page};
  try {
    check_pieces(pieces, 10, 4, unique, "");
  } catch (const Error& error) {
    return error.code == ErrorCode::KernelContract ? error.field : "another error";
  }
  return "";
}

}  // namespace

HKV_TEST("ids and rows outside are refused, at either end and at any place") {
  EXPECT_EQ(refused({}, {}, true), "");
  EXPECT_EQ(refused({-1, 0, 9}, {}, false), "");
  for (const std::int64_t bad : {-2L, 10L, 1L << 40, -(1L << 40)}) {
    EXPECT_EQ(refused({1, 2, bad}, {}, false), "page_ids");
    EXPECT_EQ(refused({bad, 2, 1}, {}, false), "page_ids");
  }
  EXPECT_EQ(refused({1, 1}, {-1, 3}, false), "");
  EXPECT_EQ(refused({1, 1}, {0, 4}, false), "rows");
  EXPECT_EQ(refused({1, 1}, {-2, 0}, false), "rows");
}

HKV_TEST("what is named twice is found, and missing pieces are none") {
  EXPECT_EQ(refused({1, 2, 1}, {}, false), "");
  EXPECT_EQ(refused({1, 2, 1}, {}, true), "page_ids");
  EXPECT_EQ(refused({-1, 2, -1}, {}, true), "");
  EXPECT_EQ(refused({3, 2, 3}, {}, true, 3), "");
  EXPECT_EQ(refused({1, 1}, {0, 1}, true), "");
  EXPECT_EQ(refused({1, 2}, {1, 1}, true), "");
  EXPECT_EQ(refused({1, 2, 1}, {1, 1, 1}, true), "page_ids");
  EXPECT_EQ(refused({1, 1}, {-1, -1}, true), "");
  EXPECT_EQ(refused({0, 0}, {}, true), "page_ids");
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> ids(1 + random() % 8);
    for (auto& id : ids) id = static_cast<std::int64_t>(random() % 10);
    auto sorted = ids;
    std::sort(sorted.begin(), sorted.end());
    const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
    EXPECT_EQ(refused(ids, {}, true), twice ? "page_ids" : "");
  }
}

}  // namespace hkv
