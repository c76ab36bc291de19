// SPDX-License-Identifier: Apache-2.0
// A disk tier without its thread: operations and completed I/O go in, I/O and answers come out.
//
// Thread safety: one thread; no lock, no clock, no wait. `counts()` and the index's `look` on any thread.
//
// Invariants, and why each holds (docs/disk-format.md has the argument for crashes):
//  1. A record is in the index only once its write and those of all records placed before it are done: `publish` takes
//     the queue of placed records from the front.
//  2. What is reported durable survives, and so does all that it needs: a waiter is answered once every region up to its
//     own is synced up to it, oldest first.
//  3. No region is written over before its successor life's header is durable, no header is written before what was
//     kept of the old life is durable elsewhere and nobody reads there.
//  4. Epochs grow in the order in which regions are filled, and regions are reclaimed oldest first: so a tombstone
//     outlives every record that it removes. A region with neither records of the index nor tombstones may go earlier.
//  5. After an I/O error a region is neither appended to nor synced again, and what of it was not durable is not in the
//     index any more.
//  6. Memory of an operation is not touched after its answer.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "tier/aligned_buffer.h"
#include "tier/disk_index.h"
#include "tier/disk_region.h"
#include "tier/disk_tier.h"
#include "tier/io_queue.h"
#include "tier/region.h"
#include "tier/write_admission.h"

namespace hkv {

// The engine half of a tier, for those who drive it.
struct TierEngine : Tier {
  using Tier::Operation;
  using Tier::seal;
};
using TierOperation = TierEngine::Operation;

struct DiskCounts {
  Hint<std::uint64_t> live_bytes, put_known, reclaimed, io_errors, bytes_read, bytes_written, dropped;
  Hint<std::uint64_t> fixed_requests, arena_reads;
  Hint<bool> read_only;
  void add(Hint<std::uint64_t>& count, std::uint64_t by) { count.store(count.load() + by); }  // one writer
};

// What recovery hands over.
struct DiskContent {
  Superblock superblock;
  std::vector<std::unique_ptr<DiskRegion>> regions;  // by number; null: no such file
  std::uint64_t next_epoch = 1;
};

class DiskStore {
 public:
  // Who hears of answers. The operation may be freed in the call. A get that is not what it claims to be calls `drop`
  // meanwhile.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void finished(TierOperation* operation, TierStatus status, Damage damage) = 0;
  };

  // Requires: io, index and owner outlive it.
  DiskStore(const DiskOptions& options, Io& io, DiskIndex& index, DiskContent content, Owner& owner);
  ~DiskStore();

  // Effect: takes an operation; it is answered now or later.
  void begin(TierOperation* operation, Deadline now);
  // Effect: goes on with what a completed request was for.
  void complete(IoRequest* request);
  // Effect: hands on what has come together, a full piece at most: who copies for long hears late what is done, and the
  // disk has nothing to do meanwhile. To be called once after a row of begin and complete, and again while `more`.
  void pump();
  bool more() const { return turn_over_; }
  // The record that a get which is being finished brought is not what it says.
  void drop(const TierOperation& operation);

  // Effect: from now on no region is prepared ahead, and what is open is sealed once nothing is left to do.
  void begin_close() { closing_ = true; }
  // Whether all operations are answered and everything on disk is at rest.
  bool closed() const;
  // Whether no I/O is under way.
  bool idle() const { return queue_.idle(); }

  // Effect: lets go of memory that the Io may know. Requires: closed; nothing is asked any more.
  void release_memory();

  const DiskCounts& counts() const { return counts_; }
  std::uint64_t most_record_bytes() const;
  // For tests: what a region is at.
  const DiskRegion* region(std::uint32_t number) const {
    return number < regions_.size() ? regions_[number].get() : nullptr;
  }

 private:
  enum class JobKind : std::uint8_t { Piece, Get, Run, Sync, Footer, Prepare, Copy };
  struct Job {
    explicit Job(JobKind k) : kind(k) { request.owner = this; }
    IoRequest request;
    iovec piece{};
    JobKind kind;
  };

  // ---- records on their way to disk (disk_puts.cpp) -----------------------------------------
  struct Pending {
    enum class Kind : std::uint8_t { Put, Tombstone, Copy, Flush };
    Kind kind = Kind::Put;
    std::vector<TierOperation*> operations;  // a put's, and later puts of the same key
    RecordKey key;
    Key128 parent;
    std::uint8_t flags = 0;
    bool pinned = false;
    TierStatus answer = TierStatus::Ok;  // of a tombstone for what was not there: Miss
    TierStatus failure = TierStatus::Ok;
    bool doomed = false;  // removed before it was published
    // Its bytes: head, then the parts of operations[0], then zeros.
    AlignedBuffer head;
    std::uint64_t head_bytes = 0, payload_bytes = 0, bytes = 0, copied = 0;
    std::size_t part = 0;  // that copying stands in
    std::uint64_t part_at = 0;
    // Where: known once placed.
    DiskRegion* region = nullptr;
    std::uint64_t epoch = 0, offset = 0;
    std::uint32_t payload_units = 1;
    std::uint32_t writes = 0;  // pieces that hold some of it and are not done
    // Of a copy: what it is of.
    DiskIndex::Number number = none_u32;
    RecordPlace from;
    std::uint64_t end() const { return offset + bytes; }
  };
  struct Piece : Job {
    explicit Piece(std::size_t size) : Job(JobKind::Piece), memory(size) {}
    AlignedBuffer memory;
    std::size_t filled = 0, written = 0;
    DiskRegion* region = nullptr;
    std::uint64_t offset = 0;
    std::vector<Pending*> records;
  };

  void begin_put(TierOperation* operation, Deadline now);
  bool known(TierOperation* operation);
  bool parent_is_coming(const RecordKey& key, const Key128& parent) const;
  void begin_remove(TierOperation* operation);
  void begin_flush(TierOperation* operation);
  void place_all();
  bool has_room(const Pending& pending) const;
  std::uint64_t kept_share() const;
  bool enter_region(Pending& pending);
  bool stalled() const;
  void give_place(Pending& pending);
  void write_head(Pending& pending);
  std::unique_ptr<Pending> next_to_place();
  bool copy(Pending& pending);
  void copy_some(Pending& pending, std::byte* to, std::size_t bytes);
  Piece* piece_for(const Pending& pending);
  Pending* find_pending(const Key128& digest, RecordKind kind, const Key128* format) const;
  void forget(Pending& pending);
  void submit_piece();
  void written(Piece& piece);
  void settle_piece(Piece& piece);
  void fail_unplaced(TierStatus status);

  // ---- from written to durable (disk_commits.cpp) -------------------------------------------
  struct Waiter {
    TierOperation* operation = nullptr;
    std::unique_ptr<Pending> copied;  // of a copy
    RecordKey key;                    // of a put
    TierStatus answer = TierStatus::Ok;
    bool is_put = false, is_flush = false, failed = false;
    DiskRegion* own = nullptr;  // where its record lies, and where it ends there
    std::uint64_t own_end = 0;
    std::uint64_t epoch = 0, end = 0;  // all up to here must be durable
    std::uint64_t losses = 0;          // seen when it began to wait
  };
  struct SyncJob : Job {
    SyncJob() : Job(JobKind::Sync) {}
    DiskRegion* region = nullptr;
    bool of_footer = false;
  };
  void publish_all();
  void publish(std::unique_ptr<Pending> pending);
  void publish_record(Pending& pending);
  void publish_failed(Pending& pending);
  void list(const Pending& pending);
  void wait_for(Pending& pending, TierOperation* operation);
  void wait_durable(Waiter waiter);
  void request_syncs();
  void synced(SyncJob& job);
  bool durable(const Waiter& waiter) const;
  void answer_waiters();
  void answer_waiter(Waiter& waiter);
  // After an I/O error (or, `full`, where a file had no room): no more of this region.
  void give_up(DiskRegion& region, bool full);
  void mark_cut(DiskRegion& region);
  void fail_placed(DiskRegion& region, TierStatus status);
  void fail_waiters(const DiskRegion& region);
  bool lose_unsynced(DiskRegion& region);
  void count_failure();

  // ---- regions (disk_regions.cpp, disk_reclaim.cpp) -----------------------------------------
  enum class Step : std::uint8_t { None, Allocate, Copying, Readers, Header, OldFooter, HeaderSync };
  // The next region on its way: new, free, or reclaimed.
  struct Preparation : Job {
    Preparation() : Job(JobKind::Prepare), header(region_header_bytes) {}
    Step step = Step::None;
    DiskRegion* region = nullptr;
    bool fresh = false;  // the file is new
    AlignedBuffer header;
    // Of a reclaim: what is kept, parents first, and how far it is.
    std::vector<std::pair<DiskIndex::Number, RecordPlace>> kept;
    std::size_t next = 0;         // the first that is neither placed nor given up
    std::uint64_t reserved = 0;   // bytes of the open region for it
    std::uint32_t unsettled = 0;  // copies placed and not durable yet
    bool failed = false;
  };
  struct CopyRead : Job {
    CopyRead() : Job(JobKind::Copy) {}
    AlignedBuffer memory;
    DiskRegion* region = nullptr;
    DiskIndex::Number number = none_u32;
    RecordPlace place;
    enum class State : std::uint8_t { Reading, Sound, Skipped };
    State state = State::Reading;
    Envelope envelope;
    std::uint64_t bytes() const { return std::uint64_t{place.units} * disk_unit; }
  };
  struct Seal : Job {
    Seal() : Job(JobKind::Footer) {}
    DiskRegion* region = nullptr;
    AlignedBuffer memory;
    bool under_way = false;
  };

  bool prepare_next();
  std::size_t unsynced_seals() const;
  bool prepare_new();
  bool prepare_free();
  bool prepare_reclaimed();
  bool will_reclaim() const;
  bool may_reclaim() const;
  DiskRegion* oldest() const;
  std::uint32_t region_count() const;
  void allocate(DiskRegion& region, bool fresh);
  void prepared(std::int64_t result);  // the step under way is done
  void write_header();
  void erase_footer();
  void write_unit(std::uint64_t offset);
  void header_durable();
  void preparation_failed(std::int64_t result);
  void remove_file(DiskRegion& region);
  void choose_kept(DiskRegion& region);
  void go_on_reclaiming();
  void begin_copies();
  void read_copy(CopyRead& copy, std::uint64_t from);
  void copy_read(CopyRead& copy);
  bool is_sound(CopyRead& copy) const;
  bool still_wanted(const CopyRead& copy) const;
  void end_copy();
  std::unique_ptr<Pending> take_copy();
  void copy_settled(Pending& copy, bool durable);
  void drop_rest(DiskRegion& region);

  void start_seal(DiskRegion& region);
  void pump_seals();
  void footer_done(Seal& seal);
  void sealed(DiskRegion& region);
  RegionHeader header_of(const DiskRegion& region) const;

  // ---- reads (disk_gets.cpp) ----------------------------------------------------------------
  struct Get;
  // Parts next to each other in one arena of the asker's, read by a request of their own.
  struct Run : Job {
    Run() : Job(JobKind::Run) {}
    Get* get = nullptr;
  };
  struct Get : Job {
    Get() : Job(JobKind::Get) {}
    TierOperation* operation = nullptr;
    DiskRegion* region = nullptr;
    RecordPlace place;
    std::uint64_t epoch = 0;
    AlignedBuffer memory;  // the whole record, or its envelope alone where parts go straight to the asker
    std::vector<iovec> pieces;
    bool straight = false;
    std::uint64_t done = 0;                  // of a read that goes on after a short one
    std::vector<std::unique_ptr<Run>> runs;  // behind `request`, which is of the envelope alone then
    std::size_t under_way = 0;               // requests; what follows is of those that are done
    std::int64_t error = 0;
    bool is_short = false;
  };
  void begin_get(TierOperation* operation);
  bool plan_straight(Get& get);
  void plan_runs(Get& get);
  void plan_whole(Get& get);
  void submit_get(Get& get);
  void got(Get& get, const IoRequest& request);
  bool read_again(Get& get, std::int64_t result);
  void judge_read(Get& get);
  void bring_parts(Get& get, const Envelope& envelope);
  bool straight_holds(const Get& get, const Envelope& envelope) const;
  Damage judge(const Get& get, const Envelope& envelope) const;
  void finish_get(std::unique_ptr<Get> get, TierStatus status, Damage damage, bool drop);
  void drop_place(DiskIndex::Number number, const RecordPlace& place);

  // ---- shared -------------------------------------------------------------------------------
  void answer(TierOperation* operation, TierStatus status, Damage damage = Damage::None) {
    owner_.finished(operation, status, damage);
  }
  // The index lost the record at a place; `dropped` with its descendants.
  void gone(const RecordPlace& place);
  void erase(DiskIndex::Number number);
  std::uint64_t lingering() const;
  bool nothing_to_do() const;
  std::uint64_t progress() const;
  RecordPlace place_of(const Pending& pending) const;

  const DiskOptions& options_;
  Io& io_;
  DiskIndex& index_;
  Owner& owner_;
  DiskCounts counts_;
  IoQueue queue_;
  BufferStock stock_;
  WriteAdmitter admitter_;

  const Superblock superblock_;
  std::vector<std::unique_ptr<DiskRegion>> regions_;  // by number
  std::uint64_t next_epoch_;
  std::uint32_t region_limit_;
  DiskRegion* current_ = nullptr;
  DiskRegion* ready_ = nullptr;
  Preparation preparation_;
  std::deque<std::unique_ptr<CopyRead>> copies_;  // of preparation_.kept, from `next` on
  std::uint64_t copying_bytes_ = 0;               // of them
  std::vector<std::unique_ptr<Seal>> seals_;
  std::vector<DiskRegion*> dirty_;  // may have unsynced records, by epoch
  std::map<DiskRegion*, std::unique_ptr<SyncJob>> syncs_;
  std::uint64_t removed_files_ = 0;
  std::uint64_t free_wanted_ = 0;  // of the file system, before a new region is tried again

  // A record goes unplaced_ -> filling_ -> placed_; a copy begins at filling_.
  std::deque<std::unique_ptr<Pending>> unplaced_, placed_;
  std::unique_ptr<Pending> filling_;
  struct DigestHash {
    std::size_t operator()(const Key128& digest) const { return digest.lo ^ digest.hi << 1; }
  };
  std::unordered_multimap<Key128, Pending*, DigestHash> pending_;  // puts by digest
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::vector<Piece*> free_pieces_;
  Piece* open_piece_ = nullptr;
  bool turn_over_ = false;  // of the pump under way: it has handed over a full piece
  std::size_t pieces_under_way_ = 0;

  std::deque<Waiter> waiters_;
  std::uint64_t published_epoch_ = 0, published_end_ = 0;
  std::uint64_t losses_ = 0;
  bool unreported_loss_ = false;
  std::uint32_t failures_ = 0, full_writes_ = 0;  // one after another
  std::map<Get*, std::unique_ptr<Get>> gets_;
  bool closing_ = false;
};

}  // namespace hkv
