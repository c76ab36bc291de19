// SPDX-License-Identifier: Apache-2.0
// The pages of one group: which are free, and what each holds.
//
// Thread safety: take and give_back on any thread. A record is written by the page's owner before the page
// is published and read under a pin (or of a page seen usable, confirmed by the pin's generation); that
// edge is the block's publish (5). Its fields are atomics because a stale reader may look while a new
// owner writes; it throws away what it read.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/atomic.h"
#include "base/types.h"
#include "block/id_pool.h"

namespace hkv {

// Index of a format in the cache's list of formats.
using FormatId = std::uint16_t;

struct PageRecord {
  Atom<std::uint64_t> handouts;       // how often the page was handed out; what leaves the process carries it
  Atom<std::uint32_t> attested_rows;  // rows whose bytes the publisher vouches for
  Atom<std::uint32_t> fingerprint;    // CRC-32C of the attested bytes, where `fingerprinted`
  Atom<std::uint32_t> sample;         // the same of one stretch of them, which the hand-out count chooses
  Atom<std::uint16_t> format;         // FormatId of the bytes
  Atom<std::uint16_t> fingerprinted;  // 1 where a fingerprint was taken at publish
};
#ifndef HKV_RELACY
static_assert(sizeof(PageRecord) <= 32);
#endif

class PagePool {
 public:
  explicit PagePool(std::uint32_t pages) : ids_(pages), records_(new PageRecord[pages]) {}

  std::uint32_t count() const { return ids_.count(); }
  std::uint32_t free_count() const { return ids_.free_count(); }
  bool is_free(PageId page) const { return ids_.is_free(index(page)); }

  // Hands a page out and counts it, or no_page. Progress: lock-free.
  PageId take() {
    const std::uint32_t id = ids_.take();
    return id == none_u32 ? no_page : handed_out(id);
  }
  // Hands pages out into `out` from its front. Returns: how many; fewer than asked where no more were free.
  // Progress: lock-free.
  std::size_t take_some(std::span<PageId> out) {
    std::array<std::uint32_t, 64> ids;
    std::size_t taken = 0;
    while (taken < out.size()) {
      const std::size_t wanted = std::min(ids.size(), out.size() - taken);
      const std::size_t n = ids_.take_some({ids.data(), wanted});
      for (std::size_t i = 0; i < n; ++i) out[taken++] = handed_out(ids[i]);
      if (n < wanted) break;
    }
    return taken;
  }
  void reset() { ids_.reset(); }
  void give_back(PageId page) { ids_.give_back(index(page)); }
  // Gives pages back by their indices, neighbours together. Requires: the caller owns them. Progress: wait-free.
  void give_back_some(std::span<const std::uint32_t> pages) { ids_.give_back_some(pages); }

  PageRecord& operator[](PageId page) { return records_[index(page)]; }
  const PageRecord& operator[](PageId page) const { return records_[index(page)]; }

  std::size_t bytes() const { return ids_.bytes() + std::size_t{ids_.count()} * sizeof(PageRecord); }

 private:
  PageId handed_out(std::uint32_t id) {
    PageRecord& record = records_[id];
    record.handouts.store(record.handouts.load() + 1);  // the taker is alone
    record.fingerprinted.store(0);
    return PageId{id};
  }

  IdPool ids_;
  std::unique_ptr<PageRecord[]> records_;
};

}  // namespace hkv
