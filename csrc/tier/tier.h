// SPDX-License-Identifier: Apache-2.0
// Tier: colder memory for records, seen through one interface. Asks are batches; each item has a status of its own;
// what is slow, broken or full answers with a status and never with a wait.
//
// The class is the half that every tier shares: bounded queues by priority, deadlines, quarantine of memory that a
// timed-out call may still write, the circuit breaker, and the proof of every record that comes back. A tier of its
// own derives from it and implements the protected half, which moves bytes and decides nothing.
//
// Thread safety: every public operation on any thread.
//
// Invariants, and why each holds:
//  1. An Ok get has passed the envelope check. `finish` alone makes an item Ok, and runs the check before.
//  2. Every item of a batch that was taken gets exactly one status, and then exactly one release of its memory.
//     An item is in one state at a time (Queued, Running, Late), moved under one mutex, and freed with its release;
//     each move out of Queued or Running makes one report, which is the release too unless the item went to Late.
//  3. Memory of an item is not the caller's until its release: an engine may write it until `finish`.
//  4. Nothing waits for an engine but drain, flush's caller and close: begin never blocks, and the mutex is never held
//     while it runs.
//  5. Operations of one priority begin in the order in which they were taken, one `begin` at a time: whoever brings work
//     or frees a place begins what can begin, unless another thread is at it, which then goes on until nothing can. So
//     what a flush follows has begun when the flush begins.
//
// Who goes next: Demand before Prefetch before Write, but what was passed by 16 of a higher priority goes next. At most
// caps().depth operations are with the engine, Prefetch and Write with at most three quarters of that (of a depth of 1,
// that one), so that a Demand does not wait for a row of writes. An operation that is late keeps its place.
//
// The breaker counts Unavailable and Timeout of what the engine had; of what was still queued, only while an operation is
// late, for else the tier is busy and not dead. While it is open what is queued and what comes is Unavailable at once.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "tier/record.h"

namespace hkv {

enum class TierStatus : std::uint8_t {
  Ok,
  Miss,         // no such record. Not an error
  Busy,         // the queue is full: nothing was taken
  NoSpace,      // the tier or its file system is full; nothing was lost
  Corrupt,      // a record is there and is not what it says: dropped, counted
  Mismatch,     // a sound record, of another key, format or parts
  Timeout,      // the deadline passed; memory stays quarantined until the engine's call returns
  Unavailable,  // the breaker is open, or the tier cannot be reached
  IoError,      // the device said so
  Invalid,  // the ask itself: no or repeated labels, null or no bytes, too large, a key that names no record
  Cancelled,
  Closed,
  ReadOnly,  // writes were given up after repeated failure; reads go on
  Declined,  // there is room, and write admission leaves the record out; nothing was lost
};
inline constexpr int tier_status_count = 14;
const char* name_of(TierStatus status);

using TierClock = std::chrono::steady_clock;  // a jump of the wall clock moves nothing
using Deadline = TierClock::time_point;

enum class Priority : std::uint8_t { Demand, Prefetch, Write };
inline constexpr int priority_count = 3;

enum class BatchId : std::uint64_t {};

struct PutItem {
  RecordKey key;
  // A tier that knows parents takes the record only while the block record of this digest (of a block: in the same
  // format too) is there, and drops it with that one; else the put is a Miss. Zero: none.
  Key128 parent;
  Key128 identity;
  std::uint64_t tokens = 0;
  std::span<const Part> parts;
  std::uint8_t flags = 0;
  bool pinned = false;   // as long as it can, the tier keeps it
  bool durable = false;  // Ok only once it survives a power cut; Invalid where the tier is not durable
};

// Any of the record's parts, each found by its label; bytes as the record has them.
struct GetItem {
  RecordKey key;
  std::span<const Part> parts;
  // Where given: gets the record's envelope, of a get that is Ok. As with the parts' memory, the tier's until release.
  std::vector<std::byte>* envelope = nullptr;
};

// What a tier knows of a key without any I/O. `gone`, of Unknown: it was seen to be there, and later not to be.
struct Presence {
  enum class Answer : std::uint8_t { Absent, Here, OtherFormat, Unknown };
  Answer answer = Answer::Absent;
  std::uint8_t flags = 0;
  bool gone = false;
};

struct TierCaps {
  bool durable = false;        // what was flushed survives this process
  bool index = false;          // `look` answers Here or Absent, never Unknown
  std::size_t depth = 1;       // operations an engine takes at a time
  std::size_t most_bytes = 0;  // of one record, its envelope included
};

// One report. `released`: the item's memory is the caller's again. A Timeout comes with released = false and is
// followed by a report of the same item with `late` = true once the engine let go; its status is what became of it.
struct Done {
  BatchId batch{};
  std::uint32_t item = 0;
  TierStatus status = TierStatus::Ok;
  Damage damage = Damage::None;  // of Corrupt and Mismatch
  bool released = true;
  bool late = false;
};

// `refused`: items that were answered Invalid, NoSpace, Declined, Unavailable, Busy or ReadOnly. `puts`: Ok ones, `put_known` of
// them found their record there.
struct TierUsage {
  std::uint64_t records = 0, bytes = 0, capacity_bytes = 0;
  std::uint64_t queued = 0, running = 0, quarantined = 0;  // items now
  std::uint64_t hits = 0, misses = 0, corrupt = 0, mismatched = 0, timeouts = 0, puts = 0, put_known = 0;
  std::uint64_t removed = 0, reclaimed = 0, refused = 0, io_errors = 0, breaker_opened = 0;
  std::uint64_t bytes_read = 0, bytes_written = 0;
  // Arenas now; of those, which the engine reads into without looking for their pages each time; and its requests for
  // which it did not: all, and the reads of a get's parts into arenas of the asker.
  std::uint64_t arenas = 0, arenas_fixed = 0, fixed_requests = 0, arena_reads = 0;
  bool breaker_open = false, read_only = false;
};

struct TierLimits {
  std::size_t most_items = 4096;    // not released, and reports not polled; beyond: Busy
  std::uint32_t breaker_after = 3;  // Unavailable or Timeout one after another; 0: no breaker
  std::chrono::nanoseconds breaker_first = std::chrono::seconds(1);
  std::chrono::nanoseconds breaker_most = std::chrono::seconds(30);
};

class Tier {
 public:
  // Throws Error(TierError) where the process may open no more files, Error(ArgumentError) where a limit is 0 or less.
  explicit Tier(const TierLimits& limits = {});
  // Requires: closed, or never used. A derived class closes itself in its destructor, while its engine is there.
  virtual ~Tier();
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  virtual TierCaps caps() const = 0;

  // Effect: takes a batch, or none of it. Items are copied; memory that parts point to is the tier's until each item's
  // release. A batch of no items is taken and reports nothing. Of no parts: whether a sound record is there.
  // Returns: Ok and the batch, Busy, Closed, Invalid (more items than the tier takes at all). What an item itself is
  // refused for comes as its Done.
  // Progress: holds a lock for the time of a few stores an item; never waits for the engine, makes no blocking system
  // call. It may begin operations of other threads (invariant 5).
  TierStatus get(std::span<const GetItem> items, Deadline deadline, Priority priority, BatchId& batch);
  TierStatus put(std::span<const PutItem> items, Deadline deadline, BatchId& batch);
  TierStatus remove(std::span<const RecordKey> keys, Deadline deadline, BatchId& batch);
  TierStatus probe(std::span<const RecordKey> keys, Deadline deadline, BatchId& batch);  // Ok or Miss an item
  // Ok once everything put and removed before it survives a power cut (where the tier is durable). One item.
  TierStatus flush(Deadline deadline, BatchId& batch);

  // Effect: the caller promises to keep this memory mapped where it is until drop_arena or the end of close; parts that
  // lie in it may then move in cheaper ways, else nothing changes. What an engine cannot use is taken all the same and
  // counted (usage: arenas, arenas_fixed). All its pages may be made resident, which may take a while.
  // Throws Error(ArgumentError): "data" null, or overlapping another arena; "bytes" 0, or beyond the end of memory.
  // Returns: Ok, Closed.
  TierStatus add_arena(void* data, std::size_t bytes);
  // Effect: the promise is over. `data`: where the arena begins. Throws Error(ArgumentError): "data" begins no arena.
  // Returns: Ok, also when closed; Busy while an item that is not released has memory in it, also one that timed out:
  // then nothing has changed. Progress of both: they wait for each other, never for an item; nothing waits for them
  // but close.
  TierStatus drop_arena(void* data);

  // What is known of a key without I/O. Progress: wait-free for the disk tier; as the derived class says.
  virtual Presence look(const RecordKey& key) const;
  // The same of what a put may be spared for: what the tier has as lastingly as a put would make it. Progress: as look.
  virtual Presence look_lasting(const RecordKey& key) const { return look(key); }
  // Moves whenever a record of which look_lasting said Here is known not to be there any more: who looked at all that he
  // stored need not look again until then. Progress: as look.
  virtual std::uint64_t losses() const { return 0; }
  // Says that a record was of use without a get of it, so that reclaim spares it. Progress: as look.
  virtual void touch(const RecordKey& key);

  // Effect: items of the batch that are queued become Cancelled; those running go on, unless the engine can still take
  // them back.
  void cancel(BatchId batch);

  // Effect: gets of the batch that are queued go with those that somebody waits for, behind what waits there already.
  void hasten(BatchId batch);

  // Effect: takes up to out.size() reports; what is past its deadline times out (a deadline is noticed here, in wait,
  // in drain and by the next batch; what ended before that is reported as it ended). Returns: how many.
  std::size_t poll(std::span<Done> out);
  // Readable while poll has something to give or may have (a deadline passed). One per tier, owned by it.
  int event_fd() const;
  // Waits until poll has something to give or the time is over. Returns: whether it has.
  bool wait(std::chrono::nanoseconds at_most) const;

  // Effect: waits until every item has its status, or `deadline`. Returns: whether they all have.
  bool drain(Deadline deadline);
  // Effect: refuses new batches, cancels what is queued, waits until the engine let go of everything, closes it.
  // Reports can still be polled. Idempotent.
  void close();
  // The same for who must not wait for ever: refuses and cancels, and closes the engine once it let go of everything by
  // itself. Returns: whether it is closed; if not by `deadline`, the ask can be repeated, and `close` still ends it.
  bool close_by(Deadline deadline);

  TierUsage usage() const;

 protected:
  // One item on its way through an engine.
  struct Operation {
    enum class Kind : std::uint8_t { Get, Put, Remove, Probe, Flush };
    Kind kind = Kind::Get;
    Priority priority = Priority::Demand;
    RecordKey key;
    Key128 parent, identity;
    std::uint64_t tokens = 0;
    std::uint8_t flags = 0;
    bool pinned = false, durable = false;
    std::vector<Part> parts;
    std::vector<std::byte> envelope;  // of a get: the engine fills it with the record's envelope
    std::vector<std::byte>* envelope_to = nullptr;  // the asker's, where it wants the envelope
    void* engine = nullptr;                         // the engine's own
    // The shared half's own:
    BatchId batch{};
    std::uint32_t item = 0;
    Deadline deadline{};
    enum class State : std::uint8_t { Queued, Running, Late } state = State::Queued;
    bool refused = false;  // Invalid
    bool trial = false;    // of the breaker
    std::size_t at = 0;    // its place among the deadlines
    Operation* next_ready = nullptr;
    Operation* previous_ready = nullptr;
  };

  // Effect: starts an operation. Get: fill `envelope` and the bytes of `parts`, then finish(Ok); Miss where there is
  // none. Put: keep an envelope made by `seal` and the parts, whole or not at all; an existing key is Ok and stays as
  // it was. Must not block; must call finish exactly once for it, now or later, on any thread.
  virtual void begin(Operation* operation) = 0;
  // Effect: the derived half lets go: every operation begun is finished when it returns. Called once, by close.
  virtual void end() = 0;
  virtual TierUsage engine_usage() const { return {}; }
  // Effect: the engine drops the record that it brought for this get, since it is not what it says: so nobody finds it
  // again once Corrupt or Mismatch was reported. Called by `finish`, on its thread, while the operation is alive; not
  // of Damage::Parts, which is the asker's, and not of what the engine itself calls Corrupt.
  virtual void drop(const Operation& operation);
  // Effect: the engine may finish as Cancelled what of the batch it has not started in earnest. Called by `cancel`, on its
  // thread, without a lock, at any time between begin and the destructor. Must not block.
  virtual void cancel_begun(BatchId batch);
  // Effect: the engine may count on an arena, or may not any more. One call at a time, and none once the engine ends.
  // May block for as long as the system needs to find pages. What `begin_arena` cannot use it lets be; `end_arena`
  // returns whether it let go: if not, nothing has changed.
  virtual void begin_arena(void* data, std::size_t bytes);
  virtual bool end_arena(void* data);

  // Effect: checks a get that claims Ok, reports the item, frees the operation, starts the next one. Requires: begun,
  // not finished yet.
  void finish(Operation* operation, TierStatus status, Damage damage = Damage::None);
  // The envelope of a put's record, part CRCs taken from its memory now. Requires: a Put.
  static Envelope seal(const Operation& operation, std::uint64_t epoch, std::uint32_t payload_offset);

 private:
  struct Core;
  using Operations = std::vector<std::unique_ptr<Operation>>;

  TierStatus submit(Operations operations, BatchId& batch);
  TierStatus submit_keys(Operation::Kind kind, Priority priority, std::span<const RecordKey> keys,
                         Deadline deadline, BatchId& batch);
  void dispatch(std::unique_lock<std::mutex>& lock, std::size_t depth) noexcept;
  std::size_t depth() const;
  void refuse();
  void end_once(std::unique_lock<std::mutex>& lock);

  std::unique_ptr<Core> core_;
};

}  // namespace hkv
