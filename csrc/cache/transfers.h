// SPDX-License-Identifier: Apache-2.0
// Offload and restore: what is sent to the tier and asked back, and what becomes of the pages meanwhile.
//
// Nothing here runs by itself: `poll` takes the tier's reports, publishes or gives back pages, and sends what waits.
//
// Thread safety: every operation on any thread, one at a time by a lock. It is never held while the tier does I/O, since
// a tier's calls never wait for it; pages are published and given back under it, by steps that are lock-free.
// Progress: waits for another call here, never for a device: of pages in device pools copies are begun and asked after.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/cache.h"
#include "cache/copies.h"
#include "cache/transfer.h"

namespace hkv {

// Of one transfer at a time on its way: enough to keep a device busy, little enough that others get their turn.
inline constexpr std::int64_t most_bytes_in_flight = std::int64_t{64} << 20;

// Of copies that the tier may have dropped: so many are asked for in a poll, some tens of microseconds.
inline constexpr std::int64_t copies_a_poll = 256;

class Transfers {
 public:
  explicit Transfers(HybridCache& cache)
      : cache_(cache),
        copies_(
            cache.layout_, cache.store_,
            [this](RecordKind kind, Key128 digest) { return !is_dropped(digest, kind); },
            [this] {
              return cache_.link_.tier->losses() + cache_.failed_loads_.noted() + cache_.tier_closed_.load();
            }) {}
  // Cancels what is on its way and waits until the tier let go of every page.
  ~Transfers();

  // Effect: pins the whole units of the keys that are here and not in the tier yet, up to the first block that is
  // neither, and the states at those of `boundaries` (multiples of the step, and tips) that are complete; sends them in
  // prefix order. Each pin goes once its record is settled. Requires: keys from the start.
  // Throws Error(ArgumentError): a boundary that is none; a pool that is not bound, or to memory that can be neither
  // read nor copied (page_staging.h).
  std::shared_ptr<Transfer> offload(const std::shared_ptr<const KeyChain>& keys,
                                    std::span<const std::int64_t> boundaries, const TransferOptions& options);
  // The same for a prefix of which nothing below `since` tokens is new: what is looked at is what is new, for a tier that
  // knows no parents may have lost a block between others, and what of history is not stored yet, from its end backwards;
  // for a tier that has a block has, else, all below it. `boundaries` beyond `since`; and of `ends`, longest first, the
  // first that is complete. Progress: does not grow with the prefix.
  std::shared_ptr<Transfer> offload_new(const std::shared_ptr<const KeyChain>& keys, std::int64_t since,
                                        std::span<const std::int64_t> boundaries,
                                        std::span<const std::int64_t> ends, const TransferOptions& options);
  // Finished once every offload that was begun before has all its records settled, and the tier says that what it took
  // survives a power cut (where it is durable). Its status is the tier's; `written` what offloads came to meanwhile.
  std::shared_ptr<Transfer> flush(const TransferOptions& options);
  // Effect: takes pages for all that a resume at `tokens` needs and is not here, all or none, with the ticket's right
  // where one is given; asks the tier for their records. A page is published once its record was verified.
  // Pages that somebody else has claimed are left to that one and waited for, for the time-out at most; where one is not
  // there then it is Busy.
  // Requires: keys from the start; tokens a multiple of the step, or inside a unit of tokens; at most those of the keys.
  // Throws Error(ArgumentError, OutOfPages, Closed); nothing has changed then.
  std::shared_ptr<Transfer> restore(const std::shared_ptr<const KeyChain>& keys, std::int64_t tokens,
                                    const TransferOptions& options, Ticket* ticket);
  // (group, own block) that a restore at that length would load now. Progress: wait-free.
  std::vector<std::pair<int, std::int64_t>> loads(const KeyChain& keys, std::int64_t tokens) const;

  // Effect: what is begun from now on, of keys that do not say whose they are, is stored as of that identity.
  void change_identity(Key128 identity);
  // Of a tier that has no index: asks it for the records of a prefix that it is not known to have, so that later matches
  // know. Returns: how many are asked for; 0 also where it has no room for the question now. Progress: as poll.
  std::int64_t ask(const KeyChain& keys, const TransferOptions& options) const;

  // An offload that was made gated: its pages may be read from now on. Idempotent.
  void open(Transfer& transfer);
  // Effect: what waits is not sent, what is queued in the tier is taken back; what moves goes on.
  void cancel(Transfer& transfer);
  // Takes what the tier reports and sends what waits. Returns: records settled.
  std::int64_t poll();
  // Waits until poll has something to do, or the time is over. Progress: looks at copies every fifth of a millisecond.
  void wait(std::chrono::nanoseconds at_most);
  // The group's pool is bound anew. Effect: takes the host memory for its pages, if it can, since that is slow and this is
  // the time for it. Requires: nothing else runs.
  void pool_bound(int group);
  TransferState state_of(const Transfer& transfer) const;
  // Requires: finished.
  TransferOutcome outcome_of(const Transfer& transfer) const;
  std::int64_t live() const;
  // Whether an offload of the prefix would store anything now of its history, or at one of those boundaries: what was
  // never stored, or what the tier has dropped. Requires: as offload. Progress: wait-free.
  bool is_unstored(const KeyChain& keys, std::span<const std::int64_t> boundaries) const;
  Copies& copies() { return copies_; }
  // Effect: every page that is ready with a copy has one, but for what the tier loses meanwhile. Progress: a look or two
  // for each, where the tier lost records since it was asked last; others get their turn in between.
  void check_copies();

 private:
  struct Sent {
    std::shared_ptr<Transfer> transfer;
    std::vector<std::size_t> records;
  };
  std::int64_t poll_locked();
  void begin(const std::shared_ptr<Transfer>& transfer);
  // staged_records.cpp
  struct Copying {
    std::shared_ptr<Transfer> transfer;
    std::size_t record;
  };
  void check_pools();
  PageStaging& staging();
  void stage(const std::shared_ptr<Transfer>& transfer);
  bool placed(const Transfer::Record& record) const;
  void begin_copy(const std::shared_ptr<Transfer>& transfer, std::size_t index);
  std::vector<std::size_t> room_of(const Transfer::Record& record) const;
  std::int64_t piece_bytes(const PartLabel& label) const;
  void land(const std::shared_ptr<Transfer>& transfer, std::size_t index);
  std::int64_t end_copies();
  bool end_copy(Transfer& transfer, std::size_t index);
  // offload.cpp
  std::shared_ptr<Transfer> offload_begun(const std::shared_ptr<const KeyChain>& keys,
                                          const TransferOptions& options);
  std::int64_t list_history(Transfer& transfer, std::int64_t stored_unit) const;
  std::int64_t stored_unit(const KeyChain& keys) const;
  bool list_boundary(Transfer& transfer, std::int64_t tokens, std::int64_t history);
  bool add_block(Transfer& transfer, std::int64_t unit, Key128 parent) const;
  void check_boundary(const char* field, const KeyChain& keys, std::int64_t tokens) const;
  std::int64_t history_below(std::int64_t tokens) const;
  bool add_boundary(Transfer& transfer, std::int64_t tokens);
  bool add_states(Transfer::Record& record, const KeyChain& keys, int group) const;
  void add_listing(Transfer& transfer, const Transfer::Record& tip) const;
  bool pin_pages(Transfer::Record& record, Key128 key, std::int64_t tokens, WordClass which,
                 std::span<const int> groups) const;
  void count_unowned(const Transfer::Pin& pin, int by) const;
  void unpin(Transfer::Record& record, bool copied);
  void add_parts(Transfer::Record& record, int group, std::int64_t block, PageId page,
                 std::uint32_t rows) const;
  static std::int64_t stored_bytes(const Group& group, std::uint32_t rows, std::int64_t piece);
  Key128 parent_of(const KeyChain& keys, std::int64_t unit) const;
  bool is_stored(Key128 digest, RecordKind kind) const;
  bool is_dropped(Key128 digest, RecordKind kind) const;
  bool has_history_at(const KeyChain& keys, std::int64_t unit) const;
  bool needs_record(std::int64_t tokens) const;
  void add_sync(Transfer& transfer) const;
  bool records_history_at(std::int64_t unit) const;
  // restore.cpp
  std::vector<Selection> needed_for(const KeyChain& keys, std::int64_t tokens) const;
  void refuse_read_only(Fill& fill);
  void list_records(Transfer& transfer);
  void hasten_others(const Transfer& waits);
  bool add_unknown(RecordKind kind, Key128 digest, std::vector<RecordKey>& unknown) const;
  void add_unknown_tips(const KeyChain& keys, std::vector<RecordKey>& unknown) const;
  void make_private(Transfer& transfer, Transfer::Record& record);
  void publish(Transfer& transfer, Transfer::Record& record);
  void clear_unattested(int group, const Fill::Entry& entry) const;
  static void clear_unattested(const Group& group, std::uint32_t rows, std::byte* piece, std::int64_t bytes);
  // transfers.cpp
  void send(const std::shared_ptr<Transfer>& transfer);
  std::size_t choose(const Transfer& transfer, std::vector<std::size_t>& chosen) const;
  TierStatus submit(const Transfer& transfer, std::span<const std::size_t> chosen, BatchId& batch) const;
  bool take(const Done& done);
  void settle(Transfer& transfer, std::size_t index, const Done& done);
  static TierStatus cause_of(const Transfer& transfer, TierStatus status);
  void note_written(Transfer& transfer, Transfer::Record& record, TierStatus status);
  void release(Transfer& transfer, Transfer::Record& record, bool ok);
  void fail(Transfer& transfer, std::size_t index, TierStatus status, Damage damage);
  void drop_waiting(Transfer& transfer, TierStatus because);
  bool waits_for_others(Transfer& transfer) const;
  void finish_if_over(Transfer& transfer);
  void count_pages(Count base, Moved what, const Transfer::Record& record);

  HybridCache& cache_;
  mutable std::mutex lock_;
  std::vector<std::shared_ptr<Transfer>> live_;
  std::unordered_map<std::uint64_t, Sent> sent_;  // by batch
  std::unique_ptr<PageStaging> staging_;          // once a pool is no host pool
  std::vector<Copying> copying_;                  // records with a copy under way
  Written since_flush_;
  Copies copies_;
};

}  // namespace hkv
