// SPDX-License-Identifier: Apache-2.0
// What the bindings of cache, lease, fill and ticket share: the cache kept alive by whoever refers to it.
#pragma once
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <map>
#include <memory>
#include <vector>

#include "bindings/tier_box.h"
#include "cache/cache.h"

namespace hkv {

struct CacheBox {
  CacheBox(Layout layout, std::int64_t blocks, std::vector<Digest16> formats, EvictionOrder order,
           AdmissionLimits admission)
      : cache(std::move(layout), blocks, std::move(formats), order, admission) {}
  // Transfers end before the memory that they move goes, without the interpreter lock: a tier may need it to end them.
  // Behind a fork, or with a tier that was given up, nobody ends them: they are left as they are.
  ~CacheBox() {
    if (tier == nullptr) return;
    if (tier->is_here()) {
      without_gil([this] { cache.detach(); });
    } else {
      cache.abandon();
      for (auto& [group, owner] : pools) owner.release();  // NOLINT: leaked on purpose
    }
  }
  std::shared_ptr<TierBox> tier;
  std::map<int, pybind11::object> pools;  // what bound memory belongs to, a group
  HybridCache cache;
};

// A lease with what it needs to be read, settled and dropped.
struct LeaseBox {
  LeaseBox(std::shared_ptr<CacheBox> box, std::unique_ptr<Lease> lease)
      : box(std::move(box)), lease(std::move(lease)) {}
  // Whatever became of the handle, no pin outlives it.
  ~LeaseBox() {
    if (lease == nullptr) return;
    if (lease->settlement == Settlement::Open) box->cache.settle(*lease, Settlement::Withdrawn);
    box->cache.drop(std::move(lease));
  }
  LeaseBox(const LeaseBox&) = delete;
  LeaseBox& operator=(const LeaseBox&) = delete;
  Lease& open() const {
    if (lease == nullptr || lease->settlement != Settlement::Open) {
      throw Error(ErrorCode::LeaseExpired, "lease", "a lease not yet released, failed or cancelled",
                  "an expired one");
    }
    return *lease;
  }
  std::shared_ptr<CacheBox> box;
  std::unique_ptr<Lease> lease;
  bool taken = false;  // over by a fill, which settles it
};

struct FillBox {
  FillBox(std::shared_ptr<CacheBox> box, std::unique_ptr<Fill> fill)
      : box(std::move(box)), fill(std::move(fill)) {}
  // Private pages go back; pages that were never published may still be written: they stay out of the pools,
  // and the fill counts as a leak.
  ~FillBox() {
    if (!fill->done) box->cache.leak();
    box->cache.abort(*fill, !fill->done);
  }
  FillBox(const FillBox&) = delete;
  FillBox& operator=(const FillBox&) = delete;
  std::shared_ptr<CacheBox> box;
  std::unique_ptr<Fill> fill;
};

struct TicketBox {
  TicketBox(std::shared_ptr<CacheBox> box, std::shared_ptr<LeaseBox> lease, std::unique_ptr<Ticket> ticket)
      : box(std::move(box)), lease(std::move(lease)), ticket(std::move(ticket)) {}
  ~TicketBox() { lose(); }
  // Nobody closed it: counted, and closed. What it holds goes with lose(), once what was launched for it is over.
  void abandon() {
    if (ticket->closed) return;
    box->cache.leak();
    box->cache.close(*ticket);
  }
  // Pages of a ticket that nobody closed may still be written: they stay out of the pools.
  void lose() {
    abandon();
    if (!ticket->ended) end(false, true);
  }
  void end(bool keep_tip, bool quarantine) {
    box->cache.end(*ticket, keep_tip, quarantine);
    if (lease != nullptr && lease->lease != nullptr) box->cache.drop(std::move(lease->lease));
  }
  TicketBox(const TicketBox&) = delete;
  TicketBox& operator=(const TicketBox&) = delete;
  std::shared_ptr<CacheBox> box;
  std::shared_ptr<LeaseBox> lease;
  std::unique_ptr<Ticket> ticket;
};

// [True | False | int64 array] a group -> what it names.
std::vector<Selection> selections_from(const HybridCache& cache, const pybind11::list& groups);
std::vector<FormatId> formats_from(HybridCache& cache, const pybind11::object& formats);

// Pages by own block, none_u32 where none is held, and what Python asks about them.
pybind11::array_t<std::int32_t> page_array(const std::vector<std::uint32_t>& pages);
pybind11::array_t<std::uint64_t> handouts_of(HybridCache& cache, int group,
                                             const std::vector<std::uint32_t>& pages);
pybind11::array_t<std::uint64_t> addresses_of(HybridCache& cache, int group,
                                              const std::vector<std::uint32_t>& pages);

void bind_verdict(pybind11::module_& m);
void bind_lease(pybind11::module_& m);
void bind_fill(pybind11::module_& m);
void bind_ticket(pybind11::module_& m);
void bind_step(pybind11::module_& m);

}  // namespace hkv
