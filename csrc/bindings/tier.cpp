// SPDX-License-Identifier: Apache-2.0
// Tiers for Python: one class for whatever tier there is, and a function that opens each kind. Python has checked the
// arguments (tiers/tier.py) and keeps the arrays of a batch alive until their release.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <cmath>
#include <optional>

#include "base/check.h"
#include "bindings/bindings.h"
#include "bindings/tier_box.h"
#include "bindings/without_gil.h"
#include "tier/memory_tier.h"

namespace py = pybind11;

namespace hkv {
namespace {

// So many seconds from now; none: never.
Deadline deadline_of(const std::optional<double>& seconds) {
  if (!seconds || !(*seconds < 1e9)) return Deadline::max();
  const double bounded = *seconds < -1e9 ? -1e9 : *seconds;
  return TierClock::now() + std::chrono::nanoseconds(static_cast<std::int64_t>(bounded * 1e9));
}

Key128 key_of(py::handle bytes) {
  const std::string_view view = py::reinterpret_borrow<py::bytes>(bytes);
  HKV_CHECK(view.size() == sizeof(Key128));  // Python made it
  Key128 key;
  view.copy(reinterpret_cast<char*>(&key), sizeof key);
  return key;
}

RecordKey record_key_of(py::handle given) {
  const auto t = py::reinterpret_borrow<py::tuple>(given);
  return {key_of(t[0]), key_of(t[1]), static_cast<RecordKind>(t[2].cast<int>())};
}

// The parts of all items of a batch, one after another.
class PartTable {
 public:
  explicit PartTable(const py::list& items, std::size_t parts_at) {
    for (const py::handle item : items) {
      const auto parts = py::reinterpret_borrow<py::tuple>(item)[parts_at].cast<py::list>();
      begins_.push_back(parts_.size());
      for (const py::handle part : parts) {
        const auto t = py::reinterpret_borrow<py::tuple>(part);
        const auto array = py::reinterpret_borrow<py::array>(t[0]);
        parts_.push_back({const_cast<void*>(array.data()),
                          static_cast<std::size_t>(array.nbytes()),
                          {t[1].cast<std::uint16_t>(), t[2].cast<std::uint16_t>(), t[3].cast<std::uint32_t>(),
                           t[4].cast<std::uint32_t>()}});
      }
    }
    begins_.push_back(parts_.size());
  }
  std::span<const Part> of(std::size_t item) const {
    return std::span(parts_).subspan(begins_[item], begins_[item + 1] - begins_[item]);
  }

 private:
  std::vector<Part> parts_;
  std::vector<std::size_t> begins_;
};

using Taken = std::pair<int, std::uint64_t>;  // status and batch

template <class Submit>
Taken submitted(Submit&& submit) {
  BatchId batch{};
  TierStatus status{};
  without_gil([&] { status = submit(batch); });
  return {static_cast<int>(status), static_cast<std::uint64_t>(batch)};
}

Taken get(const TierBox& box, const py::list& given, const std::optional<double>& seconds, int priority) {
  Tier& tier = box.here();
  const PartTable parts(given, 1);
  std::vector<GetItem> items;
  for (std::size_t i = 0; i < given.size(); ++i) {
    items.push_back({record_key_of(py::tuple(given[i])[0]), parts.of(i)});
  }
  const Deadline deadline = deadline_of(seconds);
  return submitted(
      [&](BatchId& batch) { return tier.get(items, deadline, static_cast<Priority>(priority), batch); });
}

// Items are (key, parts, parent, identity, tokens, flags, pinned, durable).
Taken put(const TierBox& box, const py::list& given, const std::optional<double>& seconds) {
  Tier& tier = box.here();
  const PartTable parts(given, 1);
  std::vector<PutItem> items;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const auto t = given[i].cast<py::tuple>();
    items.push_back({record_key_of(t[0]), key_of(t[2]), key_of(t[3]), t[4].cast<std::uint64_t>(), parts.of(i),
                     t[5].cast<std::uint8_t>(), t[6].cast<bool>(), t[7].cast<bool>()});
  }
  const Deadline deadline = deadline_of(seconds);
  return submitted([&](BatchId& batch) { return tier.put(items, deadline, batch); });
}

std::vector<RecordKey> record_keys_of(const py::list& given) {
  std::vector<RecordKey> keys;
  for (const py::handle key : given) keys.push_back(record_key_of(key));
  return keys;
}

Taken remove(const TierBox& box, const py::list& given, const std::optional<double>& seconds) {
  Tier& tier = box.here();
  const std::vector<RecordKey> keys = record_keys_of(given);
  const Deadline deadline = deadline_of(seconds);
  return submitted([&](BatchId& batch) { return tier.remove(keys, deadline, batch); });
}

Taken probe(const TierBox& box, const py::list& given, const std::optional<double>& seconds) {
  Tier& tier = box.here();
  const std::vector<RecordKey> keys = record_keys_of(given);
  const Deadline deadline = deadline_of(seconds);
  return submitted([&](BatchId& batch) { return tier.probe(keys, deadline, batch); });
}

Taken flush(const TierBox& box, const std::optional<double>& seconds) {
  Tier& tier = box.here();
  const Deadline deadline = deadline_of(seconds);
  return submitted([&](BatchId& batch) { return tier.flush(deadline, batch); });
}

// Python has looked where the memory lies, and keeps it.
int add_arena(const TierBox& box, std::uint64_t address, std::size_t bytes) {
  Tier& tier = box.here();
  TierStatus status{};
  without_gil([&] { status = tier.add_arena(reinterpret_cast<void*>(address), bytes); });
  return static_cast<int>(status);
}

int drop_arena(const TierBox& box, std::uint64_t address) {
  Tier& tier = box.here();
  TierStatus status{};
  without_gil([&] { status = tier.drop_arena(reinterpret_cast<void*>(address)); });
  return static_cast<int>(status);
}

// Reports as (batch, item, status, damage, released, late).
py::list poll(const TierBox& box, std::size_t most) {
  std::vector<Done> done(most);
  const std::size_t count = box.here().poll(done);
  py::list reports;
  for (const Done& each : std::span(done).first(count)) {
    reports.append(py::make_tuple(static_cast<std::uint64_t>(each.batch), each.item,
                                  static_cast<int>(each.status), static_cast<int>(each.damage), each.released,
                                  each.late));
  }
  return reports;
}

py::dict usage(const TierBox& box) {
  TierUsage u;
  Tier& tier = box.here();
  without_gil([&] { u = tier.usage(); });
  using py::literals::operator""_a;
  return py::dict("records"_a = u.records, "bytes"_a = u.bytes, "capacity_bytes"_a = u.capacity_bytes,
                  "queued"_a = u.queued, "running"_a = u.running, "quarantined"_a = u.quarantined,
                  "hits"_a = u.hits, "misses"_a = u.misses, "corrupt"_a = u.corrupt,
                  "mismatched"_a = u.mismatched, "timeouts"_a = u.timeouts, "puts"_a = u.puts,
                  "put_known"_a = u.put_known, "removed"_a = u.removed, "reclaimed"_a = u.reclaimed,
                  "refused"_a = u.refused, "io_errors"_a = u.io_errors, "breaker_opened"_a = u.breaker_opened,
                  "bytes_read"_a = u.bytes_read, "bytes_written"_a = u.bytes_written, "arenas"_a = u.arenas,
                  "arenas_fixed"_a = u.arenas_fixed, "fixed_requests"_a = u.fixed_requests,
                  "arena_reads"_a = u.arena_reads, "breaker_open"_a = u.breaker_open,
                  "read_only"_a = u.read_only);
}

TierLimits limits_of(std::size_t most_items, std::uint32_t breaker_after, double breaker_first,
                     double breaker_most) {
  TierLimits limits;
  limits.most_items = most_items;
  limits.breaker_after = breaker_after;
  limits.breaker_first = std::chrono::nanoseconds(static_cast<std::int64_t>(breaker_first * 1e9));
  limits.breaker_most = std::chrono::nanoseconds(static_cast<std::int64_t>(breaker_most * 1e9));
  return limits;
}

std::shared_ptr<TierBox> open_memory_tier(std::uint64_t capacity_bytes, bool threaded,
                                          const TierLimits& limits) {
  MemoryOptions options;
  options.capacity_bytes = capacity_bytes;
  options.threaded = threaded;
  options.limits = limits;
  return std::make_shared<TierBox>(std::make_unique<MemoryTier>(options));
}

std::shared_ptr<TierBox> open_adapter_tier(const py::object& engine, std::size_t threads,
                                           std::size_t most_bytes, bool durable, const TierLimits& limits) {
  auto tier = std::make_unique<AdapterTier>(engine, AdapterOptions{threads, most_bytes, durable, limits});
  AdapterTier* const adapter = tier.get();
  return std::make_shared<TierBox>(std::move(tier), adapter);
}

}  // namespace

void bind_tier(py::module_& m) {
  py::class_<TierLimits>(m, "TierLimits")
      .def(py::init(&limits_of), py::arg("most_items"), py::arg("breaker_after"), py::arg("breaker_first"),
           py::arg("breaker_most"));
  py::class_<TierBox, std::shared_ptr<TierBox>>(m, "Tier")
      .def("get", &get, py::arg("items"), py::arg("seconds"), py::arg("priority"))
      .def("put", &put, py::arg("items"), py::arg("seconds"))
      .def("remove", &remove, py::arg("keys"), py::arg("seconds"))
      .def("probe", &probe, py::arg("keys"), py::arg("seconds"))
      .def("flush", &flush, py::arg("seconds"))
      .def(
          "look",
          [](const TierBox& box, const py::tuple& key) {
            const Presence presence = box.here().look(record_key_of(key));
            return py::make_tuple(static_cast<int>(presence.answer), presence.flags);
          },
          py::arg("key"))
      .def(
          "touch", [](const TierBox& box, const py::tuple& key) { box.here().touch(record_key_of(key)); },
          py::arg("key"))
      .def(
          "cancel", [](const TierBox& box, std::uint64_t batch) { box.here().cancel(BatchId{batch}); },
          py::arg("batch"))
      .def("add_arena", &add_arena, py::arg("address"), py::arg("bytes"))
      .def("drop_arena", &drop_arena, py::arg("address"))
      .def("poll", &poll, py::arg("most"))
      .def(
          "wait",
          [](const TierBox& box, double seconds) {
            Tier& tier = box.here();
            const auto time = std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
            bool something = false;
            without_gil([&] { something = tier.wait(time); });
            return something;
          },
          py::arg("seconds"))
      .def(
          "drain",
          [](const TierBox& box, double seconds) {
            Tier& tier = box.here();
            bool all = false;
            without_gil([&] { all = tier.drain(deadline_of(seconds)); });
            return all;
          },
          py::arg("seconds"))
      .def(
          "close_by",
          [](const TierBox& box, double seconds) {
            Tier& tier = box.here();
            bool closed = false;
            without_gil([&] { closed = tier.close_by(deadline_of(seconds)); });
            return closed;
          },
          py::arg("seconds"))
      .def("here", [](const TierBox& box) { box.here(); })
      .def("abandon", &TierBox::abandon, py::arg("keep"))
      .def("usage", &usage)
      .def("caps",
           [](const TierBox& box) {
             const TierCaps caps = box.here().caps();
             return py::make_tuple(caps.durable, caps.index, caps.depth, caps.most_bytes);
           })
      .def_property_readonly("event_fd", [](const TierBox& box) { return box.here().event_fd(); });
  m.def("open_memory_tier", &open_memory_tier, py::arg("capacity_bytes"), py::arg("threaded"),
        py::arg("limits"));
  m.def("open_adapter_tier", &open_adapter_tier, py::arg("engine"), py::arg("threads"), py::arg("most_bytes"),
        py::arg("durable"), py::arg("limits"));
}

}  // namespace hkv
