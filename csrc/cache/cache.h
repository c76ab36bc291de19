// SPDX-License-Identifier: Apache-2.0
// HybridCache: the only class that knows all rooms. A request's path, top to bottom: match.cpp (look up,
// check, pin), settle.cpp (release, fail, cancel), fill.cpp (reserve, publish, abort), tips.cpp, inspect.cpp.
//
// Thread safety: match, match_at, boundaries, settle, unpin, publish, abort, evict on any thread; a Lease and
// a Fill have one owner at a time. bind, reset need that nothing else runs.
// Progress: stated at each operation. Nothing is allocated by match once the memory of an earlier one of its
// size can be used again (a test counts operator new).
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/spares.h"
#include "block/store.h"
#include "cache/counts.h"
#include "cache/lease.h"
#include "cache/pool_memory.h"
#include "layout/group.h"
#include "layout/key_chain.h"
#include "reuse/snapshot.h"
#include "reuse/verdict.h"

namespace hkv {

using Digest16 = std::array<std::uint8_t, 16>;

enum class Verify : std::uint8_t { Off, Sampled, All };

// What a match is asked.
struct Question {
  const KeyChain* keys = nullptr;
  std::int64_t limit = 0;  // lengths are below it
  std::int64_t drop_tokens = 0;
  std::int64_t exactly = -1;          // match_at: this length or none
  std::span<const FormatId> formats;  // reader's format a group; empty: the spec's
  Verify verify = Verify::Sampled;
};

// Blocks of one group that a fill, an insert or an evict names.
struct Selection {
  bool all = false;
  std::vector<std::int64_t> blocks;  // own blocks, where not all; ascending
};

// Pages of one reserve, in phase filling until published. One owner.
struct Fill {
  enum class State : std::uint8_t { Claimed, Private, Published, Given };
  struct Entry {
    std::int64_t block;
    PageId page;
    Key128 key;       // of the unit (or tip) that records the block
    DescriptorId id;  // where claimed
    State state;
    std::int64_t tip_unit;  // whole units before the tip; -1: a whole block
    std::uint32_t rows;     // rows attested; 0: the whole block
    bool counted = false;   // published too late: another had the key, the page stays private
  };
  struct Copy {
    PageId source, target;
    std::int32_t rows;
  };
  std::shared_ptr<const KeyChain> keys;
  std::vector<std::vector<Entry>> entries;  // a group
  std::vector<std::vector<Copy>> copies;    // a group
  std::vector<FormatId> formats;            // writer's, a group
  bool closed = false;                      // aborted
  std::int64_t born = 0;                    // resets of the cache when it was made
  bool done = false;                        // nothing is left to publish
};

// Everything a search for a length works with; reused from match to match.
struct MatchScratch {
  std::vector<Sighting> history;  // at probe positions
  std::vector<Sighting> batch;
  Snapshot snapshot;
  const class HybridCache* cache = nullptr;
  const Question* question = nullptr;
  std::int64_t positions = 0;                        // probe positions below the limit
  std::int64_t read_positions = 0;                   // of them, read so far
  std::uint32_t formats_turn = 0;                    // of the cache when the reading began
  bool tips = false;                                 // there were directories when the reading began
  std::vector<std::pair<std::int64_t, int>> wanted;  // (unit, group) of B pages to pin
};

class HybridCache {
 public:
  // Requires: a layout of make_layout; blocks >= 1. Throws Error(ArgumentError).
  HybridCache(Layout layout, std::int64_t blocks, std::vector<Digest16> formats);

  const Layout& layout() const { return layout_; }
  BlockStore& store() { return store_; }
  const CacheCounters& counters() const { return counters_; }
  CacheCounters& counters() { return counters_; }

  // ---- asking ---------------------------------------------------------------------------------

  // Decides what of the prefix can be reused. Returns: the verdict; `lease` is set, already pinned, exactly
  // when it is Reusable. Counts one look-up. Progress: lock-free (retries are bounded).
  Verdict match(const Question& question, const std::shared_ptr<const KeyChain>& keys,
                std::unique_ptr<Lease>& lease);
  // Every usable length, ascending. Counts nothing. Progress: wait-free.
  std::vector<std::int64_t> boundaries(const Question& question);
  // Tries to make a lease longer. Returns: its tokens. Failure changes nothing; counts nothing.
  std::int64_t extend(Lease& lease, const Question& question, const std::shared_ptr<const KeyChain>& keys);

  // ---- settling -------------------------------------------------------------------------------

  // The continuation ran, or failed, or never began. The pins stay until drop(). Requires: Open.
  void settle(Lease& lease, Settlement how, int failed_kind = 0);
  // Drops the pins and keeps the memory for the next match. Requires: settled.
  void drop(std::unique_ptr<Lease> lease);
  // Pages of a group in a lease: one entry an own block below its tokens, none_u32 where not held.
  void page_ids(const Lease& lease, int group, std::vector<std::uint32_t>& out) const;

  // ---- filling --------------------------------------------------------------------------------

  // Takes pages for the selected blocks, all or none. Throws Error(OutOfPages). Progress: lock-free.
  std::unique_ptr<Fill> reserve(const std::shared_ptr<const KeyChain>& keys,
                                std::span<const Selection> groups, std::span<const FormatId> formats,
                                const Lease* lease);
  // Throws Error(ArgumentError) where publish would; changes nothing.
  void check_selection(const Fill& fill, std::span<const Selection> groups) const;
  // Makes the selected blocks visible: pages of B first, then of H. Progress: lock-free.
  void publish(Fill& fill, std::span<const Selection> groups);
  // Gives back what is not published. quarantine: the pages stay out of the pools. Progress: lock-free.
  void abort(Fill& fill, bool quarantine);
  // Takes pages away; pinned ones are skipped. Returns: pages retired. Progress: lock-free.
  std::int64_t evict(const KeyChain& keys, std::span<const Selection> groups);
  // No new pins on a page whose content is wrong; it goes with its last pin.
  void quarantine(DescriptorId id, int group);

  // ---- pools and formats ----------------------------------------------------------------------

  void bind(int group, std::vector<PoolArray> arrays, bool host);
  const PoolMemory& memory(int group) const { return memory_[group]; }
  std::span<const FormatId> spec_formats() const { return spec_formats_; }
  FormatId format_id(const Digest16& fingerprint);
  const Digest16& format(FormatId id) const { return formats_[id]; }

  // ---- looking --------------------------------------------------------------------------------

  struct Inspection {
    bool found = false;
    Phase phase = Phase::Absent;
    std::uint32_t pins = 0;
    PageId page = no_page;
    std::uint64_t handouts = 0;
  };
  // The state of one own block, the tip's partial page included. Progress: wait-free.
  Inspection inspect(const KeyChain& keys, int group, std::int64_t block) const;
  std::int64_t private_pages(int group) const { return private_pages_[group].load(); }
  std::int64_t quarantined_pages(int group) const { return quarantined_pages_[group].load(); }
  std::int64_t resets() const { return resets_; }
  std::int64_t live_leases() const { return live_leases_.load(); }
  std::int64_t live_fills() const { return live_fills_.load(); }
  // Forgets everything. Throws Error(Busy) while leases or fills live.
  void reset();
  void leak() { counters_.add(kLeaks, 1); }

 private:
  // match.cpp
  void search(const Question& question, MatchScratch& scratch) const;
  void make_planes(MatchScratch& scratch, std::int64_t units) const;
  void scan_history(const Question& question, MatchScratch& scratch) const;
  bool note_position(MatchScratch& scratch, std::int64_t position) const;
  void find_known_end(const Question& question, MatchScratch& scratch) const;
  void fill_planes(MatchScratch& scratch, int group, std::int64_t from, std::int64_t to) const;
  void fill_word(MatchScratch& scratch, int group, std::int64_t word, std::int64_t stride,
                 std::int64_t end) const;
  void note_block(MatchScratch& scratch, int group, std::int64_t block, const Sighting& seen) const;
  static void fill_planes_of(void* context, int group, std::int64_t from, std::int64_t to);
  Sighting sight_block(const MatchScratch& scratch, int group, std::int64_t block) const;
  bool foreign_page(const Question& question, int group, DescriptorId id) const;
  Verdict judge(const Question& question, MatchScratch& scratch) const;
  void judge_exactly(const Question& question, const Snapshot& s, Verdict& verdict) const;
  void explain(const MatchScratch& scratch, Why& why) const;
  void choose_why(const MatchScratch& scratch, Verdict& verdict) const;
  void count(const Question& question, const Verdict& verdict);
  // pin.cpp
  PinResult pin(const Question& question, MatchScratch& scratch, std::int64_t tokens, Lease& lease) const;
  PinResult pin_history(MatchScratch& scratch, std::int64_t tokens, Lease& lease) const;
  PinResult pin_blocks(const Question& question, MatchScratch& scratch, const Tip* tip, Lease& lease) const;
  PinResult pin_tip(const Tip& tip, Lease& lease) const;
  bool verify(const Question& question, const Lease& lease, Why& why);
  bool content_intact(int group, PageId page, bool whole) const;
  void take_fingerprint(int group, PageId page);
  bool group_misaligned(int group) const { return misaligned_[group] != Code::None; }
  // tips.cpp
  void gather_tips(const Question& question, MatchScratch& scratch, std::int64_t above) const;
  void gather_tips_of(const Question& question, MatchScratch& scratch, std::int64_t unit) const;
  void file_tip(const KeyChain& keys, std::int64_t unit, std::int64_t length, DescriptorId tip);
  bool put_entry(DescriptorId directory, std::uint64_t wanted);
  void evict_tip(DescriptorId tip);
  void unfile_tips(const KeyChain& keys, std::int64_t unit, std::int64_t length);
  void note_tips_of(const KeyChain& keys, std::int64_t unit);
  DescriptorId directory_of(const KeyChain& keys, std::int64_t unit);
  // fill.cpp
  enum class Of : std::uint8_t { Needed, Any };  // whether `all` leaves out blocks that keep no state
  std::vector<std::int64_t> selected(const KeyChain& keys, int group, const Selection& selection, Of of,
                                     std::int64_t after) const;
  using Chosen = std::vector<std::vector<std::int64_t>>;  // own blocks a group
  Chosen chosen_of(const Fill& fill, std::span<const Selection> groups) const;
  bool needs_page(int group, std::int64_t tokens) const;
  Key128 key_of_block(const KeyChain& keys, int group, std::int64_t block, std::int64_t& tip_unit) const;
  std::uint32_t rows_in_tip(const KeyChain& keys, int group, std::int64_t block) const;
  void take_pages(Fill& fill, int group, std::vector<PageId>& scratch);
  enum class Claim : std::uint8_t { Taken, Lost, Full };
  Claim claim_entry(Fill& fill, int group, Fill::Entry& entry);
  void renote_tips(const KeyChain& keys, int group, const Fill::Entry& entry, DescriptorId id);
  void add_copies(Fill& fill, const Lease& lease);
  void publish_entry(Fill& fill, int group, Fill::Entry& entry);
  void note_format(int group, FormatId format);
  void give_back(int group, Fill::Entry& entry, bool quarantine);
  void note_if_done(Fill& fill);

  Layout layout_;
  BlockStore store_;
  SlotMask prefix_slots_ = 0;     // H slots of Prefix groups whose block is the probe distance, if all are
  bool one_prefix_block_ = true;  // every Prefix group has that block
  std::vector<Digest16> formats_;
  std::vector<FormatId> spec_formats_;  // a group
  std::vector<Atom<std::uint32_t>>
      page_formats_;                  // a group: the one format of all its pages + 1; mixed: all ones
  Atom<std::uint32_t> formats_turn_;  // moves with page_formats_, before the page that moved it is published
  std::vector<PoolMemory> memory_;
  std::vector<Code> misaligned_;  // a group
  CacheCounters counters_;
  Atom<std::uint32_t> tips_filed_;  // directories may exist
  Atom<std::uint32_t> verify_turn_;
  Atom<std::uint32_t> tip_clock_;  // age of tips, filed in their descriptors
  bool any_host_pool_ = false;
  std::int64_t resets_ = 0;
  std::unique_ptr<Atom<std::int64_t>[]> private_pages_;      // a group: held by fills outside any word
  std::unique_ptr<Atom<std::int64_t>[]> quarantined_pages_;  // a group: kept out of the pool until reset
  Atom<std::int64_t> live_leases_, live_fills_;
  Spares<Lease> spare_leases_;
  Spares<MatchScratch> spare_scratch_;
};

}  // namespace hkv
