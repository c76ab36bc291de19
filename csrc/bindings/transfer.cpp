// SPDX-License-Identifier: Apache-2.0
// Offload and restore for Python. No logic; documentation is in hybridkv.transfers.
#include <pybind11/stl.h>

#include <optional>

#include "bindings/bindings.h"
#include "bindings/cache_box.h"
#include "bindings/without_gil.h"
#include "cache/transfers.h"

namespace py = pybind11;

namespace hkv {
namespace {

// A transfer and the cache that moves it.
struct TransferBox {
  std::shared_ptr<CacheBox> box;
  std::shared_ptr<Transfer> transfer;
};

void attach(CacheBox& box, const std::shared_ptr<TierBox>& tier, const py::bytes& block,
            const py::bytes& boundary, const py::bytes& identity, std::size_t staging_bytes) {
  TierLink link;
  link.tier = &tier->here();
  link.block_format = key_from("block_format", block);
  link.boundary_format = key_from("boundary_format", boundary);
  link.identity = key_from("identity", identity);
  link.staging_bytes = staging_bytes;
  box.tier = tier;
  box.cache.attach(link);
}

void change_identity(const CacheBox& box, const py::bytes& identity) {
  static_cast<void>(box.tier->here());
  box.cache.transfers().change_identity(key_from("identity", identity));
}

// Behind a fork the reports of the tier are the parent's: whoever comes here from the child is refused.
Transfers& transfers_of(const CacheBox& box) {
  static_cast<void>(box.tier->here());
  return box.cache.transfers();
}

TransferOptions options_from(double timeout_s, bool durable, bool pinned, bool prefetch) {
  TransferOptions options;
  options.timeout = std::chrono::nanoseconds(static_cast<std::int64_t>(timeout_s * 1e9));
  options.durable = durable;
  options.pinned = pinned;
  options.priority = prefetch ? Priority::Prefetch : Priority::Demand;
  return options;
}

TransferBox offload(const std::shared_ptr<CacheBox>& box, const std::shared_ptr<const KeyChain>& keys,
                    const std::vector<std::int64_t>& boundaries, double timeout_s, bool durable, bool pinned,
                    bool gated) {
  std::shared_ptr<Transfer> made;
  Transfers& transfers = transfers_of(*box);
  TransferOptions options = options_from(timeout_s, durable, pinned, false);
  options.gated = gated;
  without_gil([&] { made = transfers.offload(keys, boundaries, options); });
  return {box, made};
}

// A transfer for each publish of a cache that stores by itself.
TransferBox offload_new(const std::shared_ptr<CacheBox>& box, const std::shared_ptr<const KeyChain>& keys,
                        std::int64_t since, const std::vector<std::int64_t>& boundaries,
                        const std::vector<std::int64_t>& ends, double timeout_s) {
  std::shared_ptr<Transfer> made;
  Transfers& transfers = transfers_of(*box);
  without_gil([&] {
    made = transfers.offload_new(keys, since, boundaries, ends, options_from(timeout_s, false, false, false));
  });
  return {box, made};
}

TransferBox flush_transfers(const std::shared_ptr<CacheBox>& box, double timeout_s) {
  std::shared_ptr<Transfer> made;
  Transfers& transfers = transfers_of(*box);
  without_gil([&] { made = transfers.flush(options_from(timeout_s, false, false, false)); });
  return {box, made};
}

TransferBox restore(const std::shared_ptr<CacheBox>& box, const std::shared_ptr<const KeyChain>& keys,
                    std::int64_t tokens, const std::optional<TicketBox*>& ticket, double timeout_s,
                    bool prefetch) {
  std::shared_ptr<Transfer> made;
  Ticket* const right = ticket ? (*ticket)->ticket.get() : nullptr;
  Transfers& transfers = transfers_of(*box);
  without_gil([&] {
    made = transfers.restore(keys, tokens, options_from(timeout_s, false, false, prefetch), right);
  });
  return {box, made};
}

py::tuple state(const TransferBox& self) {
  const TransferState s = self.box->cache.transfers().state_of(*self.transfer);
  return py::make_tuple(s.finished, s.cancelled, s.tokens, s.records, s.settled, s.ok, s.bytes_total,
                        s.bytes_moved, s.elsewhere, static_cast<int>(s.status), static_cast<int>(s.damage),
                        s.failed_group, s.failed_block, s.left_out, s.device_error);
}

py::tuple outcome(const TransferBox& self) {
  const TransferOutcome o = self.box->cache.transfers().outcome_of(*self.transfer);
  return py::make_tuple(o.boundaries, o.missed, o.blocks, o.written.records, o.written.bytes,
                        o.written.failed);
}

// What the tier is told of the cache, and has of what is in memory.
void bind_copies(py::module_& m) {
  // Whether an offload of the prefix would store anything now.
  m.def(
      "is_unstored",
      [](const CacheBox& box, const KeyChain& keys, const std::vector<std::int64_t>& boundaries) {
        return transfers_of(box).is_unstored(keys, boundaries);
      },
      py::arg("cache"), py::arg("keys"), py::arg("boundaries"));
  m.def("change_identity", &change_identity, py::arg("cache"), py::arg("identity"));
  // How often a page was found to have no copy any more.
  m.def(
      "copies_lost", [](const CacheBox& box) { return transfers_of(box).copies().lost(); }, py::arg("cache"));
}

}  // namespace

void bind_transfer(py::module_& m) {
  py::class_<TransferBox>(m, "Transfer")
      .def("state", &state)
      .def("open",
           [](TransferBox& self) {
             Transfers& transfers = transfers_of(*self.box);
             without_gil([&] { transfers.open(*self.transfer); });
           })
      .def("outcome", &outcome)
      .def("cancel", [](TransferBox& self) {
        Transfers& transfers = transfers_of(*self.box);
        without_gil([&] { transfers.cancel(*self.transfer); });
      });
  m.def("attach_tier", &attach, py::arg("cache"), py::arg("tier"), py::arg("block_format"),
        py::arg("boundary_format"), py::arg("identity"), py::arg("staging_bytes"));
  m.def("offload", &offload, py::arg("cache"), py::arg("keys"), py::arg("boundaries"), py::arg("timeout_s"),
        py::arg("durable"), py::arg("pinned"), py::arg("gated") = false);
  m.def("offload_new", &offload_new, py::arg("cache"), py::arg("keys"), py::arg("since"),
        py::arg("boundaries"), py::arg("ends"), py::arg("timeout_s"));
  m.def("flush", &flush_transfers, py::arg("cache"), py::arg("timeout_s"));
  m.def("restore", &restore, py::arg("cache"), py::arg("keys"), py::arg("tokens"), py::arg("ticket"),
        py::arg("timeout_s"), py::arg("prefetch"));
  m.def(
      "restore_loads",
      [](const CacheBox& box, const KeyChain& keys, std::int64_t tokens) {
        return box.cache.transfers().loads(keys, tokens);
      },
      py::arg("cache"), py::arg("keys"), py::arg("tokens"));
  m.def(
      "restorable",
      [](CacheBox& box, const KeyChain& keys, std::int64_t limit) {
        return box.cache.restorable(keys, limit);
      },
      py::arg("cache"), py::arg("keys"), py::arg("limit"));
  // Each as (tokens, resume_tokens, [pages to load, by group]).
  m.def(
      "restore_options",
      [](CacheBox& box, const KeyChain& keys, std::int64_t limit) {
        py::list listed;
        for (const RestoreOption& option : box.cache.restore_options(keys, limit))
          listed.append(py::make_tuple(option.tokens, option.resume_tokens, option.pages));
        return listed;
      },
      py::arg("cache"), py::arg("keys"), py::arg("limit"));
  m.def(
      "ask_tier",
      [](const CacheBox& box, const KeyChain& keys, double timeout_s) {
        return transfers_of(box).ask(keys, options_from(timeout_s, false, false, true));
      },
      py::arg("cache"), py::arg("keys"), py::arg("timeout_s"));
  m.def(
      "poll_transfers",
      [](CacheBox& box) {
        std::int64_t settled = 0;
        Transfers& transfers = transfers_of(box);
        without_gil([&] { settled = transfers.poll(); });
        return settled;
      },
      py::arg("cache"));
  m.def(
      "wait_transfers",
      [](CacheBox& box, double seconds) {
        Transfers& transfers = transfers_of(box);
        without_gil(
            [&] { transfers.wait(std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9))); });
      },
      py::arg("cache"), py::arg("seconds"));
  bind_copies(m);
  m.def("live_transfers", [](const CacheBox& box) { return box.cache.transfers().live(); }, py::arg("cache"));
}

}  // namespace hkv
