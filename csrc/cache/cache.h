// SPDX-License-Identifier: Apache-2.0
// HybridCache: the only class that knows all rooms. A request's path, top to bottom: match.cpp (look up,
// check, pin), settle.cpp (release, fail, cancel), fill.cpp (reserve, publish, abort), evict.cpp (make room), tips.cpp;
// of a running request admit.cpp, grow.cpp (and rewind), advance.cpp, close.cpp, and step.cpp for many at once.
// What a tier adds: tier_match.cpp (what it knows), transfers.h (records on their way).
//
// Thread safety: match, match_at, boundaries, settle, unpin, publish, abort, evict, admit on any thread; a Lease,
// a Fill and a Ticket have one owner at a time. bind, reset need that nothing else runs.
// Progress: stated at each operation. Nothing is allocated by match once the memory of an earlier one of its
// size can be used again (a test counts operator new).
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "alloc/admission.h"
#include "alloc/eviction.h"
#include "base/spares.h"
#include "block/store.h"
#include "cache/counts.h"
#include "cache/events.h"
#include "cache/fill.h"
#include "cache/lease.h"
#include "cache/pool_memory.h"
#include "cache/question.h"
#include "cache/restore_options.h"
#include "cache/ticket.h"
#include "cache/ticket_book.h"
#include "cache/tier_link.h"
#include "layout/group.h"
#include "layout/key_chain.h"
#include "reuse/snapshot.h"
#include "reuse/verdict.h"

namespace hkv {

// Everything a search for a length works with; reused from match to match.
struct MatchScratch {
  std::vector<Sighting> history;  // at probe positions
  std::vector<Sighting> batch;
  Snapshot snapshot;
  const class HybridCache* cache = nullptr;
  const Question* question = nullptr;
  std::int64_t positions = 0;            // probe positions below the limit
  std::int64_t read_positions = 0;       // of them, read so far
  std::uint32_t formats_turn = 0;        // of the cache when the reading began
  bool tips = false;                     // there were directories when the reading began
  std::vector<TierAnswer> tier_answers;  // a probe position; empty without a tier
  std::int64_t obtainable = 0;           // positions from 0 whose history is usable or in the tier
  bool history_comes = false;            // a restore under way brings the next one
  std::vector<std::pair<std::int64_t, int>> wanted;  // (unit, group) of B pages to pin
};

class Transfers;

class HybridCache {
 public:
  // Requires: a layout of make_layout; blocks >= 1. Throws Error(ArgumentError).
  HybridCache(Layout layout, std::int64_t blocks, std::vector<Digest16> formats,
              EvictionOrder order = EvictionOrder::Usability, AdmissionLimits admission = {});
  ~HybridCache();

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
  // What match would answer, without a pin and without a count. Progress: wait-free.
  Verdict look(const Question& question);
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

  // Takes pages for the selected blocks, all or none; where they are short, cached pages make room for them, unless
  // the whole would not fit then. With a ticket they are part of its share until they are published or given back, or
  // the ticket ends. Throws Error(OutOfPages), also beyond the share, and Error(Closed); nothing has changed then.
  // Requires: one owner of ticket and fill. Progress: lock-free while pages are free.
  std::unique_ptr<Fill> reserve(const std::shared_ptr<const KeyChain>& keys,
                                std::span<const Selection> groups, std::span<const FormatId> formats,
                                const Lease* lease, Ticket* ticket = nullptr);
  // Throws Error(ArgumentError) where publish would; changes nothing.
  void check_selection(const Fill& fill, std::span<const Selection> groups) const;
  // Makes the selected blocks visible: pages of B first, then of H. Progress: lock-free.
  void publish(Fill& fill, std::span<const Selection> groups);
  // Gives back what is not published. quarantine: the pages stay out of the pools. Progress: lock-free.
  void abort(Fill& fill, bool quarantine);
  // Takes pages away; pinned ones are skipped. Returns: pages retired. Progress: lock-free.
  std::int64_t evict(const KeyChain& keys, std::span<const Selection> groups);
  // Retires up to so many cached pages of a group that nobody pins, by the order of the cache; descriptor_pool: what
  // frees so many descriptors. Returns: how many are free for it. Progress: one thread at a time.
  std::int64_t make_room(int group, std::int64_t wanted);
  // Ends the use of everything published: what nobody pins goes at once, the rest with its last pin, found by no match
  // meanwhile. What is published while this runs may stay. Returns: pages free now. Progress: lock-free.
  std::int64_t withdraw_all();
  // No new pins on a page whose content is wrong; it goes with its last pin.
  void quarantine(DescriptorId id, int group);

  // ---- running requests -----------------------------------------------------------------------

  // Gives a request the right to memory. Returns: the ticket, or nullptr with the reason, and the lease is withdrawn then
  // and holds no pins. Throws Error(ArgumentError). Progress: may lock.
  std::unique_ptr<Ticket> admit(const AdmitQuestion& question, NotAdmitted& refused);
  // Takes pages for so many more tokens, and one for each state named, all or none; may evict.
  // Throws Error(OutOfPages, ArgumentError, Closed); nothing has changed then.
  // Progress: lock-free where pages are free, else may lock.
  void grow(Ticket& ticket, std::int64_t tokens, std::span<const std::int64_t> states);
  // Throws where advance may not be called so: ArgumentError, Closed. Changes nothing.
  void check_advance(const Ticket& ticket, std::int64_t computed, std::span<const std::int64_t> states) const;
  // Notes that rows up to the total are written, and which states were by the step itself. Up to copies_room states at
  // the total are kept where they can be: step_copies are to run before the next step. `settles`: settle_advance follows at
  // once. Requires: check_advance; ticket.keys reach `computed`. Progress: lock-free where pages are free, else may lock.
  void advance(Ticket& ticket, std::int64_t computed, std::span<const std::int64_t> states,
               std::int64_t copies_room, bool settles);
  // What follows from an advance to `upto`, in the order of the advances: complete blocks become visible, states
  // copied at lengths up to `copied_upto` too, and windows slide. Progress: lock-free.
  void settle_advance(Ticket& ticket, std::int64_t upto, std::int64_t copied_upto);
  // Takes back so many grown tokens. Returns: pages parked, for give_back_parked once nothing writes them.
  // Throws Error(Busy, Closed); nothing has changed then. Progress: wait-free.
  std::size_t rewind(Ticket& ticket, std::int64_t tokens);
  void give_back_parked(Ticket& ticket, std::size_t count);
  // The continuation did not work: an open lease is settled as failed, and nothing more is published.
  void fail(Ticket& ticket, int kind);
  // Refuses every later call on the ticket; end() then gives back what it holds. Throws Error(Closed). Progress: may lock.
  void close(Ticket& ticket);
  void end(Ticket& ticket, bool keep_tip, bool quarantine);
  void withhold(Ticket& ticket);  // closed, its end waits: nothing more of it is published
  // Advances and grows many tickets; allocates nothing. Requires: StepArrays; tickets owned by the caller. Progress: as grow.
  void step(const StepArrays& arrays);
  void settle_step(std::int64_t handle, std::int64_t upto);
  // Pages of a group that the ticket holds: one entry an own block that begins below what was grown, none_u32
  // where none is held.
  void page_ids(const Ticket& ticket, int group, std::vector<std::uint32_t>& out) const;
  // Block-table widths that graphs were captured with, own blocks a group; 0: any. A ticket whose table of a group is
  // wider than that runs eagerly, from then on until it is not: it is granted its pages all the same, marked (`eager`)
  // and counted once. Throws Error(ArgumentError) for a group without a block table. Requires: nothing else runs.
  void set_graph_widths(std::span<const std::int64_t> widths);
  TicketBook& tickets() { return tickets_; }
  AdmissionLedger& admission() { return admission_; }
  std::int64_t live_tickets() const { return tickets_.live(); }

  // ---- pools and formats ----------------------------------------------------------------------

  // `of_kernels`: what the kernels that will read the pool cannot take of it (Base, PageStride, RowStride, Footer), found
  // by who knows them; what the group itself declares comes first. Nothing is ever loaded into what is not `writable`.
  void bind(int group, std::vector<PoolArray> arrays, bool host, Code of_kernels = Code::None,
            bool writable = true);
  const PoolMemory& memory(int group) const { return memory_[group]; }
  std::span<const FormatId> spec_formats() const { return spec_formats_; }
  FormatId format_id(const Digest16& fingerprint);
  const Digest16& format(FormatId id) const { return formats_[id]; }

  // ---- a tier below -----------------------------------------------------------------------------

  // From now on blocks are looked for in the tier too, and may be moved to it and back. The tier outlives the cache, and
  // nobody else polls it. Requires: nothing else runs; link.tier not null.
  void attach(const TierLink& link);
  // Cancels every transfer and waits until the tier let go of every page; then there is no tier.
  void detach();
  // The length that a restore would make usable, beyond what is usable now; 0: none. Counts nothing.
  // Progress: as boundaries.
  std::int64_t restorable(const KeyChain& keys, std::int64_t limit);
  // All such lengths below the limit, shortest first, and what each takes. Progress: as boundaries, and a look-up a block.
  std::vector<RestoreOption> restore_options(const KeyChain& keys, std::int64_t limit);
  // Leaves transfers and the memory that they move as they are, for good: for who can no longer wait for the tier.
  void abandon() { static_cast<void>(transfers_.release()); }
  Transfers& transfers() const { return *transfers_; }

  // ---- looking --------------------------------------------------------------------------------

  struct Inspection {
    bool found = false;
    Phase phase = Phase::Absent;
    std::uint32_t pins = 0;
    PageId page = no_page;
    std::uint64_t handouts = 0;
  };
  // Pages that made room, by group and by why they went; tokens of history that went because nothing led to it, and
  // tokens of such history that is there now. Progress: waits for a pass over all descriptors.
  struct EvictionCounts {
    std::vector<std::array<std::int64_t, eviction_class_count>> pages;
    std::int64_t stranded_tokens = 0, stranded_now = 0;
  };
  EvictionCounts eviction_counts();
  // The state of one own block, the tip's partial page included. Progress: lock-free.
  Inspection inspect(const KeyChain& keys, int group, std::int64_t block) const;
  // Why the page of such a block went, as far as that is remembered; of what is there, why an earlier one did.
  Departure departure(const KeyChain& keys, int group, std::int64_t block) const;
  // What changed since the last call; `anew`: all that is there, behind a Cleared. Progress: one thread at a time.
  std::vector<StoreEvent> events(bool anew) { return events_.read(anew); }
  std::int64_t private_pages(int group) const { return private_pages_[group].load(); }
  std::int64_t quarantined_pages(int group) const { return quarantined_pages_[group].load(); }
  std::int64_t unowned_pages(int group) const { return unowned_pages_[group].load(); }
  std::int64_t resets() const { return resets_; }
  std::int64_t live_leases() const { return live_leases_.load(); }
  std::int64_t live_fills() const { return live_fills_.load(); }
  // Forgets everything. Throws Error(Busy) while leases or fills live.
  void reset();
  void leak() { counters_.add(kLeaks, 1); }

 private:
  friend class Transfers;
  // tier_match.cpp
  TierAnswer ask_tier(Key128 digest, RecordKind kind) const;
  TierAnswer ask_tier_at(MatchScratch& scratch, std::int64_t position) const;
  void note_obtainable(MatchScratch& scratch, std::int64_t position) const;
  bool restorable_at(const Question& question, MatchScratch& scratch, std::int64_t tokens) const;
  Obtainable obtainable_at(const Question& question, MatchScratch& scratch, std::int64_t tokens) const;
  bool here_at(const Snapshot& s, int group, std::int64_t tokens) const;
  bool foreign_in_place(const Snapshot& s, int group, std::int64_t tokens) const;
  Phase making_at(const MatchScratch& scratch, int group, std::int64_t tokens) const;
  std::int64_t obtainable_tokens(const MatchScratch& scratch) const;
  // Effect: calls `use` with what a match would find; without a tier not at all.
  void judge_restorable(const KeyChain& keys, std::int64_t limit,
                        const std::function<void(const Question&, MatchScratch&, const Verdict&)>& use);
  std::int64_t restorable_above(const Question& question, MatchScratch& scratch, std::int64_t above) const;
  void note_restorable(const Question& question, MatchScratch& scratch, std::int64_t undropped,
                       Verdict& verdict) const;
  void explain_by_tier(const MatchScratch& scratch, std::int64_t restore_tokens, Why& why) const;
  static void note_answer(TierAnswer answer, Why& why);
  TierAnswer ask_tier_for_state(const MatchScratch& scratch, const Group& group, std::int64_t block) const;
  void explain_dead_end(const MatchScratch& scratch, std::int64_t above, Why& why) const;
  // tier_tips.cpp
  void gather_tier_tips(const Question& question, MatchScratch& scratch) const;
  TierAnswer add_tier_tip(const Question& question, MatchScratch& scratch, std::int64_t tokens) const;
  struct TipBudget;
  bool find_tier_tips(const Question& question, MatchScratch& scratch, std::int64_t unit, std::int64_t above,
                      TipBudget& left) const;
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
  void explain(const MatchScratch& scratch, std::int64_t restore_tokens, Why& why) const;
  void explain_losses(const MatchScratch& scratch, Verdict& verdict) const;
  void choose_why(const MatchScratch& scratch, Verdict& verdict) const;
  void count(const Question& question, const Verdict& verdict);
  // settle.cpp
  void note_hit(const Lease& lease);
  // pin.cpp
  PinResult pin(const Question& question, MatchScratch& scratch, std::int64_t tokens, Lease& lease);
  PinResult pin_history(const Question& question, MatchScratch& scratch, std::int64_t tokens, Lease& lease,
                        EvictableChange& change);
  PinResult pin_blocks(const Question& question, MatchScratch& scratch, const Tip* tip, Lease& lease,
                       EvictableChange& change);
  PinResult pin_tip(const Tip& tip, Lease& lease, EvictableChange& change);
  bool verify(const Question& question, const Lease& lease, Why& why);
  bool content_intact(int group, PageId page, bool whole) const;
  void take_fingerprint(int group, PageId page);
  bool group_misaligned(int group) const { return misaligned_[group] != Code::None; }
  // tips.cpp
  void gather_tips(const Question& question, MatchScratch& scratch, std::int64_t above) const;
  void gather_tips_of(const Question& question, MatchScratch& scratch, std::int64_t unit) const;
  Tip tip_of(const Question& question, const Snapshot& s, const Sighting& seen, std::int64_t tokens) const;
  void make_directory_room(Key128 parent, std::int64_t besides);
  void file_tip(Key128 parent, DescriptorId tip);
  bool put_entry(DescriptorId directory, std::uint32_t wanted);
  void evict_tip(DescriptorId tip);
  void unfile_tips(const KeyChain& keys, std::int64_t unit, std::int64_t length);
  void unfile_directory(Key128 key);
  DescriptorId directory_of(Key128 key);
  // fill.cpp
  std::unique_ptr<Fill> reserve(const std::shared_ptr<const KeyChain>& keys,
                                std::span<const Selection> groups, std::span<const FormatId> formats,
                                const Lease* lease, Ticket* ticket, bool restoring);
  enum class Of : std::uint8_t { Needed, Any };  // whether `all` leaves out blocks that keep no state
  std::vector<std::int64_t> selected(const KeyChain& keys, int group, const Selection& selection, Of of,
                                     std::int64_t after) const;
  using Chosen = std::vector<std::vector<std::int64_t>>;  // own blocks a group
  Chosen chosen_of(const Fill& fill, std::span<const Selection> groups) const;
  bool needs_page(int group, std::int64_t tokens) const;
  Key128 key_of_block(const KeyChain& keys, int group, std::int64_t block, std::int64_t& tip_unit) const;
  std::uint32_t rows_in_tip(int group, std::int64_t tokens) const;
  // Descriptors that a fill's blocks will have: those that are there, and units that have none (-1: the tip).
  struct Described {
    std::vector<DescriptorId> met;
    std::vector<std::int64_t> new_units;
  };
  void list_entries(Fill& fill, std::span<const Selection> groups, const Lease* lease,
                    Described& described) const;
  void take_entries(Fill& fill);
  void check_share(const Fill& fill, const Ticket& ticket) const;
  void claim_room(Fill& fill, AdmissionLedger::Share& share);
  void take_pages(Fill& fill, int group, std::vector<PageId>& scratch);
  enum class Claim : std::uint8_t { Taken, Lost, Full };
  Claim place(Key128 key, bool may_have_tips, DescriptorId& id);
  Claim claim_entry(Fill& fill, int group, Fill::Entry& entry);
  void add_copies(Fill& fill, const Lease& lease);
  void publish_entry(Fill& fill, int group, Fill::Entry& entry, std::uint32_t tick);
  bool publish_charged(Fill& fill, int group, Fill::Entry& entry, std::uint32_t tick);
  void stay_private(int group, Fill::Entry& entry);
  void describe_page(int group, PageId page, FormatId format, std::uint32_t rows);
  void note_format(int group, FormatId format);
  // admit.cpp
  static constexpr int take_attempts = 8;
  std::vector<AdmissionLedger::Room> rooms() const;
  AdmissionLedger::Room room_of(int group) const;
  std::int64_t room_of(const Ticket& ticket, int group, std::int64_t in_fills) const;
  std::int64_t room_of(const Ticket& ticket, int group) const;
  std::int64_t room(int group) const;
  std::vector<std::int64_t> extra_pages(const AdmitQuestion& question) const;
  BlockSpan replayed_blocks(int group, const Lease& lease) const;
  void refuse(const AdmitQuestion& question, NotAdmitted& refused);
  bool take_first_pages(Ticket& ticket, const AdmitQuestion& question);
  void copy_leased_states(Ticket& ticket, const Lease& lease);
  bool take_page(Ticket& ticket, int group, PageId& page);
  bool take_blocks(Ticket& ticket, int group, std::int64_t end);
  void give_page(Ticket& ticket, int group, PageId& page, bool quarantine);
  void count_unowned(const Lease& lease, int by);
  std::array<std::int64_t, AdmissionLedger::most_groups> pinned_pages(const Lease& lease) const;
  void own(Lease& lease);
  void disown(Lease& lease);
  // grow.cpp
  void check_open(const Ticket& ticket) const;
  bool in_flight_fits(const Ticket& ticket, std::int64_t grown, std::int64_t advanced) const;
  bool keeps_state(const Ticket& ticket, int group, std::int64_t tokens) const;
  std::int64_t pages_to_grow(const Ticket& ticket, int group, std::int64_t grown,
                             std::span<const std::int64_t> states) const;
  bool is_room(int group, std::int64_t pages) const;
  int try_grow(Ticket& ticket, std::int64_t grown, std::span<const std::int64_t> states);
  static void note_grown(Ticket& ticket, std::int64_t grown);
  bool grow_group(Ticket& ticket, int group, std::int64_t grown, std::span<const std::int64_t> states);
  void shrink_group(Ticket& ticket, int group, std::int64_t grown, std::span<const std::int64_t> states);
  void drop_blocks(Ticket& ticket, int group, std::int64_t grown, bool park);
  void copy_shared_block(Ticket& ticket, int group);
  void plan_events(Ticket& ticket) const;
  void note_width(Ticket& ticket) const;
  // advance.cpp
  void copy_live_states(Ticket& ticket, std::int64_t computed, std::int64_t copies_room);
  bool wants_state(const Ticket& ticket, int group, std::int64_t computed) const;
  void copy_live_state(Ticket& ticket, int group, std::int64_t computed);
  void publish_blocks(Ticket& ticket, std::int64_t upto);
  void publish_unit(Ticket& ticket, ClaimedUnit& claimed, PublishRun& run);
  SlotMask unused_slots(const Ticket& ticket, std::int64_t unit, WordClass which) const;
  bool widen_beside(Ticket& ticket, DescriptorId id, WordClass which, SlotMask& lost);
  void narrow_beside(Ticket& ticket, WordClass which, SlotMask widened);
  void abort_slots(DescriptorId id, Key128 key, WordClass which, SlotMask mine);
  void publish_claimed(Ticket& ticket, const ClaimedUnit& claimed, PublishRun& run);
  template <class What>
  void for_each_block(Ticket& ticket, const ClaimedUnit& claimed, What&& what);
  void count_published(const PublishRun& run);
  Claim find_place(Key128 key, bool may_have_tips, DescriptorId& id);
  void publish_states(Ticket& ticket, std::int64_t upto, std::int64_t copied_upto);
  void publish_state(Ticket& ticket, int group, Ticket::State& state);
  DescriptorId publish_page(Ticket& ticket, int group, Key128 key, std::int64_t tokens, std::uint32_t rows,
                            PageId page);
  void slide(Ticket& ticket, std::int64_t upto);
  void slide_until(Ticket& ticket, int group, std::int64_t end, UnpinRun& run);
  void slide_out(Ticket& ticket, int group, std::int64_t block, UnpinRun& run);
  void let_go(Ticket& ticket, int group, Ticket::Block& block, bool quarantine, UnpinRun& run);
  void unpin(DescriptorId id, WordClass which, UnpinRun& run);
  void slide_lease(Ticket& ticket, std::int64_t upto);
  bool is_partial(const Ticket& ticket, const Lease::Held& held) const;
  std::int64_t needed_until(const Ticket& ticket, const Lease::Held& held) const;
  // close.cpp
  void let_history_go(Ticket& ticket);
  void slide_all(Ticket& ticket);
  void publish_end(Ticket& ticket, bool keep_tip);
  void publish_tip(Ticket& ticket);
  PageId* tip_page(Ticket& ticket, int group);
  void give_up_pages(Ticket& ticket, bool quarantine);
  void leave_fills(Ticket& ticket);
  // step.cpp
  StepStatus step_one(const StepArrays& step, std::int64_t i, std::int64_t& copied);
  bool advance_quietly(Ticket& ticket, const TokenView& tokens, std::int64_t from, std::int64_t computed);
  void advance_aloud(const StepArrays& step, Ticket& ticket, std::int64_t computed, std::int64_t& copied);
  StepStatus grow_one(const StepArrays& step, std::int64_t i, Ticket& ticket, std::int64_t grown);
  void give_back(Fill& fill, int group, Fill::Entry& entry, bool quarantine);
  void note_if_done(Fill& fill);
  // evict.cpp
  void check_room(Fill& fill, Described& described);
  void hold_ready(Fill& fill);
  void let_ready_go(Fill& fill, bool used);
  std::size_t take_some(int group, std::span<PageId> out);
  bool await_pages(int group, std::int64_t wanted) const;
  bool descriptors_can_go(std::int64_t wanted, std::vector<DescriptorId>& but);
  std::int64_t retire(const Victim& victim, int pool, bool& any, EvictionRun& run);
  void note_all_gone(Cause cause);
  void note_gone(Key128 key, int group, Cause cause) { store_.gone().note(key, group, cause, Gone::now()); }
  std::int64_t node_before(std::int64_t unit) const;
  void link(DescriptorId id, Key128 parent_key, DescriptorId parent);
  bool linked(DescriptorId id, Key128 parent_key) const;
  void link_unit(const Ticket& ticket, std::int64_t tokens, DescriptorId id);
  void link_entry(const Fill& fill, int group, const Fill::Entry& entry);
  void use_ready(Fill& fill, std::uint32_t tick);

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
  bool any_host_pool_ = false;
  std::int64_t resets_ = 0;
  std::unique_ptr<Atom<std::int64_t>[]> private_pages_;  // a group: held by fills outside any word
  std::unique_ptr<Atom<std::int64_t>[]>
      unowned_pages_;  // a group: of fills, and pinned by leases, without ticket
  std::unique_ptr<Atom<std::int64_t>[]> quarantined_pages_;  // a group: kept out of the pool until reset
  Atom<std::int64_t> live_leases_, live_fills_;
  AdmissionLedger admission_;
  TicketBook tickets_;
  std::vector<std::int64_t> graph_tokens_;  // a group: what the captured width of its table holds
  std::int64_t record_units_ = 0;           // distance of units at which some paged group records a block
  std::mutex choosing_;                     // held while victims are chosen
  std::unique_ptr<EvictionPolicy> policy_;
  Counters<eviction_class_count * 2 * Word::slots> evicted_;
  Counters<1> stranded_;
  Atom<std::uint32_t> looked_at_;  // where the search for descriptors that can go went on
  TierLink link_;
  FailedLoads failed_loads_;
  Atom<std::uint32_t> tier_closed_;  // it said so: what its index knows can no longer be had
  std::unique_ptr<Transfers> transfers_;
  EventReader events_{store_};
  Spares<Lease> spare_leases_;
  Spares<MatchScratch> spare_scratch_;
};

}  // namespace hkv
